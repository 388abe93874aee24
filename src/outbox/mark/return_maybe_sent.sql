-- Returns the rows of a finished claim that may have been sent. The claim has no worker and its lease has expired, so the next
-- claim flags them. The id of the claim is reused, because a new one would have to be drawn under the lock of
-- lock_unordered_claims.sql.
INSERT INTO outbox.claim (id, lease_until, ids) OVERRIDING SYSTEM VALUE VALUES ($1, '-infinity', $2::bigint[])
