//! A row on the wire: key, value, headers, partition, timestamp.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use testkit::*;

/// Publishes the rows these statements insert (`$topic` stands for a topic of four partitions), and reads them back.
async fn published(inserts: &str, count: usize) -> (World, Vec<Record>) {
    let world = World::new().await;
    let topic = world.topic("records", 4, &[]).await;
    world.execute(&inserts.replace("$topic", &topic)).await;
    let _relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    let records = read_until(&world.kafka, &topic, count, SOON).await;
    assert_eq!(records.len(), count);
    (world, records)
}

fn of_key<'a>(records: &'a [Record], key: &str) -> &'a Record {
    records.iter().find(|record| record.key_text() == key).expect(key)
}

#[tokio::test]
async fn every_kind_of_payload_arrives_byte_for_byte() {
    let (world, records) = published(
        r#"SELECT outbox.enqueue('$topic', 'json', '{"b": [1, 2.50, null], "a": "ü\u0001"}');
           SELECT outbox.enqueue('$topic', 'json null', 'null');
           SELECT outbox.enqueue('$topic', 'bytes', payload_bytes => '\x0001feff0a');
           SELECT outbox.enqueue('$topic', 'empty', payload_bytes => '');
           SELECT outbox.enqueue('$topic', 'tombstone');
           SELECT outbox.enqueue('$topic', 'schlüssel 鍵 🔑', '"größe 大 🚀"');
           SELECT outbox.enqueue('$topic', '', '"an empty key is a key"');"#,
        7,
    )
    .await;
    let payload = |key: &str| of_key(&records, key).payload.as_deref();
    let json = world
        .text("SELECT payload::text FROM outbox.message WHERE key = 'json'")
        .await;
    assert_eq!(payload("json"), Some(json.as_bytes()));
    assert_eq!(payload("json null"), Some(b"null".as_slice()));
    assert_eq!(payload("bytes"), Some([0x00, 0x01, 0xfe, 0xff, 0x0a].as_slice()));
    assert_eq!(payload("empty"), Some(b"".as_slice()), "empty is not a tombstone");
    assert_eq!(payload("tombstone"), None);
    assert_eq!(payload("schlüssel 鍵 🔑"), Some("\"größe 大 🚀\"".as_bytes()));
    assert_eq!(payload(""), Some(b"\"an empty key is a key\"".as_slice()));
}

#[tokio::test]
async fn a_megabyte_arrives_byte_for_byte() {
    let (world, records) = published(
        "INSERT INTO outbox.message (topic, key, payload_bytes)
         SELECT '$topic', 'large', (SELECT string_agg(uuid_send(gen_random_uuid()), '') FROM generate_series(1, 62500));",
        1,
    )
    .await;
    let row = world
        .db
        .query_one("SELECT payload_bytes FROM outbox.message", &[])
        .await
        .expect("a row");
    let written: Vec<u8> = row.get(0);
    assert_eq!(written.len(), 1_000_000);
    assert!(records[0].payload.as_ref() == Some(&written), "the bytes differ");
}

#[tokio::test]
async fn headers_carry_the_metadata_and_what_the_application_wrote() {
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let insert = format!(
        r#"SELECT outbox.enqueue('$topic', 'all', '1', event_type => 'OrderPlaced', aggregate_type => 'order',
               aggregate_id => 'ü-7', aggregate_version => 12,
               headers => '{{"traceparent": "{traceparent}", "number": 1.5, "nothing": null, "object": {{"a": [1]}},
                            "yes": true, "text": "größe"}}');
           SELECT outbox.enqueue('$topic', 'bare', '1');"#
    );
    let (world, records) = published(&insert, 2).await;
    let all = of_key(&records, "all");
    for (name, value) in [
        ("event-type", "OrderPlaced"),
        ("aggregate-type", "order"),
        ("aggregate-id", "ü-7"),
        ("aggregate-version", "12"),
        ("traceparent", traceparent),
        ("number", "1.5"),
        ("object", r#"{"a": [1]}"#),
        ("yes", "true"),
        ("text", "größe"),
    ] {
        assert_eq!(all.header(name), Some(value.as_bytes()), "{name}");
    }
    assert!(
        all.headers.contains(&("nothing".to_owned(), None)),
        "null: a header without a value"
    );
    let bare: Vec<&str> = of_key(&records, "bare")
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        bare,
        ["message-id"],
        "nothing that was not said, and no flag of a duplicate"
    );
    for record in &records {
        let key = record.key_text();
        let id = world
            .text(&format!(
                "SELECT message_id::text FROM outbox.message WHERE key = '{key}'"
            ))
            .await;
        assert_eq!(record.message_id(), id);
    }
}

#[tokio::test]
async fn headers_of_any_size_and_depth_arrive_as_postgresql_spells_them() {
    let (world, records) = published(
        r#"SELECT outbox.enqueue('$topic', 'k', '1', headers => jsonb_build_object(
               'beyond a double', 1e400, 'many digits', 123456789012345678901234567890.10,
               'deep', (repeat('[', 1000) || repeat(']', 1000))::jsonb, 'text', U&'\00FC\+01F680 "\0001"', 'plain', 7));"#,
        1,
    )
    .await;
    let written = world
        .db
        .query(
            "SELECT name, CASE name WHEN 'text' THEN value #>> '{}' ELSE value::text END
             FROM outbox.message, jsonb_each(headers) AS header (name, value)",
            &[],
        )
        .await
        .expect("headers are read");
    assert_eq!(written.len(), 5);
    for header in written {
        let (name, value): (&str, &str) = (header.get(0), header.get(1));
        assert_eq!(records[0].header(name), Some(value.as_bytes()), "{name}");
    }
}

#[tokio::test]
async fn the_longest_topic_and_key_that_the_table_takes_arrive() {
    let world = World::new().await;
    let topic = world.topic(&"x".repeat(249 - world.name.len() - 1), 4, &[]).await;
    assert_eq!(topic.len(), 249);
    let keys = ["🔑".repeat(256), "\u{1}\n".repeat(512), String::new()];
    let rows: Vec<_> = keys.iter().map(|key| (Some(key.as_str()), b"1".to_vec())).collect();
    world.insert(&topic, &rows).await;
    let _relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    let records = read_until(&world.kafka, &topic, keys.len(), SOON).await;
    for key in &keys {
        assert_eq!(of_key(&records, key).payload.as_deref(), Some(b"1".as_slice()));
    }
}

#[tokio::test]
async fn an_explicit_partition_is_obeyed_with_and_without_a_key() {
    let (_world, records) = published(
        "SELECT outbox.enqueue('$topic', 'k', to_jsonb(p), partition => p) FROM generate_series(0, 3) p;
         SELECT outbox.enqueue('$topic', NULL, to_jsonb(p), partition => p) FROM generate_series(0, 3) p;",
        8,
    )
    .await;
    assert!(records.iter().all(|record| record.json() == record.partition));
}

#[tokio::test]
async fn a_row_without_a_key_travels_under_its_message_id() {
    let (_world, records) = published(
        "SELECT outbox.enqueue('$topic', payload => to_jsonb(n)) FROM generate_series(1, 40) n;",
        40,
    )
    .await;
    assert!(records.iter().all(|record| record.key_text() == record.message_id()));
    let used: std::collections::HashSet<i32> = records.iter().map(|record| record.partition).collect();
    assert_eq!(used.len(), 4, "and so they spread over all partitions");
}

#[tokio::test]
async fn the_timestamp_is_the_time_of_publishing() {
    let now_ms = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_millis() as i64
    };
    let before = now_ms();
    let (_world, records) = published(
        "SELECT outbox.enqueue('$topic', 'k', '1'); SELECT outbox.enqueue('$topic', NULL, '2');
         UPDATE outbox.message SET created_at = now() - interval '30 days';",
        2,
    )
    .await;
    for record in &records {
        let stamped = record.timestamp_ms.expect("a timestamp");
        assert!((before..=now_ms()).contains(&stamped), "{stamped}, started at {before}");
    }
}

/// Keys of many lengths, alphabets and edge cases.
fn keys() -> Vec<String> {
    let plain = (0..100).map(|n| format!("order-{n}"));
    let lengths = (1..60).map(|n| "x".repeat(n));
    let unicode = (0..40).map(|n| format!("ключ-{}-鍵🔑é{}", n, "ü".repeat(n % 5)));
    plain.chain(lengths).chain(unicode).collect()
}

/// Sends each key with Kafka's own Java producer.
fn produce_with_java(topic: &str, keys: &[String]) {
    let stack = Stack::get();
    let mut java = Command::new("java")
        .args([
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            &format!("{}/*", stack.kafka_libs),
        ])
        .args([
            "org.apache.kafka.tools.ConsoleProducer",
            "--bootstrap-server",
            &stack.kafka,
            "--topic",
            topic,
        ])
        .args(["--property", "parse.key=true", "--property", "key.separator=|"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("java starts");
    let mut stdin = java.stdin.take().expect("piped");
    for key in keys {
        writeln!(stdin, "{key}|v").expect("java reads");
    }
    drop(stdin);
    let output = java.wait_with_output().expect("java ends");
    assert!(output.status.success(), "{}", stderr_of(&output));
}

#[tokio::test]
async fn keys_land_on_the_partitions_the_java_client_chooses() {
    const PARTITIONS: i32 = 7;
    let world = World::new().await;
    let (ours, javas) = (
        world.topic("ours", PARTITIONS, &[]).await,
        world.topic("javas", PARTITIONS, &[]).await,
    );
    let keys = keys();
    let insert = "INSERT INTO outbox.message (topic, key, payload) SELECT $1, key, '1' FROM unnest($2::text[]) AS key";
    world.db.execute(insert, &[&ours, &keys]).await.expect("inserted");
    let _relay = world.relay().start_ready().await;
    let java = {
        let (topic, keys) = (javas.clone(), keys.clone());
        tokio::task::spawn_blocking(move || produce_with_java(&topic, &keys))
    };
    world.drained(SOON).await;
    java.await.expect("java is done");
    let by_key = |records: Vec<Record>| -> HashMap<String, i32> {
        records
            .iter()
            .map(|record| (record.key_text(), record.partition))
            .collect()
    };
    let ours = by_key(read_until(&world.kafka, &ours, keys.len(), SOON).await);
    let javas = by_key(read_until(&world.kafka, &javas, keys.len(), SOON).await);
    assert_eq!(javas.len(), keys.len());
    assert_eq!(ours, javas);
}
