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
use crate::http::{self, Health};
use crate::lanes::{Lanes, keeper};
use crate::outbox::{self, Outbox, connect, migrate};
use crate::publisher::Publisher;
use crate::relay::{Relay, drained};
use crate::{horizon, janitor, metrics, wakeup};

/// Longer than the server's own statement timeout, so that this one only fires for a dead connection.
const PATIENCE: Duration = Duration::from_secs(25);

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
    health: &Health,
    stop: &CancellationToken,
    now: &CancellationToken,
) -> Result<(), Failure> {
    let relay = Arc::new(Relay {
        outbox: Arc::new(open(config)?),
        publisher: Publisher::new(&config.kafka).map_err(|error| Failure::Broken(format!("Kafka client: {error}")))?,
        lanes: Arc::new(Lanes::default()),
        settings: config.relay.clone(),
    });
    tokio::select! {
        verified = verify(config, &relay.outbox) => verified?,
        () = stop.cancelled() => return Ok(()),
    }
    health.verified();
    let draining = CancellationToken::new();
    let keeper_stop = CancellationToken::new();
    let mut tasks = spawn(config, &relay, &draining, &keeper_stop);
    let broken = tokio::select! {
        () = stop.cancelled() => None,
        // No task ends by itself: whichever does has panicked.
        ended = tasks.join_next() => Some(describe_end(ended)),
    };
    health.draining();
    drain(config, &relay, &draining, &keeper_stop, &mut tasks, now).await;
    match broken {
        Some(why) => Err(Failure::Broken(why)),
        None => Ok(()),
    }
}

fn open(config: &Config) -> Result<Outbox, Failure> {
    let pool = outbox::pool(&config.database, pool_size(config)).map_err(Failure::Unavailable)?;
    Ok(Outbox::new(pool, &config.schema, config.on_published, PATIENCE))
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
                tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
            }
        }
    }
}

fn spawn(
    config: &Config,
    relay: &Arc<Relay>,
    draining: &CancellationToken,
    keeper_stop: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..config.relay.tasks {
        let (relay, draining) = (relay.clone(), draining.clone());
        tasks.spawn(async move { relay.work(&draining).await });
    }
    {
        let (relay, draining) = (relay.clone(), draining.clone());
        tasks.spawn(async move { relay.retry_holds(&draining).await });
    }
    {
        let (relay, draining, poll) = (relay.clone(), draining.clone(), config.poll_interval_max);
        tasks.spawn(async move { wakeup::watch(&relay.lanes, &relay.outbox, poll, &draining).await });
    }
    {
        let (relay, draining) = (relay.clone(), draining.clone());
        tasks.spawn(async move { horizon::watch(&relay.lanes, &relay.outbox, &draining).await });
    }
    {
        let (relay, draining, settings) = (relay.clone(), draining.clone(), config.janitor);
        tasks.spawn(async move { janitor::sweep(&relay.lanes, &relay.outbox, settings, &draining).await });
    }
    {
        let (relay, draining, stop, lease) = (
            relay.clone(),
            draining.clone(),
            keeper_stop.clone(),
            config.lease.clone(),
        );
        tasks.spawn(async move { keeper::keep(&relay.lanes, &relay.outbox, &lease, &draining, &stop).await });
    }
    tasks
}

/// Two phases: take no new work and finish what is held; then give the lanes back.
async fn drain(
    config: &Config,
    relay: &Relay,
    draining: &CancellationToken,
    keeper_stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
    now: &CancellationToken,
) {
    let deadline = Instant::now() + config.shutdown_grace;
    info!(grace = ?config.shutdown_grace, "draining: finishing what is in flight");
    draining.cancel();
    relay.lanes.wake_all();
    tokio::select! {
        _ = drained(&relay.lanes, deadline) => {}
        () = now.cancelled() => {}
    }
    keeper_stop.cancel();
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_secs(1));
    match tokio::time::timeout(left, keeper::leave(&relay.lanes, &relay.outbox, &config.lease)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "could not give the lanes back; they are taken over when the lease ends"),
        Err(_) => {
            warn!("the grace period ended before the lanes were given back; they are taken over when the lease ends")
        }
    }
    tasks.shutdown().await;
    info!("stopped");
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
