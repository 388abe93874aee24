//! Named stops for tests: a process announces that it has arrived and waits to be let go, or killed.
//!
//! Compiled in only with the feature `failpoints`; without it both functions are empty and nobody reads the variable.
//! `OUTBOXD_FAILPOINTS="name=/dir,other:7=/dir"` arms them: `name` stops whoever arrives, `other:7` the seventh
//! to arrive and nobody else. On arrival the file `/dir/name.ready` appears, and the process waits until `/dir/name.continue`
//! does. `name=panic` panics there.

#[cfg(feature = "failpoints")]
pub use armed::{hit, hit_blocking};

/// Stop here if the test asks for it.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_name: &str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// The same where nobody can await.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit_blocking(_name: &str) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::{LazyLock, Mutex, PoisonError};
    use std::time::Duration;

    const LOOK: Duration = Duration::from_millis(5);

    /// Points, numbered or not, and the folder of each.
    static ARMED: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let armed = std::env::var("OUTBOXD_FAILPOINTS").unwrap_or_default();
        let points = armed.split(',').filter_map(|point| point.split_once('='));
        points.map(|(name, dir)| (name.to_owned(), dir.to_owned())).collect()
    });

    static ARRIVALS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

    pub async fn hit(name: &str) {
        let Some(go) = arrive(name) else { return };
        while !go.exists() {
            tokio::time::sleep(LOOK).await;
        }
    }

    pub fn hit_blocking(name: &str) {
        let Some(go) = arrive(name) else { return };
        while !go.exists() {
            std::thread::sleep(LOOK);
        }
    }

    /// Announces the arrival where a test asked for a stop; answers the file to wait for.
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
