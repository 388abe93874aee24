//! The password file of libpq: `host:port:database:user:password`, a login on each line, `*` for any.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::SecretString;
use tracing::warn;

/// The login whose password is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
}

/// The password of the first of these logins that the file has. As in libpq, a file that cannot be read has none.
pub fn read(path: &Path, logins: &[Login]) -> Option<SecretString> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            warn!(file = %path.display(), %error, "the password file cannot be read, so it gives no password");
            return None;
        }
    };
    warn_of_open_file(path);
    logins.iter().find_map(|login| find(&text, login))
}

/// libpq ignores such a file. Here it is used, because Kubernetes mounts secrets with these modes.
fn warn_of_open_file(path: &Path) {
    let mode = path.metadata().map_or(0, |file| file.permissions().mode());
    if mode & 0o007 != 0 {
        warn!(file = %path.display(), "every user of this machine may read the passwords in this file; give it mode 0600");
    }
}

/// The password in the first line that matches.
fn find(text: &str, login: &Login) -> Option<SecretString> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(fields).find_map(|fields| {
        let [host, port, database, user, password]: &[Field; 5] = fields.get(..5)?.try_into().ok()?;
        let matches = host.matches(&login.host)
            && port.matches(&login.port.to_string())
            && database.matches(&login.database)
            && user.matches(&login.user);
        (matches && !password.text.is_empty()).then(|| SecretString::from(password.text.as_str()))
    })
}

/// One field of a line.
#[derive(Default)]
struct Field {
    /// Without the backslashes that protect a colon or a backslash.
    text: String,
    is_escaped: bool,
}

impl Field {
    fn matches(&self, wanted: &str) -> bool {
        self.text == wanted || (self.text == "*" && !self.is_escaped)
    }
}

fn fields(line: &str) -> Vec<Field> {
    let mut fields = vec![Field::default()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let Some(field) = fields.last_mut() else { break };
        match character {
            ':' => fields.push(Field::default()),
            '\\' => {
                field.is_escaped = true;
                field.text.extend(characters.next());
            }
            _ => field.text.push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn login(host: &str, user: &str) -> Login {
        Login {
            host: host.to_owned(),
            port: 5432,
            database: "app".to_owned(),
            user: user.to_owned(),
        }
    }

    fn found(text: &str, login: &Login) -> Option<String> {
        find(text, login).map(|secret| secret.expose_secret().to_owned())
    }

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let text = "# db:5432:app:relay:comment\n\
                    \n\
                    too:short\n\
                    db:5433:app:relay:port\n\
                    db:5432:app:relay:exact\n\
                    *:*:*:relay:any\n";
        assert_eq!(found(text, &login("db", "relay")).as_deref(), Some("exact"));
        assert_eq!(found(text, &login("other", "relay")).as_deref(), Some("any"));
        assert_eq!(found(text, &login("db", "else")), None);
    }

    #[test]
    fn a_backslash_protects_colons_backslashes_and_the_asterisk() {
        let text = r"\:\:1:5432:app:a\\b:p\:w\\d:ignored";
        assert_eq!(found(text, &login("::1", r"a\b")).as_deref(), Some(r"p:w\d"));
        assert_eq!(found(r"\*:5432:app:u:secret", &login("db", "u")), None);
        assert_eq!(
            found(r"\*:5432:app:u:secret", &login("*", "u")).as_deref(),
            Some("secret")
        );
    }

    #[test]
    fn the_first_of_several_hosts_that_has_a_password_gives_it() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("pgpass");
        let logins = [login("a", "u"), login("b", "u")];
        assert!(read(&path, &logins).is_none(), "there is no file");
        fs::write(&path, "b:*:*:u:secret\r\n").expect("writable");
        let secret = read(&path, &logins).expect("a password");
        assert_eq!(secret.expose_secret(), "secret");
    }
}
