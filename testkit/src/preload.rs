//! A small C library that, preloaded into a relay, changes what it is told or counts what it does.

use std::process::Command;

pub struct Preload {
    dir: tempfile::TempDir,
}

impl Preload {
    /// `source` is a file of the folder `preload` of this package.
    pub fn build(source: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = format!("{}/preload/{source}", env!("CARGO_MANIFEST_DIR"));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(dir.path().join("it.so"))
            .args([&source, "-ldl"])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "a C compiler");
        Preload { dir }
    }

    /// What goes into `LD_PRELOAD`.
    pub fn library(&self) -> String {
        self.dir.path().join("it.so").display().to_string()
    }
}
