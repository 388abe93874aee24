//! `outboxd run`: start, run, stop in two phases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Failure;
use crate::config::{Config, RunArgs, pool_size};
use crate::health::Health;
use crate::http;
use crate::jitter::jittered;
use crate::lanes::{Lanes, keeper};
use crate::outbox::{self, Outbox, connect, migrate};
use crate::pace::Pace;
use crate::published::Published;
use crate::publisher::Publisher;
use crate::relay::{Company, MARK_MARGIN, Relay};
use crate::tasks::fenced::FencedWriter;
use crate::tasks::retry_holds::RetryHolds;
use crate::wakeup::Watch;
use crate::{horizon, janitor, metrics};

/// The longest a statement may take, however long the lease.
const PATIENCE_MAX: Duration = Duration::from_secs(25);

pub async fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = args.validate()?;
    let signals = Signals::listen().map_err(|error| Failure::Broken(error.to_string()))?;
    run_until(config, signals.stop.clone(), signals.now.clone()).await
}

/// Runs the daemon until `stop`, then drains; `now` cuts the drain short. Tests and the demo drive it from here.
pub async fn run_until(config: Config, stop: CancellationToken, now: CancellationToken) -> Result<(), Failure> {
    let recorder = metrics::install().map_err(Failure::Broken)?;
    let health = Arc::new(Health::default());
    let http_stop = CancellationToken::new();
    let listener = TcpListener::bind(config.http_listen)
        .await
        .map_err(|error| Failure::Unavailable(format!("cannot listen on {}: {error}", config.http_listen)))?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::Broken(error.to_string()))?;
    info!(version = env!("CARGO_PKG_VERSION"), http = %address, "outboxd starts");
    let server = tokio::spawn(http::serve(listener, health.clone(), recorder, http_stop.clone()));
    let done = tokio::select! {
        done = start_and_run(&config, &health, &stop, &now) => done,
        () = now.cancelled() => Err(Failure::Broken("stopped at once, by a second signal".to_owned())),
    };
    http_stop.cancel();
    // A scrape under way must not hold up the exit.
    let _ = tokio::time::timeout(Duration::from_millis(500), server).await;
    done
}

async fn start_and_run(
    config: &Config,
    health: &Arc<Health>,
    stop: &CancellationToken,
    now: &CancellationToken,
) -> Result<(), Failure> {
    let (outbox, lanes) = (Arc::new(open(config)?), Arc::new(Lanes::default()));
    let publisher = Publisher::new(&config.kafka, lanes.clock.clone())
        .map_err(|error| Failure::Broken(format!("Kafka client: {error}")))?;
    let relay = Arc::new(Relay {
        outbox: outbox.clone(),
        publisher,
        lanes: lanes.clone(),
        published: Arc::new(Published::default()),
        settings: config.relay.clone(),
        pace: Pace::new(config.relay.bytes_per_task()),
        watch: Watch::new(config.poll_interval_max),
        company: Company::default(),
        writer: FencedWriter { outbox, lanes },
    });
    tokio::select! {
        verified = verify(config, &relay.outbox) => verified?,
        () = stop.cancelled() => return Ok(()),
    }
    health.verified();
    let draining = CancellationToken::new();
    let keeper_stop = CancellationToken::new();
    let mut tasks = spawn(config, &relay, health, &draining);
    let mut keeper = spawn_keeper(config, &relay, health, &draining, &keeper_stop);
    let broken = tokio::select! {
        () = stop.cancelled() => None,
        // No task ends by itself: whichever does has panicked.
        ended = tasks.join_next() => Some(describe_end(ended)),
        ended = keeper.join_next() => Some(describe_end(ended)),
    };
    health.draining();
    info!(grace = ?config.shutdown_grace, "draining: finishing what is in flight");
    draining.cancel();
    relay.lanes.wake_all();
    let deadline = Instant::now() + config.shutdown_grace;
    finish(&mut tasks, deadline, now).await;
    mark_what_is_free(&relay).await;
    keeper_stop.cancel();
    leave(&relay, deadline).await;
    keeper.shutdown().await;
    info!("stopped");
    match broken {
        Some(why) => Err(Failure::Broken(why)),
        None => Ok(()),
    }
}

fn open(config: &Config) -> Result<Outbox, Failure> {
    // An answer that comes after the lease is of no use to anybody.
    let patience = config.lease.duration.min(PATIENCE_MAX);
    let pool = outbox::pool_of_worker(&config.database, pool_size(config), patience)?;
    let outbox = Outbox::new(pool, &config.schema, config.on_published, patience);
    Ok(outbox.with_messages_of(&config.schema, config.message_bytes_max))
}

/// Waits for a database that cannot be reached; gives up on one that is permanently wrong.
async fn verify(config: &Config, outbox: &Outbox) -> Result<(), Failure> {
    let mut failures = 0u32;
    loop {
        let verified = async {
            if config.migrate {
                let mut client = connect(&config.database).await?;
                migrate::apply(&mut client, &config.schema).await?;
            }
            outbox.verify().await
        };
        match verified.await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != outbox::Kind::Passing => return Err(error.into()),
            Err(error) => {
                failures += 1;
                warn!(%error, attempt = failures, "cannot reach the database yet; trying again");
                let wait = Duration::from_millis(200) * failures.min(25);
                tokio::time::sleep(jittered(wait)).await;
            }
        }
    }
}

fn spawn(config: &Config, relay: &Arc<Relay>, health: &Arc<Health>, draining: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..config.relay.tasks {
        let (r, h, d) = (relay.clone(), health.clone(), draining.clone());
        tasks.spawn(async move { r.work(&h, &d).await });
    }
    let (holds, d) = (retry_holds(relay), draining.clone());
    tasks.spawn(async move { holds.run(&d).await });
    let (r, d) = (relay.clone(), draining.clone());
    tasks.spawn(async move { r.mark_unmarked(&d).await });
    let (r, d) = (relay.clone(), draining.clone());
    tasks.spawn(async move { horizon::watch(&r.lanes, &r.outbox, &d).await });
    let (r, d) = (relay.clone(), draining.clone());
    tasks.spawn(async move { r.published.watch(&r.outbox, &d).await });
    let (r, d, settings) = (relay.clone(), draining.clone(), config.janitor);
    tasks.spawn(async move { janitor::sweep(&r.lanes, &r.outbox, settings, &d).await });
    tasks
}

fn retry_holds(relay: &Relay) -> RetryHolds {
    RetryHolds {
        outbox: relay.outbox.clone(),
        publisher: relay.publisher.clone(),
        lanes: relay.lanes.clone(),
        published: relay.published.clone(),
        writer: relay.writer.clone(),
        settings: relay.settings.clone(),
    }
}

/// Apart from the others: the lease is kept until they are done.
fn spawn_keeper(
    config: &Config,
    relay: &Arc<Relay>,
    health: &Arc<Health>,
    draining: &CancellationToken,
    stop: &CancellationToken,
) -> JoinSet<()> {
    let mut keeper = JoinSet::new();
    let (relay, health, lease) = (relay.clone(), health.clone(), config.lease.clone());
    let (draining, stop) = (draining.clone(), stop.clone());
    keeper.spawn(async move {
        let (lanes, outbox, published) = (&relay.lanes, &relay.outbox, &relay.published);
        keeper::keep(lanes, outbox, published, &health, &lease, &draining, &stop).await
    });
    keeper
}

/// The first phase of a stop: no new work, and what is held is finished, marks and all.
async fn finish(tasks: &mut JoinSet<()>, deadline: Instant, now: &CancellationToken) {
    let all_done = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = all_done => return,
        () = tokio::time::sleep_until(deadline.into()) => warn!("the grace period ended with batches in flight"),
        () = now.cancelled() => {}
    }
    tasks.shutdown().await;
}

/// Once more before the lanes go: what Kafka has and is not marked, a successor sends again. Nobody waits long for that.
async fn mark_what_is_free(relay: &Relay) {
    let _ = tokio::time::timeout(MARK_MARGIN, relay.mark_free()).await;
}

/// The second phase: the lanes are given back.
async fn leave(relay: &Relay, deadline: Instant) {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_secs(1));
    match tokio::time::timeout(left, keeper::leave(&relay.lanes, &relay.outbox)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "could not give the lanes back; they are taken over when the lease ends"),
        Err(_) => warn!("no time to give the lanes back; they are taken over when the lease ends"),
    }
}

fn describe_end(ended: Option<Result<(), tokio::task::JoinError>>) -> String {
    match ended {
        Some(Err(error)) if error.is_panic() => {
            format!("a worker task panicked ({error}); stopping, so that it is restarted whole. This is a bug")
        }
        _ => "a worker task ended by itself. This is a bug".to_owned(),
    }
}

/// The first SIGTERM or SIGINT drains, the second exits at once.
struct Signals {
    stop: CancellationToken,
    now: CancellationToken,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let signals = Signals {
            stop: CancellationToken::new(),
            now: CancellationToken::new(),
        };
        let (stop, now) = (signals.stop.clone(), signals.now.clone());
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            for token in [stop, now] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(signals)
    }
}
