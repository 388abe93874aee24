-- The same where the claim goes on with other rows, behind claim_turn.sql.
INSERT INTO outbox.claim (lease_until, ids) VALUES ('-infinity', $1::bigint[])
