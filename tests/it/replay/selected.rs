//! Which messages a replay takes, what it says before it begins, and who may replay.

use super::*;

/// Two topics with twenty rows each over five keys: rows 1 to 20 and 21 to 40, row n published n hours ago.
async fn two_topics(on_published: &str) -> (World, [String; 2], Relay) {
    let world = World::new().await;
    let topics = [world.topic("a", 2, &[]).await, world.topic("b", 2, &[]).await];
    for topic in &topics {
        world.fill(topic, 20, 5).await;
    }
    let relay = world
        .relay()
        .args(&["--on-published", on_published])
        .start_ready()
        .await;
    world.drained(SOON).await;
    publish_hours_ago(&world).await;
    (world, topics, relay)
}

/// Each filter takes its rows and no others. Row n of the first topic has the number n, row n of the second n - 20.
async fn each_filter_takes_its_rows(on_published: &str) {
    let (world, [a, b], _relay) = two_topics(on_published).await;
    let rows = |is: &dyn Fn(i64) -> bool| -> Vec<i64> { (1..=40).filter(|id| is(*id)).collect() };
    let cases: [(Vec<&str>, Vec<i64>); 8] = [
        (vec!["--topic", &a], rows(&|id| id <= 20)),
        (vec!["--topic", &a, "--topic", &b], rows(&|_| true)),
        (vec!["--topic", &b, "--key", "k1"], rows(&|id| id > 20 && id % 5 == 1)),
        (
            vec!["--key", "k1", "--key", "k2"],
            rows(&|id| id % 5 == 1 || id % 5 == 2),
        ),
        (
            vec!["--id", "3,5-9", "--id", "40"],
            rows(&|id| id == 3 || (5..=9).contains(&id) || id == 40),
        ),
        (vec!["--since", "10h 30m"], rows(&|id| id <= 10)),
        (vec!["--until", "30h 30m", "--topic", &b], rows(&|id| id > 30)),
        (
            vec!["--since", "25h 30m", "--until", "15h 30m", "--key", "k0"],
            rows(&|id| id == 20 || id == 25),
        ),
    ];
    let mut times = [1usize; 41];
    for (args, expected) in &cases {
        let said = replay(&world, args);
        assert_eq!(said["changed"], expected.len(), "{args:?}: {said}");
        world.drained(SOON).await;
        publish_hours_ago(&world).await;
        let audited = format!(
            "SELECT array_agg(row_id ORDER BY row_id) FROM outbox.audit a, unnest(a.ids) AS audited (row_id) WHERE a.operation = {}",
            said["operation"]
        );
        let audited: Vec<i64> = world.db.query_one(&audited, &[]).await.expect("an audit").get(0);
        assert_eq!(audited, *expected, "{args:?}");
        expected.iter().for_each(|id| times[*id as usize] += 1);
    }
    assert_copies(&world.records(&a).await, 20, |number| times[number as usize]);
    assert_copies(&world.records(&b).await, 20, |number| times[number as usize + 20]);
    for topic in [&a, &b] {
        let history = world.history(topic).await;
        history.assert_sound();
        assert_eq!(history.unflagged_duplicates, 0);
    }
}

#[tokio::test]
async fn kept_rows_are_replayed_by_topic_key_time_and_ids() {
    each_filter_takes_its_rows("keep").await;
}

#[tokio::test]
async fn rows_of_the_history_are_replayed_by_topic_key_time_and_ids() {
    each_filter_takes_its_rows("archive").await;
}

#[tokio::test]
async fn a_dry_run_says_what_a_replay_would_take_and_changes_nothing() {
    let (world, [a, b], _relay) = two_topics("keep").await;
    let rows = "SELECT string_agg(m::text, ',' ORDER BY id) FROM outbox.message m";
    let before = world.text(rows).await;
    let said = json_of(&world.outboxd("replay", &["--all", "--rate", "10", "--dry-run", "--json"]));
    assert_eq!(
        (&said["matched"], &said["changed"], &said["dry_run"]),
        (&40.into(), &0.into(), &true.into())
    );
    assert_eq!((&said["topics"][&a], &said["topics"][&b]), (&20.into(), &20.into()));
    assert_eq!((&said["estimated_seconds"], &said["rate"]), (&4.0.into(), &10.into()));
    assert!(said["oldest"].as_str() < said["newest"].as_str(), "{said}");
    let text = world.outboxd("replay", &["--topic", &a, "--dry-run"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for words in [
        "Would replay 20 messages of 1 topic.",
        "published from",
        "at 1,000 messages a second",
    ] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    assert_eq!(world.text(rows).await, before);
    let noted = "SELECT (SELECT count(*) FROM outbox.audit) + (SELECT count(*) FROM outbox.replay_row)";
    assert_eq!(world.count(noted).await, 0);
}

#[tokio::test]
async fn what_to_replay_must_be_said() {
    let (world, [a, _], _relay) = two_topics("keep").await;
    let cases: [(&[&str], &str); 5] = [
        (&["--yes"], "say what to replay"),
        (&["--yes", "--id", "9-3"], "names no ids"),
        (&["--yes", "--since", "1h", "--until", "2h"], "is not before"),
        (&["--yes", "--since", "yesterday"], "neither a duration"),
        (
            &["--topic", &a],
            "nobody can be asked: 20 messages of 1 topic; add --yes",
        ),
    ];
    for (args, words) in cases {
        let output = world.outboxd("replay", args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(stderr_of(&output).contains(words), "{args:?}: {}", stderr_of(&output));
    }
    let nothing = world.outboxd("replay", &["--topic", "none", "--yes"]);
    assert!(nothing.status.success(), "{}", stderr_of(&nothing));
    assert_eq!(nothing.stdout, b"Nothing to do: no message matches.\n");
    assert_eq!(world.pending().await, 0);
}

#[tokio::test]
async fn where_published_rows_are_deleted_nothing_is_left_to_replay() {
    let (world, [a, _], _relay) = two_topics("delete").await;
    let said = replay(&world, &["--topic", &a]);
    assert_eq!((&said["matched"], &said["operation"]), (&0.into(), &Value::Null));
}

#[tokio::test]
async fn pending_dead_and_delayed_rows_are_no_part_of_a_replay() {
    let world = World::new().await;
    world.fill("t", 4, 4).await;
    world
        .execute(
            "UPDATE outbox.message SET published_at = now() - interval '1 hour' WHERE id = 1;
             UPDATE outbox.message SET dead_at = now() WHERE id = 2;
             UPDATE outbox.message SET available_at = now() + interval '1 hour' WHERE id = 3;",
        )
        .await;
    let said = replay(&world, &["--all"]);
    assert_eq!(said["changed"], 1, "{said}");
    assert_eq!(world.ids_where("replayed_by IS NOT NULL").await, [1]);
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [2]);
}

#[tokio::test]
async fn an_operator_may_replay_and_the_audit_says_who_did_and_why() {
    let (mut world, [a, _], _relay) = two_topics("keep").await;
    let direct = world.database_url.clone();
    for role in ["outbox_relay", "outbox_producer"] {
        world.database_url = direct.clone();
        world.database_url = world.login(role, &[role]).await;
        let refused = world.outboxd("replay", &["--topic", &a, "--yes"]);
        assert_eq!(refused.status.code(), Some(79), "{role}: {}", stderr_of(&refused));
        assert!(
            stderr_of(&refused).contains("outbox_operator"),
            "{}",
            stderr_of(&refused)
        );
    }
    world.database_url = direct;
    world.database_url = world.login("alice", &["outbox_operator"]).await;
    let said = replay(&world, &["--topic", &a, "--reason", "the consumer lost them"]);
    assert_eq!(said["changed"], 20, "{said}");
    let audit = json_of(&world.outboxd("audit", &["--json"]));
    let operation = &audit["operations"][0];
    assert_eq!(
        (&operation["command"], &operation["changed"]),
        (&"replay".into(), &20.into())
    );
    assert_eq!(
        (&operation["reason"], &operation["topics"][0]),
        (&"the consumer lost them".into(), &a.as_str().into())
    );
    assert_eq!(operation["filter"], serde_json::json!({ "topics": [a] }));
    assert_eq!(operation["login"], format!("{}_alice", world.name));
}

#[tokio::test]
async fn nothing_is_replayed_while_a_worker_lives_that_would_not_flag_it() {
    let (world, [a, _], _relay) = two_topics("keep").await;
    world.insert_worker("relay-3", "0.0.9", 3600).await;
    world
        .execute("UPDATE outbox.worker SET knows = 6 WHERE name = 'relay-3'")
        .await;
    let refused = world.outboxd("replay", &["--topic", &a, "--yes"]);
    assert_eq!(refused.status.code(), Some(69), "{}", stderr_of(&refused));
    assert!(
        stderr_of(&refused).contains("relay-3 (outboxd 0.0.9)"),
        "{}",
        stderr_of(&refused)
    );
    assert_eq!(world.ids_where("replayed_by IS NOT NULL").await, [0i64; 0]);
    world
        .execute("UPDATE outbox.worker SET stopped_at = now() WHERE name = 'relay-3'")
        .await;
    assert_eq!(replay(&world, &["--topic", &a])["changed"], 20);
}
