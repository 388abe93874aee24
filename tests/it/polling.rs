//! The statements that poll for rows and take along what they find, as shipped.

use std::time::{Duration, Instant};

use outboxd::outbox::statement;
use testkit::*;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

const HERE: &str = "SELECT incarnation FROM outbox.server";

/// What a poll returns: the ids, with whether each was delayed; whether there are unordered rows; whether it was cut short.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    rows: Vec<(i64, bool)>,
    unordered: bool,
    cut: bool,
}

/// What it returns beside them.
#[derive(Debug, PartialEq)]
struct PollSummary {
    lowest_unordered: Option<i64>,
}

struct Poll {
    start: i64,
    lanes: Vec<i16>,
    scan: i64,
    has_holds: bool,
    limit: i64,
}

impl Default for Poll {
    fn default() -> Self {
        Poll {
            start: 0,
            lanes: (0..64).collect(),
            scan: 1000,
            has_holds: false,
            limit: 100,
        }
    }
}

impl Poll {
    async fn rows(&self, world: &World, incarnation: &str) -> Vec<Row> {
        let text = statement::text("poll").replace("$6", &format!("({incarnation})"));
        let text = text.replace("$7", "0");
        let params: [&(dyn ToSql + Sync); 5] = [&self.start, &self.lanes, &self.scan, &self.has_holds, &self.limit];
        world.db.query(&text, &params).await.expect("answered")
    }

    /// `None`: no answer at all.
    async fn at(&self, world: &World, incarnation: &str) -> Option<Answer> {
        answer(&self.rows(world, incarnation).await)
    }

    async fn answer(&self, world: &World) -> Answer {
        self.at(world, HERE).await.expect("an answer")
    }

    async fn overview(&self, world: &World) -> PollSummary {
        overview(&self.rows(world, HERE).await)
    }
}

fn answer(rows: &[Row]) -> Option<Answer> {
    let first = rows.first()?;
    let mut answer = Answer {
        unordered: first.get("unordered"),
        cut: first.get("cut"),
        ..Answer::default()
    };
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
    answer.rows = found.map(|row| (row.get("id"), row.get("delayed"))).collect();
    answer.rows.sort_unstable();
    Some(answer)
}

fn overview(rows: &[Row]) -> PollSummary {
    let first = rows.first().expect("an answer");
    PollSummary {
        lowest_unordered: first.get("lowest_unordered"),
    }
}

/// Three rows of the keys a, b, a.
async fn three_rows() -> (World, [i64; 3]) {
    let world = World::new().await;
    let rows = [(Some("a"), vec![1]), (Some("b"), vec![2]), (Some("a"), vec![3])];
    let ids = world.insert("orders", &rows).await;
    (world, [ids[0], ids[1], ids[2]])
}

/// Holds the key b, and returns a poll that knows of the hold.
async fn with_b_held(world: &World) -> Poll {
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT lane, topic, 'k:b', 0, 'sick', now() FROM outbox.message WHERE key = 'b'",
        )
        .await;
    Poll {
        has_holds: true,
        ..Poll::default()
    }
}

/// A poll that asks for the lane of `key` alone.
async fn in_lane_of(world: &World, key: &str) -> Poll {
    let lane = format!("SELECT max(lane)::bigint FROM outbox.message WHERE key = '{key}'");
    Poll {
        lanes: vec![world.count(&lane).await as i16],
        ..Poll::default()
    }
}

fn fresh(ids: &[i64]) -> Answer {
    Answer {
        rows: ids.iter().map(|id| (*id, false)).collect(),
        ..Answer::default()
    }
}

#[tokio::test]
async fn a_poll_takes_what_is_pending_above_its_start_in_the_lanes_it_asks_for() {
    let (world, [first, second, third]) = three_rows().await;
    assert_eq!(Poll::default().answer(&world).await, fresh(&[first, second, third]));
    let above = Poll {
        start: first,
        ..Poll::default()
    };
    assert_eq!(above.answer(&world).await, fresh(&[second, third]));
    assert_eq!(in_lane_of(&world, "b").await.answer(&world).await, fresh(&[second]));
    world
        .execute(&format!(
            "UPDATE outbox.message SET published_at = now() WHERE id = {second}"
        ))
        .await;
    assert_eq!(Poll::default().answer(&world).await, fresh(&[first, third]));
}

#[tokio::test]
async fn a_poll_that_finds_more_than_it_takes_says_only_that() {
    let (world, _) = three_rows().await;
    let cut = Answer {
        cut: true,
        ..Answer::default()
    };
    let few = Poll {
        limit: 2,
        ..Poll::default()
    };
    assert_eq!(few.answer(&world).await, cut);
    let short = Poll {
        scan: 3,
        ..Poll::default()
    };
    assert_eq!(short.answer(&world).await, cut, "there may be more behind");
    world
        .execute("UPDATE outbox.message SET available_at = now() - interval '1 s'")
        .await;
    assert_eq!(few.answer(&world).await, cut, "also of those that were delayed");
}

#[tokio::test]
async fn a_poll_leaves_a_delayed_row_that_is_held_or_in_a_lane_it_does_not_ask_for() {
    let (world, [first, _, third]) = three_rows().await;
    world
        .execute("UPDATE outbox.message SET available_at = now() - interval '1 s'")
        .await;
    let due = Answer {
        rows: vec![(first, true), (third, true)],
        ..Answer::default()
    };
    assert_eq!(in_lane_of(&world, "a").await.answer(&world).await, due);
    let holding = with_b_held(&world).await;
    assert_eq!(holding.answer(&world).await, due);
}

#[tokio::test]
async fn a_poll_skips_what_is_held_or_not_yet_due_and_says_that_there_are_unordered_rows() {
    let (world, [first, second, third]) = three_rows().await;
    let holding = with_b_held(&world).await;
    assert_eq!(holding.answer(&world).await, fresh(&[first, third]));
    let held_alone = Poll {
        has_holds: true,
        ..in_lane_of(&world, "b").await
    };
    assert_eq!(held_alone.answer(&world).await, fresh(&[]));
    assert_eq!(Poll::default().answer(&world).await, fresh(&[first, second, third]));
    let delay = |id, when| format!("UPDATE outbox.message SET available_at = now() {when} WHERE id = {id}");
    world.execute(&delay(first, "+ interval '1 hour'")).await;
    world.execute(&delay(third, "- interval '1 s'")).await;
    world.insert("orders", &[(None, vec![4])]).await;
    let answer = Answer {
        rows: vec![(third, true)],
        unordered: true,
        cut: false,
    };
    assert_eq!(holding.answer(&world).await, answer);
}

#[tokio::test]
async fn a_poll_of_another_server_than_the_term_began_on_has_no_answer() {
    let (world, _) = three_rows().await;
    assert_eq!(Poll::default().at(&world, "SELECT now()").await, None);
}

#[tokio::test]
async fn a_poll_skips_unordered_rows_that_are_claimed_until_the_lease_is_over() {
    let world = World::new().await;
    world.fill("t", 3, 0).await;
    world
        .execute("UPDATE outbox.message SET available_at = now() WHERE id = 3")
        .await;
    let unordered = |unordered| Answer {
        unordered,
        ..Answer::default()
    };
    assert_eq!(Poll::default().answer(&world).await, unordered(true));
    world.abandon_pending().await;
    assert_eq!(
        Poll::default().answer(&world).await,
        unordered(true),
        "nobody's any more"
    );
    world.execute("UPDATE outbox.claim SET lease_until = 'infinity'").await;
    assert_eq!(
        Poll::default().answer(&world).await,
        unordered(false),
        "another worker publishes them"
    );
}

#[tokio::test]
async fn a_poll_names_the_lowest_unordered_row_whether_it_is_claimed_or_not() {
    let (world, _) = three_rows().await;
    let lowest = async || Poll::default().overview(&world).await.lowest_unordered;
    assert_eq!(lowest().await, None);
    let ids = world.insert("orders", &[(None, vec![4]), (None, vec![5])]).await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             VALUES (-1, 'orders', '', 0, 'sick', now())",
        )
        .await;
    let holding = Poll {
        has_holds: true,
        ..Poll::default()
    };
    assert_eq!(
        holding.overview(&world).await.lowest_unordered,
        None,
        "its hold finds them"
    );
    assert_eq!(lowest().await, Some(ids[0]), "who knows of no hold finds them itself");
    world
        .execute(&format!(
            "UPDATE outbox.message SET available_at = now() - interval '1 s' WHERE id = {}",
            ids[0]
        ))
        .await;
    assert_eq!(lowest().await, Some(ids[1]), "what was delayed has an index of its own");
    world.abandon_pending().await;
    world.execute("UPDATE outbox.claim SET lease_until = 'infinity'").await;
    assert_eq!(lowest().await, Some(ids[1]));
    world
        .execute("UPDATE outbox.message SET published_at = now(), available_at = NULL")
        .await;
    assert_eq!(lowest().await, None);
}

/// The relay asks for open writers after a hundred ids or half a second. One answer moves the watermark at least past what was drawn
/// before the last one, so there are two questions for each reason while a writer is always open.
#[tokio::test]
async fn under_a_trickle_the_database_is_asked_who_writes_a_few_times_for_every_hundred_rows() {
    const ROWS: usize = 2_000;
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).start_ready().await;
    let load = BackgroundWrites::start(&world, &topic);
    let published = async |rows: usize| {
        let published = format!("(SELECT count(*) > {rows} FROM outbox.message WHERE published_at IS NOT NULL)");
        world.until(&published).await;
    };
    published(100).await;
    let (before, began) = (proxy.times_executed("pg_locks"), Instant::now());
    published(100 + ROWS).await;
    let asked = proxy.times_executed("pg_locks") - before;
    load.stop();
    let most = ROWS / 25 + 4 * began.elapsed().as_secs() as usize;
    assert!((2..most).contains(&asked), "asked {asked} times who writes");
    world.drained(SOON).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
}

/// The mark of their batch counts too few rows, and the relay checks its lease: it was not lost.
#[tokio::test]
async fn rows_removed_before_their_mark_are_missed_by_nobody_and_the_others_are_counted() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    let load = BackgroundWrites::start(&world, &topic);
    let remove =
        "DELETE FROM outbox.message WHERE id IN (SELECT max(id) FROM outbox.message WHERE published_at IS NULL)";
    let mut removed = 0;
    while removed < 50 {
        removed += world.db.execute(remove, &[]).await.expect(remove);
    }
    load.stop();
    world.drained(SOON).await;
    let count = |what| relay.metric(&format!("outboxd_rows_{what}_total")).expect("a count");
    let unmarked = count("published") - count("marked");
    assert!(
        (0.0..=removed as f64).contains(&unmarked),
        "{unmarked} of {removed} removed"
    );
    assert_eq!(count("fenced"), 0.0);
    relay.assert_alive();
}

/// The next poll is due when the rows of the last one are published, and finds rows again, for as long as the load lasts.
#[tokio::test]
async fn polls_that_always_find_something_keep_nothing_else_waiting() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).args(&["--tasks", "1"]).start_ready().await;
    proxy.both_ways(Link {
        delay: Duration::from_millis(10),
        ..Link::default()
    });
    // So few rows that no poll finds more than it returns.
    let one_row = "INSERT INTO outbox.message (topic, key, payload) VALUES ($1, 'k' || $2::bigint % 100, '1')";
    let load = BackgroundWrites::writing(&world, &topic, one_row);
    world
        .until("(SELECT count(*) > 200 FROM outbox.message WHERE published_at IS NOT NULL)")
        .await;
    // One poll in the meantime, not as many as until one happens to find nothing.
    let soon = async |id| {
        let published = tokio::time::timeout(Duration::from_secs(3), world.published(id));
        published.await.expect("published beside the polls");
    };
    let without_key = world.insert(&topic, &[(None, vec![1])]).await[0];
    soon(without_key).await;
    let due =
        "INSERT INTO outbox.message (topic, key, payload, available_at) VALUES ($1, 'due', '1', now()) RETURNING id";
    let due = world.db.query_one(due, &[&topic]).await.expect("inserted").get(0);
    soon(due).await;
    load.stop();
    world.drained(SOON).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
}
