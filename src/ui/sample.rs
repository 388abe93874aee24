//! One look at the outbox for all who look at the page.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::rates::Counts;
use crate::outbox::status::{Activity, Status};
use crate::outbox::{Error, OnPublished, Outbox, Result};

/// For so long a sample is shown to everybody who asks.
const FRESH: Duration = Duration::from_secs(2);
/// A sample that takes long is shown for so many times as long, so that samples take a tenth of the time at most.
const REST: u32 = 10;
/// Longest wait for a sample.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows that are scanned for a count. It is as many as for the metrics.
const SCAN_MAX: i64 = 10_000;

/// Takes samples of the outbox.
pub struct Sampler {
    on_published: OnPublished,
    /// Held while a sample is taken, so others wait for that one.
    state: Mutex<State>,
    /// Rows that this process has published.
    own: StdMutex<Counts>,
}

#[derive(Default)]
struct State {
    look: Look,
    next: Option<Instant>,
}

/// What is known of the outbox.
#[derive(Clone, Default)]
pub struct Look {
    /// The last sample that could be taken.
    pub sample: Option<Arc<Sample>>,
    /// Why there is no newer one.
    pub error: Option<String>,
    /// Rows of all workers and applications, since somebody looks.
    pub written: Counts,
    pub published: Counts,
}

pub struct Sample {
    pub taken: SystemTime,
    pub status: Status,
}

impl Sampler {
    pub fn new(on_published: OnPublished) -> Self {
        Sampler {
            on_published,
            state: Mutex::default(),
            own: StdMutex::default(),
        }
    }

    /// Notes how many rows this process has published so far.
    pub fn note_published(&self, count: u64) {
        self.own().push(Instant::now(), count);
    }

    /// The rows that this process has published.
    pub fn own(&self) -> MutexGuard<'_, Counts> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest sample, or a new one if it is not fresh.
    pub async fn look(&self, outbox: &Outbox) -> Look {
        let mut state = self.state.lock().await;
        let began = Instant::now();
        if state.next.is_none_or(|next| began >= next) {
            let asked = timeout(SAMPLE_TIMEOUT, ask(outbox)).await;
            let asked = asked.unwrap_or(Err(Error::Timeout(SAMPLE_TIMEOUT)));
            let now = Instant::now();
            state.look.note(asked, self.on_published, now);
            state.next = Some(now + FRESH.max((now - began) * REST));
        }
        state.look.clone()
    }
}

async fn ask(outbox: &Outbox) -> Result<(Status, Activity)> {
    Ok((outbox.status(SCAN_MAX).await?, outbox.activity().await?))
}

impl Look {
    fn note(&mut self, asked: Result<(Status, Activity)>, on_published: OnPublished, now: Instant) {
        let (status, activity) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.error = Some(error.to_string());
                return;
            }
        };
        self.error = None;
        self.sample = Some(Arc::new(Sample {
            taken: SystemTime::now(),
            status,
        }));
        let published = match on_published {
            OnPublished::Keep => activity.updated,
            OnPublished::Archive | OnPublished::Delete => activity.deleted,
        };
        self.written.push(now, activity.inserted.unsigned_abs());
        self.published.push(now, published.unsigned_abs());
    }
}
