//! `outboxd demo`: the whole thing at work, with nothing to set up, and a check that the promises hold.
//!
//! An [`application`] writes orders and their messages, two [`workers`] carry them, a [`consumer`] reads them, and the
//! [`ledger`] compares. Half-way one worker is killed. Everything started here is gone at the end, however it ends.

mod application;
mod broker;
mod consumer;
mod display;
mod ledger;
mod play;
mod postgres;
mod report;
mod stage;
mod workers;

use std::sync::{Arc, Mutex};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::Failure;
use consumer::Consumer;
use display::Display;
use ledger::{Ledger, Tally};
use play::Play;
use stage::{Leftovers, Stage};

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// How many orders the application takes; each writes one to three messages, one in ten is rolled back
    #[arg(long, default_value_t = 5_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    orders: u32,

    /// Orders per second
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,

    /// Do not kill a worker half-way
    #[arg(long)]
    no_kill: bool,

    /// Use this Kafka instead of a mock inside the process; a topic is created and deleted again
    #[arg(long, value_name = "BROKERS")]
    kafka: Option<String>,

    /// Use this PostgreSQL instead of a throwaway one; a schema is created and dropped again
    /// (the roles outbox_producer, outbox_relay and outbox_operator stay)
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

pub async fn demo(args: &DemoArgs) -> Result<(), Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::Broken(error.to_string()))?;
    let display = Arc::new(Display::new(args.orders as usize));
    let mut leftovers = Leftovers::default();
    let ended = tokio::select! {
        tally = perform(args, &display, &mut leftovers) => tally,
        interrupted = interruption.wait() => Err(interrupted),
    };
    match ended {
        Err(Failure::Interrupted) => display.freeze(),
        _ => display.clear(),
    }
    leftovers.remove().await;
    let tally = ended?;
    print!("{}", report::render(&tally));
    match tally.broken() {
        broken if broken.is_empty() => Ok(()),
        broken => Err(Failure::PromiseBroken(broken.join(", "))),
    }
}

/// Ctrl-C, SIGTERM, or the terminal is closed.
struct Interruption(JoinSet<()>);

impl Interruption {
    /// Listens from now on: a signal that comes before would leave things behind.
    fn listen() -> std::io::Result<Self> {
        let mut waiting = JoinSet::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let mut signal = signal(kind)?;
            waiting.spawn(async move {
                signal.recv().await;
            });
        }
        Ok(Interruption(waiting))
    }

    async fn wait(mut self) -> Failure {
        self.0.join_next().await;
        Failure::Interrupted
    }
}

async fn perform(args: &DemoArgs, display: &Arc<Display>, leftovers: &mut Leftovers) -> Result<Tally, Failure> {
    let stage = Stage::set(args, display, leftovers).await?;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let application = stage.application(args, &ledger);
    application.create_table(&stage.client).await?;
    let consumer = Consumer::start(&stage.broker, ledger.clone())?;
    let mut play = Play::new(args, display, &stage, ledger);
    play.start_workers().await?;
    let writers = application.start().await?;
    play.run(writers).await?;
    play.end().await;
    consumer.finish().await?;
    Ok(play.ledger().tally())
}
