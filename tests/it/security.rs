//! Connections that prove who is at the other end: TLS, certificates, logins. Each case right, and wrong in each way.

mod certificates;
mod kafka;
mod postgres;
