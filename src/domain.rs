//! Decides: what rows, floors, leases and refusals mean. Pure: no I/O, no client library, no clock that it was not given.

pub mod batch_outcome;
pub mod decision;
pub mod hold;
pub mod retry;
