//! A small disk of a test's own, to be filled. Needs root.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// A file system in memory; gone when dropped, so a server that lives on it must be dropped first.
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn of_megabytes(size: usize) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}m,mode=1777"), "tmpfs"])
            .arg(dir.path())
            .status();
        assert!(mounted.is_ok_and(|status| status.success()), "mounting needs root");
        SmallDisk { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Leaves no byte.
    pub fn fill(&self) {
        let mut ballast = File::create(self.path().join("ballast")).expect("a file");
        while ballast.write_all(&[0; 4096]).is_ok() {}
    }

    /// Frees what [`SmallDisk::fill`] took.
    pub fn free(&self) {
        fs::remove_file(self.path().join("ballast")).expect("a full disk");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}
