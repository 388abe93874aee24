-- What is left of a claim of ours whose other rows are marked: rows that Kafka has and that somebody else has locked, and those of
-- which a copy may be there. Nobody else claims them before we have marked the former; should we not come to that, all are flagged like
-- those of any claim that is over. The number is that of the claim, as in suspect.sql.
INSERT INTO outbox.claim (id, worker, lease_until, ids) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, clock_timestamp() + $3::float8 * interval '1 second', $4::bigint[])
