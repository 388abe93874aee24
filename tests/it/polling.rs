//! The statements that poll for rows and take along what they find, as shipped.

use std::time::Duration;

use outboxd::outbox::statement;
use testkit::*;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

const HERE: &str = "SELECT incarnation FROM outbox.server";

/// What a look answers: the ids with whether each was delayed, whether there are rows without a lane, whether it was cut.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    rows: Vec<(i64, bool)>,
    keyless: bool,
    cut: bool,
}

/// What it answers beside them.
#[derive(Debug, PartialEq)]
struct Overview {
    highest: Option<i64>,
    lowest_keyless: Option<i64>,
    gapless: bool,
}

struct Look {
    start: i64,
    lanes: Vec<i16>,
    walk: i64,
    has_holds: bool,
    most: i64,
    settled: i64,
    highest_walked: i64,
}

impl Default for Look {
    fn default() -> Self {
        Look {
            start: 0,
            lanes: (0..64).collect(),
            walk: 1000,
            has_holds: false,
            most: 100,
            settled: 0,
            highest_walked: 0,
        }
    }
}

impl Look {
    async fn rows(&self, world: &World, incarnation: &str) -> Vec<Row> {
        let text = statement::text("look").replace("$6", &format!("({incarnation})"));
        let text = text.replace("$7", "0");
        let text = text.replace("$8", &format!("{}::bigint", self.settled));
        let text = text.replace("$9", &format!("{}::bigint", self.highest_walked));
        let params: [&(dyn ToSql + Sync); 5] = [&self.start, &self.lanes, &self.walk, &self.has_holds, &self.most];
        world.db.query(&text, &params).await.expect("answered")
    }

    /// The same in passing.
    async fn glance_rows(&self, world: &World, incarnation: &str) -> Vec<Row> {
        let text = statement::text("glance").replace("$5", &format!("({incarnation})"));
        let text = text.replace("$6", &format!("{}::bigint", self.settled));
        let text = text.replace("$7", &format!("{}::bigint", self.highest_walked));
        let params: [&(dyn ToSql + Sync); 4] = [&self.start, &self.lanes, &self.walk, &self.most];
        world.db.query(&text, &params).await.expect("answered")
    }

    /// `None`: no answer at all.
    async fn at(&self, world: &World, incarnation: &str) -> Option<Answer> {
        answer(&self.rows(world, incarnation).await)
    }

    async fn answer(&self, world: &World) -> Answer {
        self.at(world, HERE).await.expect("an answer")
    }

    /// What a look and a glance answer alike.
    async fn answer_of_both(&self, world: &World) -> Answer {
        let (look, glance) = (self.rows(world, HERE).await, self.glance_rows(world, HERE).await);
        assert_eq!(answer(&glance), answer(&look));
        assert_eq!(overview(&glance), overview(&look));
        answer(&look).expect("an answer")
    }

    async fn overview(&self, world: &World) -> Overview {
        overview(&self.rows(world, HERE).await)
    }
}

fn answer(rows: &[Row]) -> Option<Answer> {
    let first = rows.first()?;
    let mut answer = Answer {
        keyless: first.get("keyless"),
        cut: first.get("cut"),
        ..Answer::default()
    };
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
    answer.rows = found.map(|row| (row.get("id"), row.get("delayed"))).collect();
    answer.rows.sort_unstable();
    Some(answer)
}

fn overview(rows: &[Row]) -> Overview {
    let first = rows.first().expect("an answer");
    Overview {
        highest: first.get("highest"),
        lowest_keyless: first.get("lowest_keyless"),
        gapless: first.get("gapless"),
    }
}

/// Three rows of the keys a, b, a.
async fn three_rows() -> (World, [i64; 3]) {
    let world = World::new().await;
    let rows = [(Some("a"), vec![1]), (Some("b"), vec![2]), (Some("a"), vec![3])];
    let ids = world.insert("orders", &rows).await;
    (world, [ids[0], ids[1], ids[2]])
}

/// Holds the key b; a look that knows of it.
async fn with_b_held(world: &World) -> Look {
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT lane, topic, 'k:b', 0, 'sick', now() FROM outbox.message WHERE key = 'b'",
        )
        .await;
    Look {
        has_holds: true,
        ..Look::default()
    }
}

/// A look that asks for the lane of `key` alone.
async fn in_lane_of(world: &World, key: &str) -> Look {
    let lane = format!("SELECT max(lane)::bigint FROM outbox.message WHERE key = '{key}'");
    Look {
        lanes: vec![world.count(&lane).await as i16],
        ..Look::default()
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
    assert_eq!(
        Look::default().answer_of_both(&world).await,
        fresh(&[first, second, third])
    );
    let above = Look {
        start: first,
        ..Look::default()
    };
    assert_eq!(above.answer_of_both(&world).await, fresh(&[second, third]));
    assert_eq!(
        in_lane_of(&world, "b").await.answer_of_both(&world).await,
        fresh(&[second])
    );
    world
        .execute(&format!(
            "UPDATE outbox.message SET published_at = now() WHERE id = {second}"
        ))
        .await;
    assert_eq!(Look::default().answer_of_both(&world).await, fresh(&[first, third]));
}

#[tokio::test]
async fn a_poll_that_finds_more_than_it_takes_says_only_that() {
    let (world, _) = three_rows().await;
    let cut = Answer {
        cut: true,
        ..Answer::default()
    };
    let few = Look {
        most: 2,
        ..Look::default()
    };
    assert_eq!(few.answer_of_both(&world).await, cut);
    let short = Look {
        walk: 3,
        ..Look::default()
    };
    assert_eq!(short.answer_of_both(&world).await, cut, "there may be more behind");
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
    let held_alone = Look {
        has_holds: true,
        ..in_lane_of(&world, "b").await
    };
    assert_eq!(held_alone.answer(&world).await, fresh(&[]));
    let highest = held_alone.overview(&world).await.highest;
    assert_eq!(highest, Some(third), "walked over all the same");
    assert_eq!(Look::default().answer(&world).await, fresh(&[first, second, third]));
    let delay = |id, when| format!("UPDATE outbox.message SET available_at = now() {when} WHERE id = {id}");
    world.execute(&delay(first, "+ interval '1 hour'")).await;
    world.execute(&delay(third, "- interval '1 s'")).await;
    world.insert("orders", &[(None, vec![4])]).await;
    let answer = Answer {
        rows: vec![(third, true)],
        keyless: true,
        cut: false,
    };
    assert_eq!(holding.answer(&world).await, answer);
}

#[tokio::test]
async fn a_poll_of_another_server_than_the_term_began_on_has_no_answer() {
    let (world, _) = three_rows().await;
    assert_eq!(Look::default().at(&world, "SELECT now()").await, None);
    let glance = Look::default().glance_rows(&world, "SELECT now()").await;
    assert!(glance.is_empty());
}

#[tokio::test]
async fn a_poll_skips_unordered_rows_that_are_claimed_until_the_lease_is_over() {
    let world = World::new().await;
    world.fill("t", 3, 0).await;
    world
        .execute("UPDATE outbox.message SET available_at = now() WHERE id = 3")
        .await;
    let keyless = |keyless| Answer {
        keyless,
        ..Answer::default()
    };
    assert_eq!(Look::default().answer(&world).await, keyless(true));
    world.abandon_pending().await;
    assert_eq!(Look::default().answer(&world).await, keyless(true), "nobody's any more");
    world.execute("UPDATE outbox.claim SET lease_until = 'infinity'").await;
    assert_eq!(
        Look::default().answer(&world).await,
        keyless(false),
        "they are in good hands"
    );
}

#[tokio::test]
async fn a_look_says_whether_it_saw_every_id_up_to_the_highest_known() {
    let (world, [first, second, third]) = three_rows().await;
    let gapless = async |settled, highest_walked| {
        let look = Look {
            settled,
            highest_walked,
            ..Look::default()
        };
        let (full, passing) = (look.rows(&world, HERE).await, look.glance_rows(&world, HERE).await);
        assert_eq!(overview(&passing), overview(&full));
        overview(&full).gapless
    };
    assert!(gapless(first - 1, third).await);
    assert!(gapless(first, first).await, "nothing is nothing");
    assert!(!gapless(first - 1, third + 1).await, "that one may come yet");
    world
        .execute("UPDATE outbox.message SET published_at = now(), available_at = NULL")
        .await;
    assert!(gapless(first - 1, third).await, "published ones are seen as well");
    world
        .execute(&format!(
            "UPDATE outbox.message SET published_at = NULL, available_at = now() - interval '1 s' WHERE id = {third}"
        ))
        .await;
    assert!(gapless(first - 1, third).await);
    assert!(
        !gapless(first - 1, third + 1).await,
        "what is due is walked twice and counts once"
    );
    world
        .execute(&format!("DELETE FROM outbox.message WHERE id = {second}"))
        .await;
    assert!(!gapless(first - 1, third).await, "it might be uncommitted");
    assert!(gapless(second, third).await, "the gap is settled");
}

#[tokio::test]
async fn a_poll_names_the_lowest_unordered_row_whether_it_is_claimed_or_not() {
    let (world, _) = three_rows().await;
    let lowest = async || Look::default().overview(&world).await.lowest_keyless;
    assert_eq!(lowest().await, None);
    let ids = world.insert("orders", &[(None, vec![4]), (None, vec![5])]).await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             VALUES (-1, 'orders', '', 0, 'sick', now())",
        )
        .await;
    let holding = Look {
        has_holds: true,
        ..Look::default()
    };
    assert_eq!(
        holding.overview(&world).await.lowest_keyless,
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

#[tokio::test]
async fn a_glance_leaves_what_is_delayed_and_names_rows_without_a_lane_but_not_whose_they_are() {
    let (world, [first, second, third]) = three_rows().await;
    let delay = |id, when| format!("UPDATE outbox.message SET available_at = now() {when} WHERE id = {id}");
    world.execute(&delay(first, "- interval '1 s'")).await;
    world.execute(&delay(second, "+ interval '1 hour'")).await;
    let without_lane = world.insert("orders", &[(None, vec![4])]).await[0];
    world.abandon_pending().await;
    world.execute("UPDATE outbox.claim SET lease_until = 'infinity'").await;
    let glance = Look::default().glance_rows(&world, HERE).await;
    assert_eq!(answer(&glance), Some(fresh(&[third])));
    assert_eq!(overview(&glance).lowest_keyless, Some(without_lane));
}

/// A single writer leaves no gaps for longer than its own commit takes. Without looks that settle what they see, every hundred ids
/// somebody has to ask who writes.
#[tokio::test]
async fn the_horizon_moves_by_what_looks_see_and_hardly_anybody_asks_who_writes() {
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
    let before = proxy.times_executed("pg_locks");
    published(100 + ROWS).await;
    let asked = proxy.times_executed("pg_locks") - before;
    load.stop();
    assert!(asked < ROWS / 150, "asked {asked} times who writes");
    world.drained(SOON).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
}

/// Writers of a few keys each, so that something comes between any two looks, and never in many lanes.
fn thin_trickle(world: &World, topic: &str) -> [BackgroundWrites; 3] {
    [0, 1, 2].map(|writer| {
        let own_keys = format!(
            "INSERT INTO outbox.message (topic, key, payload) VALUES ($1, 'w{writer}-' || $2::bigint % 3, '1')"
        );
        BackgroundWrites::writing(world, topic, &own_keys)
    })
}

/// Until some marks were taken along with others.
async fn marks_in_company(relay: &Relay) {
    let count = |of| relay.metric(&format!("outboxd_{of}_seconds_count"));
    eventually(SOON, "marks of two batches at once", async || {
        (count("publish")? > count("mark")? + 20.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn under_a_trickle_one_mark_takes_the_one_before_along() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    let load = thin_trickle(&world, &topic);
    marks_in_company(&relay).await;
    load.into_iter().for_each(BackgroundWrites::stop);
    world.drained(SOON).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(relay.metric("outboxd_rows_forgotten_total"), Some(0.0));
    let marked = relay.metric("outboxd_rows_marked_total");
    assert_eq!(marked, relay.metric("outboxd_rows_published_total"), "each is counted");
}

#[tokio::test]
async fn what_waits_to_be_marked_when_its_process_ends_is_sent_again_at_most_and_says_so() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let load = thin_trickle(&world, &topic);
    let mut killed = world.relay().start_ready().await;
    marks_in_company(&killed).await;
    killed.kill();
    let mut stopped = world.relay().start_ready().await;
    marks_in_company(&stopped).await;
    stopped.stop();
    load.into_iter().for_each(BackgroundWrites::stop);
    let last = world.relay().start_ready().await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_repeats_at_most(100);
    assert_eq!(last.metric("outboxd_rows_forgotten_total"), Some(0.0));
}

/// Then the count of two batches is short, and so is that of one of them alone: nobody's lease was lost.
#[tokio::test]
async fn rows_removed_before_their_mark_are_missed_by_nobody_and_the_others_are_counted() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    let load = thin_trickle(&world, &topic);
    marks_in_company(&relay).await;
    let remove =
        "DELETE FROM outbox.message WHERE id IN (SELECT max(id) FROM outbox.message WHERE published_at IS NULL)";
    let mut removed = 0;
    while removed < 50 {
        removed += world.db.execute(remove, &[]).await.expect(remove);
    }
    load.into_iter().for_each(BackgroundWrites::stop);
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

/// The next look is due when what the last one found is relayed, and finds something again, for as long as the load lasts.
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
    // So few that no look ever sees more than it takes along.
    let one_row = "INSERT INTO outbox.message (topic, key, payload) VALUES ($1, 'k' || $2::bigint % 100, '1')";
    let load = BackgroundWrites::writing(&world, &topic, one_row);
    world
        .until("(SELECT count(*) > 200 FROM outbox.message WHERE published_at IS NOT NULL)")
        .await;
    let without_key = world.insert(&topic, &[(None, vec![1])]).await[0];
    world.published(without_key).await;
    let due =
        "INSERT INTO outbox.message (topic, key, payload, available_at) VALUES ($1, 'due', '1', now()) RETURNING id";
    let due = world.db.query_one(due, &[&topic]).await.expect("inserted").get(0);
    world.published(due).await;
    load.stop();
    world.drained(SOON).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
}
