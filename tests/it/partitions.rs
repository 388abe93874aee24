//! Paused partitions, as the schema knows them: which rows belong to one, and that claims leave out those and no others.

use outboxd::domain::partition::PartitionChoice;
use outboxd::outbox::statement;
use testkit::*;

/// The known answers of the Java client's own test of `Utils.murmur2`, without their signs.
#[tokio::test]
async fn murmur2_answers_as_the_java_client_does() {
    let world = World::new().await;
    let known = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
        ("", 275_646_681),
    ];
    for (key, answer) in known {
        let row = world.db.query_one("SELECT outbox.murmur2($1)", &[&key]).await;
        assert_eq!(row.expect("a hash").get::<_, i32>(0), answer & 0x7fff_ffff, "{key:?}");
    }
}

/// Any text of up to 64 characters, of one to four bytes each.
fn any_key() -> String {
    let chars = [|| fastrand::char('\u{1}'..='~'), || fastrand::char('\u{1}'..)];
    (0..fastrand::usize(..64))
        .map(|_| fastrand::choice(chars).expect("two")())
        .collect()
}

#[tokio::test]
async fn sql_finds_the_partition_that_the_relay_sends_to() {
    let world = World::new().await;
    let keys: Vec<String> = (0..5_000).map(|_| any_key()).collect();
    let counts: Vec<i32> = keys.iter().map(|_| fastrand::i32(1..1_000)).collect();
    let sql = "SELECT outbox.murmur2(key) % count FROM unnest($1::text[], $2::integer[]) AS k (key, count)";
    let found = world.db.query(sql, &[&keys, &counts]).await.expect("partitions");
    for ((key, count), found) in keys.iter().zip(counts).zip(found) {
        let sent_to = PartitionChoice::of_key(key.as_bytes()).partition(count);
        assert_eq!(Some(found.get::<_, i32>(0)), sent_to, "{key:?} of {count}");
    }
}

/// Partition 1 of a topic of four is paused in every lane and among the rows without one, until an operator acts.
const PAUSE: &str = "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
    SELECT lane, $topic, 's:1/4', 0, 'no leader', 'infinity' FROM outbox.lane";

const KEPT_BACK: &str = "coalesce(partition, outbox.murmur2(coalesce(key, message_id::text)) % 4) = 1";

#[tokio::test]
async fn a_paused_partition_keeps_back_its_rows_and_no_others() {
    let world = World::new().await;
    // Twice as many as when it was paused: the count that the hold knows decides.
    let topic = world.topic("orders", 8, &[]).await;
    world.execute(&PAUSE.replace("$topic", &format!("'{topic}'"))).await;
    world.fill(&topic, 400, 100).await;
    world.fill(&topic, 100, 0).await;
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, partition, payload)
             SELECT '{topic}', n % 4, '{{}}' FROM generate_series(1, 40) n"
        ))
        .await;
    let kept_back = format!("SELECT count(*) FROM outbox.message WHERE {KEPT_BACK}");
    let kept_back = world.count(&kept_back).await;
    assert!((100..200).contains(&kept_back), "{kept_back} of 540");
    let mut relay = world.relay().start_ready().await;
    let only_those = format!("SELECT bool_and(({KEPT_BACK}) = (published_at IS NULL)) FROM outbox.message");
    world.until(&only_those).await;

    // Polls know of it as well, and so does the safety net, when every floor has passed all rows.
    world.fill(&topic, 40, 20).await;
    world.until(&only_those).await;
    relay.stop();
    world.execute("UPDATE outbox.lane SET floor = 10000").await;
    let rescan = statement::text("rescan").replace("$1", "0").replace("$2", "10000");
    let found = world.db.query_one(&rescan, &[]).await.expect("a rescan");
    assert_eq!(found.get::<_, i64>("found"), 0, "what is held is not forgotten");
    let shown = world.outboxd("status", &[]).stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("1 partition(s) paused"), "{shown}");
    assert!(
        shown.contains(&format!("Partition 1 of topic {topic} takes nothing (no leader)")),
        "{shown}"
    );

    world
        .execute("DELETE FROM outbox.hold; UPDATE outbox.lane SET floor = 0, epoch = epoch + 1")
        .await;
    let _relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
}

#[tokio::test]
async fn a_hold_is_of_a_key_a_partition_that_can_be_or_everything() {
    let world = World::new().await;
    let hold = |unit: &str| {
        format!(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at) VALUES (0, 't', '{unit}', 0, '', now())"
        )
    };
    for unit in ["", "k:", "k:s:9/4", "p:7", "s:0/1", "s:11/12"] {
        world.execute(&hold(unit)).await;
    }
    for unit in ["s:", "s:1", "s:4/4", "s:-1/4", "s:1/4 ", "s:1/99999999999", "x"] {
        let refused = world.db.batch_execute(&hold(unit)).await.expect_err(unit);
        let refused = refused
            .as_db_error()
            .and_then(|error| error.constraint().map(str::to_owned));
        assert_eq!(
            refused.as_deref(),
            Some("hold_unit_is_a_key_a_partition_or_everything"),
            "{unit:?}"
        );
    }
}

/// Of what another hold keeps back, older rows of the same key may lie below where the topic's own hold resumes.
#[tokio::test]
async fn a_parked_topic_is_not_tried_with_what_a_paused_partition_of_it_keeps_back() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 200, 100).await;
    world.execute(&PAUSE.replace("$topic", &format!("'{topic}'"))).await;
    // The whole topic was parked later, when the older half of the rows had been passed.
    world
        .execute(&format!(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT lane, '{topic}', '', 100, 'missing', clock_timestamp() FROM outbox.lane WHERE lane >= 0;
             UPDATE outbox.message SET published_at = clock_timestamp() WHERE id <= 100 AND NOT {KEPT_BACK};
             UPDATE outbox.lane SET floor = 200 WHERE lane >= 0"
        ))
        .await;
    let _relay = world.relay().start_ready().await;
    let all_others = format!("SELECT bool_and(({KEPT_BACK}) = (published_at IS NULL)) FROM outbox.message");
    world.until(&all_others).await;
    world.held(65).await;
    world.until(&all_others).await;
}

#[tokio::test]
async fn what_a_released_hold_kept_back_is_inherited_by_all_of_its_topic_that_stay() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT 3, topic, unit, 50, 'sick', 'infinity'
             FROM (VALUES ('a', ''), ('a', 'k:1'), ('a', 's:3/4'), ('a', 's:7/8'), ('a', 's:1/4'), ('b', 's:3/4')) AS held (topic, unit)",
        )
        .await;
    let unhold = statement::text("delete_holds")
        .replace("$1", "3")
        .replace("$2", "ARRAY['a', 'a']")
        .replace("$3", "ARRAY['k:1', 's:1/4']")
        .replace("$4", "10");
    world.execute(&unhold).await;
    let left = "SELECT string_agg(topic || ' ' || unit || ' ' || resume_floor, ', ' ORDER BY topic, unit COLLATE \"C\") FROM outbox.hold";
    assert_eq!(world.text(left).await, "a  10, a s:3/4 10, a s:7/8 10, b s:3/4 50");
}

/// A worker that owns lanes 0 and 1, and another that owns lane 2; a partition is paused in all of them and among the unordered rows.
async fn paused_for_two_workers(world: &World) {
    world
        .execute(
            "INSERT INTO outbox.worker (id, name, version, lease_until, incarnation)
             SELECT gen_random_uuid(), name, '1', 'infinity', now() FROM (VALUES ('one'), ('other')) AS w (name);
             UPDATE outbox.lane SET owner = (SELECT id FROM outbox.worker WHERE name = CASE WHEN lane = 2 THEN 'other' ELSE 'one' END)
             WHERE lane IN (0, 1, 2);
             INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT lane, 'orders', unit, 0, 'no leader', now() - interval '1 minute'
             FROM outbox.lane, (VALUES ('s:1/4'), ('s:2/4')) AS paused (unit) WHERE lane <= 2",
        )
        .await;
}

const ONE: &str = "(SELECT id FROM outbox.worker WHERE name = 'one')";
const HERE: &str = "(SELECT incarnation FROM outbox.server)";

#[tokio::test]
async fn a_probe_that_failed_postpones_all_lanes_of_its_worker_and_no_others() {
    let world = World::new().await;
    paused_for_two_workers(&world).await;
    let postpone = statement::text("postpone_unit")
        .replace("$1", ONE)
        .replace("$2", HERE)
        .replace("$3", "'orders'")
        .replace("$4", "'s:1/4'")
        .replace("$5", "'still no leader'")
        .replace("$6", "60");
    world.execute(&postpone).await;
    let postponed = "SELECT string_agg(lane || ' ' || unit || ' ' || failures, ', ' ORDER BY lane) FROM outbox.hold
                     WHERE retry_at > now() + interval '50 seconds' AND reason = 'still no leader'";
    assert_eq!(world.text(postponed).await, "-1 s:1/4 2, 0 s:1/4 2, 1 s:1/4 2");
}

#[tokio::test]
async fn what_is_fixed_is_released_in_all_lanes_of_its_worker_and_in_no_others() {
    let world = World::new().await;
    paused_for_two_workers(&world).await;
    let fixed = statement::text("holds_of_units")
        .replace("$1", ONE)
        .replace("$2", HERE)
        .replace("$3", "ARRAY['orders', 'gone']")
        .replace("$4", "ARRAY['s:2/4', '']");
    let fixed = format!("SELECT string_agg(lane || ' ' || unit, ', ' ORDER BY lane) FROM ({fixed}) AS fixed");
    assert_eq!(world.text(&fixed).await, "-1 s:2/4, 0 s:2/4, 1 s:2/4");
}

#[tokio::test]
async fn a_topic_with_hundreds_of_paused_partitions_does_not_keep_others_from_being_probed() {
    let world = World::new().await;
    paused_for_two_workers(&world).await;
    world
        .execute(
            "DELETE FROM outbox.hold;
             INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT lane, 'sick', 's:' || n || '/500', 0, 'no leader', now() - interval '1 hour'
             FROM outbox.lane, generate_series(0, 499) n WHERE lane IN (0, 1, 2)
             UNION ALL SELECT 1, 'well', '', 0, 'missing', now() - interval '1 second'
             UNION ALL SELECT 1, 'well', 'k:1', 0, 'refused', now() - interval '1 hour'
             UNION ALL SELECT 0, 'next', 's:0/1', 0, 'no leader', now() + interval '1 minute'
             UNION ALL SELECT 2, 'others', 's:0/1', 0, 'no leader', now() - interval '1 hour'",
        )
        .await;
    let paused = statement::text("due_probes")
        .replace("$1", ONE)
        .replace("$2", HERE)
        .replace("$4", "'{}'");
    let read = |most: i64| {
        let paused = paused.replace("$3", &most.to_string());
        format!("SELECT string_agg(DISTINCT topic || ' ' || (wait <= 0), ', '), count(*) FROM ({paused}) AS read")
    };
    assert_eq!(world.text(&read(2)).await, "sick true, well true");
    let all = world.db.query_one(&read(1000), &[]).await.expect("all");
    assert_eq!(all.get::<_, &str>(0), "next false, sick true, well true");
    assert_eq!(all.get::<_, i64>(1), 502, "one of each, in whatever number of lanes");
}
