//! The pauses that this process obeys, and whether something is still being sent that obeys older ones.
//!
//! A pause is in effect here when nothing is being sent that began before this process knew of it. So every sender holds the
//! pauses that it obeys until it has sent, and [`ObeyedPauses::in_effect`] looks for older ones that are still held.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;

use crate::domain::pause::Pauses;

#[derive(Debug)]
pub struct ObeyedPauses {
    current: watch::Sender<Arc<Pauses>>,
    /// Those before, while something may still obey them.
    earlier: Mutex<Vec<Weak<Pauses>>>,
}

impl Default for ObeyedPauses {
    fn default() -> Self {
        ObeyedPauses {
            current: watch::channel(Arc::default()).0,
            earlier: Mutex::default(),
        }
    }
}

impl ObeyedPauses {
    /// The pauses to obey now. They are held until what obeys them has been sent.
    pub fn current(&self) -> Arc<Pauses> {
        self.current.borrow().clone()
    }

    /// The version of the current pauses.
    pub fn version(&self) -> i64 {
        self.current.borrow().version
    }

    /// Replaces the pauses. What is being sent continues to obey the old ones.
    pub fn replace(&self, pauses: Pauses) {
        // Complete in itself, and a panic elsewhere ends the process anyway.
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = self.current.send_replace(Arc::new(pauses));
        earlier.push(Arc::downgrade(&replaced));
    }

    /// The version that everything obeys which is being sent.
    pub fn in_effect(&self) -> i64 {
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        earlier.retain(|pauses| pauses.strong_count() > 0);
        let current = self.version();
        let oldest = earlier
            .iter()
            .filter_map(Weak::upgrade)
            .map(|pauses| pauses.version)
            .min();
        // A failover may have lost the last pauses. Their version is then higher than the current one.
        oldest.map_or(current, |oldest| oldest.min(current - 1))
    }

    /// Is anything being sent? Whatever pauses it obeys, it holds them.
    pub fn are_held(&self) -> bool {
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        earlier.retain(|pauses| pauses.strong_count() > 0);
        !earlier.is_empty() || Arc::strong_count(&self.current.borrow()) > 1
    }

    /// Resolves while not everything is paused.
    pub async fn lifted(&self) {
        let mut pauses = self.current.subscribe();
        // The sender lives as long as `self`.
        let _ = pauses.wait_for(|pauses| !pauses.cover_everything()).await;
    }
}

/// Sends something under these pauses. If that is cancelled, as when the grace period of a stop ends, some of it may still be on its
/// way, and no later pause is in effect in this process any more.
pub async fn obeying<T>(pauses: &Arc<Pauses>, send: impl Future<Output = T>) -> T {
    let held = ManuallyDrop::new(pauses.clone());
    let sent = send.await;
    drop(ManuallyDrop::into_inner(held));
    sent
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;
    use crate::domain::pause::Pause;

    fn version(version: i64) -> Pauses {
        Pauses::new(version, [])
    }

    #[test]
    fn a_version_is_in_effect_when_nothing_obeys_an_older_one() {
        let obeyed = ObeyedPauses::default();
        assert_eq!((obeyed.version(), obeyed.in_effect()), (0, 0));
        assert!(!obeyed.are_held());
        let (one, other) = (obeyed.current(), obeyed.current());
        assert!(obeyed.are_held());
        obeyed.replace(version(1));
        assert_eq!((obeyed.version(), obeyed.in_effect()), (1, 0));
        drop(one);
        let later = obeyed.current();
        assert_eq!((later.version, obeyed.in_effect()), (1, 0), "one is still being sent");
        obeyed.replace(version(3));
        assert_eq!(obeyed.in_effect(), 0);
        drop(other);
        assert_eq!(obeyed.in_effect(), 1, "the later one");
        assert!(obeyed.are_held());
        drop(later);
        assert_eq!((obeyed.in_effect(), obeyed.are_held()), (3, false));
    }

    #[test]
    fn versions_that_a_failover_lost_are_no_later_ones() {
        let obeyed = ObeyedPauses::default();
        obeyed.replace(version(7));
        let lost = obeyed.current();
        obeyed.replace(version(5));
        assert_eq!(obeyed.in_effect(), 4);
        drop(lost);
        assert_eq!(obeyed.in_effect(), 5);
    }

    #[tokio::test]
    async fn a_send_that_is_cancelled_may_be_on_its_way_for_ever() {
        let obeyed = ObeyedPauses::default();
        assert_eq!(obeying(&obeyed.current(), async { 7 }).await, 7);
        obeyed.replace(version(1));
        assert_eq!(obeyed.in_effect(), 1, "it was sent");
        let current = obeyed.current();
        let send = obeying(&current, pending::<()>());
        let cancelled = tokio::time::timeout(Duration::from_millis(1), send).await;
        assert!(cancelled.is_err());
        drop(current);
        obeyed.replace(version(2));
        assert_eq!(obeyed.in_effect(), 1);
    }

    #[tokio::test]
    async fn a_pause_of_everything_is_waited_for_until_it_ends() {
        let obeyed = ObeyedPauses::default();
        obeyed.lifted().await;
        let everything = Pause {
            topic: None,
            key: None,
            reason: "maintenance".to_owned(),
        };
        obeyed.replace(Pauses::new(1, [everything]));
        let mut waiting = std::pin::pin!(obeyed.lifted());
        let soon = tokio::time::timeout(Duration::from_millis(1), &mut waiting);
        assert!(soon.await.is_err());
        obeyed.replace(version(2));
        waiting.await;
    }
}
