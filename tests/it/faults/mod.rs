//! What is broken on purpose, a file a theme; after each, nothing is lost, nothing is out of order.

mod database;
mod death;
mod failover;
mod holds;
mod kafka;
mod late_commit;
mod lease;
mod memory;
mod parked;
mod pause;
mod pooler;
mod producer;
mod refused;
mod retention;
mod stop;
mod table;
