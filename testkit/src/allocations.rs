//! What a relay allocates, in Rust and in C, counted from outside.

use crate::preload::Preload;

pub struct Allocations {
    preload: Preload,
    count: tempfile::NamedTempFile,
}

impl Allocations {
    pub fn start() -> Self {
        let count = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(count.path(), 0u64.to_ne_bytes()).expect("a count");
        Allocations {
            preload: Preload::build("allocations.c"),
            count,
        }
    }

    /// The environment in which a relay is counted.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.preload.library()),
            ("ALLOCATIONS", self.count.path().display().to_string()),
        ]
    }

    /// Since it started.
    pub fn so_far(&self) -> u64 {
        let bytes = std::fs::read(self.count.path()).expect("a count");
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }
}
