//! A worker is paused past its lease and wakes up when others have its rows.

use std::time::{Duration, SystemTime};

use outboxd::outbox::statement;
use testkit::*;
use tokio_postgres::Client;
use uuid::Uuid;

const NO_LIVE_LEASE: &str = "NOT EXISTS (SELECT FROM outbox.worker WHERE lease_until > clock_timestamp())
                         AND NOT EXISTS (SELECT FROM outbox.claim WHERE lease_until > clock_timestamp())";

/// Keeps a list of rows whose mark was changed or taken back.
const WATCH_MARKS: &str = "
    CREATE TABLE public.mark_changed (id bigint);
    CREATE FUNCTION public.note_mark() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO public.mark_changed VALUES (OLD.id); RETURN NULL; END $$;
    CREATE TRIGGER note_mark AFTER UPDATE ON outbox.message FOR EACH ROW
        WHEN (OLD.published_at IS NOT NULL AND NEW.published_at IS DISTINCT FROM OLD.published_at)
        EXECUTE FUNCTION public.note_mark();";

struct Paused {
    world: World,
    topic: String,
    relay: Relay,
    failpoint: &'static str,
    in_flight: usize,
}

impl Paused {
    /// A worker that sleeps between the acknowledgement and the mark of its rows, and whose lease is over.
    async fn past_its_lease(failpoint: &'static str, keys: usize) -> Self {
        let world = World::new().await;
        let topic = world.topic("orders", 4, &[]).await;
        world.fill(&topic, 30, keys).await;
        let relay = world.relay().args(&["--tasks", "1"]).failpoint(failpoint).start();
        relay.at_failpoint(failpoint).await;
        relay.signal("STOP");
        let in_flight = world.records(&topic).await.len();
        assert_eq!(in_flight, 30, "all were sent, none is marked");
        assert_eq!(world.pending().await, 30);
        world.until(NO_LIVE_LEASE).await;
        Paused {
            world,
            topic,
            relay,
            failpoint,
            in_flight,
        }
    }

    /// Wakes it up; its mark must change nothing.
    async fn resume_and_be_refused(&self) {
        let marks = self.world.marks().await;
        let resumed = self.world.text("SELECT clock_timestamp()::text").await;
        resume(&self.relay, self.failpoint);
        eventually(SOON, "the late mark to be refused", async || {
            let fenced = self.relay.metric("outboxd_rows_fenced_total");
            (fenced == Some(self.in_flight as f64)).then_some(())
        })
        .await;
        // It registers anew at once, and may then relay what nobody has claimed.
        let anew =
            format!("coalesce((SELECT min(started_at) FROM outbox.worker WHERE started_at > '{resumed}'), 'infinity')");
        let stale = self.world.marks_before(&anew).await;
        assert_eq!(stale, marks, "a stale owner changes no row");
    }

    async fn assert_sent_twice_and_flagged(&self, successor: &Relay) -> History {
        let history = self.world.history(&self.topic).await;
        history.assert_duplicates_at_most(self.in_flight);
        history.assert_counted_by(&[&self.relay, successor]);
        assert_eq!(
            history.duplicates, self.in_flight,
            "nothing was marked, so all of it came again"
        );
        history
    }

    /// The mark it is about to write, as shipped, in a transaction that has yet to commit.
    async fn late_mark(&self) -> Client {
        let session = self.world.session().await;
        session.batch_execute("BEGIN").await.expect("begun");
        let server = session.query_one("SELECT incarnation FROM outbox.server", &[]).await;
        let incarnation: SystemTime = server.expect("a server").get(0);
        let ids: Vec<i64> = (1..=30).collect();
        let claimed = "SELECT id, worker FROM outbox.claim";
        let marked = if let Some(row) = session.query_opt(claimed, &[]).await.expect(claimed) {
            let (claim, worker): (i64, Uuid) = (row.get(0), row.get(1));
            session
                .query_one(
                    &statement::text("mark_unordered_keep"),
                    &[&ids, &claim, &worker, &incarnation],
                )
                .await
                .map(|row| row.get::<_, i64>("marked") as u64)
        } else {
            let held = "SELECT owner, array_agg(lane), array_agg(epoch) FROM outbox.lane
                        WHERE owner IS NOT NULL GROUP BY owner";
            let row = session.query_one(held, &[]).await.expect(held);
            let (owner, lanes, epochs): (Uuid, Vec<i16>, Vec<i64>) = (row.get(0), row.get(1), row.get(2));
            let recorded = "SELECT array_agg(id) FROM outbox.in_flight";
            let records: Vec<i64> = session.query_one(recorded, &[]).await.expect(recorded).get(0);
            session
                .execute(
                    &statement::text("mark_lanes_keep"),
                    &[&owner, &lanes, &epochs, &incarnation, &ids, &records],
                )
                .await
        };
        assert_eq!(marked.expect("answered"), 30);
        session
    }
}

fn resume(paused: &Relay, failpoint: &str) {
    paused.continue_from(failpoint);
    paused.signal("CONT");
}

/// It wakes up when its successor has claimed the rows and marked none of them.
async fn wakes_up_before_its_successor_marks(
    failpoint: &'static str,
    successor_stops: &str,
    keys: usize,
    successor_rows: usize,
) -> (Recovered, History) {
    let fault = Fault::new(
        6,
        "paused past its lease, then resumed",
        "its mark touches no row, and that is counted",
    );
    let paused = Paused::past_its_lease(failpoint, keys).await;
    let rows = successor_rows.to_string();
    let one_batch = paused.world.relay().args(&["--tasks", "1", "--batch-rows", &rows]);
    let successor = one_batch.failpoint(successor_stops).start();
    successor.at_failpoint(successor_stops).await;
    let over = fault.over();
    paused.resume_and_be_refused().await;
    successor.continue_from(successor_stops);
    let recovered = over.until_drained(&paused.world).await;
    (recovered, paused.assert_sent_twice_and_flagged(&successor).await)
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_marks_nothing_of_what_its_successor_claimed() {
    let (recovered, history) = wakes_up_before_its_successor_marks("after_publish", "after_claim", 10, 1000).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_marks_no_unordered_row_that_its_successor_claimed() {
    wakes_up_before_its_successor_marks("after_publish_unordered", "after_claim_unordered", 0, 1000).await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_marks_no_unordered_row_though_its_successor_claimed_only_some() {
    wakes_up_before_its_successor_marks("after_publish_unordered", "after_claim_unordered", 0, 10).await;
}

/// It wakes up when its successor is done with the rows; then it registers anew and is as good as before.
async fn wakes_up_after_its_successor_marked(failpoint: &'static str, keys: usize) {
    let paused = Paused::past_its_lease(failpoint, keys).await;
    let successor = paused.world.relay().start_ready().await;
    paused.world.drained(SOON).await;
    paused.resume_and_be_refused().await;
    share_the_lanes(&paused.world).await;
    assert_eq!(paused.relay.metric("outboxd_leases_lost_total"), Some(1.0));
    paused.assert_sent_twice_and_flagged(&successor).await;
    drop(successor);
    paused.world.fill(&paused.topic, 100, keys).await;
    paused.world.drained(SOON).await;
    paused.world.history(&paused.topic).await.assert_sound();
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_leaves_its_successors_marks_alone_and_works_again() {
    wakes_up_after_its_successor_marked("after_publish", 10).await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_leaves_marks_of_unordered_rows_alone_and_works_again() {
    wakes_up_after_its_successor_marked("after_publish_unordered", 0).await;
}

/// Its successor takes over while its mark is about to commit: the rows stay as marked and are not sent again.
async fn late_mark_meets_recovery(failpoint: &'static str, keys: usize) -> (Recovered, History) {
    let fault = Fault::new(8, "recovery meets a late mark", "a published row never goes back");
    let paused = Paused::past_its_lease(failpoint, keys).await;
    let world = &paused.world;
    world.execute(WATCH_MARKS).await;
    let late_mark = paused.late_mark().await;
    let successor = world.relay().failpoint("before_takeover").start_ready().await;
    successor.at_failpoint("before_takeover").await;
    successor.continue_from("before_takeover");
    world.lease_is_renewed_twice().await;
    assert!(!successor.logged("cannot"), "what is locked is skipped, not waited for");
    late_mark.batch_execute("COMMIT").await.expect("committed");
    let over = fault.over();
    world.fill(&paused.topic, 300, keys).await;
    let recovered = over.until_drained(world).await;
    paused.resume_and_be_refused().await;
    assert_eq!(world.count("SELECT count(*) FROM public.mark_changed").await, 0);
    let history = world.history(&paused.topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&paused.relay, &successor]);
    (recovered, history)
}

#[tokio::test]
async fn a_mark_that_commits_while_a_successor_recovers_stays_and_its_rows_are_not_sent_again() {
    let (recovered, history) = late_mark_meets_recovery("after_publish", 10).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_mark_of_unordered_rows_that_commits_while_a_successor_recovers_stays() {
    late_mark_meets_recovery("after_publish_unordered", 0).await;
}

/// It sleeps past its lease, until a successor has relayed everything.
async fn sleeps_until_succeeded(world: &World, paused: &Relay) -> Relay {
    paused.signal("STOP");
    world.until(NO_LIVE_LEASE).await;
    let successor = world.relay().start_ready().await;
    world.drained(SOON).await;
    successor
}

async fn share_the_lanes(world: &World) {
    eventually(SOON, "each to own half of the lanes", async || {
        (world.lanes_per_worker().await == [32, 32]).then_some(())
    })
    .await;
}

/// It goes on where it fell asleep, and shares the lanes with its successor.
async fn wakes_up(world: &World, paused: &Relay, failpoint: &str) {
    resume(paused, failpoint);
    share_the_lanes(world).await;
}

async fn assert_sends_no_more(world: &World, topic: &str, paused: &Relay, arrived: usize) {
    eventually(SOON, "its batch to be over", async || {
        (paused.metric("outboxd_in_flight_rows")? == 0.0).then_some(())
    })
    .await;
    assert_eq!(world.records(topic).await.len(), arrived, "it has sent nothing more");
}

#[tokio::test]
async fn what_a_paused_worker_had_queued_is_not_sent_when_it_wakes_up() {
    let fault = Fault::new(
        7,
        "paused with sends queued in the client",
        "they expire before the lease does: nothing of it is sent when it wakes up",
    )
    .with_lease(Duration::from_secs(10));
    let kafka = OwnKafka::start();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let topic = world.topic("orders", 1, &[]).await;
    // Five requests are under way at most: with five records each, most of the batch is queued behind them.
    let small = ["--tasks", "1", "--kafka-property", "batch.num.messages=5"];
    let timing = ["--batch-deadline", "5s", "--lease", "10s"];
    let paused = world.relay().args(&small).args(&timing).start_ready().await;
    world.fill(&topic, 10, 10).await;
    world.drained(SOON).await;

    kafka.pause();
    world.fill(&topic, 100, 10).await;
    eventually(SOON, "sends to be queued", async || {
        paused.metric("outboxd_in_flight_rows").filter(|rows| *rows > 0.0)
    })
    .await;
    paused.signal("STOP");
    assert!(!paused.logged("replaced the Kafka producer"), "they are queued still");
    world.until(NO_LIVE_LEASE).await;
    kafka.resume();
    let over = fault.over();
    let successor = world.relay().start_ready().await;
    let recovered = over.until_drained(&world).await;

    let arrived = world.records(&topic).await.len();
    paused.signal("CONT");
    eventually(SOON, "it to have learned that its lease is over", async || {
        (paused.metric("outboxd_leases_lost_total")? >= 1.0).then_some(())
    })
    .await;
    assert_sends_no_more(&world, &topic, &paused, arrived).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(25);
    history.assert_counted_by(&[&paused, &successor]);
    recovered.record(history.duplicates);
}

/// It sleeps between the claim and the send.
async fn wakes_up_with_nothing_sent(failpoint: &'static str, keys: usize) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 30, keys).await;
    let paused = world.relay().args(&["--tasks", "1"]).failpoint(failpoint).start();
    paused.at_failpoint(failpoint).await;
    let successor = sleeps_until_succeeded(&world, &paused).await;
    wakes_up(&world, &paused, failpoint).await;
    assert_eq!(paused.metric("outboxd_rows_claimed_total"), Some(30.0));
    let history = world.history(&topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&paused, &successor]);
}

#[tokio::test]
async fn a_worker_paused_before_it_sends_sends_nothing_when_its_lease_is_over() {
    wakes_up_with_nothing_sent("after_claim", 10).await;
}

#[tokio::test]
async fn a_worker_paused_before_it_sends_unordered_rows_sends_nothing_when_their_lease_is_over() {
    wakes_up_with_nothing_sent("after_claim_unordered", 0).await;
}

#[tokio::test]
async fn a_worker_paused_among_its_sends_sends_no_more_when_its_lease_is_over() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 30, 10).await;
    // The first record to each of the four partitions goes alone: here most of the batch is still to be handed over.
    let failpoint = "before_produce:12";
    let paused = world.relay().args(&["--tasks", "1"]).failpoint(failpoint).start();
    paused.at_failpoint(failpoint).await;
    let successor = sleeps_until_succeeded(&world, &paused).await;
    let arrived = world.records(&topic).await.len();
    wakes_up(&world, &paused, failpoint).await;
    assert_sends_no_more(&world, &topic, &paused, arrived).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(11);
    history.assert_counted_by(&[&paused, &successor]);
}

/// Wakes it up when a successor owns its lanes, and waits until what it then wrote was refused.
async fn wakes_up_succeeded(paused: &Relay, failpoint: &str) {
    resume(paused, failpoint);
    eventually(SOON, "its late write to be refused", async || {
        paused.logged("the lease had gone to another worker").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_counts_no_refusal_and_holds_no_key() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let ids = world
        .insert(&topic, &[(Some("good"), vec![1]), (Some("bad"), noise(20_000))])
        .await;
    let paused = world.relay().args(&["--tasks", "1"]).failpoint("after_publish").start();
    paused.at_failpoint("after_publish").await;
    paused.signal("STOP");
    world.until(NO_LIVE_LEASE).await;
    let successor = world.relay().args(&["--tasks", "1"]).failpoint("after_claim").start();
    successor.at_failpoint("after_claim").await;
    wakes_up_succeeded(&paused, "after_publish").await;
    world.assert_nobody_blamed().await;
    assert_eq!((world.holds().await, world.pending().await), (0, 2));
    successor.continue_from("after_claim");
    world.held(1).await;
    world.published(ids[0]).await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_postpones_no_hold() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let often = ["--retry-backoff-min", "100ms", "--max-attempts", "1000"];
    let paused = world.relay().args(&often).failpoint("before_hold_change").start();
    world.insert(&topic, &[(Some("bad"), noise(20_000))]).await;
    paused.at_failpoint("before_hold_change").await;
    paused.signal("STOP");
    world.until(NO_LIVE_LEASE).await;
    // Its successor has no reason to try.
    world.execute("UPDATE outbox.hold SET retry_at = 'infinity'").await;
    let tries = "SELECT h.failures || ' ' || m.attempts || ' ' || h.retry_at FROM outbox.hold h, outbox.message m";
    let before = world.text(tries).await;
    let _successor = world.relay().start_ready().await;
    let expired =
        "SELECT FROM outbox.lane l JOIN outbox.worker w ON w.id = l.owner WHERE w.lease_until <= clock_timestamp()";
    world.until(&format!("NOT EXISTS ({expired})")).await;
    wakes_up_succeeded(&paused, "before_hold_change").await;
    assert_eq!(world.text(tries).await, before);
}
