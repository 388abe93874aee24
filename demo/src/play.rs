//! The course of events: two workers, orders, a death, and the wait until all is delivered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outboxd::cli::Failure;
use outboxd::outbox;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::DemoArgs;
use crate::display::Display;
use crate::ledger::Ledger;
use crate::stage::Stage;
use crate::workers::Workers;

const TICK: Duration = Duration::from_millis(200);
/// How long the workers may take to share the lanes before the first order.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// After the last commit: whatever has not come by then is missing.
const DELIVERY_PATIENCE: Duration = Duration::from_secs(60);

pub struct Play<'a> {
    args: &'a DemoArgs,
    display: &'a Display,
    client: &'a Client,
    schema: &'a str,
    workers: Workers,
    ledger: Arc<Mutex<Ledger>>,
    kill_due: bool,
    /// Who was killed and when, until its lanes have passed on.
    victim: Option<(String, Instant)>,
}

impl<'a> Play<'a> {
    pub fn new(args: &'a DemoArgs, display: &'a Arc<Display>, stage: &'a Stage, ledger: Arc<Mutex<Ledger>>) -> Self {
        Play {
            args,
            display,
            client: &stage.client,
            schema: &stage.schema,
            workers: Workers::new(stage.workers(display)),
            ledger,
            kill_due: !args.no_kill,
            victim: None,
        }
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Two workers that have shared the lanes: from here on each has work of its own.
    pub async fn start_workers(&mut self) -> Result<(), Failure> {
        let names = [self.workers.start()?, self.workers.start()?];
        let give_up = Instant::now() + START_PATIENCE;
        while self.owners().await?.len() < names.len() {
            self.workers.check()?;
            if Instant::now() > give_up {
                return Err(Failure::Broken(format!(
                    "the workers did not share the lanes within {START_PATIENCE:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.display
            .note(&format!("{} share the lanes. Orders come in.", names.join(" and ")));
        Ok(())
    }

    /// Until every order is written and every message delivered and marked, or patience ends.
    pub async fn run(&mut self, mut writers: JoinSet<outbox::Result<()>>) -> Result<(), Failure> {
        let mut last_commit = Instant::now();
        loop {
            tokio::time::sleep(TICK).await;
            while let Some(ended) = writers.try_join_next() {
                ended.map_err(|error| Failure::Broken(format!("a writer panicked: {error}")))??;
            }
            self.workers.check()?;
            self.show().await?;
            self.kill_halfway().await?;
            if !writers.is_empty() {
                last_commit = Instant::now();
            } else if last_commit.elapsed() > DELIVERY_PATIENCE || self.watermark().await? {
                return Ok(());
            }
        }
    }

    /// No worker is left that could send anything.
    pub async fn end(&mut self) {
        self.workers.kill_all().await;
    }

    async fn show(&mut self) -> Result<(), Failure> {
        let owners = self.owners().await?;
        let progress = self.ledger().progress();
        self.display
            .show(&progress, self.args.orders as usize, &self.describe(&owners));
        if let Some((victim, killed_at)) = self
            .victim
            .take_if(|(victim, _)| owners.iter().all(|(name, _)| name != victim))
        {
            let seconds = killed_at.elapsed().as_secs_f64();
            self.display.note(&format!(
                "The lanes of {victim} have passed on, {seconds:.1} s after its death."
            ));
        }
        Ok(())
    }

    fn describe(&self, owners: &[(String, i64)]) -> String {
        let is_dead = |name: &str| self.victim.as_ref().is_some_and(|(victim, _)| victim == name);
        let each = owners.iter().map(|(name, lanes)| {
            let dead = if is_dead(name) { " (dead)" } else { "" };
            format!("{name}{dead} {lanes}")
        });
        each.collect::<Vec<_>>().join(", ")
    }

    async fn kill_halfway(&mut self) -> Result<(), Failure> {
        if !self.kill_due || self.ledger().orders() < self.args.orders as usize / 2 {
            return Ok(());
        }
        self.kill_due = false;
        let now = Instant::now();
        self.ledger().killed(now);
        let victim = self.workers.kill_one().await?;
        let successor = self.workers.start()?;
        self.display.note(&format!(
            "kill -9 {victim}; {successor} starts. The lanes of the dead wait for its lease to end."
        ));
        self.victim = Some((victim, now));
        Ok(())
    }

    /// Nothing is under way any more: all has arrived and is marked, so nothing will be sent again.
    async fn watermark(&self) -> Result<bool, Failure> {
        let progress = self.ledger().progress();
        if progress.delivered < progress.committed {
            return Ok(false);
        }
        let unmarked = format!(
            "SELECT EXISTS (SELECT FROM {}.message WHERE published_at IS NULL)",
            self.schema
        );
        let row = self
            .client
            .query_one(&unmarked, &[])
            .await
            .map_err(outbox::Error::from)?;
        Ok(!row.get::<_, bool>(0))
    }

    /// Who owns how many lanes, the dead included until somebody takes over.
    async fn owners(&self) -> Result<Vec<(String, i64)>, Failure> {
        let schema = self.schema;
        let query = format!(
            "SELECT worker.name, count(*) FROM {schema}.lane JOIN {schema}.worker ON worker.id = lane.owner \
             GROUP BY worker.name ORDER BY worker.name"
        );
        let rows = self.client.query(&query, &[]).await.map_err(outbox::Error::from)?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}
