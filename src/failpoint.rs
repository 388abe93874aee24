//! Named stops for tests: the process announces that it has arrived at a point, and waits there until a test lets it continue or
//! kills it.
//!
//! They are compiled in only with the feature `failpoints`, which no release is built with. Without it both functions are empty
//! and the variable is never read.
//!
//! `OUTBOXD_FAILPOINTS="name=/dir,other:7=/dir"` arms points. `name` stops every arrival, `other:7` only the seventh. On arrival
//! the process writes `/dir/name.ready` (`/dir/other:7.ready`) and waits until `/dir/name.continue` exists. `name=panic` panics
//! instead. A test waits for the arrival with `relay.at_failpoint(…)`, and then kills the process or lets it continue with
//! `relay.continue_from(…)`.
//!
//! | point | where the process is |
//! |---|---|
//! | `after_claim`, `after_claim_unordered` | A batch is claimed; nothing of it has been sent. |
//! | `before_produce` | A record is about to be handed to the Kafka client. |
//! | `delivery_report` | Kafka has answered for a record; the relay has not yet received the report. |
//! | `after_publish`, `after_publish_unordered` | All records of a batch are answered for; none is marked. |
//! | `after_head_sent` | The head of a hold has been sent; the hold is unchanged. |
//! | `before_hold_change` | A hold is about to be changed. |
//! | `after_hold_release` | A hold has been released; the floor in memory has not been lowered yet. |
//! | `before_renew` | The lease is about to be renewed. |
//! | `before_takeover` | The lease of another worker has expired; its lanes have not been taken yet. |
//! | `before_soft_claim` | Lanes are about to be claimed from above their floors. |
//! | `before_store_floors` | Floors have been read and are not stored yet. |
//! | `before_chunk` | An operator's command is about to change its next rows. |
//! | `before_loss_check` | The server is about to be asked whether it has lost published rows. |

#[cfg(feature = "failpoints")]
pub use armed::{hit, hit_blocking};

/// Stops here if a test has armed this point.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_name: &str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Stops here, too, from code that is not async. It blocks the thread.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit_blocking(_name: &str) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::{LazyLock, Mutex, PoisonError};
    use std::time::Duration;

    const CHECK_INTERVAL: Duration = Duration::from_millis(5);

    /// The armed points, with their numbers if they have one, and the folder of each.
    static ARMED: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let armed = std::env::var("OUTBOXD_FAILPOINTS").unwrap_or_default();
        let points = armed.split(',').filter_map(|point| point.split_once('='));
        points.map(|(name, dir)| (name.to_owned(), dir.to_owned())).collect()
    });

    static ARRIVALS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

    pub async fn hit(name: &str) {
        let Some(go) = arrive(name) else { return };
        while !go.exists() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    pub fn hit_blocking(name: &str) {
        let Some(go) = arrive(name) else { return };
        while !go.exists() {
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Announces the arrival if the point is armed, and returns the file to wait for.
    fn arrive(name: &str) -> Option<PathBuf> {
        if ARMED.is_empty() {
            return None;
        }
        let numbered = format!("{name}:{}", count(name));
        let (point, dir) = ARMED.iter().find(|(point, _)| point == name || *point == numbered)?;
        assert!(dir != "panic", "a test asked for a panic at {name}");
        let file = |end: &str| PathBuf::from(dir).join(format!("{point}.{end}"));
        let go = file("continue");
        if !go.exists() {
            tracing::warn!(name, "stopped at a failpoint");
            if let Err(error) = std::fs::write(file("ready"), b"") {
                tracing::error!(%error, name, "cannot announce the failpoint");
            }
        }
        Some(go)
    }

    fn count(name: &str) -> usize {
        let mut arrivals = ARRIVALS.lock().unwrap_or_else(PoisonError::into_inner);
        let arrival = arrivals.get_or_insert_default().entry(name.to_owned()).or_default();
        *arrival += 1;
        *arrival
    }
}
