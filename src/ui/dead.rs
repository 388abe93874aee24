//! Dead letters: listed, shown, sent again, corrected, removed.

pub mod change;
pub mod correct;
pub mod list;
pub mod message;
