//! `outboxd hold list` and `release`.

use super::*;

const HOLDS: &str = "
    TRUNCATE outbox.hold;
    INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, held_at, retry_at) VALUES
        (1, 'a', 'k:k1', 7, 0, 'MessageSizeTooLarge', now() - interval '3 hours', 'infinity'),
        (2, 'a', 'k:k2', 8, 0, 'dead letter: refused', now() - interval '1 hour', 'infinity'),
        (3, 'a', 'p:3', 9, 0, 'dead letter: refused', now(), 'infinity'),
        (4, 'b', '', NULL, 0, 'unknown topic', now(), now() + interval '1 hour'),
        (5, 'b', '', NULL, 0, 'unknown topic', now(), now() + interval '1 hour'),
        (6, 'c', 's:3/12', NULL, 0, 'no leader', now(), now() + interval '1 hour');";

/// Filters, and the topics and units that each of them names, in order.
const FILTERS: [(&[&str], &str); 9] = [
    (&[], "a/k:k1 a/k:k2 a/p:3 b/ c/s:3/12"),
    (&["--topic", "a"], "a/k:k1 a/k:k2 a/p:3"),
    (&["--topic", "none"], ""),
    (&["--key", "k2"], "a/k:k2"),
    (&["--partition", "3"], "a/p:3 c/s:3/12"),
    (&["--key", "k1", "--partition", "3", "--topic", "a"], "a/k:k1 a/p:3"),
    (&["--error", "DEAD"], "a/k:k2 a/p:3"),
    (&["--older-than", "30m"], "a/k:k1 a/k:k2"),
    (&["--newer-than", "2h", "--topic", "a"], "a/k:k2 a/p:3"),
];

#[tokio::test]
async fn holds_are_listed_and_released_by_each_filter() {
    let world = World::new().await;
    for (filter, units) in FILTERS {
        world.execute(HOLDS).await;
        let listed = json_of(&world.outboxd("hold list", &[filter, &["--json"]].concat()));
        let held = listed["held"].as_array().expect("a list");
        let text = |held: &Value| {
            format!(
                "{}/{}",
                held["topic"].as_str().expect("text"),
                held["unit"].as_str().expect("text")
            )
        };
        let mut found: Vec<String> = held.iter().map(text).collect();
        found.sort();
        assert_eq!(found.join(" "), units, "{filter:?}");

        let dry = json_of(&world.outboxd("hold release", &[filter, &["--dry-run", "--json"]].concat()));
        let due = "SELECT count(*) FROM outbox.hold WHERE retry_at <= now()";
        assert_eq!(world.count(due).await, 0, "a dry run");
        let released = json_of(&world.outboxd("hold release", &[filter, &["--yes", "--json"]].concat()));
        assert_eq!(released["changed"], dry["matched"], "{filter:?}: {released}");
        assert_eq!(released["changed"], world.count(due).await, "{filter:?}");
        let units_due =
            "SELECT coalesce(string_agg(DISTINCT topic || '/' || unit, ' ' ORDER BY topic || '/' || unit), '')
                         FROM outbox.hold WHERE retry_at <= now()";
        assert_eq!(world.text(units_due).await, units, "{filter:?}");
    }
}

#[tokio::test]
async fn people_read_what_is_held_and_for_how_long() {
    let world = World::new().await;
    assert_eq!(stdout_of(&world.outboxd("hold list", &[])), "Nothing is held back.\n");
    world.execute(HOLDS).await;
    let text = stdout_of(&world.outboxd("hold list", &[]));
    for words in [
        "key k1",
        "partition 3, paused",
        "the topic",
        "waits for you",
        "3h",
        "no leader",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    let unasked = world.outboxd("hold release", &["--topic", "b"]);
    assert_eq!(unasked.status.code(), Some(64));
    let words = "nobody can be asked: 2 holds of 1 topic; add --yes";
    assert!(stderr_of(&unasked).contains(words), "{}", stderr_of(&unasked));
    let released = stdout_of(&world.outboxd("hold release", &["--topic", "b", "--yes", "--reason", "created it"]));
    assert!(released.starts_with("Released 2 of 2 holds ("), "{released}");
    let audit = "SELECT concat_ws(' ', command, reason, changed, topics, filter) FROM outbox.audit";
    assert_eq!(
        world.text(audit).await,
        "hold release created it 2 {b} {\"topics\": [\"b\"]}"
    );
}

#[tokio::test]
async fn a_key_that_waits_behind_a_dead_letter_continues_by_a_command() {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', payload_bytes => {TOO_LARGE}); SELECT outbox.enqueue('{topic}', 'k', '2');"
        ))
        .await;
    let _relay = world
        .relay()
        .args(&["--max-attempts", "1", "--on-dead", "hold"])
        .start_ready()
        .await;
    world.until("SELECT retry_at = 'infinity' FROM outbox.hold").await;
    json_of(&world.outboxd("hold release", &["--key", "k", "--yes", "--json"]));
    world.drained(SOON).await;
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [1]);
    assert_eq!(world.records(&topic).await.len(), 1);
}
