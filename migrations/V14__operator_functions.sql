-- Operators act on messages and holds through functions, which leave no row behind a floor. The raw rights to do so by hand go.

-- Sends dead letters again, once what refused them is fixed. Answers how many; rows that are not dead are left alone.
-- available_at puts a row where delayed rows are found: a floor may have passed it. Where its key has waited behind it, the relay tries
-- it at once and then lets the key continue, in order.
CREATE FUNCTION outbox.redrive(ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH dead AS MATERIALIZED (
        SELECT m.id FROM outbox.message m
        WHERE m.id = ANY (redrive.ids) AND m.dead_at IS NOT NULL
        ORDER BY m.id FOR UPDATE
    ), redriven AS (
        UPDATE outbox.message m SET dead_at = NULL, attempts = 0, available_at = now()
        WHERE m.id = ANY (ARRAY(SELECT id FROM dead))
        RETURNING m.id
    ), due AS (
        UPDATE outbox.hold h SET retry_at = now() WHERE h.head_id = ANY (ARRAY(SELECT id FROM redriven))
    )
    SELECT count(*) FROM redriven
$$;

-- Removes dead letters for good. Answers how many; a pending or published row is never removed. A key that waited behind one continues:
-- the relay finds the row gone.
CREATE FUNCTION outbox.discard(ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH dead AS MATERIALIZED (
        SELECT m.id FROM outbox.message m
        WHERE m.id = ANY (discard.ids) AND m.dead_at IS NOT NULL
        ORDER BY m.id FOR UPDATE
    ), discarded AS (
        DELETE FROM outbox.message m
        WHERE m.id = ANY (ARRAY(SELECT id FROM dead))
        RETURNING m.id
    ), due AS (
        UPDATE outbox.hold h SET retry_at = now() WHERE h.head_id = ANY (ARRAY(SELECT id FROM discarded))
    )
    SELECT count(*) FROM discarded
$$;

-- The relay looks at a hold now: of a key, of an explicit partition, or with neither of the topic as a whole. Where the row that is waited
-- for is pending, it is tried again. Where it is dead, it stays so, and the rows behind it flow. Answers how many holds there were.
CREATE FUNCTION outbox.release_hold(topic text, key text DEFAULT NULL, partition integer DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH due AS (
        UPDATE outbox.hold h SET retry_at = now()
        WHERE h.topic = release_hold.topic
          AND h.unit = coalesce('k:' || release_hold.key, 'p:' || release_hold.partition, '')
        RETURNING h.lane
    )
    SELECT count(*) FROM due
$$;

-- One bounded step of retention, by id, above the row that the step before reached. Only what is published and old enough: never a pending
-- or dead row. Answers where it stopped, how many rows went, and whether all that follows is too young.
CREATE FUNCTION outbox.purge_message(older_than interval, after bigint DEFAULT 0, most integer DEFAULT 2000,
                                     OUT reached bigint, OUT purged bigint, OUT young boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    WITH chunk AS MATERIALIZED (
        SELECT m.id, m.published_at, m.created_at FROM outbox.message m WHERE m.id > after ORDER BY m.id LIMIT most
    ), gone AS (
        -- By an array of ids, not by a join: a join may walk the whole table.
        DELETE FROM outbox.message m
        WHERE m.id = ANY (ARRAY(
            -- What somebody holds is left for the next pass: whoever waits keeps others waiting.
            SELECT o.id FROM outbox.message o
            WHERE o.id = ANY (ARRAY(SELECT c.id FROM chunk c WHERE c.published_at < clock_timestamp() - older_than))
              AND o.published_at < clock_timestamp() - older_than
            FOR UPDATE SKIP LOCKED))
        RETURNING m.id
    )
    SELECT max(c.id), (SELECT count(*) FROM gone),
           -- Nothing further on can be old enough either once every row of a chunk is this young.
           coalesce(min(c.created_at) > clock_timestamp() - older_than, true)
    INTO reached, purged, young
    FROM chunk c;
END $$;

REVOKE ALL ON FUNCTION outbox.redrive, outbox.discard, outbox.release_hold, outbox.purge_message FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.redrive, outbox.discard, outbox.release_hold TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.purge_message TO outbox_operator, outbox_relay;

-- With these an operator could mark a pending row published, or strand one that a floor has passed.
REVOKE DELETE, UPDATE (available_at, published_at, dead_at, attempts, last_error) ON outbox.message FROM outbox_operator;
REVOKE UPDATE (retry_at) ON outbox.hold FROM outbox_operator;
