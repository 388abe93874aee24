//! The faults, injected one after another as the schedule says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::alter_topic;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, sleep_until};

use crate::environment::Environment;
use crate::progress::Progress;
use crate::schedule::{Event, Kind, QUIET_PERIOD, Schedule};

/// A fault that has been.
#[derive(Clone, Copy, Debug)]
pub struct Injected {
    pub event: Event,
    /// Since the start.
    pub began: Duration,
    /// From its beginning until everything it broke answers again.
    pub took: Duration,
    /// Rows being published just before, by all replicas.
    pub in_flight: f64,
}

/// Plays the schedule to its end; answers what was injected, in order.
pub async fn play(
    schedule: &Schedule,
    environment: &Arc<Environment>,
    start: Instant,
    progress: &Progress,
) -> Vec<Injected> {
    let mut injected = Vec::new();
    let mut background = JoinSet::new();
    for event in schedule.events.iter().copied() {
        if event.after_quiet_period {
            sleep(QUIET_PERIOD).await;
        }
        sleep_until((start + event.at).into()).await;
        progress.fault(&event);
        if event.kind.is_in_the_background() {
            let environment = environment.clone();
            background.spawn(async move { timed(&environment, event, start, session(&environment, event)).await });
        } else {
            injected.push(inject(environment, event, start).await);
        }
    }
    injected.extend(background.join_all().await);
    injected.sort_by_key(|fault| fault.began);
    injected
}

async fn inject(environment: &Environment, event: Event, start: Instant) -> Injected {
    let fault = async {
        match event.kind {
            kind if kind.is_of_one_replica() => one_replica(environment, event).await,
            Kind::CrashPostgres | Kind::KillKafka | Kind::FreezeKafka => server(environment, event).await,
            Kind::ShrinkTopic => shrink(environment, event.lasts).await,
            _ => session(environment, event).await,
        }
    };
    timed(environment, event, start, fault).await
}

async fn timed(environment: &Environment, event: Event, start: Instant, fault: impl Future<Output = ()>) -> Injected {
    let in_flight = block_in_place(|| environment.replicas.iter().filter_map(|replica| replica.scrape()).sum());
    let began = Instant::now();
    fault.await;
    Injected {
        event,
        began: began - start,
        took: began.elapsed(),
        in_flight,
    }
}

async fn one_replica(environment: &Environment, event: Event) {
    let replica = &environment.replicas[event.replica];
    match event.kind {
        Kind::Kill => {
            block_in_place(|| replica.kill());
            sleep(event.lasts).await;
            replica.start_again().await;
        }
        Kind::Restart => {
            block_in_place(|| replica.stop());
            sleep(event.lasts).await;
            replica.start_again().await;
        }
        _ => {
            block_in_place(|| replica.pause());
            sleep(event.lasts).await;
            replica.resume();
        }
    }
}

async fn server(environment: &Environment, event: Event) {
    match event.kind {
        Kind::CrashPostgres => {
            block_in_place(|| environment.postgres.crash());
            sleep(event.lasts).await;
            block_in_place(|| environment.postgres.restart());
        }
        Kind::KillKafka => {
            block_in_place(|| environment.kafka.kill());
            sleep(event.lasts).await;
            block_in_place(|| environment.kafka.restart());
        }
        _ => {
            environment.kafka.pause();
            sleep(event.lasts).await;
            environment.kafka.resume();
        }
    }
}

/// Batches of several rows are refused, no row by itself is.
async fn shrink(environment: &Environment, lasts: Duration) {
    let (kafka, topic) = (&environment.kafka.address, &environment.topics.narrow);
    alter_topic(kafka, topic, "max.message.bytes", "3000").await;
    sleep(lasts).await;
    alter_topic(kafka, topic, "max.message.bytes", "1048588").await;
}

/// What a session of somebody else's does to us.
async fn session(environment: &Environment, event: Event) {
    let before = match event.kind {
        Kind::Disconnect => format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'",
            environment.relay_login
        ),
        Kind::LockTable => "BEGIN; LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE".to_owned(),
        Kind::IdleWriter => format!(
            "BEGIN; INSERT INTO outbox.message (topic, key, payload) VALUES ('{}', gen_random_uuid()::text, '{{}}')",
            environment.topics.orders
        ),
        _ => "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.lane".to_owned(),
    };
    let session = environment.session().await;
    // A crash of the server may end it before its time: then it is over, which is what matters.
    if session.batch_execute(&before).await.is_ok() {
        sleep(event.lasts).await;
        drop(session.batch_execute("COMMIT").await);
    }
}
