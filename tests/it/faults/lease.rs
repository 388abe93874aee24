//! The statements that decide who owns what, as shipped, in the interleavings that processes hit too seldom to test.

use std::time::{Duration, SystemTime};

use outboxd::outbox::statement;
use testkit::*;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

/// One worker's side of the conversation with the database.
struct Worker {
    db: Client,
    id: Uuid,
    incarnation: SystemTime,
}

impl Worker {
    async fn register(world: &World, lease_seconds: f64) -> Self {
        let (db, id) = (world.session().await, Uuid::new_v4());
        // Of a process of which nothing can be proven.
        let (nothing, none) = (None::<String>, None::<i64>);
        let params: [&(dyn ToSql + Sync); 10] = [
            &id,
            &"test",
            &"0",
            &lease_seconds,
            &nothing,
            &nothing,
            &none,
            &none,
            &none,
            &outboxd::outbox::known_version(),
        ];
        let row = db.query_one(&statement::text("register"), &params).await;
        let incarnation = row.expect("registered").get("incarnation");
        Worker { db, id, incarnation }
    }

    async fn renew(&self) -> bool {
        let params: [&(dyn ToSql + Sync); 5] = [&self.id, &60.0f64, &self.incarnation, &0i64, &0i64];
        let here = self
            .db
            .query(&statement::text("renew"), &params)
            .await
            .expect("answered");
        !here.is_empty()
    }

    /// Takes up to `count` lanes; answers them with their epochs.
    async fn take(&self, count: i64) -> Vec<(i16, i64)> {
        let rows = self.take_after(count, 60.0).await;
        rows.iter().map(|row| (row.get("lane"), row.get("epoch"))).collect()
    }

    /// The same, where leases that a failover lost lasted so long.
    async fn take_after(&self, count: i64, lease_seconds: f64) -> Vec<Row> {
        let params: [&(dyn ToSql + Sync); 4] = [&self.id, &count, &self.incarnation, &lease_seconds];
        let take = statement::text("take_lanes");
        let taking = self.db.query(&take, &params);
        let rows = tokio::time::timeout(Duration::from_secs(10), taking).await;
        rows.expect("what is locked is skipped, not waited for")
            .expect("answered")
    }

    /// Begins a term as far as the server's lineage goes.
    async fn inherit(&self) {
        let lineage = self
            .db
            .query_one(&statement::text("lineage"), &[&self.incarnation])
            .await;
        assert!(!lineage.expect("answered").get::<_, String>("name").is_empty());
    }

    /// Marks every row, as the owner of these lanes.
    async fn mark(&self, held: &[(i16, i64)]) -> u64 {
        self.mark_by("mark_lanes_keep", held).await
    }

    async fn mark_by(&self, mark: &str, held: &[(i16, i64)]) -> u64 {
        let (lanes, epochs): (Vec<i16>, Vec<i64>) = held.iter().copied().unzip();
        let ids: Vec<i64> = (1..=100).collect();
        let records: Vec<i64> = Vec::new();
        let params: [&(dyn ToSql + Sync); 6] = [&self.id, &lanes, &epochs, &self.incarnation, &ids, &records];
        self.db
            .execute(&statement::text(mark), &params)
            .await
            .expect("answered")
    }
}

async fn expired(world: &World, worker: &Worker) {
    let sql = format!(
        "SELECT count(*) FROM outbox.worker WHERE id = '{}' AND lease_until < clock_timestamp()",
        worker.id
    );
    eventually(SOON, "the lease to end", async || {
        (world.count(&sql).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_ran_out_is_not_renewed() {
    let world = World::new().await;
    let live = Worker::register(&world, 60.0).await;
    let dead = Worker::register(&world, 0.01).await;
    expired(&world, &dead).await;
    assert!(live.renew().await);
    assert!(!dead.renew().await, "nobody has taken its lanes, and yet it is over");
}

#[tokio::test]
async fn a_worker_whose_lanes_were_taken_is_not_renewed() {
    let world = World::new().await;
    let (old, new) = (
        Worker::register(&world, 0.01).await,
        Worker::register(&world, 60.0).await,
    );
    expired(&world, &old).await;
    assert_eq!(new.take(64).await.len(), 64);
    let revived = format!(
        "UPDATE outbox.worker SET lease_until = 'infinity' WHERE id = '{}'",
        old.id
    );
    world.execute(&revived).await;
    assert!(!old.renew().await, "stopped is for good");
}

#[tokio::test]
async fn a_mark_needs_the_owner_and_the_epoch() {
    for mark in ["mark_lanes_keep", "mark_lanes_archive", "mark_lanes_delete"] {
        let world = World::new().await;
        world.fill("nowhere", 100, 50).await;
        let (owner, other) = (
            Worker::register(&world, 60.0).await,
            Worker::register(&world, 60.0).await,
        );
        let mut held = owner.take(64).await;
        world
            .execute("UPDATE outbox.lane SET epoch = epoch + lane WHERE lane >= 0")
            .await;
        held.iter_mut().for_each(|(lane, epoch)| *epoch += i64::from(*lane));
        let stale: Vec<_> = held.iter().map(|(lane, epoch)| (*lane, epoch - 100)).collect();
        let next = held.iter().cycle().skip(1);
        let mixed_up: Vec<_> = held.iter().zip(next).map(|(own, next)| (own.0, next.1)).collect();
        assert_eq!(other.mark_by(mark, &held).await, 0, "another worker's lanes: {mark}");
        assert_eq!(
            owner.mark_by(mark, &stale).await,
            0,
            "an earlier take of the same lanes: {mark}"
        );
        assert_eq!(owner.mark_by(mark, &mixed_up).await, 0, "epochs of other lanes: {mark}");
        assert_eq!(owner.mark_by(mark, &held).await, 100, "{mark}");
    }
}

/// The first worker on another lineage of the server decides, and what it decided outlives it.
#[tokio::test]
async fn what_a_failover_leaves_as_maybe_sent_stays_so_for_every_later_owner() {
    let world = World::new().await;
    world.fill("nowhere", 100, 50).await;
    let first = Worker::register(&world, 60.0).await;
    first.inherit().await;
    let maybe_sent_until = |lanes: &[Row]| {
        lanes
            .iter()
            .map(|lane| lane.get("maybe_sent_until"))
            .collect::<Vec<i64>>()
    };
    let taken = first.take_after(32, 60.0).await;
    assert_eq!(maybe_sent_until(&taken), [0; 32], "the same lineage");
    world.execute("UPDATE outbox.lane SET lineage = 'another'").await;
    first.inherit().await;
    world.fill("nowhere", 100, 50).await;
    assert_eq!(first.take_after(32, 60.0).await.len(), 0, "a lost lease may still last");
    assert_eq!(maybe_sent_until(&first.take_after(32, 0.0).await), [100; 32]);
    world
        .execute("UPDATE outbox.worker SET lease_until = clock_timestamp()")
        .await;
    let second = Worker::register(&world, 60.0).await;
    second.inherit().await;
    assert_eq!(maybe_sent_until(&second.take_after(64, 0.0).await), [100; 64]);
}

/// A connection to a server that was replaced may still answer: its ids and its writers are not those of the new one.
#[tokio::test]
async fn what_another_server_says_moves_no_floor() {
    let world = World::new().await;
    let same_server = async |incarnation: SystemTime| {
        let drawn = world
            .db
            .query(&statement::text("highest_id"), &[&incarnation])
            .await
            .expect("answered");
        let writers = world
            .db
            .query_one(&statement::text("open_writers"), &[&incarnation])
            .await
            .expect("answered");
        (drawn.len(), writers.get::<_, bool>("same_server"))
    };
    let worker = Worker::register(&world, 60.0).await;
    assert_eq!(same_server(worker.incarnation).await, (1, true));
    assert_eq!(same_server(SystemTime::UNIX_EPOCH).await, (0, false));
}

#[tokio::test]
async fn a_mark_that_meets_a_take_waits_for_it_and_then_touches_nothing() {
    let world = World::new().await;
    world.fill("nowhere", 100, 50).await;
    let (old, new) = (
        Worker::register(&world, 1.0).await,
        Worker::register(&world, 60.0).await,
    );
    let held = old.take(64).await;
    assert_eq!(held.len(), 64);
    expired(&world, &old).await;
    new.db.batch_execute("BEGIN").await.expect("begun");
    assert_eq!(new.take(64).await.len(), 64);
    let late_mark = old.mark(&held);
    let commit = async {
        world.blocked(1).await;
        new.db.batch_execute("COMMIT").await.expect("committed");
    };
    let (marked, ()) = tokio::join!(late_mark, commit);
    assert_eq!(marked, 0);
    assert_eq!(world.pending().await, 100);
}

#[tokio::test]
async fn two_that_take_at_once_get_different_lanes() {
    let world = World::new().await;
    let (one, two) = (
        Worker::register(&world, 60.0).await,
        Worker::register(&world, 60.0).await,
    );
    one.db.batch_execute("BEGIN").await.expect("begun");
    let first = one.take(32).await;
    let second = two.take(64).await;
    one.db.batch_execute("COMMIT").await.expect("committed");
    assert_eq!((first.len(), second.len()), (32, 32));
    assert!(first.iter().all(|lane| !second.contains(lane)));
}

#[tokio::test]
async fn a_renewal_under_way_keeps_the_lanes_from_being_taken() {
    let world = World::new().await;
    let (old, new) = (
        Worker::register(&world, 1.0).await,
        Worker::register(&world, 60.0).await,
    );
    assert_eq!(old.take(64).await.len(), 64);
    old.db.batch_execute("BEGIN").await.expect("begun");
    assert!(old.renew().await);
    // To everybody else it looks expired until the renewal commits.
    expired(&world, &old).await;
    assert_eq!(
        new.take(64).await,
        [],
        "its row is locked: somebody is about to change it"
    );
    old.db.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(new.take(64).await, [], "renewed");
}

/// The same with a real process as the one that takes: it has read "expired", the renewal commits, and it goes on.
#[tokio::test]
async fn a_renewal_that_commits_after_it_was_seen_expired_keeps_its_lanes() {
    let fault = Fault::new(
        45,
        "a renewal commits between \"expired\" and the take",
        "one owner at any time",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 100).await;
    let old = Worker::register(&world, 1.0).await;
    assert_eq!(old.take(64).await.len(), 64);
    old.db.batch_execute("BEGIN").await.expect("begun");
    assert!(old.renew().await);
    expired(&world, &old).await;
    let relay = world.relay().failpoint("before_takeover").start_ready().await;
    relay.at_failpoint("before_takeover").await;
    let taken_from_it = format!(
        "SELECT count(*) FROM outbox.lane WHERE lane >= 0 AND owner <> '{}'",
        old.id
    );
    // It takes while the renewal is under way, and again when that has committed.
    relay.continue_from("before_takeover");
    world.lease_is_renewed_twice().await;
    old.db.batch_execute("COMMIT").await.expect("committed");
    world.lease_is_renewed_twice().await;
    assert_eq!(world.count(&taken_from_it).await, 0);
    assert!(old.renew().await, "it was not stamped stopped");
    assert!(
        !relay.logged("share the lanes"),
        "what is locked is skipped, not waited for"
    );
    assert_eq!(relay.metric("outboxd_rows_claimed_total"), Some(0.0));

    let lease_ends = format!(
        "UPDATE outbox.worker SET lease_until = clock_timestamp() WHERE id = '{}'",
        old.id
    );
    world.execute(&lease_ends).await;
    let recovered = fault.over().until_drained(&world).await;
    assert!(!old.renew().await);
    let history = world.history(&topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&relay]);
    recovered.record(history.duplicates);
}

/// An owner whose lease is over may still be writing: until its lanes are locked, and so until then their holds are not known.
#[tokio::test]
async fn a_hold_written_while_its_lane_is_being_taken_is_known_to_the_new_owner() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let old = Worker::register(&world, 60.0).await;
    assert_eq!(old.take(64).await.len(), 64);
    world
        .execute("UPDATE outbox.worker SET lease_until = clock_timestamp()")
        .await;
    let relay = world.relay().failpoint("before_takeover").start_ready().await;
    relay.at_failpoint("before_takeover").await;
    // The take waits here, with the snapshot it has by then.
    let locks = world.session().await;
    let lock_the_taker = format!("BEGIN; SELECT FROM outbox.worker WHERE id <> '{}' FOR UPDATE", old.id);
    locks.batch_execute(&lock_the_taker).await.expect("locked");
    relay.continue_from("before_takeover");
    world.blocked(1).await;
    let held = world.insert(&topic, &[(Some("k"), b"held".to_vec())]).await;
    let hold = format!(
        "INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, retry_at)
         SELECT lane, topic, 'k:k', id, 0, 'refused', 'infinity' FROM outbox.message WHERE id = {}",
        held[0]
    );
    world.execute(&hold).await;
    let neighbour = world.keys_of_same_lane("k", 1).await.remove(0);
    let free = world.insert(&topic, &[(Some(&neighbour), b"free".to_vec())]).await;
    locks.batch_execute("ROLLBACK").await.expect("unlocked");
    world.published(free[0]).await;
    assert_eq!(world.pending().await, 1, "a held key waits");
    assert_eq!(world.records(&topic).await.len(), 1);
}

/// What a take leaves behind whose answer was lost: the database names an owner that knows nothing of it.
#[tokio::test]
async fn lanes_that_a_worker_owns_without_knowing_it_are_not_lost() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relays = [world.relay().start_ready().await, world.relay().start_ready().await];
    eventually(SOON, "an even split", async || {
        (world.lanes_per_worker().await == [32, 32]).then_some(())
    })
    .await;
    world
        .execute(
            "UPDATE outbox.lane SET epoch = epoch + 1, owner = (SELECT min(owner::text)::uuid FROM outbox.lane)
             WHERE owner = (SELECT max(owner::text)::uuid FROM outbox.lane)",
        )
        .await;
    eventually(SOON, "the worker to notice", async || {
        let lost = relays
            .iter()
            .filter_map(|relay| relay.metric("outboxd_leases_lost_total"));
        (lost.sum::<f64>() >= 1.0).then_some(())
    })
    .await;
    world.fill(&topic, 2000, 500).await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_sound();
}
