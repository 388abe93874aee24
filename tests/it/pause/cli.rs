//! The commands: who may give them, what they refuse, what they leave behind, and where a pause is seen.

use super::*;

#[tokio::test]
async fn a_pause_is_seen_in_status_and_as_a_gauge_and_is_no_trouble_of_kafka() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().start_ready().await;
    assert_eq!(relay.metric("outboxd_pauses"), Some(0.0));
    pause(&world, &["--topic", &topic]);
    pause(&world, &["--topic", &topic, "--key", "k"]);
    world.fill(&topic, 10, 2).await;
    held_everywhere(&world, &topic).await;
    let json = world.status_to_an_operator().await;
    let first = &json["pauses"][0];
    assert_eq!(
        (&first["topic"], &first["key"]),
        (&topic.as_str().into(), &serde_json::Value::Null)
    );
    assert_eq!(
        (&first["reason"], &first["login"]),
        (&"broken consumer".into(), &"postgres".into())
    );
    assert!(first["age_seconds"].as_f64().expect("a number") < 60.0, "{json:#}");
    assert_eq!(json["pauses"][1]["key"], "k");
    assert_eq!(
        (&json["backlog"]["parked_topics"], &json["backlog"]["held_keys"]),
        (&0.into(), &0.into())
    );
    assert_eq!(json["holds"], serde_json::json!([]), "the pauses say it");
    assert_eq!(json["backlog"]["pending"], 10);
    let text = String::from_utf8_lossy(&world.outboxd("status", &[]).stdout).into_owned();
    for words in [
        format!("topic {topic}: broken consumer, by postgres"),
        format!("outboxd resume --topic {topic}"),
    ] {
        assert!(text.contains(&words), "{words:?} is missing in\n{text}");
    }
    assert!(!text.contains("takes nothing"), "{text}");
    assert_eq!(relay.metric("outboxd_pauses"), Some(2.0));
    resume(&world, &["--topic", &topic]);
    resume(&world, &["--topic", &topic, "--key", "k"]);
    assert_eq!(relay.metric("outboxd_pauses"), Some(0.0));
    assert_nothing_happened(&world, &[&topic], &[&relay]).await;
}

#[tokio::test]
async fn an_operator_may_pause_and_the_audit_names_the_login() {
    let world = World::new().await;
    let url = world.login("alice", &["outbox_operator"]).await;
    let run = |command: &str, args: &[&str]| {
        let mut outboxd = outboxd();
        outboxd.args([command, "--yes", "--database-url", &url]).args(args);
        let output = outboxd.output().expect("outboxd runs");
        assert!(output.status.success(), "{}", stderr_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let key = ["--topic", "orders", "--key", "7"];
    let said = run("pause", &[&key[..], &["--reason", "poison"]].concat());
    assert!(
        said.starts_with("Paused key \"7\" of topic orders; no relay is running"),
        "{said}"
    );
    let said = run("pause", &[&key[..], &["--reason", "still poison"]].concat());
    assert!(said.starts_with("Paused already: key \"7\" of topic orders"), "{said}");
    assert_eq!(world.text("SELECT reason FROM outbox.pause").await, "still poison");
    run("pause", &["--all", "--reason", "maintenance"]);
    let said = run("resume", &[&key[..], &["--reason", "fixed"]].concat());
    assert!(said.starts_with("Resumed key \"7\" of topic orders"), "{said}");
    assert!(said.contains("Still paused: everything (\"maintenance\""), "{said}");
    let said = run("resume", &key);
    assert!(said.starts_with("Not paused: key \"7\" of topic orders"), "{said}");
    run("resume", &["--all"]);

    let login = format!("{}_alice", world.name);
    let audit = "SELECT string_agg(concat_ws(' ', command, filter::text, reason, changed::text, topics::text), '; ' ORDER BY id)
                 FROM outbox.audit WHERE login = ";
    let expected = [
        r#"pause {"key": "7", "topic": "orders"} poison 1 {orders}"#,
        r#"pause {"key": "7", "topic": "orders"} still poison 0 {orders}"#,
        r#"pause {"all": true} maintenance 1 {}"#,
        r#"resume {"key": "7", "topic": "orders"} fixed 1 {orders}"#,
        r#"resume {"all": true} 1 {}"#,
    ];
    assert_eq!(world.text(&format!("{audit}'{login}'")).await, expected.join("; "));
}

#[tokio::test]
async fn the_rows_that_a_pause_is_about_are_counted_first_and_nobody_is_asked_without_a_terminal() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    pause(&world, &["--topic", &topic]);
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 10, 2).await;
    held_everywhere(&world, &topic).await;
    // A floor has passed these ten, and none of those that follow.
    world.floor_passes(10).await;
    drop(relay);
    world.fill(&topic, 4, 2).await;
    world.fill("bills", 1, 1).await;
    world
        .execute("UPDATE outbox.message SET available_at = now() - interval '1 s' WHERE topic = 'bills'")
        .await;
    world.fill("later", 1, 1).await;
    world
        .execute("UPDATE outbox.message SET available_at = now() + interval '1 h' WHERE topic = 'later'")
        .await;

    for (command, scope, pending) in [
        ("pause", &["--all"] as &[&str], 15),
        ("resume", &["--topic", &topic], 14),
        ("pause", &["--topic", &topic, "--key", "k1"], 7),
        ("pause", &["--topic", "bills"], 1),
        ("pause", &["--topic", "later"], 0),
    ] {
        let reason: &[&str] = if command == "pause" { &["--reason", "why"] } else { &[] };
        let args = [scope, reason].concat();
        let output = world.outboxd(command, &[&args[..], &["--dry-run", "--json"]].concat());
        assert!(output.status.success(), "{}", stderr_of(&output));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (&said["pending"], &said["pending_is_all"], &said["dry_run"]),
            (&pending.into(), &true.into(), &true.into()),
            "{scope:?}: {said}"
        );
        let output = world.outboxd(command, &args);
        assert_eq!(output.status.code(), Some(64), "{}", stderr_of(&output));
        let rows = format!("with {pending} pending row");
        assert!(
            stderr_of(&output).contains(&rows) && stderr_of(&output).contains("add --yes"),
            "{}",
            stderr_of(&output)
        );
    }
    assert_eq!(world.count("SELECT version FROM outbox.pause_version").await, 1);
    let output = world.outboxd("resume", &["--topic", &topic, "--dry-run"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, format!("Would resume topic {topic}, with 14 pending rows.\n"));
}

#[tokio::test]
async fn nobody_but_an_operator_may_pause() {
    let world = World::new().await;
    for role in ["outbox_relay", "outbox_producer"] {
        let login = connect(&world.login(role, &[role]).await).await;
        for statement in [
            "SELECT outbox.pause('orders', NULL, 'why')",
            "SELECT outbox.resume('orders', NULL)",
            "INSERT INTO outbox.pause (reason) VALUES ('why')",
            "UPDATE outbox.pause_version SET version = 7",
        ] {
            assert_eq!(
                refusal_of(&login, statement).await.code().code(),
                "42501",
                "{role}: {statement}"
            );
        }
    }
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    for statement in [
        "INSERT INTO outbox.pause (reason) VALUES ('why')",
        "DELETE FROM outbox.pause",
        "UPDATE outbox.pause_version SET version = 7",
        "UPDATE outbox.worker SET pauses_seen = 7",
    ] {
        assert_eq!(
            refusal_of(&operator, statement).await.code().code(),
            "42501",
            "{statement}"
        );
    }
    for (call, constraint) in [
        ("pause('no topic', NULL, 'why')", "pause_topic_is_a_legal_kafka_name"),
        ("pause(NULL, 'k', 'why')", "pause_of_a_key_names_its_topic"),
        (
            "pause('orders', repeat('k', 1025), 'why')",
            "pause_key_is_at_most_1024_bytes",
        ),
        ("pause('orders', NULL, ' ')", "pause_has_a_reason"),
    ] {
        let refusal = refusal_of(&operator, &format!("SELECT outbox.{call}")).await;
        assert_eq!(refusal.constraint(), Some(constraint), "{call}");
    }
}

#[test]
fn what_is_to_be_paused_must_be_said() {
    let refused = |command: &str, args: &[&str]| {
        let mut outboxd = outboxd();
        outboxd.args([command, "--database-url", "postgres://nobody@127.0.0.1:1/none"]);
        let output = outboxd.args(args).output().expect("outboxd runs");
        (output.status.code(), stderr_of(&output))
    };
    let long = "why".repeat(334);
    for args in [
        &["--reason", "why"] as &[&str],
        &["--topic", "orders"],
        &["--topic", "orders", "--all", "--reason", "why"],
        &["--key", "7", "--reason", "why"],
        &["--topic", "no topic", "--reason", "why"],
        &["--topic", "orders", "--reason", " "],
        &["--topic", "orders", "--reason", long.as_str()],
        &["--topic", "orders", "--reason", "why", "--timeout", "soon"],
    ] {
        let (code, said) = refused("pause", args);
        assert_eq!(code, Some(64), "{args:?}: {said}");
    }
    for args in [&[] as &[&str], &["--all", "--key", "7"], &["--topic", ".."]] {
        let (code, said) = refused("resume", args);
        assert_eq!(code, Some(64), "{args:?}: {said}");
    }
}
