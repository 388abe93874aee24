//! A throwaway PostgreSQL, from binaries found on this machine. Gone with the value that stands for it.

use std::fs::{DirBuilder, File};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outboxd::cli::Failure;
use outboxd::outbox::{Database, connect};

use crate::display::say;

const START_PATIENCE: Duration = Duration::from_secs(30);

const NOT_FOUND: &str = "no PostgreSQL server found on this machine (looked for initdb and postgres on PATH, with \
    pg_config, and where packages put them). Install it (Debian, Ubuntu: apt install postgresql; Fedora: dnf install \
    postgresql-server; macOS: brew install postgresql), or point --database-url at one";

/// Where the server's programs are, and as whom they must run.
struct Programs {
    bin: PathBuf,
    /// PostgreSQL refuses to run as root.
    run_as: Option<User>,
    home: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
}

/// A running server and its directory; both go when this is dropped.
pub struct Postgres {
    server: Option<Child>,
    programs: Programs,
    /// LeftBehind last: the server must be gone first.
    home: Home,
    port: u16,
}

impl Postgres {
    /// A server that accepts connections.
    pub async fn start() -> Result<Self, Failure> {
        let bin = find_binaries().ok_or_else(|| Failure::Unavailable(NOT_FOUND.to_owned()))?;
        let home = Home::new().map_err(|error| unavailable("cannot make a temporary directory", &error))?;
        let run_as = home.owner_for_server()?;
        let programs = Programs {
            bin,
            run_as,
            home: home.0.clone(),
        };
        let mut postgres = Postgres {
            server: None,
            programs,
            home,
            port: free_port().map_err(|error| unavailable("cannot find a free port", &error))?,
        };
        postgres.init()?;
        postgres.serve()?;
        postgres.wait_until_ready().await?;
        Ok(postgres)
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn home(&self) -> &Path {
        &self.home.0
    }

    fn data(&self) -> PathBuf {
        self.home.0.join("data")
    }

    /// Blocks, for a second or so, on purpose: an initdb killed half-way leaves children that still write.
    fn init(&self) -> Result<(), Failure> {
        let mut initdb = self.programs.command("initdb");
        initdb
            .args([
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
                "-D",
            ])
            .arg(self.data())
            .stderr(Stdio::piped());
        let done = initdb
            .output()
            .map_err(|error| unavailable("cannot run initdb", &error))?;
        if done.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        Err(Failure::Unavailable(format!("initdb failed: {}", said.trim())))
    }

    fn serve(&mut self) -> Result<(), Failure> {
        let log = File::create(self.log()).map_err(|error| unavailable("cannot write a log", &error))?;
        let mut server = self.programs.command("postgres");
        server.arg("-D").arg(self.data()).stderr(log);
        for setting in [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", self.port),
            format!("unix_socket_directories={}", self.home.0.display()),
            // Nobody will want these data after a power cut, and the demo shows the relay, not the disk.
            "fsync=off".to_owned(),
        ] {
            server.args(["-c", &setting]);
        }
        let server = server
            .spawn()
            .map_err(|error| unavailable("cannot start postgres", &error))?;
        self.server = Some(server);
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let database = Database::at(&self.url());
        let give_up = Instant::now() + START_PATIENCE;
        while connect(&database).await.is_err() {
            let ended = matches!(self.server.as_mut().map(Child::try_wait), Some(Ok(Some(_))));
            if ended || Instant::now() > give_up {
                let log = std::fs::read_to_string(self.log()).unwrap_or_default();
                return Err(Failure::Unavailable(format!(
                    "PostgreSQL did not start:\n{}",
                    log.trim()
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.home.0.join("log")
    }

    /// SIGQUIT to the postmaster through pg_ctl: a plain kill would orphan its children and its shared memory.
    fn stop(&self) -> bool {
        let mut stop = self.programs.command("pg_ctl");
        stop.args(["stop", "--mode=immediate", "--silent", "-D"])
            .arg(self.data());
        stop.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        if !self.stop() {
            // Already gone, or too young to have written its pid file.
            let _ = server.kill();
        }
        let _ = server.wait();
    }
}

impl Programs {
    /// In a process group of its own: Ctrl-C is for us, and we stop it in our order.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command
            .current_dir(&self.home)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(user) = self.run_as {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }
}

/// A private directory that is removed with everything in it.
struct Home(PathBuf);

impl Home {
    fn new() -> std::io::Result<Self> {
        let name = format!("outboxd-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Home(path))
    }

    /// The files we have just made belong to our own user; root hands them to one that PostgreSQL accepts.
    fn owner_for_server(&self) -> Result<Option<User>, Failure> {
        let failed = |error| unavailable("cannot prepare the temporary directory", &error);
        if std::fs::metadata(&self.0).map_err(failed)?.uid() != 0 {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = ["postgres", "nobody"].iter().find_map(|name| find_user(&passwd, name));
        let Some(user) = user else {
            return Err(Failure::Unavailable(
                "PostgreSQL does not run as root, and there is no user postgres or nobody; run the demo as another \
                 user, or point --database-url at a server"
                    .to_owned(),
            ));
        };
        chown(&self.0, Some(user.uid), Some(user.gid)).map_err(failed)?;
        Ok(Some(user))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            say(&format!("outboxd-demo: cannot remove {}: {error}", self.0.display()));
        }
    }
}

fn find_user(passwd: &str, name: &str) -> Option<User> {
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    // name:password:uid:gid:…
    let (uid, gid) = (fields.nth(1)?, fields.next()?);
    Some(User {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    })
}

fn find_binaries() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(asked_of_pg_config())
        .chain(packaged("/usr/lib/postgresql", ""))
        .chain(packaged("/usr", "pgsql-"))
        .chain([PathBuf::from("/usr/local/pgsql/bin")])
        .chain(packaged("/opt/homebrew/opt", "postgresql"))
        .chain(packaged("/usr/local/opt", "postgresql"))
        .find(|bin| bin.join("initdb").is_file() && bin.join("postgres").is_file())
}

fn asked_of_pg_config() -> Option<PathBuf> {
    let answer = Command::new("pg_config").arg("--bindir").output().ok()?;
    let bin = String::from_utf8(answer.stdout).ok()?;
    Some(PathBuf::from(bin.trim())).filter(|bin| bin.is_absolute())
}

/// The `bin` directories of versions installed side by side, newest first.
fn packaged(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| (version(&entry.file_name().to_string_lossy()), entry.path().join("bin")))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, bin)| bin).collect()
}

/// Compared as numbers: 9.6 is older than 15.
fn version(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn unavailable(what: &str, error: &std::io::Error) -> Failure {
    Failure::Unavailable(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgresql:x:9:9::/:\npostgres:x:101:104:,,,:/var/lib:/bin/sh\n";
        assert_eq!(find_user(passwd, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(find_user(passwd, "nobody"), None);
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(version("15") > version("9.6"));
        assert!(version("postgresql@17") > version("postgresql@16"));
    }
}
