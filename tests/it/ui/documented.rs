//! The commands of docs/ui.md, as they are pasted.

use std::process::Command;

use super::*;

/// The blocks of shell commands on the page.
fn blocks() -> Vec<String> {
    let page = text_of("docs/ui.md");
    let blocks = page.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test]
async fn three_commands_make_a_page_that_changes_things() {
    let world = World::new().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let login = format!("{}_oncall", world.name);
    let [prepare, run, ..] = &blocks()[..] else {
        panic!("two blocks")
    };
    let url = world.database_url.replacen("postgres@", &format!("{login}:secret@"), 1);
    let prepare = prepare.replace("oncall", &login);
    let prepare = prepare.replace(&format!("postgres://{login}:secret@localhost:5432/app"), &url);
    let output = Command::new("bash")
        .args(["-euc", &prepare])
        .current_dir(folder.path())
        .env("ADMIN_URL", &world.database_url)
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{}", stderr_of(&output));
    let words = shell_words::split(&run.replace("\\\n", " ")).expect("words");
    let flags = words
        .iter()
        .skip_while(|word| *word != "--ui-listen")
        .map(|word| match word.as_str() {
            "127.0.0.1:9091" => "127.0.0.1:0".to_owned(),
            file @ ("ui-token" | "ui-database-url") => folder.path().join(file).display().to_string(),
            flag => flag.to_owned(),
        });
    let flags: Vec<String> = flags.collect();
    assert_eq!(flags.len(), 6, "{flags:?}");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let relay = world.relay().args(&flags).start_ready().await;
    let token = fs::read_to_string(folder.path().join("ui-token")).expect("a token");
    let visitor = Visitor::with_token(&relay.ui_address().expect("a page"), token.trim_end()).await;
    let question = visitor.get("/pauses/pause?scope=all").await;
    let done = visitor.submit(&question, &[("reason", "alice: a test")]).await;
    assert!(done.shown().contains(&login), "{}", done.shown());
}
