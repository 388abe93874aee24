//! The integration tests: real `outboxd` processes against a real PostgreSQL and a real Kafka. One module a topic.

mod support;

mod claims;
mod consumers;
mod cost;
mod examples;
mod faults;
mod idempotency;
mod life;
mod look;
mod order;
mod partitions;
mod purge;
mod record;
mod scaling;
mod schema;
mod settings;
mod verify;
mod watching;
