//! Dead letters: listed, shown, sent again, removed.

pub mod change;
pub mod list;
pub mod message;
