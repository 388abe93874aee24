//! What is broken on purpose, a file a theme; after each, nothing is lost, nothing is out of order.

mod blackhole;
mod bystanders;
mod clock;
mod connections;
mod database;
mod death;
mod disk;
mod growth;
mod holder;
mod holds;
mod kafka;
mod late_commit;
mod lease;
mod locks;
mod memory;
mod parked;
mod pause;
mod producer;
mod refused;
mod renewal;
mod retention;
mod slow;
mod standby;
mod stop;
mod table;
mod vacuum;
