//! `dead redrive --payload-file`: a message is corrected before it goes out again.

use super::*;

#[tokio::test]
async fn a_message_that_was_too_large_arrives_corrected_and_its_old_payload_is_in_the_audit() {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', payload_bytes => {TOO_LARGE})"
        ))
        .await;
    let _relay = world.relay().args(&["--max-attempts", "1"]).start_ready().await;
    world.dead(1).await;
    let old = world.outboxd("dead show", &["1", "--payload"]).stdout;
    assert_eq!(old.len(), 4800);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("payload").display().to_string();
    std::fs::write(&file, b"smaller").expect("a file");
    let args = [
        "--id",
        "1",
        "--payload-file",
        &file,
        "--yes",
        "--json",
        "--reason",
        "cut",
    ];
    let corrected = json_of(&world.outboxd("dead redrive", &args));
    assert_eq!(
        (&corrected["command"], &corrected["changed"]),
        (&"dead correct".into(), &1.into())
    );
    world.drained(SOON).await;
    let records = read_until(&world.kafka, &topic, 1, SOON).await;
    assert_eq!(records[0].payload.as_deref(), Some(&b"smaller"[..]));
    world.history(&topic).await.assert_exact();

    let operation = corrected["operation"].to_string();
    let audited = json_of(&world.outboxd("audit", &["--operation", &operation, "--json"]));
    let hex: String = old.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(audited["transactions"][0]["payload_bytes_before"], format!("\\x{hex}"));
}

#[tokio::test]
async fn a_payload_stays_what_it_was_json_or_bytes() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.message (topic, key, payload, payload_bytes) VALUES
                 ('t', 'k', '{\"n\": 1}', NULL), ('t', 'k', NULL, '\\x00'), ('t', 'k', NULL, NULL);
             UPDATE outbox.message SET dead_at = now()",
        )
        .await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("payload").display().to_string();
    let correct = |id: &str, content: &[u8]| {
        std::fs::write(&file, content).expect("a file");
        world.outboxd("dead redrive", &["--id", id, "--payload-file", &file, "--yes"])
    };
    for wrong in [&b"{\"n\": "[..], b"\xff"] {
        let output = correct("1", wrong);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}: {}", stderr_of(&output));
    }
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [1, 2, 3], "refused");
    for (id, content) in [("1", &b"{\"n\": 2}"[..]), ("2", b"\xff"), ("3", b"{}")] {
        let output = correct(id, content);
        assert!(output.status.success(), "{}", stderr_of(&output));
    }
    let payloads =
        "SELECT string_agg(concat_ws(' ', id, payload, payload_bytes), '; ' ORDER BY id) FROM outbox.message";
    assert_eq!(world.text(payloads).await, "1 {\"n\": 2}; 2 \\xff; 3 \\x7b7d");
}

#[tokio::test]
async fn one_message_is_corrected_at_a_time() {
    let world = World::new().await;
    fill_with_dead_letters(&world, "t", 2, 1).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("payload").display().to_string();
    std::fs::write(&file, b"{}").expect("a file");
    let output = world.outboxd("dead redrive", &["--topic", "t", "--payload-file", &file, "--yes"]);
    assert_eq!(output.status.code(), Some(64), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("2 match: name it with --id"),
        "{}",
        stderr_of(&output)
    );
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [1, 2]);
}
