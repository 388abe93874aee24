//! Loops: each task is a struct with its settings and a `run` that ends at its shutdown signal.

pub mod certificates;
pub mod fenced;
pub mod lease;
pub mod loss_check;
pub mod maintenance;
pub mod mark_locked;
pub mod relay;
mod report;
pub mod retry_holds;
pub mod watermark;

use tokio_util::sync::CancellationToken;

/// Tells the tasks to stop, in two phases.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Take no new work; finish what is under way.
    pub draining: CancellationToken,
    /// All other tasks have ended: the lease need not be kept any longer.
    pub stop: CancellationToken,
}
