//! An application that keeps writing while the test breaks things.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use crate::world::World;

/// Rows of one statement: three with a key, one without.
const STEP: &str = "INSERT INTO outbox.message (topic, key, payload)
    SELECT $1, CASE WHEN n < 3 THEN 'k' || ($2::bigint + n) % 100 END, jsonb_build_object('step', $2::bigint)
    FROM generate_series(0, 3) n";

/// Writes a few rows every few milliseconds, each statement a transaction, on a thread of its own: a test that
/// blocks does not hold it up. It connects again when the database was away.
pub struct BackgroundWrites {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundWrites {
    pub fn start(world: &World, topic: &str) -> Self {
        BackgroundWrites::writing(world, topic, STEP)
    }

    /// The same with a statement of the test's own, of the topic and the number of the step.
    pub fn writing(world: &World, topic: &str, sql: &str) -> Self {
        let stop = CancellationToken::new();
        let (stopped, url) = (stop.clone(), world.database_url.clone());
        let (topic, sql) = (topic.to_owned(), sql.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime
                .expect("a runtime")
                .block_on(write(&url, &topic, &sql, &stopped));
        });
        BackgroundWrites {
            stop,
            thread: Some(thread),
        }
    }

    /// Writes no more once this returns.
    pub fn stop(mut self) {
        self.stop.cancel();
        let thread = self.thread.take().expect("stopped once");
        thread.join().expect("the writer did not panic");
    }
}

impl Drop for BackgroundWrites {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn write(url: &str, topic: &str, sql: &str, stop: &CancellationToken) {
    let mut step = 0i64;
    while !stop.is_cancelled() {
        if let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await {
            let connection = tokio::spawn(connection);
            while !stop.is_cancelled() && insert(&client, sql, topic, step).await {
                step += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            drop(client);
            let _ = connection.await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// False: the connection is gone.
async fn insert(client: &Client, sql: &str, topic: &str, step: i64) -> bool {
    match client.execute(sql, &[&topic, &step]).await {
        Ok(_) => true,
        Err(error) => {
            let going_down = error.code().is_some_and(|code| code.code().starts_with("57P"));
            assert!(going_down || client.is_closed(), "{error}");
            false
        }
    }
}
