//! The doctor: asks PostgreSQL and Kafka what a relay would meet, and judges the answers.
//!
//! Facts are read by [`crate::outbox::doctor`] and [`crate::kafka::inspect`], and judged by pure functions here: a file for each
//! subject. [`database`] and [`kafka`] ask, one check after the other, and give none of them more than ten seconds. Nothing is
//! written, and no topic is created.

mod brokers;
pub mod check;
mod database;
mod kafka;
mod page;
mod relay;
pub mod report;
mod schema;
mod server;
mod topics;
mod vacuum;

use std::time::Duration;

use crate::config::Config;
use report::Report;

/// How long a check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Settings {
    /// The settings of the relay that is to run. Its lease may be too short.
    pub run: Config,
    /// Without brokers Kafka is not asked.
    pub has_brokers: bool,
    /// How many sessions the relay uses at once.
    pub connections: usize,
    /// Topics that are checked whether or not they are in use.
    pub topics: Vec<String>,
    /// Transactions and snapshots that are older are a problem.
    pub transaction_age_max: Duration,
}

/// Runs all checks.
pub async fn examine(settings: &Settings) -> Report {
    let relay = &settings.run.relay;
    let mut checks = vec![relay::lease(
        relay.lease,
        relay.batch_deadline,
        settings.run.lease_min(),
    )];
    let asked = tokio::join!(
        database::examine(settings),
        kafka::connect(settings),
        page::login(settings)
    );
    let (database, (cluster, brokers), login) = asked;
    checks.extend(database.diagnoses);
    checks.push(login);
    checks.extend(brokers);
    checks.extend(kafka::topics(settings, cluster, database.topics).await);
    Report::new(checks)
}
