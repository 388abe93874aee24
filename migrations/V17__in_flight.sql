-- Oldest outboxd schema that may run on this: 13
--
-- What a worker has in flight is written down, batch by batch, so that whoever takes its lanes over after its death flags those rows and no
-- others. Before, the next so many rows of each lane were counted: two whole batches a lane, and for as long as a hold lived in the
-- lane every row of it.

-- One row per batch of keyed rows under way: of each lane the lowest and the highest id of what is sent, more than one range where rows lie far
-- apart. Inserted before anything of the batch is handed to Kafka, deleted by its mark, never updated: a row that is rewritten grows a
-- chain of versions while somebody pins the vacuum horizon.
CREATE TABLE outbox.in_flight (
    -- Drawn in order: see worker.in_flight_from.
    id         bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    worker     uuid NOT NULL,
    lanes      smallint[] NOT NULL,
    first_ids  bigint[] NOT NULL,
    last_ids   bigint[] NOT NULL
);

COMMENT ON TABLE outbox.in_flight IS 'Batches of rows with a key that are in flight: what a successor of their worker must suspect of being repeats.';

GRANT SELECT, INSERT, DELETE ON outbox.in_flight TO outbox_relay;
GRANT SELECT ON outbox.in_flight TO outbox_operator;

ALTER TABLE outbox.worker
    -- The life of the server with which its records are complete. A crash may lose the last of them, since they are committed
    -- asynchronously; NULL: a version that writes none.
    ADD COLUMN incarnation timestamptz,
    -- None of its records has a lower id: nobody has to walk over all that were deleted since the vacuum horizon.
    ADD COLUMN in_flight_from bigint NOT NULL DEFAULT 0,
    -- Read by versions before this one alone, of a worker that they take lanes of: so many rows of each they flag.
    ALTER COLUMN lane_batch SET DEFAULT 100000;

-- Ids of rows that may have been sent by an owner that could not say: first and last of each range. suspect_rows is written for versions before
-- this one, and read of them.
ALTER TABLE outbox.lane ADD COLUMN suspects bigint[] NOT NULL DEFAULT '{}';
