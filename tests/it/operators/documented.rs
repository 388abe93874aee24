//! The commands in the README and in docs/operations.md are commands of this binary, and none of them is SQL that changes anything.

use super::*;

/// The text of the fenced blocks of a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = text_of(page);
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

/// Each line that runs outboxd, up to what the shell does with it.
fn commands(page: &str) -> Vec<String> {
    let lines = blocks(page, "sh").join("\n").replace("\\\n", " ");
    let lines = lines.lines().map(str::trim).filter(|line| line.starts_with("outboxd "));
    let command = |line: &str| line.split([';', '|', '>']).next().unwrap_or_default().to_owned();
    lines.map(command).collect()
}

#[test]
fn each_command_in_the_pages_for_operators_is_one_of_this_binary() {
    for (page, at_least) in [
        ("README.md", 10),
        ("docs/operations.md", 15),
        ("docs/pause.md", 4),
        ("docs/replay.md", 4),
        ("docs/runbook.md", 40),
        ("docs/doctor.md", 3),
        ("docs/security.md", 2),
        ("docs/deploy.md", 4),
        ("docs/ui.md", 1),
    ] {
        let commands = commands(page);
        assert!(commands.len() >= at_least, "{page}: {commands:?}");
        for command in commands {
            // The shell takes what follows a hash for a comment.
            let line = command.split(" #").next().unwrap_or_default();
            let words = shell_words::split(line).expect("words");
            // Help is printed once the words before it are understood.
            let output = outboxd()
                .args(&words[1..])
                .arg("--help")
                .output()
                .expect("outboxd runs");
            assert!(output.status.success(), "{page}: {line}: {}", stderr_of(&output));
        }
    }
}

#[test]
fn the_operators_page_has_no_sql_to_paste_but_for_reading() {
    for statement in blocks("docs/operations.md", "sql").join("\n").split(';') {
        let code = statement.lines().filter(|line| !line.trim_start().starts_with("--"));
        let code = code.collect::<Vec<_>>().join(" ");
        let reads = code.trim().is_empty() || code.trim().starts_with("SELECT ");
        let functions = ["redrive", "discard", "release", "correct", "terminate"];
        assert!(
            reads && !functions.iter().any(|function| code.contains(function)),
            "{statement}"
        );
    }
}

#[test]
fn the_readme_shows_the_operators_five_commands() {
    let commands = commands("README.md");
    for command in ["dead list", "dead show", "dead redrive", "hold release", "audit"] {
        let shown = commands
            .iter()
            .any(|line| line.starts_with(&format!("outboxd {command}")));
        assert!(shown, "{command}: {commands:?}");
    }
}
