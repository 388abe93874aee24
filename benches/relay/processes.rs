//! Several processes on one outbox: who owns which lanes.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::process::Process;
use crate::workspace::Workspace;
use crate::{Deadline, Outcome};

const LANES: i64 = 64;

pub struct Processes {
    pub all: Vec<Process>,
}

impl Processes {
    /// So many, all ready, with lanes shared out evenly.
    pub async fn start(workspace: &Workspace, count: usize, flags: &[&str]) -> Outcome<Self> {
        let all = (0..count)
            .map(|_| Process::start(workspace, flags))
            .collect::<Outcome<Vec<_>>>()?;
        let processes = Processes { all };
        processes.even(workspace).await?;
        Ok(processes)
    }

    /// Waits until the processes that are left share all lanes, none with two more than another; answers how long it took.
    pub async fn even(&self, workspace: &Workspace) -> Outcome<Duration> {
        let began = Instant::now();
        let deadline = Deadline::new(Duration::from_secs(90));
        let owned = "SELECT count(*) FROM outbox.lane WHERE lane >= 0 AND owner IS NOT NULL GROUP BY owner";
        loop {
            let rows = workspace.db.query(owned, &[]).await?;
            let counts: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            if self.is_even(&counts) {
                return Ok(began.elapsed());
            }
            deadline.or(&format!("lanes to be even; they are owned as {counts:?}"))?;
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn is_even(&self, counts: &[i64]) -> bool {
        let (least, most) = (counts.iter().min(), counts.iter().max());
        counts.len() == self.all.len()
            && counts.iter().sum::<i64>() == LANES
            && least.zip(most).is_some_and(|(least, most)| most - least <= 1)
    }

    /// Kills one as a crash would.
    pub fn kill_one(&mut self) {
        drop(self.all.pop());
    }
}
