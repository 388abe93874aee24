//! In a terminal an operator is asked, with the count.

use std::io::Write;
use std::process::{Command, Stdio};

use super::*;

/// Runs a command in a terminal of its own, which is answered. Returns what the terminal showed.
fn in_a_terminal(world: &World, subcommand: &str, answer: &str) -> String {
    let command = world.command(subcommand);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_str().expect("text")).collect();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let shown = dir.path().join("shown");
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--flush", "--command"])
        .arg(shell_words::join(words))
        .arg(&shown)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("script runs");
    let mut keyboard = script.stdin.take().expect("a keyboard");
    writeln!(keyboard, "{answer}").expect("typed");
    let status = script.wait().expect("it ends");
    let shown = std::fs::read_to_string(&shown).expect("what was shown");
    assert!(status.success(), "{shown}");
    shown
}

#[tokio::test]
async fn the_operator_is_asked_with_the_count_and_only_yes_means_yes() {
    let world = World::new().await;
    fill_with_dead_letters(&world, "orders", 1_200, 10).await;
    for no in ["n", "", "yess"] {
        let shown = in_a_terminal(&world, "dead redrive", no);
        assert!(
            shown.contains("Send again 1,200 dead letters of 1 topic? [y/N]"),
            "{shown}"
        );
        assert!(shown.contains("1,200  orders"), "{shown}");
        assert!(shown.contains("Nothing was changed"), "{shown}");
        assert_eq!(world.ids_where("dead_at IS NOT NULL").await.len(), 1_200);
    }
    let shown = in_a_terminal(&world, "dead redrive", "y");
    assert!(shown.contains("Sent again 1,200 of 1,200 dead letters ("), "{shown}");
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [0i64; 0]);
}
