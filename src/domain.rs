//! Decides: what rows, floors, leases and refusals mean. Pure: no I/O, no client library, no clock that it was not given.

pub mod retention;
pub mod sample;
pub mod floor;
pub mod watermark;
