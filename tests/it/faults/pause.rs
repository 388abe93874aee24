//! A worker is paused past its lease and wakes up when others have its rows.

use crate::support::*;

const LIVE_LEASES: &str = "SELECT (SELECT count(*) FROM outbox.worker WHERE lease_until > clock_timestamp())
                                + (SELECT count(*) FROM outbox.message WHERE lease_until > clock_timestamp())";

/// Which rows are marked, and when each was.
const MARKS: &str = "SELECT coalesce(string_agg(id || ' ' || published_at, ',' ORDER BY id), '') FROM outbox.message";

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
        eventually(SOON, "its lease to end", async || {
            (world.count(LIVE_LEASES).await == 0).then_some(())
        })
        .await;
        Paused {
            world,
            topic,
            relay,
            failpoint,
            in_flight,
        }
    }

    async fn marks(&self) -> String {
        self.world.db.query_one(MARKS, &[]).await.expect(MARKS).get(0)
    }

    /// Wakes it up; its mark must change nothing.
    async fn resume_and_be_refused(&self) {
        let marks = self.marks().await;
        self.relay.continue_from(self.failpoint);
        self.relay.signal("CONT");
        eventually(SOON, "the late mark to be refused", async || {
            let fenced = self.relay.metric("outboxd_rows_fenced_total");
            (fenced == Some(self.in_flight as f64)).then_some(())
        })
        .await;
        assert_eq!(self.marks().await, marks, "a stale owner changes no row");
    }

    async fn assert_repeated_once_and_flagged(&self) {
        let history = self.world.history(&self.topic).await;
        history.assert_sound();
        assert_eq!(history.repeats, self.in_flight);
        assert_eq!(history.unflagged_repeats, 0);
    }
}

/// It wakes up when its successor has claimed the rows and marked none of them.
async fn wakes_up_before_its_successor_marks(failpoint: &'static str, successor_stops: &str, keys: usize) {
    let paused = Paused::past_its_lease(failpoint, keys).await;
    let successor = paused
        .world
        .relay()
        .args(&["--tasks", "1"])
        .failpoint(successor_stops)
        .start();
    successor.at_failpoint(successor_stops).await;
    paused.resume_and_be_refused().await;
    successor.continue_from(successor_stops);
    paused.world.drained(SOON).await;
    paused.assert_repeated_once_and_flagged().await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_marks_nothing_of_what_its_successor_claimed() {
    wakes_up_before_its_successor_marks("after_publish", "after_claim", 10).await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_marks_no_keyless_row_that_its_successor_claimed() {
    wakes_up_before_its_successor_marks("after_publish_keyless", "after_claim_keyless", 0).await;
}

/// It wakes up when its successor is done with the rows; then it registers anew and is as good as before.
async fn wakes_up_after_its_successor_marked(failpoint: &'static str, keys: usize) {
    let paused = Paused::past_its_lease(failpoint, keys).await;
    let mut successor = paused.world.relay().start_ready().await;
    paused.world.drained(SOON).await;
    paused.resume_and_be_refused().await;
    eventually(SOON, "each to own half of the lanes", async || {
        (paused.world.lanes_per_worker().await == [32, 32]).then_some(())
    })
    .await;
    assert_eq!(paused.relay.metric("outboxd_terms_lost_total"), Some(1.0));
    successor.stop();
    paused.world.fill(&paused.topic, 100, keys).await;
    paused.world.drained(SOON).await;
    paused.assert_repeated_once_and_flagged().await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_leaves_its_successors_marks_alone_and_works_again() {
    wakes_up_after_its_successor_marked("after_publish", 10).await;
}

#[tokio::test]
async fn a_worker_paused_past_its_lease_leaves_marks_of_keyless_rows_alone_and_works_again() {
    wakes_up_after_its_successor_marked("after_publish_keyless", 0).await;
}
