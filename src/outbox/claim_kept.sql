-- What is left of a claim of ours whose other rows are marked: rows that Kafka has and that somebody else has locked. Nobody else claims
-- them before we have marked them; should we not come to that, they are flagged like those of any claim that is over. The number is that
-- of the claim: a new one would have to be drawn in turn.
INSERT INTO outbox.claim (id, worker, lease_until, ids) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, clock_timestamp() + $3::float8 * interval '1 second', $4::bigint[])
