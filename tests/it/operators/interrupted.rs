//! A command that is killed or stopped in the middle, and run again.

use std::path::Path;
use std::process::{Child, Stdio};

use super::*;

/// More than two chunks.
const ROWS: usize = 2_500;

const THIRD_CHUNK: &str = "before_chunk:3";

/// A command that stops before its third chunk, which changed 2,000 rows by then.
async fn stopped_before_the_third_chunk(world: &World, command: &str, dir: &Path) -> Child {
    let child = world
        .command(command)
        .args(["--yes", "--json", "--log-level", "debug"])
        .env("OUTBOXD_FAILPOINTS", failpoint::armed(dir, THIRD_CHUNK))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(dir.join("log")).expect("a log file"))
        .spawn()
        .expect("outboxd starts");
    failpoint::reached(dir, THIRD_CHUNK).await;
    child
}

/// Lets it change the rest; returns what it said on stderr as well.
fn finished(child: Child, dir: &Path) -> (Output, String) {
    failpoint::continue_from(dir, THIRD_CHUNK);
    let output = child.wait_with_output().expect("it ends");
    let said = std::fs::read_to_string(dir.join("log")).expect("a log");
    (output, said)
}

async fn killed_and_run_again(command: &str, left: &str) {
    let world = World::new().await;
    fill_with_dead_letters(&world, "t", ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = stopped_before_the_third_chunk(&world, command, dir.path()).await;
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert_eq!(
        world.ids_where("dead_at IS NOT NULL").await.len(),
        500,
        "two transactions are whole"
    );
    let again = json_of(&world.outboxd(command, &["--yes", "--json"]));
    assert_eq!((&again["matched"], &again["changed"]), (&500.into(), &500.into()));
    assert_eq!(world.count(left).await, 0);
    // Each row was changed once, in the order of ids.
    let changed = "SELECT count(*) = 2500 AND count(DISTINCT row_id) = 2500
                   FROM outbox.audit a, unnest(a.ids) AS audited (row_id)";
    assert!(world.is_true(changed).await);
    let operations = "SELECT string_agg(changed::text, ',' ORDER BY operation)
                      FROM (SELECT operation, sum(changed) AS changed FROM outbox.audit GROUP BY operation) o";
    assert_eq!(world.text(operations).await, "2000,500");
}

#[tokio::test]
async fn a_redrive_that_is_killed_in_the_middle_is_run_again() {
    killed_and_run_again(
        "dead redrive",
        "SELECT count(*) FROM outbox.message WHERE requeued_by IS NULL",
    )
    .await;
}

#[tokio::test]
async fn a_discard_that_is_killed_in_the_middle_is_run_again() {
    killed_and_run_again("dead discard", "SELECT count(*) FROM outbox.message").await;
}

#[tokio::test]
async fn a_signal_stops_it_between_two_transactions_and_it_says_how_far_it_came() {
    let world = World::new().await;
    fill_with_dead_letters(&world, "t", ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let child = stopped_before_the_third_chunk(&world, "dead redrive", dir.path()).await;
    signal("INT", child.id().into());
    let log = dir.path().join("log");
    eventually(SOON, "the signal to be taken", async || {
        let log = std::fs::read_to_string(&log).ok()?;
        log.contains("told to stop").then_some(())
    })
    .await;
    let (output, said) = finished(child, dir.path());
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command again does the rest"), "{said}");
    let stopped: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&stopped["changed"], &stopped["matched"], &stopped["stopped"]),
        (&2_000.into(), &2_500.into(), &true.into())
    );
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await.len(), 500);
}

#[tokio::test]
async fn rows_that_somebody_else_changed_meanwhile_are_left_alone() {
    let world = World::new().await;
    fill_with_dead_letters(&world, "t", ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let child = stopped_before_the_third_chunk(&world, "dead redrive", dir.path()).await;
    world.execute("SELECT outbox.discard('{2400,2401}')").await;
    let (output, _) = finished(child, dir.path());
    let redriven = json_of(&output);
    assert_eq!(
        (&redriven["changed"], &redriven["matched"]),
        (&2_498.into(), &2_500.into())
    );
}

#[tokio::test]
async fn an_error_in_the_middle_says_how_far_it_came() {
    let world = World::new().await;
    fill_with_dead_letters(&world, "t", ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let child = stopped_before_the_third_chunk(&world, "dead redrive", dir.path()).await;
    let locked = "BEGIN; SELECT FROM outbox.message WHERE id = 2400 FOR UPDATE";
    world.execute(locked).await;
    let (output, said) = finished(child, dir.path());
    world.execute("COMMIT").await;
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("Sent again 2,000 of 2,500 dead letters as operation"),
        "{said}"
    );
    let again = json_of(&world.outboxd("dead redrive", &["--yes", "--json"]));
    assert_eq!(again["changed"], 500);
}
