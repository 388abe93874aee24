//! `outboxd dead list`, `show`, `redrive` and `discard`, by each filter.

use super::*;

/// The message id of row 2.
const MESSAGE_2: &str = "6f2c0b9e-0000-4000-8000-000000000002";

/// Rows 1 to 4 are dead, 5 is pending and 6 is published.
const ROWS: &str = "
    TRUNCATE outbox.message RESTART IDENTITY;
    INSERT INTO outbox.message (topic, key, payload, message_id) VALUES
        ('a', 'k1', '{\"n\": 1}', DEFAULT), ('a', 'k2', '{\"n\": 2}', '6f2c0b9e-0000-4000-8000-000000000002'),
        ('b', 'k1', '{\"n\": 3}', DEFAULT), ('b', NULL, '{\"n\": 4}', DEFAULT),
        ('a', 'k1', '{\"n\": 5}', DEFAULT), ('b', 'k1', '{\"n\": 6}', DEFAULT);
    UPDATE outbox.message SET dead_at = now() - interval '3 hours', last_error = 'MessageSizeTooLarge' WHERE id = 1;
    UPDATE outbox.message SET dead_at = now() - interval '1 hour', last_error = 'InvalidRecord' WHERE id = 2;
    UPDATE outbox.message SET dead_at = now() - interval '1 minute', last_error = 'MessageSizeTooLarge' WHERE id = 3;
    UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = NULL WHERE id = 4;
    UPDATE outbox.message SET published_at = now() WHERE id = 6;";

/// Filters, and the dead letters that each of them names.
const FILTERS: [(&[&str], &[i64]); 14] = [
    (&[], &[1, 2, 3, 4]),
    (&["--topic", "a"], &[1, 2]),
    (&["--topic", "a", "--topic", "b"], &[1, 2, 3, 4]),
    (&["--topic", "none"], &[]),
    (&["--key", "k1"], &[1, 3]),
    (&["--error", "messagesize"], &[1, 3]),
    (&["--older-than", "30m"], &[1, 2]),
    (&["--newer-than", "30m"], &[3, 4]),
    (&["--older-than", "30m", "--newer-than", "2h"], &[2]),
    (&["--id", "1,3-4"], &[1, 3, 4]),
    (&["--id", "2", "--id", "3"], &[2, 3]),
    (&["--id", "5,6,7"], &[]),
    (&["--message-id", MESSAGE_2], &[2]),
    (&["--topic", "a", "--key", "k1", "--error", "large"], &[1]),
];

async fn world_with_dead_letters() -> World {
    let world = World::new().await;
    world.execute(ROWS).await;
    world
}

fn listed(output: &Output) -> Vec<i64> {
    let listed = json_of(output);
    let dead = listed["dead"].as_array().expect("a list");
    dead.iter().map(|dead| dead["id"].as_i64().expect("an id")).collect()
}

#[tokio::test]
async fn dead_letters_are_listed_by_each_filter() {
    let world = world_with_dead_letters().await;
    for (filter, ids) in FILTERS {
        let mut found = listed(&world.outboxd("dead list", &[filter, &["--json"]].concat()));
        found.sort_unstable();
        assert_eq!(found, ids, "{filter:?}");
    }
    let newest = world.outboxd("dead list", &["--limit", "2", "--json"]);
    assert_eq!(listed(&newest), [4, 3], "the newest first");
    assert_eq!(json_of(&newest)["matched"], 4);
    let text = stdout_of(&world.outboxd("dead list", &["--limit", "3"]));
    assert!(text.starts_with("ID  TOPIC  KEY  ATTEMPTS  DEAD FOR"), "{text}");
    assert!(text.contains("MessageSizeTooLarge"), "{text}");
    assert!(text.ends_with("and 1 more; see --limit\n"), "{text}");
    let none = stdout_of(&world.outboxd("dead list", &["--topic", "none"]));
    assert_eq!(none, "No dead letter matches.\n");
}

#[tokio::test]
async fn dead_letters_are_redriven_by_each_filter() {
    let world = world_with_dead_letters().await;
    for (filter, ids) in FILTERS {
        world.execute(ROWS).await;
        let redriven = json_of(&world.outboxd("dead redrive", &[filter, &["--yes", "--json"]].concat()));
        assert_eq!(redriven["changed"], ids.len(), "{filter:?}: {redriven}");
        assert_eq!(redriven["matched"], ids.len(), "{filter:?}: {redriven}");
        let pending = world
            .ids_where("requeued_by IS NOT NULL AND dead_at IS NULL AND available_at IS NOT NULL")
            .await;
        assert_eq!(pending, ids, "{filter:?}");
        assert_eq!(
            redriven["operation"].is_null(),
            ids.is_empty(),
            "{filter:?}: {redriven}"
        );
    }
    world.execute(ROWS).await;
    world.outboxd("dead redrive", &["--limit", "2", "--yes"]);
    assert_eq!(
        world.ids_where("requeued_by IS NOT NULL").await,
        [1, 2],
        "those with the lowest ids"
    );
}

#[tokio::test]
async fn dead_letters_are_discarded_by_each_filter() {
    let world = world_with_dead_letters().await;
    for (filter, ids) in FILTERS {
        world.execute(ROWS).await;
        let discarded = json_of(&world.outboxd("dead discard", &[filter, &["--yes", "--json"]].concat()));
        assert_eq!(discarded["changed"], ids.len(), "{filter:?}: {discarded}");
        let left: Vec<i64> = (1..=6).filter(|id| !ids.contains(id)).collect();
        assert_eq!(world.ids_where("true").await, left, "{filter:?}");
    }
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_says_what_would_be_changed() {
    let world = world_with_dead_letters().await;
    let state = "SELECT string_agg(m::text, ',' ORDER BY id) FROM outbox.message m";
    let before = world.text(state).await;
    for (command, words) in [
        ("dead redrive", "Would send again 4 dead letters of 2 topics."),
        ("dead discard", "Would remove for good 4 dead letters of 2 topics."),
    ] {
        // Nobody needs to be asked.
        let said = stdout_of(&world.outboxd(command, &["--dry-run"]));
        assert_eq!(said, format!("{words}\n          2  a\n          2  b\n"));
        let json = json_of(&world.outboxd(command, &["--dry-run", "--yes", "--json", "--topic", "b"]));
        assert_eq!(
            (
                &json["matched"],
                &json["changed"],
                &json["dry_run"],
                &json["topics"]["b"]
            ),
            (&2.into(), &0.into(), &true.into(), &2.into())
        );
    }
    assert_eq!(world.text(state).await, before);
    assert_eq!(world.count("SELECT count(*) FROM outbox.audit").await, 0);
}

#[tokio::test]
async fn without_a_terminal_and_without_yes_nothing_is_changed() {
    let world = world_with_dead_letters().await;
    for command in ["dead redrive", "dead discard"] {
        let output = world.outboxd(command, &[]);
        assert_eq!(output.status.code(), Some(64), "{}", stderr_of(&output));
        let words = "nobody can be asked: 4 dead letters of 2 topics; add --yes";
        assert!(stderr_of(&output).contains(words), "{}", stderr_of(&output));
        let nothing = world.outboxd(command, &["--topic", "none"]);
        assert_eq!(
            nothing.status.code(),
            Some(0),
            "nothing to ask: {}",
            stderr_of(&nothing)
        );
        assert_eq!(stdout_of(&nothing), "Nothing to do: no dead letter matches.\n");
    }
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_dead_letter_is_shown_with_its_content() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers, event_type) VALUES
                 ('t', 'k', '{\"price\": 12345678901234567890.123}', NULL, '{\"trace\": \"1\"}', 'Placed'),
                 ('t', 'k', NULL, '\\x00ff', NULL, NULL), ('t', E'a\\nb', NULL, NULL, NULL, NULL), ('t', 'k', '4', NULL, NULL, NULL);
             UPDATE outbox.message SET dead_at = now() - interval '2 minutes', attempts = 3, last_error = 'refused' WHERE id < 4",
        )
        .await;
    let text = stdout_of(&world.outboxd("dead show", &["1"]));
    for line in [
        "id              1",
        "event type      Placed",
        "attempts        3",
        "dead for        2m",
        "error           refused",
        "headers         {\"trace\": \"1\"}",
        "payload         {\"price\": 12345678901234567890.123}",
    ] {
        assert!(text.lines().any(|shown| shown.starts_with(line)), "{line}:\n{text}");
    }
    let payload = stdout_of(&world.outboxd("dead show", &["1", "--payload"]));
    assert_eq!(payload, "{\"price\": 12345678901234567890.123}");
    let json = stdout_of(&world.outboxd("dead show", &["1", "--json"]));
    assert!(
        json.contains("\"payload\":{\"price\": 12345678901234567890.123}"),
        "every digit: {json}"
    );
    let bytes = json_of(&world.outboxd("dead show", &["2", "--json"]));
    assert_eq!(
        (&bytes["payload"], &bytes["payload_bytes"]),
        (&Value::Null, &"\\x00ff".into())
    );
    assert_eq!(world.outboxd("dead show", &["2", "--payload"]).stdout, [0, 255]);
    let tombstone = stdout_of(&world.outboxd("dead show", &["3"]));
    assert!(
        tombstone.contains("a tombstone") && tombstone.contains("a\\u{a}b"),
        "{tombstone}"
    );
    for other in ["4", "5"] {
        let output = world.outboxd("dead show", &[other]);
        assert_eq!(output.status.code(), Some(64), "{other}");
        assert!(
            stderr_of(&output).contains("is no dead letter"),
            "{}",
            stderr_of(&output)
        );
    }
}

#[tokio::test]
async fn wrong_filters_are_listed_all_at_once() {
    let world = World::new().await;
    let output = world.outboxd(
        "dead redrive",
        &[
            "--id",
            "x",
            "--older-than",
            "soon",
            "--message-id",
            "y",
            "--payload-file",
            "/nowhere",
            "--yes",
        ],
    );
    assert_eq!(output.status.code(), Some(64), "{}", stderr_of(&output));
    for flag in ["--id", "--older-than", "--message-id", "--payload-file"] {
        assert!(stderr_of(&output).contains(flag), "{flag}: {}", stderr_of(&output));
    }
}

#[tokio::test]
async fn a_login_without_the_role_is_told_which_one_it_needs() {
    let mut world = world_with_dead_letters().await;
    for (login, roles, command) in [
        ("stranger", &[] as &[&str], "dead list"),
        ("producer", &["outbox_producer"], "dead list"),
        ("relay", &["outbox_relay"], "dead redrive"),
        ("relay2", &["outbox_relay"], "audit"),
    ] {
        let url = world.login(login, roles).await;
        let own = std::mem::replace(&mut world.database_url, url);
        let yes: &[&str] = if command == "dead redrive" { &["--yes"] } else { &[] };
        let output = world.outboxd(command, yes);
        world.database_url = own;
        assert_eq!(output.status.code(), Some(79), "{login}: {}", stderr_of(&output));
        assert!(
            stderr_of(&output).contains("need the role outbox_operator"),
            "{}",
            stderr_of(&output)
        );
    }
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [1, 2, 3, 4]);
}
