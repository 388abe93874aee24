//! How the schema is applied, and verified at the start.

use std::process::Stdio;

use testkit::*;

#[tokio::test]
async fn migrations_started_together_do_not_collide() {
    let world = World::empty().await;
    let started: Vec<_> = (0..6)
        .map(|_| {
            outboxd()
                .args(["migrate", "--database-url", &world.database_url])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("starts")
        })
        .collect();
    let mut applied = 0;
    for process in started {
        let output = process.wait_with_output().expect("ends");
        assert!(output.status.success(), "{}", stderr_of(&output));
        applied += usize::from(String::from_utf8_lossy(&output.stdout).contains("Applied V1"));
    }
    assert_eq!(applied, 1, "the others find it up to date");
    assert_eq!(world.count("SELECT count(*) FROM outbox.lane").await, 65);
}

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// A database as an older release left it.
async fn at_version(version: i32) -> World {
    let world = World::empty().await;
    world.execute("CREATE SCHEMA outbox").await;
    let mut runner = embedded::migrations::runner().set_target(refinery::Target::Version(version));
    runner.set_migration_table_name("outbox.schema_history");
    let mut session = world.session().await;
    runner.run_async(&mut session).await.expect("an older version");
    world
}

#[tokio::test]
async fn a_table_in_use_is_migrated_with_everything_in_it() {
    let world = at_version(1).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 200, 10).await;
    world
        .execute("UPDATE outbox.message SET dead_at = now(), attempts = 3 WHERE id = 7")
        .await;
    let output = world.outboxd("migrate", &[]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "nobody has sent any of it before");
    assert_eq!(relay.metric("outboxd_rows_published_total"), Some(199.0));
}

#[tokio::test]
async fn a_migration_that_cannot_lock_a_table_gives_up_and_says_so() {
    let world = World::new().await;
    let newest = "SELECT max(version)::bigint FROM outbox.schema_history";
    let before = world.count(newest).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let later = dir.path().join(format!("V{}__later.sql", before + 1));
    std::fs::write(&later, "ALTER TABLE outbox.lane ADD COLUMN later text;").expect("a migration");
    let migrate = || {
        let mut command = outboxd();
        command.args(["migrate", "--database-url", &world.database_url]);
        command
            .env("OUTBOXD_EXTRA_MIGRATION", &later)
            .output()
            .expect("outboxd runs")
    };
    let mut session = world.session().await;
    // Were it waited for without end, it would be got in the end.
    session
        .batch_execute("SET idle_in_transaction_session_timeout = '20s'")
        .await
        .expect("a setting");
    let backup = session.transaction().await.expect("a transaction");
    backup
        .execute("SELECT count(*) FROM outbox.lane", &[])
        .await
        .expect("a lock");
    let output = migrate();
    assert_eq!(output.status.code(), Some(69), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("Run it again"), "{}", stderr_of(&output));
    assert_eq!(world.count(newest).await, before);
    backup.rollback().await.expect("it ends");
    assert!(migrate().status.success(), "later it goes through");
    assert_eq!(world.count(newest).await, before + 1);
}

/// `outboxd run` must end by itself with the code, and say the words.
async fn refuses_to_run(world: &World, args: &[&str], words: &str) {
    let mut relay = world.relay().args(args).start();
    let status = relay.wait(SOON);
    assert_eq!(status.code(), Some(78), "{}", relay.log());
    assert!(relay.logged(words), "{}", relay.log());
}

#[tokio::test]
async fn run_refuses_a_missing_schema_and_names_the_command_that_makes_it() {
    let world = World::empty().await;
    refuses_to_run(&world, &[], "Run `outboxd migrate` first").await;
}

#[tokio::test]
async fn a_schema_that_an_unreleased_outboxd_made_is_refused_and_left_alone() {
    let world = World::new().await;
    world
        .execute("UPDATE outbox.schema_history SET checksum = '1' WHERE version = 1")
        .await;
    let words = "the schema outbox was made by an unreleased outboxd and cannot be upgraded";
    for history in [
        "INSERT INTO outbox.schema_history SELECT 20, 'process_identity', applied_on, '2' FROM outbox.schema_history WHERE version = 1",
        "DELETE FROM outbox.schema_history WHERE version > 1; DROP TABLE outbox.compatibility",
    ] {
        world.execute(history).await;
        let versions = "SELECT count(*) FROM outbox.schema_history";
        let before = world.count(versions).await;
        for (command, args) in [("migrate", &[] as &[&str]), ("status", &[]), ("purge", &[])] {
            let output = world.outboxd(command, args);
            assert_eq!(output.status.code(), Some(78), "{command}: {}", stderr_of(&output));
            assert!(stderr_of(&output).contains(words), "{command}: {}", stderr_of(&output));
        }
        refuses_to_run(&world, &[], words).await;
        refuses_to_run(&world, &["--migrate"], words).await;
        assert_eq!(world.count(versions).await, before);
    }
}

/// A test of a binary on a schema that is newer, and allows it or not, is among the faults: two versions side by side.
#[tokio::test]
async fn what_the_newest_migration_says_of_older_binaries_is_what_is_recorded() {
    let world = World::new().await;
    let runner = embedded::migrations::runner();
    let newest = runner
        .get_migrations()
        .iter()
        .max_by_key(|migration| migration.version());
    let sql = newest.and_then(refinery::Migration::sql).expect("migrations");
    let said = sql.lines().next().and_then(|line| line.rsplit_once(": "));
    let (_, said) = said.expect("its first line says which binaries may run on it");
    let recorded = "SELECT string_agg(oldest_schema::text, ',') FROM outbox.compatibility";
    assert_eq!(world.text(recorded).await, said);
}

#[tokio::test]
async fn run_refuses_a_sequence_that_hands_out_ids_in_blocks() {
    let world = World::new().await;
    world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 10").await;
    refuses_to_run(&world, &[], "CACHE 10").await;
}

#[tokio::test]
async fn run_with_migrate_makes_the_schema_and_runs() {
    let world = World::empty().await;
    let topic = world.topic("orders", 1, &[]).await;
    let _relay = world.relay().args(&["--migrate"]).start_ready().await;
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '1')"))
        .await;
    world.drained(SOON).await;
}

#[tokio::test]
async fn another_schema_name_works_from_migrate_to_status() {
    let world = World::empty().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    let migrated = world.outboxd("migrate", &["--schema", "other"]);
    assert!(migrated.status.success(), "{}", stderr_of(&migrated));
    world
        .execute(&format!(
            "SELECT other.enqueue('{topic}', 'k', '1');
             SELECT other.enqueue('{topic}', NULL, '2');
             SELECT other.enqueue('{topic}', 'bad', payload_bytes => {TOO_LARGE});"
        ))
        .await;
    let mut relay = world
        .relay()
        .args(&[
            "--schema",
            "other",
            "--on-published",
            "archive",
            "--max-attempts",
            "1",
            "--on-dead",
            "hold",
        ])
        .start_ready()
        .await;
    world.until("SELECT count(*) = 2 FROM other.history").await;
    world.until("SELECT count(*) = 1 FROM other.hold").await;
    let status = world.outboxd("status", &["--schema", "other"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(text.contains("Dead      1"), "{text}{}", stderr_of(&status));
    assert!(
        text.contains("outboxd dead redrive --schema other --id 3")
            && text.contains("outboxd hold release --schema other --topic"),
        "{text}"
    );
    assert!(!text.contains("outbox."), "{text}");
    let discarded = world.outboxd("dead discard", &["--schema", "other", "--yes"]);
    assert!(discarded.status.success(), "{}", stderr_of(&discarded));
    world
        .until("SELECT count(*) = 0 FROM other.message WHERE dead_at IS NOT NULL")
        .await;
    assert_eq!(world.text("SELECT command FROM other.audit").await, "dead discard");
    relay.stop();
    assert!(world.is_true("SELECT to_regnamespace('outbox') IS NULL").await);
    assert_eq!(read_until(&world.kafka, &topic, 2, SOON).await.len(), 2);
}
