//! Records of one key from several regions: whatever the order and the grouping, one and the same comes out.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

/// How many triples of records each law is checked with.
const TRIPLES: usize = 2000;

/// One record of a region. Few values each, so that ties of every depth occur.
#[derive(Clone, Debug)]
struct Version {
    region: u8,
    /// Nothing is known in that region.
    absent: bool,
    other_request: bool,
    status: usize,
    second: u8,
    attempt: u8,
    expires: u8,
    detail: u8,
}

const STATUSES: [&str; 4] = ["processing", "succeeded", "failed_retryable", "failed_final"];

fn version() -> impl Strategy<Value = Version> {
    let identity = (0..3u8, prop::bool::weighted(0.1), prop::bool::weighted(0.1), 0..4usize);
    (identity, 0..2u8, 1..4u8, 1..3u8, 0..2u8).prop_map(|(identity, second, attempt, expires, detail)| Version {
        region: identity.0,
        absent: identity.1,
        other_request: identity.2,
        status: identity.3,
        second,
        attempt,
        expires,
        detail,
    })
}

impl Version {
    /// As a value of outbox.idempotency_version that keeps every CHECK of the table.
    fn sql(&self) -> String {
        if self.absent {
            return format!("ROW('r{}', false, NULL)::outbox.idempotency_version", self.region);
        }
        let status = STATUSES[self.status];
        let at = format!("2030-01-01T00:00:0{}Z", self.second);
        let only = |wanted: &[&str], value: String| {
            if wanted.contains(&status) {
                value
            } else {
                "null".to_owned()
            }
        };
        let hash = if self.other_request { "bb" } else { "aa" };
        format!(
            "ROW('r{region}', false, jsonb_populate_record(NULL::outbox.idempotency_request, '{{
                \"scope\": \"s\", \"key\": \"k\", \"status\": \"{status}\", \"claimed_by\": \"x\",
                \"request_hash\": \"\\\\x{hash}\", \"attempt_count\": {attempt},
                \"created_at\": \"2029-12-31T00:00:00Z\", \"claimed_at\": \"{at}\", \"updated_at\": \"{at}\",
                \"expires_at\": \"203{expires}-02-01T00:00:00Z\",
                \"locked_until\": {locked}, \"completed_at\": {completed},
                \"failure_code\": {failure}, \"result_type\": {result}}}'))::outbox.idempotency_version",
            region = self.region,
            hash = hash.repeat(32),
            attempt = self.attempt,
            expires = self.expires,
            locked = only(&["processing"], format!("\"{at}\"")),
            completed = only(&["succeeded", "failed_final"], format!("\"{at}\"")),
            failure = only(&["failed_retryable", "failed_final"], format!("\"f{}\"", self.detail)),
            result = only(&["succeeded"], format!("\"t{}\"", self.detail)),
        )
    }
}

/// A table of random triples, the same in every run that fails.
async fn plant_triples(world: &World) {
    let mut runner = TestRunner::deterministic();
    let triples = prop::collection::vec((version(), version(), version()), TRIPLES);
    let triples = triples.new_tree(&mut runner).expect("generated").current();
    world
        .execute(
            "CREATE TABLE triple (n integer GENERATED ALWAYS AS IDENTITY, a outbox.idempotency_version,
                                  b outbox.idempotency_version, c outbox.idempotency_version)",
        )
        .await;
    for chunk in triples.chunks(200) {
        let rows: Vec<String> = chunk
            .iter()
            .map(|(a, b, c)| format!("({}, {}, {})", a.sql(), b.sql(), c.sql()))
            .collect();
        world
            .execute(&format!("INSERT INTO triple (a, b, c) VALUES {}", rows.join(", ")))
            .await;
    }
}

/// The first triple for which the two sides differ, if any.
async fn broken(world: &World, left: &str, right: &str) -> String {
    let m = |side: &str| side.replace("m(", "outbox.idempotency_merge(");
    world
        .text(&format!(
            "SELECT coalesce((SELECT format('%s: %s <> %s', t, l, r) FROM triple t,
                 LATERAL (SELECT {left}::text AS l, {right}::text AS r OFFSET 0) s WHERE l IS DISTINCT FROM r ORDER BY n LIMIT 1), 'none')",
            left = m(left),
            right = m(right),
        ))
        .await
}

#[tokio::test]
async fn a_merge_is_commutative_associative_and_idempotent() {
    let world = world().await;
    plant_triples(&world).await;
    for (law, left, right) in [
        ("commutative", "m(a, b)", "m(b, a)"),
        ("associative", "m(m(a, b), c)", "m(a, m(b, c))"),
        ("idempotent", "m(a, a)", "a"),
        ("absorbing", "m(m(a, b), a)", "m(a, b)"),
    ] {
        assert_eq!(broken(&world, left, right).await, "none", "{law}");
    }
    let conflicts =
        "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m WHERE m.conflict AND (m.request).status IS NULL";
    let executed_twice = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m WHERE m.conflict AND (m.request).status = 'succeeded'";
    let ties = "SELECT count(*) FROM triple WHERE ((a).request).updated_at = ((b).request).updated_at
                AND (a).region = (b).region AND ((a).request).status = ((b).request).status AND a <> b";
    assert!(
        world.count(conflicts).await > 100 && world.count(ties).await > 20 && world.count(executed_twice).await > 20,
        "the triples are worth something"
    );
}

#[tokio::test]
async fn a_success_wins_the_earliest_first_and_of_the_rest_the_latest() {
    let world = world().await;
    plant_triples(&world).await;
    let lost = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m
                WHERE (m.request).status <> 'succeeded'
                  AND (((a).request).status = 'succeeded' OR ((b).request).status = 'succeeded')";
    assert_eq!(world.count(lost).await, 0, "no success is lost");
    let answers = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m
                   WHERE ((a).request).status = 'succeeded' AND ((b).request).status = 'succeeded'
                     AND (m.request).completed_at > least(((a).request).completed_at, ((b).request).completed_at)";
    assert_eq!(world.count(answers).await, 0, "the answer that was given first stays");
    let older = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m
                 WHERE NOT m.conflict AND (m.request).status <> 'succeeded'
                   AND (m.request).updated_at < greatest(((a).request).updated_at, ((b).request).updated_at)";
    assert_eq!(world.count(older).await, 0, "the latest knows most");
    let tokens = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m
                  WHERE NOT m.conflict AND (m.request).attempt_count
                        <> greatest(((a).request).attempt_count, ((b).request).attempt_count)";
    assert_eq!(world.count(tokens).await, 0, "no token is granted twice");
}

/// A copy of this region's commands as another region may have them, changed like this.
async fn plant_remote(world: &World, change: &str) {
    world
        .execute(&format!(
            "DROP TABLE IF EXISTS remote; CREATE TABLE remote AS TABLE outbox.idempotency_request; UPDATE remote SET {change}"
        ))
        .await;
}

/// This region's commands and those of the other one as `l` and `r`, by key or as given, and `m`, what they merge to.
fn merged(answer: &str, on: &str) -> String {
    format!(
        "SELECT {answer} FROM outbox.idempotency_request l JOIN remote ON {on},
         LATERAL (SELECT jsonb_populate_record(NULL::outbox.idempotency_request, to_jsonb(remote)) AS r) other,
         LATERAL outbox.idempotency_merge(l, 'eu', r, 'us') m"
    )
}

const BY_KEY: &str = "(remote.scope, remote.key) = (l.scope, l.key)";

#[tokio::test]
async fn two_requests_under_one_key_are_reported_and_not_merged() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    plant_remote(&world, &format!("request_hash = {OTHER_HASH}")).await;
    let named = "m.conflict AND (m.request).scope = 'orders' AND (m.request).key = 'k' AND (m.request).status IS NULL";
    assert!(world.is_true(&merged(named, BY_KEY)).await);
    let before = world.requests().await;
    let stored = merged("(outbox.idempotency_store(m, 'eu')).conflict", BY_KEY);
    assert!(world.is_true(&stored).await, "nothing to store");
    assert_eq!(world.requests().await, before);
}

#[tokio::test]
async fn two_commands_are_refused_whatever_their_requests_are() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    for hash in [HASH, OTHER_HASH] {
        for name in ["key = 'k2'", "scope = 'payments'"] {
            plant_remote(&world, &format!("{name}, request_hash = {hash}")).await;
            assert_eq!(refusal(&world.db, &merged("m", "true")).await, "P4004", "{name} {hash}");
        }
    }
    // A conflict knows whose it is.
    plant_remote(&world, &format!("request_hash = {OTHER_HASH}")).await;
    let another = "ROW('ap', false, jsonb_populate_record(l, '{\"key\": \"k2\"}'))::outbox.idempotency_version";
    let three = merged(&format!("outbox.idempotency_merge(m, {another})"), BY_KEY);
    assert_eq!(refusal(&world.db, &three).await, "P4004");
}

#[tokio::test]
async fn two_regions_that_succeeded_with_different_results_say_so_and_the_first_answer_stays() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 1, 'order', 'eu-7', 201, '{}')")
        .await;
    let told = |m: &str| format!("concat_ws(' ', ({m}).conflict, (({m}).request).result_id, (({m}).request).status)");
    plant_remote(&world, "heartbeat_at = now()").await;
    assert_eq!(
        world.text(&merged(&told("m"), BY_KEY)).await,
        "f eu-7 succeeded",
        "one answer"
    );
    for change in [
        "result_id = 'us-9'",
        "response_code = 200",
        "response_body = '{\"n\": 1}'",
    ] {
        plant_remote(
            &world,
            &format!("{change}, completed_at = completed_at + interval '1 s'"),
        )
        .await;
        assert_eq!(
            world.text(&merged(&told("m"), BY_KEY)).await,
            "t eu-7 succeeded",
            "{change}"
        );
    }
    // What is merged later does not hide it.
    let absent = "ROW('ap', false, NULL)::outbox.idempotency_version";
    let all = told(&format!("outbox.idempotency_merge({absent}, m)"));
    assert_eq!(world.text(&merged(&all, BY_KEY)).await, "t eu-7 succeeded");
}

#[tokio::test]
async fn two_regions_without_a_record_merge_to_the_same_in_both_orders() {
    let world = world().await;
    let merge = |a: &str, b: &str| {
        format!("SELECT outbox.idempotency_merge(NULL::outbox.idempotency_request, '{a}', NULL, '{b}')::text")
    };
    assert_eq!(
        world.text(&merge("eu", "us")).await,
        world.text(&merge("us", "eu")).await
    );
}

#[tokio::test]
async fn a_merged_record_is_stored_and_its_answer_replayed() {
    let world = world().await;
    for key in ["here", "both"] {
        claim(&world.db, key, "").await;
    }
    plant_remote(
        &world,
        "status = 'succeeded', locked_until = NULL, completed_at = now(), updated_at = now(), attempt_count = 4,
         result_type = 'order', result_id = 'us-9', response_code = 201, response_body = '{\"id\": 9}'",
    )
    .await;
    world
        .execute("UPDATE remote SET key = 'there' WHERE key = 'here'")
        .await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    world.execute("GRANT SELECT ON remote TO outbox_operator").await;
    let store = "SELECT count(*) FROM remote,
        LATERAL (SELECT jsonb_populate_record(NULL::outbox.idempotency_request, to_jsonb(remote)) AS r) other
        LEFT JOIN outbox.idempotency_request l ON (l.scope, l.key) = ((r).scope, (r).key),
        LATERAL outbox.idempotency_merge(l, 'eu', r, 'us') m, LATERAL outbox.idempotency_store(m, 'eu') s
        WHERE NOT s.conflict AND s.request = m.request";
    let stored = operator.query_one(store, &[]).await.expect("stored");
    assert_eq!(stored.get::<_, i64>(0), 2);
    for key in ["there", "both"] {
        let answer = claim(&world.db, key, "").await;
        assert_eq!(
            (answer.kind.as_str(), answer.result.as_deref()),
            ("replay", Some("order us-9"))
        );
    }
    assert_eq!(claim(&world.db, "here", "").await.kind, "active");
    let after = world.requests().await;
    operator.query_one(store, &[]).await.expect("stored again");
    assert_eq!(world.requests().await, after, "once is enough");
    let zombie = "SELECT outbox.idempotency_succeed('orders', 'both', 1)";
    assert_eq!(
        refusal(&world.db, zombie).await,
        "P4010",
        "its token is of a former attempt"
    );
}

#[tokio::test]
async fn what_happened_since_the_merge_is_merged_before_it_is_stored() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    plant_remote(
        &world,
        "status = 'failed_retryable', locked_until = NULL, failure_code = 'timeout', updated_at = now() + interval '1 s'",
    )
    .await;
    world
        .execute(&format!("CREATE TABLE result AS {}", merged("m", BY_KEY)))
        .await;
    assert!(
        world
            .is_true("SELECT ((m).request).status = 'failed_retryable' FROM result")
            .await
    );
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 1, 'order', '7')")
        .await;
    let stored = "SELECT (s.request).status FROM result, outbox.idempotency_store(m, 'eu') s";
    assert_eq!(world.text(stored).await, "succeeded");
    assert_eq!(claim(&world.db, "k", "").await.result.as_deref(), Some("order 7"));
}
