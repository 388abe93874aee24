-- The same where the claim continues with other rows, after lock_unordered_claims.sql: if the answer is lost, a repetition finds them named.
INSERT INTO outbox.claim (lease_until, ids)
SELECT '-infinity'::timestamptz, array_agg(given_back.id) FROM unnest($1::bigint[]) AS given_back (id)
WHERE NOT EXISTS (SELECT FROM outbox.claim c WHERE given_back.id = ANY (c.ids))
HAVING count(*) > 0
