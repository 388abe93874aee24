//! Loops: each task is a struct with its settings and a `run` that ends at its shutdown signal.

pub mod fenced;
pub mod retry_holds;
