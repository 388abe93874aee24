//! Marks that wait for company. Under a steady trickle every batch has a few rows, and a mark costs PostgreSQL more for itself, with its
//! commit, than for them: the mark of one batch takes those of the batch before along.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use crate::lanes::Record;

/// For so long nobody may come. The next look is due sooner, and if it finds nothing that ends the wait as well.
const WAIT_MOST: Duration = Duration::from_millis(15);

/// Published rows to be marked, the lanes they stand in, with their epochs, and the records of what was in flight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Marks {
    pub lanes: Vec<(i16, i64)>,
    pub ids: Vec<i64>,
    pub records: Vec<Record>,
}

impl Marks {
    pub fn extend(&mut self, more: &Marks) {
        self.lanes.extend(&more.lanes);
        self.ids.extend(&more.ids);
        self.records.extend(&more.records);
    }
}

/// Marks that wait for those of another batch.
#[derive(Debug)]
pub struct Waiting {
    worker: Uuid,
    pub marks: Marks,
    marked: oneshot::Sender<()>,
}

impl Waiting {
    /// Every one of them is written. Dropped without this, they are left to who waits.
    pub fn marked(self) {
        // Who waits is there until it is answered.
        let _ = self.marked.send(());
    }
}

/// The one batch whose marks wait, if any.
#[derive(Debug, Default)]
pub struct Company(Mutex<Option<Waiting>>);

impl Company {
    /// Waits until somebody has written these marks along with others. False: nobody has, they are the caller's.
    pub async fn wait(&self, worker: Uuid, marks: Marks) -> bool {
        let first = marks.ids.first().copied();
        let (marked, mut answer) = oneshot::channel();
        {
            let mut place = self.lock();
            if place.is_some() {
                return false;
            }
            *place = Some(Waiting { worker, marks, marked });
        }
        if let Ok(answer) = timeout(WAIT_MOST, &mut answer).await {
            return answer.is_ok();
        }
        self.lock()
            .take_if(|waiting| waiting.marks.ids.first().copied() == first);
        // Who has taken them along meanwhile answers, one way or the other.
        answer.await.is_ok()
    }

    /// Takes along what waits, if it is of the same term.
    pub fn take(&self, worker: Uuid) -> Option<Waiting> {
        self.lock().take_if(|waiting| waiting.worker == worker)
    }

    /// There is nobody to wait for.
    pub fn dismiss(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const WORKER: Uuid = Uuid::from_u128(1);

    fn marks(lane: i16, id: i64) -> Marks {
        Marks {
            lanes: vec![(lane, 1)],
            ids: vec![id],
            records: Vec::new(),
        }
    }

    /// Waits with marks of lane 1, and returns when they wait.
    async fn waiting(company: &Arc<Company>) -> tokio::task::JoinHandle<bool> {
        let waiting = tokio::spawn({
            let company = company.clone();
            async move { company.wait(WORKER, marks(1, 10)).await }
        });
        while company.lock().is_none() {
            tokio::task::yield_now().await;
        }
        waiting
    }

    #[tokio::test]
    async fn marks_that_wait_are_taken_along_once() {
        let company = Arc::new(Company::default());
        let waits = waiting(&company).await;
        let taken = company.take(WORKER).expect("somebody waits");
        assert!(company.take(WORKER).is_none(), "by one only");
        let mut both = marks(2, 20);
        both.extend(&taken.marks);
        assert_eq!((both.lanes, both.ids), (vec![(2, 1), (1, 1)], vec![20, 10]));
        taken.marked();
        assert!(waits.await.expect("no panic"));
    }

    #[tokio::test]
    async fn whose_marks_were_taken_along_in_vain_writes_them_itself() {
        let company = Arc::new(Company::default());
        let waits = waiting(&company).await;
        drop(company.take(WORKER).expect("somebody waits"));
        assert!(!waits.await.expect("no panic"));
    }

    #[tokio::test]
    async fn nobody_waits_for_long_nor_for_nobody() {
        let company = Arc::new(Company::default());
        assert!(!company.wait(WORKER, marks(1, 10)).await, "time passes");
        assert!(company.lock().is_none(), "and nobody takes them along any more");
        let waits = waiting(&company).await;
        company.dismiss();
        assert!(company.take(WORKER).is_none());
        assert!(!waits.await.expect("no panic"));
    }

    /// Else they would be marked twice, and counted by neither.
    #[tokio::test]
    async fn marks_on_their_way_are_waited_for_however_long_it_takes() {
        let company = Arc::new(Company::default());
        let waits = waiting(&company).await;
        let taken = company.take(WORKER).expect("somebody waits");
        tokio::time::sleep(3 * WAIT_MOST).await;
        assert!(!waits.is_finished());
        taken.marked();
        assert!(waits.await.expect("no panic"));
    }

    #[tokio::test]
    async fn one_batch_waits_at_a_time_and_only_for_its_own_term() {
        let company = Arc::new(Company::default());
        let waits = waiting(&company).await;
        assert!(
            !company.wait(WORKER, marks(2, 20)).await,
            "it goes, and may take the other along"
        );
        assert!(
            company.take(Uuid::from_u128(2)).is_none(),
            "another term's fence is not theirs"
        );
        company.take(WORKER).expect("it still waits").marked();
        assert!(waits.await.expect("no panic"));
    }
}
