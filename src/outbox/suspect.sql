-- Rows given back of which a copy may be there: a claim that is over and nobody's, so that the next one flags them. Run in turn, as
-- every claim is.
INSERT INTO outbox.claim (lease_until, ids) VALUES ('-infinity', $1::bigint[])
