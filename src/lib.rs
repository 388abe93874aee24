//! `outboxd` carries committed rows of a PostgreSQL outbox table to Kafka.
//!
//! The loop is [`relay`]: claim a batch, publish it, mark what was acknowledged. Around it:
//! [`lanes`] decides which keyed rows are ours, [`domain::floor`] where a claim starts to look, [`domain::retry`]
//! what becomes of a failed row, [`wakeup`] when to look at all, [`tasks::maintenance`] what is removed;
//! [`tasks::retry_holds`] tries again what is held back. [`outbox`] is the only module that speaks SQL, [`kafka`] the only one that
//! sends to Kafka, and they do not know each other. [`domain`] is pure.
//! [`verify`] compares afterwards what was committed with what a [`kafka::consumer`] finds.
//!
//! `ARCHITECTURE.md` is the map; read the modules in the order below.

pub mod domain;
pub mod tasks;

pub mod boottime;
pub mod clock;
pub mod jitter;
pub mod lanes;

pub mod kafka;
pub mod outbox;

pub mod health;
pub mod http;
pub mod metrics;

pub mod verify;

pub mod cli;
pub mod config;
pub mod daemon;
pub mod failpoint;
pub mod memory;
pub mod process;
