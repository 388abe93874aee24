//! A standby that lacks the last writes takes the place of its primary.

use std::time::Duration;

use testkit::*;

/// A world on a pair of servers, with two relays that reach whichever takes writes.
struct Failover {
    world: World,
    topic: String,
    pair: PrimaryStandby,
}

impl Failover {
    async fn new() -> Self {
        let pair = PrimaryStandby::start();
        let world = World::on(&pair.url(), &Stack::get().kafka).await;
        let topic = world.topic("orders", 4, &[]).await;
        Failover { world, topic, pair }
    }

    /// Small batches: what a failover loses is more than a batch of a lane.
    async fn relays(&self, args: &[&str]) -> [Relay; 2] {
        let relay = || self.world.relay().args(&["--batch-rows", "50"]).args(args);
        [relay().start_ready().await, relay().start_ready().await]
    }

    /// Rows over a few keys, and some without.
    async fn fill(&self) {
        self.world.fill(&self.topic, 2000, 5).await;
        self.world.fill(&self.topic, 500, 0).await;
    }

    /// What was written since the cut is lost.
    async fn happens(&mut self) {
        self.pair.fail_over().await;
        self.world.db = self.world.session().await;
    }
}

fn sum(relays: &[Relay], metric: &str) -> f64 {
    relays.iter().filter_map(|relay| relay.metric(metric)).sum()
}

const HIGHEST: &str = "SELECT coalesce(max(id), 0) FROM outbox.message";

/// Rows are lost that had ids up to `passed`; ids come again, and their new rows are published.
async fn ids_come_again(world: &World, topic: &str, passed: i64, fault: Fault) -> (Recovered, History) {
    let left = world.count(HIGHEST).await;
    assert!(left < passed, "rows were lost: {left} of {passed}");
    let over = fault.over();
    world.fill(topic, 100, 5).await;
    let recovered = over.until_drained(world).await;
    // In small steps, so that a floor has reason to move below the old ids.
    for _ in 0..3 {
        world.fill(topic, 50, 5).await;
        world.fill(topic, 50, 0).await;
        world.drained(SOON).await;
    }
    let again = format!("SELECT count(*) FROM outbox.message WHERE id BETWEEN {left} + 1 AND {passed}");
    assert!(world.count(&again).await >= 300, "their ids came again");
    let history = world.surviving_history(topic).await;
    history.assert_sound();
    assert_eq!(history.unflagged_duplicates, 0);
    (recovered, history)
}

fn assert_nothing_forgotten(relays: &[Relay]) {
    assert_eq!(sum(relays, "outboxd_rescan_found_rows_total"), 0.0);
}

/// When each lane was last taken.
const RECORD_TAKES: &str = "
    CREATE TABLE public.taken (lane smallint PRIMARY KEY, taken_at timestamptz NOT NULL);
    CREATE FUNCTION public.record_take() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.taken VALUES (NEW.lane, clock_timestamp())
        ON CONFLICT (lane) DO UPDATE SET taken_at = clock_timestamp();
        RETURN NULL;
    END $$;
    CREATE TRIGGER record_take AFTER UPDATE OF owner ON outbox.lane FOR EACH ROW WHEN (NEW.lane >= 0 AND NEW.owner IS NOT NULL)
    EXECUTE FUNCTION public.record_take();";

#[tokio::test]
async fn rows_whose_marks_a_failover_lost_are_sent_again_and_say_so() {
    let fault = Fault::new(18, "failover loses marks", "sent again, each flagged");
    let mut failover = Failover::new().await;
    failover.world.execute(RECORD_TAKES).await;
    failover.fill().await;
    failover.pair.cut().await;
    let relays = failover.relays(&[]).await;
    failover.world.drained(SOON).await;
    let drained = failover.world.text("SELECT clock_timestamp()::text").await;
    failover.happens().await;
    let world = &failover.world;
    // Rows without a key may have been sent again already.
    let survived = format!("SELECT count(*) FROM outbox.message WHERE published_at < '{drained}'");
    assert_eq!(world.count(&survived).await, 0, "no mark has survived");
    assert_eq!(world.count("SELECT count(*) FROM outbox.message").await, 2500);
    let recovered = fault.over().until_drained(world).await;
    let history = world.history(&failover.topic).await;
    history.assert_sound();
    assert_eq!((history.duplicates, history.unflagged_duplicates), (2500, 0));
    assert!(history.duplicates as f64 <= sum(&relays, "outboxd_possible_duplicates_total"));
    assert_eq!(
        sum(&relays, "outboxd_published_rows_lost_total"),
        0.0,
        "no row was lost"
    );
    assert_nothing_forgotten(&relays);
    let waited = "SELECT count(*) = 64 AND min(taken_at - lineage_since) >= interval '5 s'
                  FROM public.taken JOIN outbox.lane USING (lane)";
    assert!(world.is_true(waited).await, "a lease that was lost has run out first");
    world.fill(&failover.topic, 1000, 100).await;
    world.drained(SOON).await;
    let flagged = world.history(&failover.topic).await.flagged;
    assert_eq!(flagged, history.flagged, "what is written afterwards is not flagged");
    recovered.record(history.duplicates);
}

/// Answers how many were reported, once at least so many are: each relay reports its own.
async fn loses_published_rows(on_published: &str, least: f64) -> (Recovered, f64) {
    let fault = Fault::new(19, "failover loses published rows", "reported: metric and log");
    let mut failover = Failover::new().await;
    failover.pair.cut().await;
    let relays = failover.relays(&["--on-published", on_published]).await;
    failover.fill().await;
    failover.world.drained(SOON).await;
    failover.happens().await;
    let over = fault.over();
    let lost = eventually(over.time_limit(), "the loss to be reported", async || {
        let lost = sum(&relays, "outboxd_published_rows_lost_total");
        (lost >= least).then_some(lost)
    })
    .await;
    assert!(
        relays
            .iter()
            .any(|relay| relay.logged("has lost rows that are already in Kafka"))
    );
    assert_nothing_forgotten(&relays);
    (over.until_drained(&failover.world).await, lost)
}

#[tokio::test]
async fn published_rows_that_a_failover_lost_are_reported() {
    let (recovered, lost) = loses_published_rows("keep", 2500.0).await;
    assert_eq!(lost, 2500.0);
    recovered.record(0);
}

#[tokio::test]
async fn archived_rows_that_a_failover_lost_are_reported() {
    let (_, lost) = loses_published_rows("archive", 2500.0).await;
    assert_eq!(lost, 2500.0);
}

/// A few may go unseen: PostgreSQL logs the use of a sequence some ids ahead.
#[tokio::test]
async fn deleted_rows_that_a_failover_lost_are_reported_as_far_as_can_be_told() {
    let (_, lost) = loses_published_rows("delete", 2460.0).await;
    assert!(lost <= 2500.0, "{lost}");
}

#[tokio::test]
async fn ids_that_come_again_after_a_failover_are_published() {
    let fault = Fault::new(50, "ids come again after failover", "the new rows are published");
    let mut failover = Failover::new().await;
    let relays = failover.relays(&[]).await;
    failover.fill().await;
    failover.world.drained(SOON).await;
    failover.pair.cut().await;
    failover.fill().await;
    failover.world.drained(SOON).await;
    let passed = failover.world.count(HIGHEST).await;
    failover.happens().await;
    let (recovered, history) = ids_come_again(&failover.world, &failover.topic, passed, fault).await;
    assert_nothing_forgotten(&relays);
    recovered.record(history.duplicates);
}

/// The first question is refused, for somebody has locked what it reads.
#[tokio::test]
async fn the_loss_of_published_rows_is_reported_though_the_first_question_has_no_answer() {
    let mut failover = Failover::new().await;
    failover.pair.cut().await;
    let relay = failover
        .world
        .relay()
        .failpoint("before_loss_check:1")
        .start_ready()
        .await;
    failover.fill().await;
    failover.world.drained(SOON).await;
    failover.happens().await;
    relay.at_failpoint("before_loss_check:1").await;
    let locker = failover.world.session().await;
    locker
        .batch_execute("BEGIN; LOCK TABLE outbox.history IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    relay.continue_from("before_loss_check:1");
    eventually(SOON, "the first question to fail", async || {
        relay.logged("asking again").then_some(())
    })
    .await;
    failover.world.fill(&failover.topic, 10, 5).await;
    failover.world.drained(SOON).await;
    assert_eq!(relay.metric("outboxd_published_rows_lost_total"), Some(0.0));
    locker.batch_execute("ROLLBACK").await.expect("unlocked");
    eventually(SOON, "the loss to be reported", async || {
        (relay.metric("outboxd_published_rows_lost_total")? == 2500.0).then_some(())
    })
    .await;
}

/// The relay's own commits are synchronous, and each would save what was committed before it: here comes none between.
#[tokio::test]
async fn rows_of_asynchronous_commits_that_a_crash_lost_after_they_were_published_are_reported() {
    const LEASE_LONG: Duration = Duration::from_secs(60);
    let fault = Fault::new(
        61,
        "an application commits asynchronously and PostgreSQL crashes",
        "rows lost after they were published are reported: metric, and log with ids",
    )
    .with_lease(LEASE_LONG);
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.execute("ALTER SYSTEM SET autovacuum = off").await;
    world.execute("SELECT pg_reload_conf()").await;
    let application = connect(&world.login("app", &["outbox_producer"]).await).await;
    application
        .batch_execute("SET synchronous_commit = off")
        .await
        .expect("as ALTER ROLE would");
    let relay = world
        .relay()
        .args(&["--lease", "60s"])
        .failpoint("after_publish:2")
        .failpoint("before_renew:2")
        .start_ready()
        .await;
    // One batch to its end: the first use of the table, of the topic, of the sequence, is behind us.
    world.fill(&topic, 1, 1).await;
    world.drained(SOON).await;
    world.execute("CHECKPOINT").await;
    let writer = "SELECT pid::bigint FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    let writer = world.count(writer).await;
    relay.at_failpoint("before_renew:2").await;
    // From here on asynchronous commits stay in the server's memory.
    signal("STOP", writer);
    application
        .batch_execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload) SELECT '{topic}', 'k' || n, '1' FROM generate_series(1, 20) n"
        ))
        .await
        .expect("committed");
    let passed = world.count(HIGHEST).await;
    relay.at_failpoint("after_publish:2").await;
    postgres.crash();
    postgres.restart();
    world.db = world.session().await;
    let left = world.count(HIGHEST).await;
    assert!(left < passed, "rows were lost: {left} of {passed}");
    let over = fault.over();
    relay.continue_from("before_renew:2");
    relay.continue_from("after_publish:2");
    let lost = eventually(over.time_limit(), "the loss to be reported", async || {
        relay
            .metric("outboxd_published_rows_lost_total")
            .filter(|lost| *lost > 0.0)
    })
    .await;
    assert!(lost <= 20.0, "{lost}");
    assert!(
        relay.logged(&format!("\"first_ids\":\"[{}", left + 1)),
        "named by their ids"
    );
    world.fill(&topic, 100, 5).await;
    let recovered = over.until_drained(&world).await;
    let history = world.surviving_history(&topic).await;
    history.assert_sound();
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn ids_that_come_again_after_a_crash_with_asynchronous_commits_are_published() {
    let fault = Fault::new(50, "ids come again after a crash", "the new rows are published");
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.execute("ALTER SYSTEM SET synchronous_commit = off").await;
    world.execute("SELECT pg_reload_conf()").await;
    world.until("current_setting('synchronous_commit') = 'off'").await;
    let relays = [world.relay().start_ready().await];
    world
        .until("SELECT bool_and(owner IS NOT NULL) FROM outbox.lane WHERE lane >= 0")
        .await;
    world.execute("CHECKPOINT").await;
    // From here on commits stay in the server's memory.
    let writer = "SELECT pid::bigint FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    signal("STOP", world.count(writer).await);
    world.fill(&topic, 500, 50).await;
    world.drained(SOON).await;
    let passed = world.count(HIGHEST).await;
    postgres.crash();
    postgres.restart();
    world.db = world.session().await;
    ids_come_again(&world, &topic, passed, fault).await;
    assert!(
        sum(&relays, "outboxd_published_rows_lost_total") > 0.0,
        "and the loss is reported"
    );
    assert_nothing_forgotten(&relays);
}
