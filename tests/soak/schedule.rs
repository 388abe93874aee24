//! What is broken, and when: a function of the seed and of nothing else.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;

use crate::replicas::{LEASE, REPLICAS};
use crate::verdict::GRACE;

/// After every kind of fault has had its turn.
pub const QUIET_PERIOD: Duration = LEASE.saturating_add(GRACE);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Kill,
    Freeze,
    Hiccup,
    Restart,
    Disconnect,
    CrashPostgres,
    KillKafka,
    FreezeKafka,
    LockTable,
    IdleWriter,
    OldSnapshot,
    ShrinkTopic,
}

use Kind::*;

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kill => "kill -9 of a replica",
            Freeze => "replica stopped past its lease",
            Hiccup => "replica stopped for a moment",
            Restart => "rolling restart of a replica",
            Disconnect => "connections to PostgreSQL cut",
            CrashPostgres => "crash of PostgreSQL",
            KillKafka => "kill -9 of the broker",
            FreezeKafka => "broker stopped",
            LockTable => "table locked exclusively",
            IdleWriter => "writer idle in its transaction",
            OldSnapshot => "old snapshot pins the vacuum",
            ShrinkTopic => "topic takes smaller batches",
        }
    }

    /// How long it is kept up, in milliseconds; what comes back by itself afterwards takes its own time.
    fn lasts(self) -> Range<u64> {
        match self {
            Kill => 200..10_000,
            Freeze => 9_000..13_000,
            Hiccup => 200..4_000,
            Restart => 0..500,
            Disconnect => 0..1,
            CrashPostgres => 200..3_000,
            KillKafka => 200..2_000,
            FreezeKafka => 1_000..6_000,
            LockTable => 1_000..5_000,
            IdleWriter => 4_000..12_000,
            OldSnapshot => 10_000..30_000,
            ShrinkTopic => 2_000..6_000,
        }
    }

    /// What a comeback takes on a busy machine, so that the next fault is not due before.
    fn comeback(self) -> Duration {
        Duration::from_secs(match self {
            KillKafka => 8,
            CrashPostgres | Restart | Kill => 2,
            _ => 0,
        })
    }

    /// Somebody forgot a transaction: that lasts while other things break.
    pub fn is_in_the_background(self) -> bool {
        matches!(self, IdleWriter | OldSnapshot)
    }

    pub fn is_of_one_replica(self) -> bool {
        matches!(self, Kill | Freeze | Hiccup | Restart)
    }

    /// How many replicas may afterwards not know what became of the rows they had in flight.
    pub fn returns_maybe_sent(self) -> usize {
        match self {
            Kill | Freeze | Hiccup => 1,
            CrashPostgres | KillKafka | FreezeKafka | LockTable | ShrinkTopic => REPLICAS,
            Restart | Disconnect | IdleWriter | OldSnapshot => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Since the start. A fault that is due while another lasts waits for its turn.
    pub at: Duration,
    pub kind: Kind,
    /// Before it nothing is broken for as long as a recovery may take: by then everything must flow.
    pub after_quiet_period: bool,
    pub replica: usize,
    pub lasts: Duration,
}

pub struct Schedule {
    pub seed: u64,
    pub length: Duration,
    pub events: Vec<Event>,
}

impl Schedule {
    pub fn new(seed: u64, length: Duration) -> Self {
        let mut draw = fastrand::Rng::with_seed(seed);
        let mut deck = Vec::new();
        let mut events = Vec::new();
        let mut at = Duration::from_secs(3);
        loop {
            // From a deck, so that every kind has its turn even in a short run.
            let after_quiet_period = deck.is_empty() && !events.is_empty();
            if after_quiet_period {
                at += QUIET_PERIOD;
            }
            if deck.is_empty() {
                deck.extend(Kind::value_variants());
                draw.shuffle(&mut deck);
            }
            let Some(kind) = deck.pop() else { continue };
            let event = Event {
                at,
                kind,
                after_quiet_period,
                replica: draw.usize(..REPLICAS),
                lasts: Duration::from_millis(draw.u64(kind.lasts())),
            };
            if at + event.lasts > length {
                break;
            }
            events.push(event);
            if !kind.is_in_the_background() {
                at += event.lasts + kind.comeback();
            }
            at += Duration::from_millis(draw.u64(1_000..5_000));
        }
        Schedule { seed, length, events }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.length.as_secs_f64() / 60.0;
        writeln!(f, "seed {}, {minutes:.0} min, {} faults:", self.seed, self.events.len())?;
        self.events.iter().try_for_each(|event| writeln!(f, "  {event}"))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f64(), self.lasts.as_secs_f64());
        write!(f, "{at:7.1} s  {} for {lasts:.1} s", self.kind.name())?;
        if self.kind.is_of_one_replica() {
            write!(f, " (replica {})", self.replica)?;
        }
        Ok(())
    }
}
