//! What a row may be: the rules of a message, the CHECKs, the lane of a key, one row per idempotency key, enqueue.

use testkit::*;
use tokio_postgres::error::SqlState;

/// Each rule of a message and each CHECK of the tables, with statements it must refuse. `message` rows are given as a column list
/// and values.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "message_topic_is_a_legal_kafka_name",
        &[
            "(topic, key) VALUES ('', 'k')",
            "(topic, key) VALUES ('a b', 'k')",
            "(topic, key) VALUES ('ä', 'k')",
            "(topic, key) VALUES (E'a\\n', 'k')",
            "(topic, key) VALUES ('.', 'k')",
            "(topic, key) VALUES ('..', 'k')",
            "(topic, key) VALUES (repeat('x', 250), 'k')",
        ],
    ),
    (
        "message_key_is_at_most_1024_bytes",
        &[
            "(topic, key) VALUES ('t', repeat('x', 1025))",
            "(topic, key) VALUES ('t', repeat('ä', 513))",
        ],
    ),
    (
        "message_event_type_is_at_most_1024_bytes",
        &["(topic, key, event_type) VALUES ('t', 'k', repeat('x', 1025))"],
    ),
    (
        "message_aggregate_type_is_at_most_1024_bytes",
        &["(topic, key, aggregate_type) VALUES ('t', 'k', repeat('x', 1025))"],
    ),
    (
        "message_aggregate_id_is_at_most_1024_bytes",
        &["(topic, key, aggregate_id) VALUES ('t', 'k', repeat('x', 1025))"],
    ),
    (
        "message_idempotency_scope_is_at_most_1024_bytes",
        &["(topic, key, idempotency_scope) VALUES ('t', 'k', repeat('x', 1025))"],
    ),
    (
        "message_idempotency_key_is_at_most_1024_bytes",
        &["(topic, key, event_type, idempotency_scope, idempotency_key) VALUES ('t', 'k', 'e', 's', repeat('x', 1025))"],
    ),
    (
        "message_headers_are_at_most_65536_bytes",
        &[
            "(topic, key, headers) VALUES ('t', 'k', jsonb_build_object('a', repeat('x', 65536)))",
            "(topic, key, headers) VALUES ('t', 'k', '{\"a\": 1e131071}')",
        ],
    ),
    (
        "message_partition_is_not_negative",
        &["(topic, key, partition) VALUES ('t', 'k', -1)"],
    ),
    (
        "message_has_one_payload_at_most",
        &["(topic, key, payload, payload_bytes) VALUES ('t', 'k', '1', '\\x01')"],
    ),
    (
        "message_without_payload_is_a_tombstone_and_needs_a_key",
        &["(topic) VALUES ('t')", "(topic, partition) VALUES ('t', 0)"],
    ),
    (
        "message_headers_are_a_json_object",
        &[
            "(topic, key, headers) VALUES ('t', 'k', '[]')",
            "(topic, key, headers) VALUES ('t', 'k', '\"text\"')",
            "(topic, key, headers) VALUES ('t', 'k', 'null')",
        ],
    ),
    (
        "message_headers_do_not_use_the_relays_names",
        &[
            "(topic, key, headers) VALUES ('t', 'k', '{\"message-id\": \"x\"}')",
            "(topic, key, headers) VALUES ('t', 'k', '{\"event-type\": \"x\"}')",
            "(topic, key, headers) VALUES ('t', 'k', '{\"aggregate-type\": \"x\"}')",
            "(topic, key, headers) VALUES ('t', 'k', '{\"aggregate-id\": \"x\"}')",
            "(topic, key, headers) VALUES ('t', 'k', '{\"aggregate-version\": 1}')",
            "(topic, key, headers) VALUES ('t', 'k', '{\"possible-duplicate\": \"true\"}')",
        ],
    ),
    (
        "message_idempotency_key_needs_scope_and_event_type",
        &[
            "(topic, key, idempotency_key, event_type) VALUES ('t', 'k', 'i', 'E')",
            "(topic, key, idempotency_key, idempotency_scope) VALUES ('t', 'k', 'i', 's')",
        ],
    ),
    (
        "message_attempts_are_not_negative",
        &["(topic, key, attempts) VALUES ('t', 'k', -1)"],
    ),
    (
        "message_is_not_two_of_delayed_published_and_dead",
        &[
            "(topic, key, published_at, dead_at) VALUES ('t', 'k', now(), now())",
            "(topic, key, published_at, available_at) VALUES ('t', 'k', now(), now())",
            "(topic, payload, dead_at, available_at) VALUES ('t', '1', now(), now())",
        ],
    ),
    (
        "claim_names_rows",
        &[
            "outbox.claim (lease_until, ids) VALUES (now(), '{}')",
            "outbox.claim (lease_until, ids) VALUES (now(), '{1,NULL}')",
        ],
    ),
    (
        "lane_is_known",
        &["outbox.lane (lane) VALUES (64)", "outbox.lane (lane) VALUES (-2)"],
    ),
    (
        "pause_has_a_reason",
        &["outbox.pause (reason) VALUES ('')", "outbox.pause (reason) VALUES (' ')"],
    ),
    (
        "pause_key_is_at_most_1024_bytes",
        &["outbox.pause (topic, key, reason) VALUES ('orders', repeat('ä', 513), 'why')"],
    ),
    (
        "pause_of_a_key_names_its_topic",
        &["outbox.pause (key, reason) VALUES ('k', 'why')"],
    ),
    (
        "pause_topic_is_a_legal_kafka_name",
        &[
            "outbox.pause (topic, reason) VALUES ('', 'why')",
            "outbox.pause (topic, reason) VALUES ('..', 'why')",
            "outbox.pause (topic, reason) VALUES ('no topic', 'why')",
            "outbox.pause (topic, reason) VALUES (repeat('t', 250), 'why')",
        ],
    ),
    (
        "unordered_lane_has_no_owner",
        &["outbox.lane (lane, owner) VALUES (-1, gen_random_uuid())"],
    ),
    (
        "hold_unit_is_a_key_a_partition_or_everything",
        &["outbox.hold (lane, topic, unit, resume_floor, reason, retry_at) VALUES (0, 't', 'x', 0, '', now())"],
    ),
    (
        "consumer_slot_is_1_to_32",
        &[
            "outbox.consumer_slot (consumer, slot, counter) VALUES ('c', 0, 'outbox.consumer_duplicates_1')",
            "outbox.consumer_slot (consumer, slot, counter) VALUES ('c', 33, 'outbox.consumer_duplicates_1')",
        ],
    ),
    (
        "processed_message_names_are_1_to_255_bytes",
        &[
            "outbox.processed_message (consumer, source, message_id, payload_hash) VALUES ('', 's', 'm', '\\x01')",
            "outbox.processed_message (consumer, source, message_id, payload_hash) VALUES ('c', '', 'm', '\\x01')",
            "outbox.processed_message (consumer, source, message_id, payload_hash) VALUES ('c', 's', repeat('ä', 128), '\\x01')",
        ],
    ),
    (
        "processed_message_hash_is_1_to_64_bytes",
        &[
            "outbox.processed_message (consumer, source, message_id, payload_hash) VALUES ('c', 's', 'm', '')",
            "outbox.processed_message (consumer, source, message_id, payload_hash)
             VALUES ('c', 's', 'm', convert_to(repeat('x', 65), 'UTF8'))",
        ],
    ),
    (
        "processed_message_result_is_at_most_255_bytes_each",
        &[
            "outbox.processed_message (consumer, source, message_id, payload_hash, outcome)
             VALUES ('c', 's', 'm', '\\x01', repeat('x', 256))",
            "outbox.processed_message (consumer, source, message_id, payload_hash, result_type)
             VALUES ('c', 's', 'm', '\\x01', repeat('x', 256))",
            "outbox.processed_message (consumer, source, message_id, payload_hash, result_id)
             VALUES ('c', 's', 'm', '\\x01', repeat('x', 256))",
        ],
    ),
    (
        "inbox_message_names_are_1_to_255_bytes",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts)
             VALUES ('', 's', 'm', '\\x01', now(), 0, 1)",
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts)
             VALUES ('c', 's', repeat('x', 256), '\\x01', now(), 0, 1)",
        ],
    ),
    (
        "inbox_message_key_is_at_most_1024_bytes",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts, key)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, repeat('x', 1025))",
        ],
    ),
    (
        "inbox_message_hash_is_1_to_64_bytes",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts)
             VALUES ('c', 's', 'm', '', now(), 0, 1)",
        ],
    ),
    (
        "inbox_message_has_one_payload_at_most",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts,
                                   payload, payload_bytes)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, '1', '\\x01')",
        ],
    ),
    (
        "inbox_message_headers_are_a_json_object",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts, headers)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, '[]')",
        ],
    ),
    (
        "inbox_message_attempts_are_within_their_limit",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 0)",
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts,
                                   attempts, token)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, 2, 2)",
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts,
                                   attempts, token)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 2, 2, 1)",
        ],
    ),
    (
        "inbox_message_behind_another_has_a_key_and_was_never_claimed",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts, behind)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, true)",
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts, behind,
                                   key, token)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, true, 'k', 1)",
        ],
    ),
    (
        "inbox_message_is_claimed_done_or_poison",
        &[
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts,
                                   done_at, poison_at)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, now(), now())",
            "outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, priority, max_attempts,
                                   claimed_at, done_at)
             VALUES ('c', 's', 'm', '\\x01', now(), 0, 1, now(), now())",
        ],
    ),
];

#[tokio::test]
async fn every_check_refuses_bad_input_in_the_applications_transaction_and_says_which() {
    let world = World::new().await;
    for (constraint, statements) in REFUSED {
        for values in *statements {
            let table = if values.starts_with('(') { "outbox.message " } else { "" };
            let insert = format!("BEGIN; INSERT INTO {table}{values}");
            let error = refusal_of(&world.db, &insert).await;
            assert_eq!(*error.code(), SqlState::CHECK_VIOLATION, "{insert}: {error}");
            assert_eq!(error.constraint(), Some(*constraint), "{insert}: {error}");
            if !table.is_empty() {
                assert_eq!((error.schema(), error.table()), (Some("outbox"), Some("message")));
            }
            assert!(error.message().contains(constraint), "{error}");
            world.execute("ROLLBACK").await;
        }
    }
    let named = "SELECT string_agg(name, ' ' ORDER BY name) FROM (
                     SELECT conname::text FROM pg_constraint
                     WHERE contype = 'c' AND connamespace = 'outbox'::regnamespace AND conname !~ '^idempotency_'
                     UNION ALL
                     SELECT (regexp_matches(prosrc, 'THEN ''(\\w+)''', 'g'))[1] FROM pg_proc
                     WHERE oid = 'outbox.message_before_insert'::regproc
                 ) AS rule (name)";
    let mut tried: Vec<&str> = REFUSED.iter().map(|(constraint, _)| *constraint).collect();
    tried.sort_unstable();
    assert_eq!(
        world.text(named).await,
        tried.join(" "),
        "every rule of the relay's tables is tried here"
    );
}

/// What an application may have put before the names of PostgreSQL itself, by chance or on purpose.
const SHADOW: &str = "
    CREATE SCHEMA shadow;
    CREATE FUNCTION shadow.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 7';
    CREATE FUNCTION shadow.seven(bigint, integer) RETURNS bigint LANGUAGE sql AS 'SELECT 7';
    CREATE OPERATOR shadow.& (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = shadow.seven);
    CREATE FUNCTION shadow.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR shadow.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = shadow.never);
    CREATE OPERATOR shadow.= (LEFTARG = text, RIGHTARG = text, FUNCTION = shadow.never);
    CREATE OPERATOR shadow.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = shadow.never);
    CREATE FUNCTION shadow.never(jsonb, text[]) RETURNS boolean LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR shadow.?| (LEFTARG = jsonb, RIGHTARG = text[], FUNCTION = shadow.never);
    CREATE FUNCTION shadow.never(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR shadow.< (LEFTARG = integer, RIGHTARG = integer, FUNCTION = shadow.never);
    CREATE OPERATOR shadow.> (LEFTARG = integer, RIGHTARG = integer, FUNCTION = shadow.never);
    CREATE FUNCTION shadow.never(smallint, integer) RETURNS boolean LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR shadow.< (LEFTARG = smallint, RIGHTARG = integer, FUNCTION = shadow.never);
    CREATE FUNCTION shadow.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION shadow.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''object''::text';
    CREATE FUNCTION shadow.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT ''nothing''::text';";

#[tokio::test]
async fn lanes_and_rules_are_the_same_whatever_the_session_has_set() {
    let world = World::new().await;
    world.execute(SHADOW).await;
    for setting in ["session_replication_role = replica", "search_path = shadow, pg_catalog"] {
        let session = world.session().await;
        session.batch_execute(&format!("SET {setting}")).await.expect(setting);
        for (values, lane) in [
            ("(topic, key) VALUES ('t', 'order-1')", 11),
            ("(topic, partition, payload) VALUES ('orders', 1, '1')", 24),
        ] {
            let insert = format!("INSERT INTO outbox.message {values} RETURNING lane");
            let row = session.query_one(&insert, &[]).await.expect(setting);
            assert_eq!(row.get::<_, i16>(0), lane, "{setting}: {insert}");
        }
        for (constraint, statements) in REFUSED {
            for values in statements.iter().filter(|values| values.starts_with('(')) {
                let insert = format!("INSERT INTO outbox.message {values}");
                let error = refusal_of(&session, &insert).await;
                assert_eq!(error.constraint(), Some(*constraint), "{setting}: {insert}: {error}");
                assert!(error.message().contains(constraint), "{setting}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_lane_that_the_owner_of_the_table_writes_is_not_believed() {
    let world = World::new().await;
    world
        .execute("INSERT INTO outbox.message (topic, key, payload, lane) VALUES ('t', 'order-1', '1', 5), ('t', NULL, '1', 5)")
        .await;
    let lanes = "SELECT string_agg(coalesce(lane::text, 'none'), ' ' ORDER BY id) FROM outbox.message";
    assert_eq!(world.text(lanes).await, "11 none");
}

#[tokio::test]
async fn a_trigger_of_the_applications_that_changes_the_key_comes_first() {
    let world = World::new().await;
    world
        .execute(
            "CREATE FUNCTION lower_key() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN NEW.key := lower(NEW.key); RETURN NEW; END';
             CREATE TRIGGER normalize_key BEFORE INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION lower_key();
             INSERT INTO outbox.message (topic, key) VALUES ('t', 'ORDER-1')",
        )
        .await;
    assert_eq!(world.count("SELECT lane::bigint FROM outbox.message").await, 11);
}

#[tokio::test]
async fn where_a_message_stands_never_changes() {
    let world = World::new().await;
    world.execute("SELECT outbox.enqueue('t', 'k', '1')").await;
    for role in ["origin", "replica"] {
        world.execute(&format!("SET session_replication_role = {role}")).await;
        for change in ["topic = 'u'", "key = 'l'", "partition = 1", "lane = 0"] {
            let update = format!("UPDATE outbox.message SET {change}");
            let error = refusal_of(&world.db, &update).await;
            assert_eq!(*error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{update}");
            assert!(
                error.hint().is_some_and(|hint| hint.contains("insert a new message")),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_just_within_the_limits_is_accepted() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.message (topic, key) VALUES (repeat('x', 249), repeat('x', 1024)), ('a.B-c_9', '');
             INSERT INTO outbox.message (topic, payload, partition, headers) VALUES ('t', 'null', 0, '{}');
             INSERT INTO outbox.message (topic, key, event_type, aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers)
             SELECT 't', 'k', 'e', x, x, x, x, jsonb_build_object('a', repeat('x', 65527)) FROM (SELECT repeat('x', 1024)) AS one (x);",
        )
        .await;
    assert_eq!(world.pending().await, 4);
}

/// Computed once with the shipped expression. An upgrade that changes any of these splits a key over two lanes.
const LANES: &[(&str, i16)] = &[
    ("", 45),
    ("a", 49),
    ("b", 32),
    ("order-1", 11),
    ("order-2", 44),
    ("customer/42", 27),
    ("Ünïcödé", 37),
    ("ключ", 0),
    ("鍵", 61),
    ("🔑", 31),
    (" ", 50),
    ("0", 44),
];

/// The same for rows without a key and with a partition of their own.
const PARTITION_LANES: &[(&str, i32, i16)] = &[
    ("orders", 0, 32),
    ("orders", 1, 24),
    ("orders", 2, 40),
    ("payments", 0, 43),
    ("a.b-c_D", 17, 60),
    ("orders", i32::MAX, 7),
];

#[tokio::test]
async fn the_lane_of_a_key_never_changes() {
    let world = World::new().await;
    let by_key = "INSERT INTO outbox.message (topic, key, partition) VALUES ($1, $2, 5) RETURNING lane";
    for (key, lane) in LANES {
        for topic in ["orders", "payments"] {
            let row = world.db.query_one(by_key, &[&topic, key]).await.expect("inserted");
            assert_eq!(row.get::<_, i16>(0), *lane, "key {key:?} in {topic}");
        }
    }
    let by_partition = "INSERT INTO outbox.message (topic, partition, payload) VALUES ($1, $2, '1') RETURNING lane";
    for (topic, partition, lane) in PARTITION_LANES {
        let row = world
            .db
            .query_one(by_partition, &[topic, partition])
            .await
            .expect("inserted");
        assert_eq!(row.get::<_, i16>(0), *lane, "{topic} partition {partition}");
    }
    world.execute("SELECT outbox.enqueue('t', payload => '1')").await;
    assert!(
        world
            .is_true("SELECT lane IS NULL FROM outbox.message ORDER BY id DESC LIMIT 1")
            .await
    );
}

fn idempotent(scope: &str, key: &str, event: &str) -> String {
    format!(
        "INSERT INTO outbox.message (topic, key, idempotency_scope, idempotency_key, event_type)
         VALUES ('t', 'k', '{scope}', '{key}', '{event}')"
    )
}

#[tokio::test]
async fn an_idempotency_key_is_taken_once_per_scope_and_event_type() {
    let world = World::new().await;
    for (scope, key, event) in [("s", "i", "E"), ("s2", "i", "E"), ("s", "i2", "E"), ("s", "i", "E2")] {
        world.execute(&idempotent(scope, key, event)).await;
    }
    // An event type and a scope alone are no idempotency key.
    for _ in 0..2 {
        let plain =
            "INSERT INTO outbox.message (topic, key, idempotency_scope, event_type) VALUES ('t', 'k', 's', 'E')";
        world.execute(plain).await;
    }
    let again = refusal_of(&world.db, &idempotent("s", "i", "E")).await;
    assert_eq!(
        (again.code(), again.constraint()),
        (&SqlState::UNIQUE_VIOLATION, Some("message_idempotency"))
    );
}

#[tokio::test]
async fn of_two_transactions_with_the_same_idempotency_key_the_second_waits_and_is_refused() {
    let world = World::new().await;
    let second = world.session().await;
    world.execute(&format!("BEGIN; {}", idempotent("s", "i", "E"))).await;
    let waiting = tokio::spawn(async move { second.batch_execute(&idempotent("s", "i", "E")).await });
    world.blocked(1).await;
    world.execute("COMMIT").await;
    let refused = waiting.await.expect("ran").expect_err("taken");
    assert_eq!(refused.code(), Some(&SqlState::UNIQUE_VIOLATION));
}

#[tokio::test]
async fn enqueue_writes_every_argument_into_its_column() {
    let world = World::new().await;
    let message_id = "0190163d-8694-739b-aea5-966c26f8ad91";
    let returned = world
        .text(&format!(
            "SELECT outbox.enqueue(topic => 't', key => 'k', payload => '{{\"n\": 1}}', headers => '{{\"h\": \"v\"}}',
                event_type => 'Placed', aggregate_type => 'order', aggregate_id => '42', aggregate_version => 7,
                idempotency_scope => 's', idempotency_key => 'i', available_at => '2100-01-01 00:00+00',
                partition => 3, message_id => '{message_id}')::text"
        ))
        .await;
    assert_eq!(returned, message_id);
    let same = format!(
        "SELECT (topic, key, payload, headers, event_type, aggregate_type, aggregate_id, aggregate_version,
                 idempotency_scope, idempotency_key, available_at, partition, message_id)
              = ('t', 'k', '{{\"n\": 1}}'::jsonb, '{{\"h\": \"v\"}}'::jsonb, 'Placed', 'order', '42', 7,
                 's', 'i', '2100-01-01 00:00+00'::timestamptz, 3, '{message_id}'::uuid)
              AND payload_bytes IS NULL FROM outbox.message"
    );
    assert!(world.is_true(&same).await);
    let drawn = world
        .text("SELECT outbox.enqueue('t', payload_bytes => '\\x0001ff')::text")
        .await;
    let bytes = format!(
        "SELECT payload_bytes = '\\x0001ff' AND payload IS NULL AND key IS NULL AND available_at IS NULL
         FROM outbox.message WHERE message_id = '{drawn}'"
    );
    assert!(world.is_true(&bytes).await, "the id it returns is the row's");
}
