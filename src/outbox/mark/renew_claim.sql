-- Keeps the rows of a marked claim that Kafka has and that another transaction has locked, so that no other worker claims them
-- before they are marked. If this worker dies first, they are flagged like the rows of any expired claim. The id of the claim is
-- reused, because a new one would have to be drawn under the lock of lock_unordered_claims.sql.
INSERT INTO outbox.claim (id, worker, lease_until, ids) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, clock_timestamp() + $3::float8 * interval '1 second', $4::bigint[])
