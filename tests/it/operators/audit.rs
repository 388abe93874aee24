//! `outboxd audit`.

use super::*;

/// Two operations: a redrive of three rows, and the removal of one by another operator.
async fn world_with_operations() -> World {
    let mut world = World::new().await;
    fill_with_dead_letters(&world, "orders", 3, 1).await;
    fill_with_dead_letters(&world, "payments", 1, 1).await;
    json_of(&world.outboxd(
        "dead redrive",
        &["--topic", "orders", "--yes", "--json", "--reason", "limit raised"],
    ));
    let other = world.login("other", &["outbox_operator"]).await;
    let own = std::mem::replace(&mut world.database_url, other);
    json_of(&world.outboxd("dead discard", &["--id", "4", "--yes", "--json"]));
    world.database_url = own;
    world
}

fn operations(output: &Output) -> Vec<Value> {
    let audited = json_of(output);
    audited["operations"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn the_audit_says_who_did_what_to_which_topics_and_why() {
    let world = world_with_operations().await;
    let all = operations(&world.outboxd("audit", &["--json"]));
    assert_eq!(all.len(), 2);
    let other = format!("{}_other", world.name);
    assert_eq!(
        (&all[0]["command"], &all[0]["login"]),
        (&"dead discard".into(), &other.as_str().into())
    );
    assert_eq!((&all[0]["changed"], &all[0]["filter"]["ids"]), (&1.into(), &"4".into()));
    assert_eq!(all[0]["reason"], Value::Null);
    assert_eq!(
        (&all[1]["command"], &all[1]["login"]),
        (&"dead redrive".into(), &"postgres".into())
    );
    assert_eq!(
        (&all[1]["changed"], &all[1]["reason"]),
        (&3.into(), &"limit raised".into())
    );
    assert_eq!(all[1]["topics"], serde_json::json!(["orders"]));
    assert_eq!(all[1]["filter"], serde_json::json!({ "topics": ["orders"] }));
    for (filter, expected) in [
        (&["--topic", "payments"][..], 1),
        (&["--topic", "none"], 0),
        (&["--login", &other], 1),
        (&["--newer-than", "1h"], 2),
        (&["--limit", "1"], 1),
    ] {
        let found = operations(&world.outboxd("audit", &[filter, &["--json"]].concat()));
        assert_eq!(found.len(), expected, "{filter:?}");
    }
    let text = stdout_of(&world.outboxd("audit", &[]));
    assert!(text.starts_with("OPERATION  WHEN"), "{text}");
    assert!(text.contains("limit raised") && text.contains(&other), "{text}");
    let none = stdout_of(&world.outboxd("audit", &["--topic", "none"]));
    assert_eq!(none, "No operation matches.\n");
}

#[tokio::test]
async fn an_operation_is_shown_transaction_by_transaction() {
    let world = World::new().await;
    fill_with_dead_letters(&world, "orders", 1_001, 1).await;
    let redriven = json_of(&world.outboxd("dead redrive", &["--yes", "--json"]));
    let operation = redriven["operation"].to_string();
    let shown = json_of(&world.outboxd("audit", &["--operation", &operation, "--json"]));
    let transactions = shown["transactions"].as_array().expect("a list");
    let changed: Vec<&Value> = transactions.iter().map(|transaction| &transaction["changed"]).collect();
    assert_eq!(changed, [1_000, 1]);
    assert_eq!(transactions[1]["ids"], serde_json::json!([1_001]));
    let text = stdout_of(&world.outboxd("audit", &["--operation", &operation]));
    assert!(
        text.contains("1,000 changed of orders") && text.contains("ids: 1001\n"),
        "{text}"
    );
    let unknown = world.outboxd("audit", &["--operation", "999999"]);
    assert_eq!(unknown.status.code(), Some(64), "{}", stderr_of(&unknown));
    assert!(
        stderr_of(&unknown).contains("there is no operation 999999"),
        "{}",
        stderr_of(&unknown)
    );
}
