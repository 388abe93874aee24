//! A command that prints a secret. It is run without a shell, and what it prints is never logged.

use std::env;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use secrecy::SecretString;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::{SIZE_MAX, secret};

/// Longest run. A connection waits for it.
const RUN_MAX: Duration = Duration::from_secs(10);

/// A program and its arguments, which may be secrets themselves.
#[derive(Clone)]
pub struct CommandLine {
    flag: &'static str,
    program: String,
    arguments: Vec<String>,
}

impl fmt::Debug for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandLine")
            .field("flag", &self.flag)
            .finish_non_exhaustive()
    }
}

impl CommandLine {
    /// Splits the value of this flag into words as a shell would. Nothing is expanded or substituted.
    pub fn parse(flag: &'static str, text: &str) -> Result<Self, String> {
        let words = shell_words::split(text).map_err(|_| format!("{flag} has a quote that is not closed"))?;
        let mut words = words.into_iter();
        let program = words.next().filter(|program| !program.is_empty());
        let program = program.ok_or_else(|| format!("{flag} names no program"))?;
        Ok(CommandLine {
            flag,
            program,
            arguments: words.collect(),
        })
    }

    /// Runs it and returns what it prints. It is killed if that takes too long, or if nobody waits for it any more.
    pub async fn output(&self) -> Result<SecretString, String> {
        self.output_within(RUN_MAX).await
    }

    async fn output_within(&self, run_max: Duration) -> Result<SecretString, String> {
        let printed = tokio::time::timeout(run_max, self.run()).await;
        printed
            .unwrap_or_else(|_| Err(format!("did not end within {run_max:?}, and was killed")))
            .map_err(|problem| format!("{} {problem}", self.flag))
    }

    async fn run(&self) -> Result<SecretString, String> {
        let mut child = self.spawn().map_err(|error| format!("cannot be run: {error}"))?;
        let mut printed = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(SIZE_MAX as u64 + 1).read_to_end(&mut printed).await;
            read.map_err(|error| format!("cannot be read from: {error}"))?;
        }
        // A command that prints without end is not waited for.
        if printed.len() <= SIZE_MAX {
            let status = child.wait().await;
            check(status.map_err(|error| format!("cannot be waited for: {error}"))?)?;
        }
        secret(printed).map_err(|problem| format!("printed {problem}"))
    }

    /// The command sees neither the secrets in our own variables nor a terminal, and its error output is dropped, because it may
    /// quote a secret.
    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).kill_on_drop(true);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOXD_") || name == "PGPASSWORD" {
                command.env_remove(name);
            }
        }
        command.spawn()
    }
}

fn check(status: ExitStatus) -> Result<(), String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(format!("ended with status {code}")),
        (None, signal) => Err(format!("was ended by signal {}", signal.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn parse(text: &str) -> CommandLine {
        CommandLine::parse("--some-command", text).expect(text)
    }

    async fn output(text: &str) -> Result<String, String> {
        let output = parse(text).output().await;
        output.map(|secret| secret.expose_secret().to_owned())
    }

    #[tokio::test]
    async fn what_a_command_prints_is_the_secret() {
        assert_eq!(output("echo 's3 cret'").await.expect("runs"), "s3 cret");
        let folder = tempfile::tempdir().expect("a temporary directory");
        let touched = folder.path().join("touched");
        let command = format!("echo $(touch {0}) ; touch {0}", touched.display());
        let printed = output(&command).await.expect("runs");
        assert!(printed.starts_with("$(touch"), "{printed}");
        assert!(!touched.exists(), "there is no shell");
    }

    #[tokio::test]
    async fn why_a_command_has_no_secret_is_said_without_its_words() {
        for (command, problem) in [
            ("sh -c 'echo s3cret; exit 3'", "--some-command ended with status 3"),
            (
                "sh -c 'echo s3cret >&2; kill -9 $$'",
                "--some-command was ended by signal 9",
            ),
            ("true s3cret", "--some-command printed nothing"),
            ("head -c 1000000 /dev/zero", "--some-command printed more than 64 KiB"),
            ("yes s3cret", "--some-command printed more than 64 KiB"),
        ] {
            assert_eq!(output(command).await.expect_err(command), problem);
        }
        let missing = output("/nowhere/s3cret").await.expect_err("missing");
        assert!(missing.starts_with("--some-command cannot be run"), "{missing}");
        assert!(!missing.contains("s3cret"), "{missing}");
        assert!(!format!("{:?}", parse("echo s3cret")).contains("s3cret"));
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_killed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("pid");
        let hangs = parse(&format!("sh -c 'echo $$ > {}; exec sleep 60'", file.display()));
        let started = std::time::Instant::now();
        let error = hangs.output_within(Duration::from_secs(1)).await.expect_err("hangs");
        assert_eq!(error, "--some-command did not end within 1s, and was killed");
        let pid = std::fs::read_to_string(&file).expect("it has started");
        let process = std::path::PathBuf::from(format!("/proc/{}/cmdline", pid.trim()));
        // Killed at once, and reaped by the runtime a moment later.
        while std::fs::read(&process).is_ok_and(|words| !words.is_empty()) {
            assert!(started.elapsed() < Duration::from_secs(30), "it still runs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[test]
    fn a_command_line_names_a_program() {
        for text in ["", "  ", "''", "echo 's3cret"] {
            let problem = CommandLine::parse("--some-command", text).map(drop).expect_err(text);
            assert!(
                problem.starts_with("--some-command") && !problem.contains("s3cret"),
                "{problem}"
            );
        }
    }
}
