//! Secure connections: who each side is, what is said when that is not believed, and secrets that change while the relay runs.

mod kafka;
