//! What outboxd survives: one module a kind of fault.

mod holds;
mod kafka;
mod memory;
mod parked;
mod producer;
mod refused;
mod retention;
