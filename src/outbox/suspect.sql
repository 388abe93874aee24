-- What is left of a claim that has ended: rows given back of which a copy may be there. It is over and nobody's, so that the next
-- claim flags them. The number is that of the claim: a new one would have to be drawn in turn.
INSERT INTO outbox.claim (id, lease_until, ids) OVERRIDING SYSTEM VALUE VALUES ($1, '-infinity', $2::bigint[])
