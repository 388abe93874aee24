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

/// The first triple for which the two sides differ, if any. An absent record has no region that matters.
async fn broken(world: &World, left: &str, right: &str) -> String {
    let m = |side: &str| side.replace("m(", "outbox.idempotency_merge(");
    let known = |side: &str| {
        format!("CASE WHEN ({side}).conflict OR (({side}).request).scope IS NOT NULL THEN ({side})::text END")
    };
    world
        .text(&format!(
            "SELECT coalesce((SELECT format('%s: %s <> %s', t, l, r) FROM triple t,
                 LATERAL (SELECT {left} AS x, {right} AS y OFFSET 0) s,
                 LATERAL (SELECT {l} AS l, {r} AS r OFFSET 0) d WHERE l IS DISTINCT FROM r ORDER BY n LIMIT 1), 'none')",
            left = m(left),
            right = m(right),
            l = known("s.x"),
            r = known("s.y"),
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
    let conflicts = "SELECT count(*) FROM triple WHERE (outbox.idempotency_merge(a, b)).conflict";
    let ties = "SELECT count(*) FROM triple WHERE ((a).request).updated_at = ((b).request).updated_at
                AND (a).region = (b).region AND ((a).request).status = ((b).request).status AND a <> b";
    assert!(
        world.count(conflicts).await > 100 && world.count(ties).await > 20,
        "the triples are worth something"
    );
}

#[tokio::test]
async fn a_success_wins_the_earliest_first_and_of_the_rest_the_latest() {
    let world = world().await;
    plant_triples(&world).await;
    let lost = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m
                WHERE NOT m.conflict AND (((a).request).status = 'succeeded' OR ((b).request).status = 'succeeded')
                  AND (m.request).status <> 'succeeded'";
    assert_eq!(world.count(lost).await, 0, "no success is lost");
    let answers = "SELECT count(*) FROM triple, outbox.idempotency_merge(a, b) m
                   WHERE NOT m.conflict AND ((a).request).status = 'succeeded' AND ((b).request).status = 'succeeded'
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

#[tokio::test]
async fn two_requests_under_one_key_are_reported_and_not_merged_and_two_keys_are_refused() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    world
        .execute(&format!(
            "CREATE TABLE remote AS TABLE outbox.idempotency_request;
             UPDATE remote SET request_hash = {OTHER_HASH}"
        ))
        .await;
    let merge = "SELECT m.conflict AND (m.request).key IS NULL FROM outbox.idempotency_request l, remote r,
                 LATERAL outbox.idempotency_merge(l, 'eu', jsonb_populate_record(l, to_jsonb(r)), 'us') m";
    assert!(world.is_true(merge).await);
    world
        .execute(&format!("UPDATE remote SET request_hash = {HASH}, key = 'k2'"))
        .await;
    assert_eq!(refusal(&world.db, merge).await, "P4004");
}
