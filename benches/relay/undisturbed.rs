//! Runs that nobody disturbed, as far as they can be had. The host of a virtual machine may run others on its processors, for minutes
//! at a time, and a rate then tells about those. So a run begins when the machine gets its processors, and one that did not have
//! them all the while is repeated. Of all tries the one that lacked least counts, whatever it measured; the report says how much
//! those lacked.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::time::{Duration, Instant};

use testkit::CpuTicks;
use tokio::time::sleep;

use crate::Outcome;
use crate::machine::Fact;
use crate::rounds::Spread;

/// A run, or a probe, that lacked no more of the processor time it wanted is good enough.
const LACKING_MAX: f64 = 0.05;
const TRIES_MAX: usize = 3;
/// For so long all processors are asked for, to see whether they are there; and so long is waited where they are not, so often.
const PROBE: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_secs(5);
const WAITS_MAX: usize = 12;

pub struct Undisturbed {
    /// How long all waiting and repeating together may still take.
    extra_time: Cell<Duration>,
    lacking: RefCell<Vec<f64>>,
    repeated: Cell<usize>,
}

struct Try<T> {
    outcome: T,
    took: Duration,
    lacked: f64,
}

impl Undisturbed {
    pub fn new(extra_time: Duration) -> Self {
        Undisturbed {
            extra_time: Cell::new(extra_time),
            lacking: RefCell::default(),
            repeated: Cell::new(0),
        }
    }

    /// One run. What a try leaves behind is what another round would leave.
    pub async fn run<T>(&self, run: impl AsyncFn() -> Outcome<T>) -> Outcome<T> {
        let mut best = self.attempt(&run).await?;
        for _ in 1..TRIES_MAX {
            if best.lacked <= LACKING_MAX || self.extra_time.get().is_zero() {
                break;
            }
            self.repeated.set(self.repeated.get() + 1);
            let other = self.attempt(&run).await?;
            self.spend(other.took);
            if other.lacked < best.lacked {
                best = other;
            }
        }
        self.lacking.borrow_mut().push(best.lacked);
        Ok(best.outcome)
    }

    /// Two runs that are compared, one right after the other, and each first in every other round: the speed of a machine may change within
    /// half a minute by more than they differ. They are repeated together.
    pub async fn pair<T>(
        &self,
        round: usize,
        this: impl AsyncFn() -> Outcome<T>,
        that: impl AsyncFn() -> Outcome<T>,
    ) -> Outcome<(T, T)> {
        self.run(async || {
            if round.is_multiple_of(2) {
                let that = that().await?;
                return Ok((this().await?, that));
            }
            Ok((this().await?, that().await?))
        })
        .await
    }

    async fn attempt<T>(&self, run: &impl AsyncFn() -> Outcome<T>) -> Outcome<Try<T>> {
        self.wait().await;
        let (ticks, began) = (CpuTicks::so_far(), Instant::now());
        let outcome = run().await?;
        Ok(Try {
            outcome,
            took: began.elapsed(),
            lacked: 1.0 - ticks.share_got(),
        })
    }

    /// Until the processors are there.
    async fn wait(&self) {
        for _ in 0..WAITS_MAX {
            if self.extra_time.get().is_zero() || lacking_now() <= LACKING_MAX {
                return;
            }
            sleep(WAIT).await;
            self.spend(PROBE + WAIT);
        }
    }

    fn spend(&self, time: Duration) {
        self.extra_time.set(self.extra_time.get().saturating_sub(time));
    }

    /// For the report, of the runs since this was last asked. None: there was no such run.
    pub fn fact(&self, scenario: &str) -> Option<Fact> {
        let lacking = Spread::of(self.lacking.take().iter().map(|share| share * 100.0))?;
        let value = format!(
            "{:.0} % in the median run, {:.0} % at most; {} repetitions",
            lacking.median,
            lacking.max,
            self.repeated.take()
        );
        let name = format!("processor time withheld by the host, {scenario}");
        Some(Fact::new(name, value))
    }
}

fn lacking_now() -> f64 {
    let ticks = CpuTicks::so_far();
    let processors = std::thread::available_parallelism().map_or(1, |processors| processors.get());
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                let began = Instant::now();
                while began.elapsed() < PROBE {
                    black_box(began);
                }
            });
        }
    });
    1.0 - ticks.share_got()
}
