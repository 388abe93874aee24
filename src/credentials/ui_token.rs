//! The token by which people log in to the page.

use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use super::file;

pub const FLAG: &str = "--ui-token-file";

/// A shorter one could be guessed.
const BYTES_MIN: usize = 16;

/// Reads the token. It is read for each request, so that a new one needs no restart.
pub fn read(path: &Path) -> Result<SecretString, String> {
    let token = file::read(FLAG, path)?;
    if token.expose_secret().len() < BYTES_MIN {
        return Err(format!(
            "{FLAG} {} holds a token of fewer than {BYTES_MIN} bytes; write e.g. what `openssl rand -hex 32` prints",
            path.display()
        ));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_could_be_guessed_is_a_problem_that_does_not_repeat_it() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("token");
        std::fs::write(&path, "s3cret-of-15-by\n").expect("writable");
        let problem = read(&path).map(drop).expect_err("short");
        assert!(problem.starts_with(FLAG) && !problem.contains("s3cret"), "{problem}");
        std::fs::write(&path, "s3cret-of-16-byt\n").expect("writable");
        assert_eq!(read(&path).expect("long enough").expose_secret().len(), BYTES_MIN);
    }
}
