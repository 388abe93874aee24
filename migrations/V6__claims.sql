-- Rows without a lane are claimed by a record that names them, no longer by a lease written into each row: that update found no
-- room on its page, so it touched every index, and cost more than all the rest of a row's life. A pending row is now *claimed*
-- where V1 says *leased*; the states and how they follow each other are the same.

-- One row per batch of such rows in flight, never updated. While its lease lasts, nobody else may claim what it
-- names. Afterwards it says that any of them may have been sent: whoever claims one takes it out of here and flags it.
CREATE TABLE outbox.claim (
    -- Drawn in the order of commits, since claimers take turns: nobody has to look below the lowest number seen, where all that
    -- was removed would lie in the way as long as some forgotten transaction pins the vacuum horizon. It is the fencing token, too.
    id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    claimed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- '-infinity': given back, with rows of which a copy may be there.
    lease_until  timestamptz NOT NULL,
    -- Of outbox.worker; NULL: nobody's.
    worker       uuid,
    ids          bigint[] NOT NULL,
    -- Those of them that an earlier claim may have sent.
    suspects     bigint[] NOT NULL DEFAULT '{}',
    -- A NULL among them would make `NOT IN` hide every row.
    CONSTRAINT claim_names_rows CHECK (cardinality(ids) > 0 AND array_position(ids, NULL) IS NULL)
);

-- Not compressed: others wait for their turn meanwhile, and it takes a millisecond.
ALTER TABLE outbox.claim ALTER COLUMN ids SET STORAGE EXTERNAL, ALTER COLUMN suspects SET STORAGE EXTERNAL;

COMMENT ON TABLE outbox.claim IS 'Batches of rows without a key that are in flight, or whose worker could not say what it had sent.';

GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.claim TO outbox_relay;
GRANT SELECT ON outbox.claim TO outbox_operator;

-- Nobody may lease a row in the old way between the next two statements.
LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE;

-- Leases of a version before this one. They are looked for where pending rows can be, above the floor, behind a parked topic or
-- among the delayed, and not in the whole table: applications wait meanwhile.
INSERT INTO outbox.claim (lease_until, ids)
SELECT max(lease_until), array_agg(id ORDER BY id)
FROM (
    SELECT m.id, m.claim_token, m.lease_until FROM outbox.message m
    WHERE m.lane IS NULL AND m.available_at IS NULL
      AND m.id > least((SELECT floor FROM outbox.lane WHERE lane = -1), (SELECT min(resume_floor) FROM outbox.hold WHERE lane = -1))
    UNION ALL
    SELECT m.id, m.claim_token, m.lease_until FROM outbox.message m WHERE m.available_at IS NOT NULL
) AS leased
WHERE claim_token IS NOT NULL
GROUP BY claim_token;

UPDATE outbox.message SET claim_token = NULL, lease_until = NULL
WHERE id = ANY (ARRAY(SELECT unnest(ids) FROM outbox.claim));

-- The columns stay, empty, until a later migration: replicas of a version before this one look for all other rows with them, and
-- relay those until they are replaced. Rows without a key they can no longer claim: two ways to claim would not know of each other.
-- NOT VALID: all rows are so already, and reading them would keep applications waiting.
ALTER TABLE outbox.message
    DROP CONSTRAINT message_lease_is_for_rows_without_a_lane,
    ADD CONSTRAINT message_is_claimed_by_a_record CHECK (claim_token IS NULL AND lease_until IS NULL) NOT VALID;
