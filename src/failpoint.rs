//! Named stops for tests: a process announces that it has arrived and waits to be let go, or killed.
//!
//! Compiled in only with the feature `failpoints`. `OUTBOXD_FAILPOINTS="name=/dir,other=/dir"` arms them; on arrival
//! the file `/dir/name.ready` appears, and the process waits until `/dir/name.continue` does. `name=panic` panics there.

/// Stop here if the test asks for it.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub async fn hit(_name: &str) {}

#[cfg(feature = "failpoints")]
pub async fn hit(name: &str) {
    let Ok(armed) = std::env::var("OUTBOXD_FAILPOINTS") else {
        return;
    };
    let dir = armed.split(',').find_map(|point| {
        let (armed_name, dir) = point.split_once('=')?;
        (armed_name == name).then(|| std::path::PathBuf::from(dir))
    });
    let Some(dir) = dir else { return };
    assert!(dir.as_os_str() != "panic", "a test asked for a panic at {name}");
    let go = dir.join(format!("{name}.continue"));
    if go.exists() {
        return;
    }
    tracing::warn!(name, "stopped at a failpoint");
    if let Err(error) = std::fs::write(dir.join(format!("{name}.ready")), b"") {
        tracing::error!(%error, name, "cannot announce the failpoint");
    }
    while !go.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
