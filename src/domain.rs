//! Decides: what rows, floors, leases and refusals mean. Pure: no I/O, no client library, no clock that it was not given.

pub mod delivery;
pub mod floor;
pub mod partition;
pub mod retention;
pub mod row;
pub mod sample;
pub mod watermark;
