//! Runs that nobody disturbed, as far as they can be had. The host of a virtual machine may run others on its processors, for minutes
//! at a time, and a rate then tells about those. So a run begins when the machine gets its processors, and one that did not have
//! them all the while is repeated. Of all tries the one that lacked least counts, whatever it measured; the report says how much
//! those lacked.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::Outcome;
use crate::machine::Fact;
use crate::spread::Spread;
use crate::ticks::Ticks;

/// A run, or a look, that lacked no more of the processor time it wanted is good enough.
const LACKING_MOST: f64 = 0.05;
const TRIES_MOST: usize = 3;
/// For so long all processors are asked for, to see whether they are there; and so long is waited where they are not.
const LOOK: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_secs(5);

pub struct Quiet {
    /// How long all waiting and repeating together may still take.
    patience: Cell<Duration>,
    lacking: RefCell<Vec<f64>>,
    repeated: Cell<usize>,
}

impl Quiet {
    pub fn new(patience: Duration) -> Self {
        Quiet {
            patience: Cell::new(patience),
            lacking: RefCell::default(),
            repeated: Cell::new(0),
        }
    }

    /// One run. Its tries must not differ.
    pub async fn run<T>(&self, run: impl AsyncFn() -> Outcome<T>) -> Outcome<T> {
        let (mut best, mut lacked) = self.attempt(&run).await?;
        for _ in 1..TRIES_MOST {
            if lacked <= LACKING_MOST || self.patience.get().is_zero() {
                break;
            }
            let began = Instant::now();
            self.repeated.set(self.repeated.get() + 1);
            let (other, lacking) = self.attempt(&run).await?;
            if lacking < lacked {
                (best, lacked) = (other, lacking);
            }
            self.spend(began.elapsed());
        }
        self.lacking.borrow_mut().push(lacked);
        Ok(best)
    }

    async fn attempt<T>(&self, run: &impl AsyncFn() -> Outcome<T>) -> Outcome<(T, f64)> {
        self.wait().await;
        let ticks = Ticks::so_far();
        let outcome = run().await?;
        Ok((outcome, 1.0 - ticks.share_got()))
    }

    /// Until the processors are there.
    async fn wait(&self) {
        while !self.patience.get().is_zero() && lacking_now() > LACKING_MOST {
            sleep(WAIT).await;
            self.spend(LOOK + WAIT);
        }
    }

    fn spend(&self, time: Duration) {
        self.patience.set(self.patience.get().saturating_sub(time));
    }

    /// For the report.
    pub fn fact(&self) -> Fact {
        let repeated = match self.repeated.get() {
            1 => "1 run was".to_owned(),
            runs => format!("{runs} runs were"),
        };
        let lacking = Spread::of(self.lacking.borrow().iter().map(|share| share * 100.0));
        let value = lacking.map_or_else(String::new, |lacking| {
            format!(
                "{:.0} % in the median run, at most {:.0} %; {repeated} repeated for it",
                lacking.median, lacking.max
            )
        });
        Fact::new("processor time withheld by the host", value)
    }
}

fn lacking_now() -> f64 {
    let ticks = Ticks::so_far();
    let processors = std::thread::available_parallelism().map_or(1, |processors| processors.get());
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                let began = Instant::now();
                while began.elapsed() < LOOK {
                    black_box(began);
                }
            });
        }
    });
    1.0 - ticks.share_got()
}
