//! `outboxd` carries committed rows of a PostgreSQL outbox table to Kafka.
//!
//! The loop is [`relay`]: claim a batch, publish it, mark what was acknowledged. Around it:
//! [`lanes`] decides which keyed rows are ours, [`floor`] where a claim starts to look, [`domain::retry`]
//! what becomes of a failed row, [`wakeup`] when to look at all, [`janitor`] what is swept away;
//! [`tasks::retry_holds`] tries again what is held back. [`outbox`] is the only module that speaks SQL, [`publisher`] the only one that
//! sends to Kafka, and they do not know each other. [`message`] and [`domain`] are pure.
//! [`verify`] compares afterwards what was committed with what a [`consumer`] finds.
//!
//! `ARCHITECTURE.md` is the map; read the modules in the order below.

pub mod domain;
pub mod tasks;

pub mod message;

pub mod boottime;
pub mod clock;
pub mod floor;
pub mod identity;
pub mod jitter;
pub mod lanes;

pub mod horizon;
pub mod outbox;
pub mod publisher;
pub mod wakeup;

pub mod janitor;
pub mod pace;
pub mod published;
pub mod relay;

pub mod health;
pub mod http;
pub mod metrics;

pub mod consumer;
pub mod verify;

pub mod cli;
pub mod config;
pub mod failpoint;
pub mod memory;
