//! Before anything is measured. A broker that has just started spends ten times as much on a record as after the first few million,
//! when its code has been compiled: the first scenario would pay for the others.

use std::time::Duration;

use tokio::task::block_in_place;

use crate::backlog::Shape;
use crate::producer_alone::ProducerAlone;
use crate::progress::Progress;
use crate::workspace::Workspace;
use crate::{Bench, Outcome};

/// The broker is warm after so many rounds none of which was faster than those before by much.
const ROUNDS_ALIKE: usize = 3;
const MUCH: f64 = 0.95;

pub async fn broker(bench: &Bench) -> Outcome<()> {
    let size = &bench.size.warm_up;
    let progress = Progress::new("warming up the broker", size.rounds);
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let alone = ProducerAlone::new(&workspace, Shape::Keyed, size.rows).await?;
    let (mut fastest, mut alike) = (Duration::MAX, 0);
    for round in 1..=size.rounds {
        progress.step(&format!("round {round}"));
        let took = block_in_place(|| alone.send_all())?;
        alike = if took < fastest.mul_f64(MUCH) { 0 } else { alike + 1 };
        fastest = fastest.min(took);
        progress.done();
        if alike == ROUNDS_ALIKE {
            break;
        }
    }
    drop(alone);
    workspace.remove().await
}
