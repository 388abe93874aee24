//! The functions of operators: what they change, what they leave in the audit, and what they refuse.

use testkit::*;
use tokio_postgres::Client;

/// Dead letters of the topic t, with the ids 1 to 5, and an operator. Nobody relays them.
async fn world_with_dead_letters() -> (World, Client) {
    let world = World::new().await;
    world.fill("t", 5, 2).await;
    world
        .execute("UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = 'refused'")
        .await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    (world, operator)
}

/// The operation and the number of rows that a call answers.
async fn call(client: &Client, call: &str) -> (Option<i64>, i32) {
    let sql = format!("SELECT operation, changed FROM outbox.{call}");
    let row = client.query_one(&sql, &[]).await.expect(call);
    (row.get(0), row.get(1))
}

async fn assert_refused(client: &Client, call: &str, code: &str) {
    let refusal = refusal_of(client, &format!("SELECT * FROM outbox.{call}")).await;
    assert_eq!(refusal.code().code(), code, "{call}: {refusal}");
}

const AUDIT: &str = "SELECT coalesce(string_agg(concat_ws(' ', id, operation, command, reason, changed, topics, ids, filter), '; ' ORDER BY id), '')
                     FROM outbox.audit";

#[tokio::test]
async fn a_change_leaves_a_row_in_the_audit_and_no_change_leaves_none() {
    let (world, operator) = world_with_dead_letters().await;
    let redrive = "dead_redrive('{2,1,99}', 'raised', filter => '{\"topics\": [\"t\"]}')";
    let (operation, changed) = call(&operator, redrive).await;
    let first = operation.expect("an operation");
    assert_eq!(changed, 2);
    assert_eq!(call(&operator, redrive).await, (None, 0), "neither is dead any more");
    let (_, changed) = call(&operator, "dead_discard('{3}')").await;
    assert_eq!(changed, 1);
    let second = first + 1;
    assert_eq!(
        world.text(AUDIT).await,
        format!(
            "{first} {first} dead redrive raised 2 {{t}} {{1,2}} {{\"topics\": [\"t\"]}}; {second} {second} dead discard 1 {{t}} {{3}} {{}}"
        )
    );
}

#[tokio::test]
async fn a_redriven_row_carries_its_operation_and_the_time_when_that_began() {
    let (world, operator) = world_with_dead_letters().await;
    let (operation, _) = call(&operator, "dead_redrive('{1}')").await;
    let operation = operation.expect("an operation");
    let more = format!("dead_redrive('{{2,3}}', operation => {operation})");
    assert_eq!(call(&operator, &more).await, (Some(operation), 2));
    let redriven = format!(
        "SELECT count(*) FROM outbox.message m JOIN outbox.audit a ON a.id = m.requeued_by AND a.at = m.available_at
         WHERE a.id = {operation} AND m.dead_at IS NULL AND m.attempts = 0"
    );
    assert_eq!(world.count(&redriven).await, 3);
    let transactions = "SELECT string_agg(operation || ' ' || changed, ',' ORDER BY id) FROM outbox.audit";
    assert_eq!(world.text(transactions).await, format!("{operation} 1,{operation} 2"));
    let none = format!("dead_redrive('{{99}}', operation => {operation})");
    assert_eq!(call(&operator, &none).await, (Some(operation), 0));
}

#[tokio::test]
async fn an_operation_is_continued_only_by_its_login_and_with_its_command() {
    let (world, operator) = world_with_dead_letters().await;
    let (operation, _) = call(&operator, "dead_redrive('{1}')").await;
    let operation = operation.expect("an operation");
    let other = connect(&world.login("other", &["outbox_operator"]).await).await;
    assert_refused(
        &other,
        &format!("dead_redrive('{{2}}', operation => {operation})"),
        "42501",
    )
    .await;
    assert_refused(
        &operator,
        &format!("dead_discard('{{2}}', operation => {operation})"),
        "22023",
    )
    .await;
    assert_refused(&operator, "dead_redrive('{2}', operation => 12345)", "22023").await;
    let dead = "SELECT count(*) FROM outbox.message WHERE dead_at IS NOT NULL";
    assert_eq!(world.count(dead).await, 4, "what was refused changed nothing");
}

#[tokio::test]
async fn the_audit_names_who_logged_in_whatever_role_was_set() {
    let (world, operator) = world_with_dead_letters().await;
    operator
        .batch_execute("SET ROLE outbox_operator")
        .await
        .expect("a role");
    call(&operator, "dead_redrive('{1}')").await;
    let login = "SELECT string_agg(login, ',') FROM outbox.audit WHERE at BETWEEN now() - interval '1 minute' AND clock_timestamp()";
    assert_eq!(world.text(login).await, format!("{}_operator", world.name));
}

#[tokio::test]
async fn the_functions_of_version_1_are_audited_too() {
    let (world, operator) = world_with_dead_letters().await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, retry_at)
             VALUES (1, 't', 'k:k', 4, 0, '', 'infinity'), (1, 't', '', NULL, 0, '', 'infinity'), (2, 't', '', NULL, 0, '', 'infinity')",
        )
        .await;
    for statement in [
        "SELECT outbox.redrive('{1}')",
        "SELECT outbox.discard('{2,3}')",
        "SELECT outbox.release_hold('t', 'k')",
        "SELECT outbox.release_hold('t')",
    ] {
        operator.batch_execute(statement).await.expect(statement);
    }
    let audit = "SELECT string_agg(concat_ws(' ', command, changed, topics, ids), '; ' ORDER BY id) FROM outbox.audit";
    assert_eq!(
        world.text(audit).await,
        "dead redrive 1 {t} {1}; dead discard 2 {t} {2,3}; hold release 1 {t} {4}; hold release 2 {t} {}"
    );
}

#[tokio::test]
async fn rows_of_the_audit_are_added_by_the_functions_and_never_changed() {
    let (world, operator) = world_with_dead_letters().await;
    call(&operator, "dead_redrive('{1}')").await;
    for change in [
        "UPDATE outbox.audit SET login = 'somebody'",
        "DELETE FROM outbox.audit",
        "TRUNCATE outbox.audit",
    ] {
        let refusal = refusal_of(&world.db, change).await;
        assert_eq!(refusal.code().code(), "55000", "the owner: {change}: {refusal}");
        let refusal = refusal_of(&operator, change).await;
        assert_eq!(refusal.code().code(), "42501", "an operator: {change}: {refusal}");
    }
    for forbidden in [
        "INSERT INTO outbox.audit (operation, command, changed) VALUES (1, 'dead redrive', 1)",
        "SELECT outbox.audit_record('dead redrive', NULL, '{}', NULL, 1, '{}', '{}')",
        "SELECT outbox.dead_lock('{2}')",
        "SELECT outbox.dead_requeue('{2}', 1)",
        "SELECT nextval('outbox.audit_id_seq')",
    ] {
        let refusal = refusal_of(&operator, forbidden).await;
        assert_eq!(refusal.code().code(), "42501", "{forbidden}: {refusal}");
    }
}

#[tokio::test]
async fn wrong_arguments_are_refused() {
    let (world, operator) = world_with_dead_letters().await;
    let many = "ARRAY(SELECT generate_series(1, 10001))";
    for (wrong, code) in [
        (format!("dead_redrive({many})"), "P4004"),
        (format!("dead_discard({many})"), "P4004"),
        ("dead_redrive(NULL)".to_owned(), "P4004"),
        ("dead_redrive('{1}', repeat('x', 1001))".to_owned(), "P4004"),
        ("dead_redrive('{1}', filter => '[]')".to_owned(), "P4004"),
        ("dead_redrive('{1}', filter => NULL)".to_owned(), "P4004"),
        (
            "dead_redrive('{1}', filter => jsonb_build_object('x', repeat('x', 65536)))".to_owned(),
            "P4004",
        ),
        ("dead_correct(1)".to_owned(), "P4000"),
        ("holds_release('{t}', '{}')".to_owned(), "P4004"),
        ("hold_release('t', 'k', 1)".to_owned(), "P4004"),
    ] {
        assert_refused(&operator, &wrong, code).await;
    }
    let both = refusal_of(&operator, "SELECT outbox.dead_correct(1, '{}', '\\x00')").await;
    assert_eq!(both.constraint(), Some("message_has_one_payload_at_most"));
    let dead = "SELECT count(*) FROM outbox.message WHERE dead_at IS NOT NULL";
    assert_eq!(world.count(dead).await, 5);
    assert_eq!(world.text(AUDIT).await, "");
}

#[tokio::test]
async fn a_correction_replaces_the_payload_and_the_audit_keeps_the_old_one() {
    let (world, operator) = world_with_dead_letters().await;
    let pending = world.insert("t", &[(Some("k"), b"pending".to_vec())]).await[0];
    assert_eq!(
        call(&operator, &format!("dead_correct({pending}, '{{}}')")).await,
        (None, 0)
    );
    let (operation, changed) = call(&operator, "dead_correct(1, '{\"n\": 10}', reason => 'a typo')").await;
    assert_eq!(changed, 1);
    let corrected = format!(
        "SELECT payload = '{{\"n\": 10}}' AND dead_at IS NULL AND attempts = 0 AND requeued_by = {} AND available_at <= clock_timestamp()
         FROM outbox.message WHERE id = 1",
        operation.expect("an operation")
    );
    assert!(world.is_true(&corrected).await);
    let before = "SELECT concat_ws(' ', command, reason, ids, payload_before, payload_bytes_before) FROM outbox.audit";
    assert_eq!(world.text(before).await, "dead correct a typo {1} {\"n\": 1}");
    let (_, changed) = call(&operator, "dead_correct(2, payload_bytes => '\\x01')").await;
    assert_eq!(changed, 1);
    let bytes = "SELECT payload IS NULL AND payload_bytes = '\\x01' FROM outbox.message WHERE id = 2";
    assert!(world.is_true(bytes).await);
}

#[tokio::test]
async fn two_operators_at_once_change_each_row_once() {
    let (world, operator) = world_with_dead_letters().await;
    let mut first = world.session().await;
    let transaction = first.transaction().await.expect("a transaction");
    transaction
        .execute("SELECT outbox.dead_redrive('{1,2}')", &[])
        .await
        .expect("redriven");
    let second = tokio::spawn(async move { call(&operator, "dead_redrive('{1,2,3}')").await });
    world.blocked(1).await;
    transaction.commit().await.expect("committed");
    let (_, changed) = second.await.expect("no panic");
    assert_eq!(changed, 1, "the third alone");
    assert_eq!(world.count("SELECT sum(changed)::bigint FROM outbox.audit").await, 3);
}
