-- Returns rows that may have been sent where the id of the claim is kept for others (renew_claim.sql). Runs after
-- lock_unordered_claims.sql. If the answer is lost and the statement is repeated, it finds the rows named and inserts nothing.
INSERT INTO outbox.claim (lease_until, ids)
SELECT '-infinity'::timestamptz, array_agg(returned.id) FROM unnest($1::bigint[]) AS returned (id)
WHERE NOT EXISTS (SELECT FROM outbox.claim c WHERE returned.id = ANY (c.ids))
HAVING count(*) > 0
