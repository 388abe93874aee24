//! Decides what rows, floors, leases and refusals mean. It is pure: it does no I/O, uses no client library, and is given the
//! time.

pub mod batch_outcome;
pub mod boot_instant;
pub mod checkout;
pub mod decision;
pub mod delivery;
pub mod fair_share;
pub mod filter;
pub mod floor;
pub mod hold;
pub mod id_ranges;
pub mod in_flight;
pub mod lease;
pub mod maybe_sent;
pub mod partition;
pub mod pause;
pub mod replay;
pub mod retention;
pub mod retry;
pub mod row;
pub mod sample;
pub mod scan_span;
pub mod watermark;
