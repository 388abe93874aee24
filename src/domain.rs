//! Decides: what rows, floors, leases and refusals mean. Pure: no I/O, no client library, no clock that it was not given.

pub mod batch_outcome;
pub mod decision;
pub mod delivery;
pub mod fair_share;
pub mod floor;
pub mod hold;
pub mod id_ranges;
pub mod partition;
pub mod retention;
pub mod retry;
pub mod row;
pub mod sample;
pub mod scan_span;
pub mod watermark;
