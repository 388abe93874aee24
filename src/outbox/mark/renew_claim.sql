-- What is left of a claim of this worker whose other rows are marked: rows that Kafka has and that another transaction has locked. Until
-- they are marked nobody else claims them. If this worker dies before that, they are flagged like those of any claim that is over. The id
-- is that of the claim: a new one would have to be drawn under the lock of lock_unordered_claims.sql.
INSERT INTO outbox.claim (id, worker, lease_until, ids) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, clock_timestamp() + $3::float8 * interval '1 second', $4::bigint[])
