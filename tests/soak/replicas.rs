//! The replicas: real processes, killed and started again, each life of each with its figures.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use outboxd::config::RunArgs;
use outboxd::daemon;
use outboxd::http::ask;
use testkit::{Relay, RelayBuilder};

use crate::process_life::{Counters, ProcessLife};

pub const REPLICAS: usize = 4;

const TASKS: usize = 3;
/// Moderate, so that "at most the rows in flight" means something.
const BATCH_ROWS: usize = 500;

/// Shorter than the default, so that recovery from a lost replica is seen often; with a batch deadline that a busy machine keeps.
pub const LEASE: Duration = Duration::from_secs(8);
const BATCH_DEADLINE: &str = "3s";

/// The most rows a replica can have in flight: its batches, and the heads of holds it tries again.
pub const IN_FLIGHT_MAX: usize = TASKS * BATCH_ROWS + outboxd::tasks::retry_holds::IN_FLIGHT_MAX;

struct State {
    relay: Relay,
    lives: Vec<ProcessLife>,
}

pub struct Replica {
    number: usize,
    database_url: String,
    kafka: String,
    logs: PathBuf,
    state: Mutex<State>,
}

fn builder(database_url: &str, kafka: &str) -> RelayBuilder {
    let (tasks, rows, lease) = (
        TASKS.to_string(),
        BATCH_ROWS.to_string(),
        format!("{}s", LEASE.as_secs()),
    );
    RelayBuilder::new(database_url, kafka)
        .args(&["--tasks", &tasks, "--batch-rows", &rows])
        .args(&["--lease", &lease, "--batch-deadline", BATCH_DEADLINE])
        // A poison row is given up soon: its key waits for it.
        .args(&["--max-attempts", "2", "--retry-backoff-min", "500ms"])
}

/// The most connections a replica may have.
pub fn connections_max() -> usize {
    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }
    let tasks = TASKS.to_string();
    let args = [
        "",
        "--database-url",
        "postgres://h/d",
        "--kafka-brokers",
        "h:1",
        "--tasks",
        &tasks,
    ];
    let command = <Command as clap::Parser>::parse_from(args);
    daemon::connections_max(&command.run.validate().expect("valid settings"))
}

impl Replica {
    pub async fn start(number: usize, database_url: &str, kafka: &str, logs: &Path) -> Self {
        let relay = builder(database_url, kafka).start_ready().await;
        let lives = vec![ProcessLife::of(number, &relay)];
        Replica {
            number,
            database_url: database_url.to_owned(),
            kafka: kafka.to_owned(),
            logs: logs.to_owned(),
            state: Mutex::new(State { relay, lives }),
        }
    }

    /// Its next life.
    pub async fn start_again(&self) {
        let relay = builder(&self.database_url, &self.kafka).start_ready().await;
        let mut state = self.state();
        state.lives.push(ProcessLife::of(self.number, &relay));
        state.relay = relay;
    }

    pub fn kill(&self) {
        self.scrape();
        let mut state = self.state();
        state.life().told_to_end = true;
        state.relay.kill();
        self.keep_log(&state);
    }

    /// SIGTERM, and wait for its end; what it counts until then is still scraped.
    pub fn stop(&self) {
        {
            let mut state = self.state();
            state.life().told_to_end = true;
            state.relay.signal("TERM");
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.state().relay.ended().is_none() {
            assert!(Instant::now() < deadline, "replica {} does not stop", self.number);
            self.scrape();
            thread::sleep(Duration::from_millis(20));
        }
        let mut state = self.state();
        let status = state.relay.wait(Duration::ZERO);
        assert!(status.success(), "replica {} did not stop well: {status}", self.number);
        self.keep_log(&state);
    }

    pub fn pause(&self) {
        self.scrape();
        let mut state = self.state();
        state.life().paused = true;
        state.relay.signal("STOP");
    }

    pub fn resume(&self) {
        let mut state = self.state();
        state.relay.signal("CONT");
        state.life().paused = false;
    }

    /// Measures it from outside: memory, processor time, counters. Answers the rows it has in flight.
    pub fn scrape(&self) -> Option<f64> {
        let (life, address) = {
            let mut state = self.state();
            let count = state.lives.len();
            let life = state.life();
            if life.paused {
                return None;
            }
            (count, life.address.clone())
        };
        // Not under the lock: a fault that wakes it up must not wait for its answer.
        let answer = ask(&address, "/metrics", Duration::from_millis(500)).ok();
        let mut state = self.state();
        if state.lives.len() != life || state.life().paused {
            return None;
        }
        if !state.life().told_to_end
            && let Some(status) = state.relay.ended()
        {
            state.life().ended_by_itself = Some(status.to_string());
        }
        let answer = answer?;
        state.life().counters = Counters::in_answer(&answer)?;
        Relay::metric_in(&answer, "outboxd_in_flight_rows")
    }

    /// Notes memory and processor time.
    pub fn weigh(&self) {
        self.state().life().weigh();
    }

    pub fn lives(&self) -> Vec<ProcessLife> {
        self.state().lives.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The logs outlive the processes: they tell what went wrong.
    fn keep_log(&self, state: &State) {
        let name = format!("replica-{}-life-{}.log", self.number, state.lives.len());
        // A log that cannot be kept is no reason to end the soak.
        drop(fs::write(self.logs.join(name), state.relay.log()));
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.keep_log(&self.state());
    }
}

impl State {
    fn life(&mut self) -> &mut ProcessLife {
        self.lives.last_mut().expect("it has been started")
    }
}
