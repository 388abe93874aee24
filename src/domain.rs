//! Decides what rows, floors, leases and refusals mean. It is pure: it does no I/O, uses no client library, and is given the
//! time.

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
