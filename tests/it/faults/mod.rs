//! What is broken on purpose, a file a theme; after each, nothing is lost, nothing is out of order.

mod database;
mod death;
mod late_commit;
mod lease;
mod pause;
mod stop;
