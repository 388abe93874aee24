//! A secret in a file. It is read again whenever it is needed again.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use secrecy::SecretString;

use super::{SIZE_MAX, secret};

/// Reads the secret in the file that this flag names.
pub fn read(flag: &str, path: &Path) -> Result<SecretString, String> {
    let bytes = bytes(path).map_err(|error| format!("{flag} {} cannot be read: {error}", path.display()))?;
    secret(bytes).map_err(|problem| format!("{flag} {} holds {problem}", path.display()))
}

/// The content, up to one byte more than is allowed.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SIZE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_file_has_a_secret_or_a_problem_that_names_the_flag() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("secret");
        let read = || read("--some-file", &path);
        let missing = read().map(drop).expect_err("missing");
        assert!(
            missing.starts_with("--some-file") && missing.contains("cannot be read"),
            "{missing}"
        );
        std::fs::write(&path, "s3cret\n").expect("writable");
        assert_eq!(read().expect("readable").expose_secret(), "s3cret");
        std::fs::write(&path, "\n").expect("writable");
        let empty = read().map(drop).expect_err("empty");
        assert!(empty.ends_with("holds nothing"), "{empty}");
    }
}
