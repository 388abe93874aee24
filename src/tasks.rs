//! Loops: each task is a struct with its settings and a `run` that ends at its shutdown signal.
