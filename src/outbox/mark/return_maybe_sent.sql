-- What is left of a claim that has ended: rows that were returned and may have been sent. Its lease is over and it has no worker, so that
-- the next claim flags them. The id is that of the claim: a new one would have to be drawn under the lock of lock_unordered_claims.sql.
INSERT INTO outbox.claim (id, lease_until, ids) OVERRIDING SYSTEM VALUE VALUES ($1, '-infinity', $2::bigint[])
