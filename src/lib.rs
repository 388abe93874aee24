//! `outboxd` carries committed rows of a PostgreSQL outbox table to Kafka.
//!
//! A few tasks in each process repeat one loop: check lanes out, claim their pending rows, publish them, decide what became of
//! each row, and mark it. Other tasks renew the lease, retry what is held back, move the watermark, and remove what is old.
//!
//! Start here:
//!
//! - *Follow a row from claim to mark:* [`tasks::relay`] runs the loop, [`kafka`] publishes, [`domain::retry`] decides, and
//!   [`outbox`] claims and marks.
//! - *Change what becomes of a failed row, or when it is tried again:* the match in [`domain::retry`].
//! - *Add a command:* [`cli`].
//!
//! `ARCHITECTURE.md` has the bird's-eye view, each of these journeys file by file, and the invariants of every directory. The
//! modules are listed below in reading order. Imports point from the later ones to the earlier ones only.

// Decides. It is pure.
pub mod domain;

// Leaves: one small service each.
pub mod boottime;
pub mod clock;
pub mod credentials;
pub mod failpoint;
pub mod health;
pub mod http_server;
pub mod jitter;
pub mod memory;
pub mod metrics;
pub mod process;
pub mod tls;
pub mod words;

// Remembers what this process owns.
pub mod lanes;

// Speak to the servers: SQL is in one, the Kafka client in the other.
pub mod kafka;
pub mod outbox;

// Loops.
pub mod tasks;

// Compares what was committed with what arrived.
pub mod verify;

// Says what to do about what is stuck.
pub mod advice;

// Answers probes and scrapes.
pub mod http;

// Checks the settings.
pub mod config;

// The page for the person on call.
pub mod ui;

// Judges what a relay would meet.
pub mod doctor;

// Starts the tasks and stops them.
pub mod daemon;

// Parses the command line and runs a subcommand.
pub mod cli;

// Fails on an import that points up.
#[cfg(test)]
mod rooms;
