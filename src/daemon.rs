//! Starts the tasks, and stops them in two phases. First no new work is taken, and what is in flight is finished. Then the lanes
//! are returned.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Config;
use crate::health::Health;
use crate::http;
use crate::jitter::jittered;
use crate::kafka::{Clients, Publisher};
use crate::lanes::{Lanes, RecentlyPublished};
use crate::metrics::{self, Scrape};
use crate::outbox::{self, Outbox, connect, schema};
use crate::tasks::Shutdown;
use crate::tasks::certificates::CertificatesTask;
use crate::tasks::fenced::FencedWriter;
use crate::tasks::lease::LeaseTask;
use crate::tasks::loss_check::LossCheck;
use crate::tasks::maintenance::MaintenanceTask;
use crate::tasks::mark_locked::MarkLocked;
use crate::tasks::relay::budget::BatchBudget;
use crate::tasks::relay::poll_schedule::PollSchedule;
use crate::tasks::relay::{MARK_MARGIN, Relay};
use crate::tasks::retry_holds::{self, RetryHolds};
use crate::tasks::watermark::WatermarkTask;
use crate::ui::{self, Page};

/// Longest time that a statement may take, however long the lease is.
const STATEMENT_TIMEOUT_MAX: Duration = Duration::from_secs(25);

/// Why the daemon could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Database(#[from] outbox::Error),
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Broken(String),
}

/// Runs the daemon until `stop`, then drains. `now` ends the process at once.
pub async fn run(config: Config, stop: CancellationToken, now: CancellationToken) -> Result<(), Error> {
    let scrape = metrics::install().map_err(Error::Broken)?;
    let health = Arc::new(Health::default());
    let servers_stop = CancellationToken::new();
    let (probes, http) = listen(config.listeners.http).await?;
    let page = listen_for_page(&config).await?;
    let ui = page.as_ref().map(|(_, address, _)| address.to_string());
    info!(version = env!("CARGO_PKG_VERSION"), %http, ui, "outboxd starts");
    let mut servers = JoinSet::new();
    servers.spawn(http::serve(
        probes,
        health.clone(),
        scrape.clone(),
        servers_stop.clone(),
    ));
    if let Some((listener, _, page)) = page {
        servers.spawn(ui::serve(listener, page, servers_stop.clone()));
    }
    let done = tokio::select! {
        done = start_and_run(&config, &health, &scrape, &stop, &now) => done,
        () = now.cancelled() => Err(Error::Broken("stopped at once, by a second signal".to_owned())),
    };
    servers_stop.cancel();
    // A scrape in progress must not delay the exit.
    let served = async { while servers.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_millis(500), served).await;
    done
}

/// Returns the address as well, for the case that the system has chosen the port.
async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| Error::Unavailable(format!("cannot listen on {address}: {error}")))?;
    let address = listener.local_addr();
    let address = address.map_err(|error| Error::Broken(error.to_string()))?;
    Ok((listener, address))
}

/// `None` if there is no page. It has connections of its own, and shows why others cannot be opened.
async fn listen_for_page(config: &Config) -> Result<Option<(TcpListener, SocketAddr, Page)>, Error> {
    let Some(settings) = &config.listeners.ui else {
        return Ok(None);
    };
    let page = Page::open(config, settings).await?;
    let (listener, address) = listen(settings.listen).await?;
    Ok(Some((listener, address, page)))
}

async fn start_and_run(
    config: &Config,
    health: &Arc<Health>,
    scrape: &Scrape,
    stop: &CancellationToken,
    now: &CancellationToken,
) -> Result<(), Error> {
    let (published, questions) = RecentlyPublished::new();
    let relay = tokio::select! {
        relay = start(config, health, scrape, published) => relay?,
        () = stop.cancelled() => return Ok(()),
    };
    health.verified();
    let shutdown = Shutdown::default();
    let lease = Arc::new(LeaseTask {
        lanes: relay.lanes.clone(),
        outbox: relay.outbox.clone(),
        published: relay.published.clone(),
        health: health.clone(),
        settings: config.lease.clone(),
    });
    let mark_locked = Arc::new(MarkLocked {
        outbox: relay.outbox.clone(),
        lanes: relay.lanes.clone(),
        lease: config.relay.lease,
    });
    let outbox = relay.outbox.clone();
    let mut loss_check = LossCheck { questions, outbox };
    let mut tasks = spawn(config, &relay, &mark_locked, &shutdown);
    let s = shutdown.clone();
    tasks.spawn(async move { loss_check.run(&s).await });
    // The lease task has a set of its own, because it keeps the lease until the others have ended.
    let mut lease_task = JoinSet::new();
    let (task, s) = (lease.clone(), shutdown.clone());
    lease_task.spawn(async move { task.run(&s).await });
    let broken = tokio::select! {
        () = stop.cancelled() => None,
        // No task ends by itself unless it has panicked.
        ended = tasks.join_next() => Some(describe_end(ended)),
        ended = lease_task.join_next() => Some(describe_end(ended)),
    };
    health.draining();
    info!(grace = ?config.shutdown_grace, "draining: finishing what is in flight");
    shutdown.draining.cancel();
    relay.lanes.notify_all();
    let deadline = Instant::now() + config.shutdown_grace;
    finish(&mut tasks, deadline, now).await;
    mark_unlocked_rows(&mark_locked).await;
    shutdown.stop.cancel();
    leave(&lease, deadline).await;
    lease_task.shutdown().await;
    info!("stopped");
    match broken {
        Some(why) => Err(Error::Broken(why)),
        None => Ok(()),
    }
}

/// Makes what the tasks share, and verifies the schema.
async fn start(
    config: &Config,
    health: &Arc<Health>,
    scrape: &Scrape,
    published: RecentlyPublished,
) -> Result<Arc<Relay>, Error> {
    let relay = Arc::new(relay(config, health, scrape, published).await?);
    verify(config, &relay.outbox).await?;
    Ok(relay)
}

async fn relay(
    config: &Config,
    health: &Arc<Health>,
    scrape: &Scrape,
    published: RecentlyPublished,
) -> Result<Relay, Error> {
    let (outbox, lanes) = (Arc::new(open(config).await?), Arc::new(Lanes::default()));
    let pool = outbox.clone();
    scrape.ask_before(move || metrics::connections(pool.connections()));
    let clients = Clients::new(config.kafka.clone());
    // Why there is no token is said by the task that goes on trying.
    let _ = clients.first_token().await;
    let publisher = Publisher::new(clients, lanes.clock.clone())
        .map_err(|error| Error::Broken(format!("Kafka client: {error}")))?;
    Ok(Relay {
        outbox: outbox.clone(),
        publisher,
        lanes: lanes.clone(),
        published: Arc::new(published),
        health: health.clone(),
        settings: config.relay.clone(),
        budget: BatchBudget::new(config.relay.bytes_per_task()),
        schedule: PollSchedule::new(config.poll_interval_max),
        writer: FencedWriter { outbox, lanes },
    })
}

/// How many connections the relay needs at once: one for each relay task, three for lease, watermark and maintenance, and those
/// that retry holds.
fn pool_size(config: &Config) -> usize {
    config.relay.tasks + 3 + retry_holds::CONNECTIONS
}

/// How many connections the daemon opens in all, if somebody looks at the page.
pub fn connections_max(config: &Config) -> usize {
    pool_size(config) + config.listeners.ui.as_ref().map_or(0, ui::connections)
}

async fn open(config: &Config) -> Result<Outbox, Error> {
    // An answer that comes after the lease has ended is useless.
    let timeout = config.lease.duration.min(STATEMENT_TIMEOUT_MAX);
    let pool = outbox::worker_pool(&config.database, pool_size(config), timeout).await?;
    Ok(Outbox::new(
        pool,
        &config.schema,
        config.on_published,
        config.message_bytes_max,
        timeout,
    ))
}

/// Verifies the schema. Waits while the database cannot be reached, and returns errors that will not pass.
async fn verify(config: &Config, outbox: &Outbox) -> Result<(), Error> {
    let mut failures = 0u32;
    loop {
        let verified = async {
            if config.migrate {
                let mut client = connect(&config.database).await?;
                schema::apply(&mut client, &config.schema).await?;
            }
            outbox.verify().await
        };
        match verified.await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != outbox::Kind::Transient => return Err(error.into()),
            Err(error) => {
                failures += 1;
                warn!(%error, attempt = failures, "cannot reach the database yet; trying again");
                let wait = Duration::from_millis(200) * failures.min(25);
                tokio::time::sleep(jittered(wait)).await;
            }
        }
    }
}

fn spawn(config: &Config, relay: &Arc<Relay>, mark_locked: &Arc<MarkLocked>, shutdown: &Shutdown) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..config.relay.tasks {
        let (relay, s) = (relay.clone(), shutdown.clone());
        tasks.spawn(async move { relay.run(&s).await });
    }
    let holds = RetryHolds {
        outbox: relay.outbox.clone(),
        publisher: relay.publisher.clone(),
        lanes: relay.lanes.clone(),
        published: relay.published.clone(),
        writer: relay.writer.clone(),
        settings: relay.settings.clone(),
    };
    let s = shutdown.clone();
    tasks.spawn(async move { holds.run(&s).await });
    let (mark_locked, s) = (mark_locked.clone(), shutdown.clone());
    tasks.spawn(async move { mark_locked.run(&s).await });
    let (lanes, outbox) = (relay.lanes.clone(), relay.outbox.clone());
    let (watermark, s) = (WatermarkTask { lanes, outbox }, shutdown.clone());
    tasks.spawn(async move { watermark.run(&s).await });
    let maintenance = MaintenanceTask {
        lanes: relay.lanes.clone(),
        outbox: relay.outbox.clone(),
        settings: config.maintenance,
    };
    let s = shutdown.clone();
    tasks.spawn(async move { maintenance.run(&s).await });
    let (publisher, s) = (relay.publisher.clone(), shutdown.clone());
    tasks.spawn(async move { publisher.follow_settings(&s.draining).await });
    let (outbox, publisher) = (relay.outbox.clone(), relay.publisher.clone());
    let (certificates, s) = (CertificatesTask { outbox, publisher }, shutdown.clone());
    tasks.spawn(async move { certificates.run(&s).await });
    tasks
}

/// The first phase of a stop: waits until the tasks have finished what is in flight, marks included.
async fn finish(tasks: &mut JoinSet<()>, deadline: Instant, now: &CancellationToken) {
    let all_done = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = all_done => return,
        () = tokio::time::sleep_until(deadline.into()) => warn!("the grace period ended with batches in flight"),
        () = now.cancelled() => {}
    }
    tasks.shutdown().await;
}

/// Marks locked rows once more before the lanes are returned, because a successor sends unmarked rows again. This takes a moment
/// at most.
async fn mark_unlocked_rows(mark_locked: &MarkLocked) {
    let _ = tokio::time::timeout(MARK_MARGIN, mark_locked.mark_unlocked()).await;
}

/// The second phase of a stop: returns the lanes.
async fn leave(lease: &LeaseTask, deadline: Instant) {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_secs(1));
    match tokio::time::timeout(left, lease.leave()).await {
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
