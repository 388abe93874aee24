//! Two versions side by side, and the way back.

use std::fs;

use testkit::*;

/// The schema number that this source brings, and the next one.
async fn next_version(world: &World) -> i64 {
    world
        .count("SELECT max(version)::bigint + 1 FROM outbox.schema_history")
        .await
}

/// A later release in the middle of its rollout: this source and one migration more.
struct Later {
    dir: tempfile::TempDir,
    file: String,
}

impl Later {
    fn with_migration(version: i64, sql: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join(format!("V{version}__later.sql"));
        fs::write(&file, sql).expect("a migration");
        let file = file.display().to_string();
        Later { dir, file }
    }

    fn migrate(&self, world: &World) {
        let output = outboxd()
            .args(["migrate", "--database-url", &world.database_url])
            .env("OUTBOXD_EXTRA_MIGRATION", &self.file)
            .output()
            .expect("outboxd runs");
        assert!(output.status.success(), "{}", stderr_of(&output));
        assert!(self.dir.path().exists(), "kept until it is applied");
    }

    async fn relay(&self, world: &World) -> Relay {
        world
            .relay()
            .env("OUTBOXD_EXTRA_MIGRATION", &self.file)
            .start_ready()
            .await
    }
}

/// Of the kind that shuts nobody out: a column more, another fillfactor.
const COMPATIBLE: &str = "
    ALTER TABLE outbox.message ADD COLUMN later text;
    ALTER TABLE outbox.message SET (fillfactor = 60);";

#[tokio::test]
async fn two_versions_run_side_by_side_and_the_older_may_restart() {
    let fault = Fault::new(
        40,
        "two versions side by side in a rollout, and the older one restarts",
        "the older one starts; nothing lost, order kept",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let writer = BackgroundWrites::start(&world, &topic);
    let mut older = [world.relay().start_ready().await, world.relay().start_ready().await];
    world
        .until("SELECT count(*) > 200 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;

    let later = Later::with_migration(next_version(&world).await, COMPATIBLE);
    later.migrate(&world);
    let mut newer = later.relay(&world).await;
    let [first, second] = &mut older;
    first.stop();
    *first = world.relay().args(&["--migrate"]).start_ready().await;
    second.stop();
    *second = world.relay().start_ready().await;
    eventually(SOON, "all three to share the lanes", async || {
        (world.lanes_per_worker().await == [21, 21, 22]).then_some(())
    })
    .await;
    // Back again: the rollout is undone, and the newer one goes.
    let seen = world.count("SELECT count(*) FROM outbox.message").await;
    world
        .until(&format!(
            "SELECT count(*) > {seen} + 200 FROM outbox.message WHERE published_at IS NOT NULL"
        ))
        .await;
    newer.stop();
    writer.stop();
    let recovered = fault.over().until_drained(&world).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(100);
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_binary_that_a_later_migration_shuts_out_says_so_and_does_not_start() {
    let world = World::new().await;
    let version = next_version(&world).await;
    let sql = format!("UPDATE outbox.compatibility SET oldest_schema = {version};");
    Later::with_migration(version, &sql).migrate(&world);
    let words = format!(
        "takes an outboxd that knows at least {version}; this one knows only {}",
        version - 1
    );
    for args in [&[] as &[&str], &["--migrate"]] {
        let mut relay = world.relay().args(args).start();
        assert_eq!(relay.wait(SOON).code(), Some(78), "{}", relay.log());
        assert!(relay.logged(&words), "{}", relay.log());
    }
    for command in ["migrate", "status"] {
        let output = world.outboxd(command, &[]);
        assert_eq!(output.status.code(), Some(78), "{command}: {}", stderr_of(&output));
        assert!(stderr_of(&output).contains(&words), "{command}: {}", stderr_of(&output));
    }
}
