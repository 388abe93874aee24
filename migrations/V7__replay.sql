-- Oldest outboxd schema that may run on this: 1
--
-- Replays: published messages are sent once more. A row that is kept in outbox.message becomes pending again, and a row of
-- outbox.history is moved back first, so there is one row for each message at any time. `outboxd replay` calls the functions
-- below; any other tool may.
--
-- A replay notes all of its rows when it begins, and its steps take them from there. So no row is lost and none is sent twice,
-- wherever it is stopped, and what is published meanwhile is not part of it.

-- When the worker last proved that it reaches the database.
ALTER TABLE outbox.worker ADD COLUMN renewed_at timestamptz NOT NULL DEFAULT 'epoch';

-- ── What a replay has yet to take ──────────────────────────────────────────────────────────────

-- The rows that replays have yet to take. A step deletes those that it takes.
CREATE TABLE outbox.replay_row (
    operation     bigint NOT NULL,
    id            bigint NOT NULL,
    message_id    uuid NOT NULL,
    -- As it was found. A row that another replay has sent meanwhile has another time, and is left alone.
    published_at  timestamptz NOT NULL,
    -- Where the row of the history is: its partition and its place there. A scan finds places once, because the history has no
    -- index. NULL where the row is in outbox.message.
    day           oid,
    place         tid,
    topic         text NOT NULL,
    PRIMARY KEY (operation, id, message_id)
);

COMMENT ON TABLE outbox.replay_row IS 'Rows that outboxd replay has yet to take, noted when the replay began.';

GRANT SELECT ON outbox.replay_row TO outbox_operator;

-- ── What can be replayed ───────────────────────────────────────────────────────────────────────

-- The published rows of both tables that match. NULL restricts nothing, and neither does an array without elements. `since` is
-- included, `until` is not. PostgreSQL inlines the query in place of the call, so days of the history that cannot match are not
-- read.
CREATE FUNCTION outbox.replayable(topics text[], keys text[], since timestamptz, until timestamptz, ids int8multirange)
RETURNS TABLE (id bigint, message_id uuid, published_at timestamptz, day oid, place tid, topic text)
LANGUAGE sql STABLE AS $$
    SELECT p.id, p.message_id, p.published_at, p.day, p.place, p.topic
    FROM (
        SELECT m.id, m.message_id, m.published_at, NULL::oid AS day, NULL::tid AS place, m.topic, m.key
        FROM outbox.message m
        UNION ALL
        SELECT h.id, h.message_id, h.published_at, h.tableoid, h.ctid, h.topic, h.key
        FROM outbox.history h
    ) AS p
    WHERE p.published_at >= coalesce($3, '-infinity'::timestamptz) AND p.published_at < coalesce($4, 'infinity'::timestamptz)
      AND (coalesce(cardinality($1), 0) = 0 OR p.topic = ANY ($1))
      AND (coalesce(cardinality($2), 0) = 0 OR p.key = ANY ($2))
      -- The bounds are there for the index on id, which knows no multirange.
      AND p.id >= coalesce(lower($5), 0) AND p.id < coalesce(upper($5), 9223372036854775807)
      AND ($5 IS NULL OR p.id <@ $5)
$$;

-- Counts what a replay would take now, and says when that was published. Reads both tables, or the part that ids and times leave
-- of them.
CREATE FUNCTION outbox.replay_preview(
    topics text[] DEFAULT NULL, keys text[] DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    ids int8multirange DEFAULT NULL
) RETURNS TABLE (topic text, messages bigint, oldest timestamptz, newest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on SET enable_bitmapscan = on SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY
        SELECT r.topic, count(*), min(r.published_at), max(r.published_at)
        FROM outbox.replayable(replay_preview.topics, replay_preview.keys, replay_preview.since, replay_preview.until,
                               replay_preview.ids) AS r
        GROUP BY r.topic ORDER BY r.topic;
END $$;

-- ── Replays ────────────────────────────────────────────────────────────────────────────────────

-- Binaries that know no version above 6 would send replayed rows without their flag.
CREATE FUNCTION outbox.replay_check_workers() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unaware constant text := outbox.workers_that_know_less_than(7);
BEGIN
    IF unaware IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('nothing is replayed: these workers do not know replays, and would send repeats without a flag: %s', unaware),
            HINT = 'Finish the rollout, then replay again.';
    END IF;
END $$;

-- Begins a replay: notes its rows in outbox.replay_row, and changes no message. Returns its operation in the audit, and how many
-- rows it has; if nothing matches, it begins none. An unfinished replay of the same login with the same filter ends here, unless
-- the filter is left out, and so does one that has not gone on for a day.
CREATE FUNCTION outbox.replay_begin(
    topics text[] DEFAULT NULL, keys text[] DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    ids int8multirange DEFAULT NULL, reason text DEFAULT NULL, filter jsonb DEFAULT '{}', OUT operation bigint, OUT matched bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on SET enable_bitmapscan = on SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.replay_check_workers();
    matched := 0;
    IF NOT EXISTS (SELECT FROM outbox.replayable(topics, keys, since, until, ids)) THEN
        RETURN;
    END IF;
    DELETE FROM outbox.replay_row r
    WHERE r.operation IN (
        SELECT a.operation FROM outbox.audit a WHERE a.command = 'replay' GROUP BY a.operation
        HAVING max(a.at) < clock_timestamp() - interval '1 day' OR bool_or(a.login = session_user AND a.filter = filter AND filter <> '{}'));
    operation := outbox.audit_record('replay', NULL, filter, reason, 0, '{}', '{}');
    INSERT INTO outbox.replay_row (operation, id, message_id, published_at, day, place, topic)
    SELECT operation, r.id, r.message_id, r.published_at, r.day, r.place, r.topic
    FROM outbox.replayable(topics, keys, since, until, ids) AS r
    ORDER BY r.id;
    GET DIAGNOSTICS matched = ROW_COUNT;
END $$;

-- Makes kept rows pending again, and returns which. They are those of an operation in a range of ids that are still as they were
-- found.
CREATE FUNCTION outbox.replay_kept(operation bigint, after bigint, last_id bigint, began_at timestamptz) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    kept bigint[];
BEGIN
    kept := ARRAY(
        SELECT m.id FROM outbox.message m
        WHERE m.id = ANY (ARRAY(SELECT r.id FROM outbox.replay_row r
                                WHERE r.operation = operation AND r.id > after AND r.id <= last_id AND r.day IS NULL))
          AND EXISTS (SELECT FROM outbox.replay_row r
                      WHERE r.operation = operation AND r.id = m.id AND r.message_id = m.message_id
                        AND r.published_at = m.published_at)
        ORDER BY m.id FOR UPDATE);
    UPDATE outbox.message m SET published_at = NULL, available_at = began_at, attempts = 0, replayed_by = operation
    WHERE m.id = ANY (kept);
    RETURN kept;
END $$;

-- Moves such rows of the history back as pending rows. Returns which, and which could not be inserted, because a newer message has
-- their id or their idempotency key.
CREATE FUNCTION outbox.replay_archived(operation bigint, after bigint, last_id bigint, began_at timestamptz,
                                       OUT moved bigint[], OUT conflicts bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    part record;
    outcome record;
BEGIN
    moved := '{}';
    conflicts := '{}';
    FOR part IN
        SELECT r.day, array_agg(r.place) AS places, array_agg(r.message_id) AS message_ids
        FROM outbox.replay_row r
        WHERE r.operation = operation AND r.id > after AND r.id <= last_id AND r.day IS NOT NULL
        GROUP BY r.day ORDER BY r.day
    LOOP
        -- With this lock retention drops no day in the middle.
        LOCK TABLE ONLY outbox.history IN ROW EXCLUSIVE MODE;
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = part.day AND i.inhparent = 'outbox.history'::regclass);
        -- The message id proves that the place still holds the same row.
        EXECUTE format($sql$
            WITH archived AS MATERIALIZED (
                SELECT h.* FROM %1$s h WHERE h.ctid = ANY ($1) AND h.message_id = ANY ($2)
            ), inserted AS (
                INSERT INTO outbox.message (
                    id, created_at, available_at, aggregate_version, message_id, partition, topic, key, event_type, aggregate_type,
                    aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes, requeued_by, replayed_by)
                OVERRIDING SYSTEM VALUE
                SELECT a.id, a.created_at, $3, a.aggregate_version, a.message_id, a.partition, a.topic, a.key, a.event_type,
                       a.aggregate_type, a.aggregate_id, a.idempotency_scope, a.idempotency_key, a.headers, a.payload,
                       a.payload_bytes, a.requeued_by, $4
                FROM archived a ORDER BY a.id
                ON CONFLICT DO NOTHING
                RETURNING message_id
            ), removed AS (
                DELETE FROM %1$s h WHERE h.ctid = ANY ($1) AND h.message_id IN (SELECT i.message_id FROM inserted i)
            )
            SELECT array_agg(a.id) FILTER (WHERE i.message_id IS NOT NULL) AS moved,
                   array_agg(a.id) FILTER (WHERE i.message_id IS NULL) AS conflicts
            FROM archived a LEFT JOIN inserted i ON i.message_id = a.message_id
            $sql$, part.day::regclass)
        INTO outcome USING part.places, part.message_ids, began_at, operation;
        -- NULL, where there are none, adds nothing.
        moved := moved || outcome.moved;
        conflicts := conflicts || outcome.conflicts;
    END LOOP;
END $$;

-- Sends the next rows of a replay again, in the order of their ids: at most rows_max. Returns how many it sent, how many were gone
-- (retention has removed them, or another replay has sent them meanwhile), and the ids of those that cannot be moved back from the
-- history, because a newer message has their id or their idempotency key.
--
-- A worker that lost the answer to a mark repeats the mark. That must not find the row pending again, or the row would be marked
-- without being sent. So a row waits until it has been published for a minute, which is longer than a connected worker takes to
-- repeat a mark, and until each owner of a lane has renewed its lease since: a worker that is cut off repeats its marks when it is
-- back, unless its lanes have been taken. Such a row is left for a later call, with all rows behind it, and wait says for how long.
--
-- Pass what the call before returned as reached, so that this one need not search what that one deleted.
--
-- All rows of an operation get the time when it began: see outbox.dead_requeue.
CREATE FUNCTION outbox.replay_step(operation bigint, rows_max integer DEFAULT 1000, after bigint DEFAULT 0,
                                   OUT changed integer, OUT gone integer, OUT conflicts bigint[], OUT reached bigint,
                                   OUT wait interval, OUT finished boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fresh_since constant timestamptz := least(
        clock_timestamp(),
        (SELECT min(w.renewed_at) FROM outbox.worker w WHERE w.id IN (SELECT l.owner FROM outbox.lane l))) - interval '1 minute';
    begun record;
    archived record;
    first_fresh_id bigint;
    replayed bigint[];
    replayed_topics text[];
BEGIN
    IF (rows_max BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('rows_max', '1 to 10000');
    END IF;
    PERFORM outbox.replay_check_workers();
    -- Two sessions with the same operation take turns, so that its rows become pending in the order of their ids.
    SELECT a.at, a.filter, a.reason INTO begun FROM outbox.audit a
    WHERE a.id = operation AND a.operation = operation AND a.command = 'replay' FOR UPDATE;
    IF begun.at IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('there is no replay with the operation %s', operation);
    END IF;
    SELECT max(r.id), min(r.id) FILTER (WHERE r.published_at > fresh_since),
           least(coalesce(max(r.published_at) FILTER (WHERE r.published_at > fresh_since) - fresh_since, interval '0'), interval '1 minute')
    INTO reached, first_fresh_id, wait
    FROM (
        SELECT p.id, p.published_at FROM outbox.replay_row p
        WHERE p.operation = operation AND p.id > after ORDER BY p.id, p.message_id LIMIT rows_max
    ) AS r;
    -- Without a row left there is nothing above the id that the call before reached.
    reached := coalesce(least(reached, first_fresh_id - 1), after);
    SELECT a.moved, a.conflicts INTO archived FROM outbox.replay_archived(operation, after, reached, begun.at) AS a;
    replayed := outbox.replay_kept(operation, after, reached, begun.at) || archived.moved;
    conflicts := archived.conflicts;
    changed := cardinality(replayed);
    WITH taken AS (
        DELETE FROM outbox.replay_row r WHERE r.operation = operation AND r.id > after AND r.id <= reached
        RETURNING r.id, r.topic
    )
    SELECT count(*) - changed - cardinality(conflicts),
           coalesce(array_agg(DISTINCT t.topic) FILTER (WHERE t.id = ANY (replayed)), '{}')
    INTO gone, replayed_topics
    FROM taken t;
    finished := NOT EXISTS (SELECT FROM outbox.replay_row r WHERE r.operation = operation AND r.id > reached);
    IF changed > 0 THEN
        PERFORM outbox.audit_record('replay', operation, begun.filter, begun.reason, changed, replayed_topics, replayed);
    END IF;
END $$;

REVOKE ALL ON FUNCTION outbox.replayable, outbox.replay_preview, outbox.replay_check_workers, outbox.replay_begin,
    outbox.replay_kept, outbox.replay_archived, outbox.replay_step FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.replay_preview, outbox.replay_begin, outbox.replay_step TO outbox_operator;
