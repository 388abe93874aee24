-- Oldest outboxd schema that may run on this: 1
--
-- What operators do. Dead letters and holds are changed by the functions below and by nothing else, and each call leaves
-- a row in outbox.audit. `outboxd dead` and `outboxd hold` call them; any other tool may.

-- ── The audit ──────────────────────────────────────────────────────────────────────────────────

-- One row for each transaction of an operation. An operation is one command of an operator: it may need many transactions, so
-- that none locks many rows.
CREATE TABLE outbox.audit (
    id                    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The id of the operation's first row.
    operation             bigint NOT NULL,
    at                    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who logged in. Neither SET ROLE nor the owner of the functions hides it.
    login                 name NOT NULL DEFAULT session_user,
    command               text NOT NULL,
    filter                jsonb NOT NULL DEFAULT '{}',
    reason                text,
    changed               integer NOT NULL,
    topics                text[] NOT NULL DEFAULT '{}',
    ids                   bigint[] NOT NULL DEFAULT '{}',
    -- Of a message that was corrected: the payload that it had before.
    payload_before        jsonb,
    payload_bytes_before  bytea
);

CREATE INDEX audit_operation ON outbox.audit (operation, id);

COMMENT ON TABLE outbox.audit IS 'What operators changed, one row for each transaction. Rows are only ever added.';
COMMENT ON COLUMN outbox.audit.operation IS 'The id of the first row of the same command.';
COMMENT ON COLUMN outbox.audit.login IS 'session_user: who logged in, whatever role was set.';

CREATE FUNCTION outbox.audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE object_not_in_prerequisite_state USING
        MESSAGE = 'rows of the audit are added and never changed',
        HINT = 'The table''s owner can disable the trigger audit_refuse_change, for example to remove rows that are years old.';
END $$;

REVOKE ALL ON FUNCTION outbox.audit_refuse_change FROM PUBLIC;

-- Not even by a mistake of the owner.
CREATE TRIGGER audit_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox.audit
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.audit_refuse_change();
ALTER TABLE outbox.audit ENABLE ALWAYS TRIGGER audit_refuse_change;

GRANT SELECT ON outbox.audit TO outbox_operator;

-- Adds a row and returns its operation: a new one, or the given one, which only the login that began it may continue, and only
-- with the same command. Every function that changes something for an operator calls it; nobody else may.
CREATE FUNCTION outbox.audit_record(command text, operation bigint, filter jsonb, reason text, changed integer,
                                    topics text[], ids bigint[],
                                    payload_before jsonb DEFAULT NULL, payload_bytes_before bytea DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    new_id constant bigint := nextval('outbox.audit_id_seq');
    begun outbox.audit;
BEGIN
    IF octet_length(reason) > 1000 THEN
        PERFORM outbox.refuse_argument('reason', 'at most 1000 bytes');
    END IF;
    IF jsonb_typeof(filter) IS DISTINCT FROM 'object' OR octet_length(filter::text) > 65536 THEN
        PERFORM outbox.refuse_argument('filter', 'a JSON object of at most 65536 bytes');
    END IF;
    IF operation IS NOT NULL THEN
        SELECT a.* INTO begun FROM outbox.audit a WHERE a.id = operation AND a.operation = operation;
        IF begun.id IS NULL THEN
            RAISE invalid_parameter_value USING MESSAGE = format('there is no operation %s', operation);
        ELSIF begun.login <> session_user THEN
            RAISE insufficient_privilege USING
                MESSAGE = format('operation %s was begun by %s, and %s may not continue it', operation, begun.login, session_user),
                HINT = 'Leave the operation out to begin one of your own.';
        ELSIF begun.command <> command THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('operation %s is "%s" and cannot be continued by "%s"', operation, begun.command, command);
        END IF;
    END IF;
    INSERT INTO outbox.audit (id, operation, command, filter, reason, changed, topics, ids, payload_before, payload_bytes_before)
    OVERRIDING SYSTEM VALUE
    VALUES (new_id, coalesce(operation, new_id), command, filter, reason, changed, topics, ids, payload_before, payload_bytes_before);
    RETURN coalesce(operation, new_id);
END $$;

REVOKE ALL ON FUNCTION outbox.audit_record FROM PUBLIC;

-- ── The records of redrives and replays ────────────────────────────────────────────────────────

-- A redriven row is sent after newer rows of its key. With this record `outboxd verify` compares it with the other rows of its
-- operation, which are sent in the order of their ids, and not with those that were sent before.
ALTER TABLE outbox.message ADD COLUMN requeued_by bigint;
ALTER TABLE outbox.history ADD COLUMN requeued_by bigint;

-- Every record of a row that was published before is flagged as a possible duplicate. The first copy of the row was sent then, or
-- by what requeued_by says.
ALTER TABLE outbox.message ADD COLUMN replayed_by bigint;
ALTER TABLE outbox.history ADD COLUMN replayed_by bigint;

COMMENT ON COLUMN outbox.message.requeued_by IS 'The operation in outbox.audit that sent this row again.';
COMMENT ON COLUMN outbox.history.requeued_by IS 'The operation in outbox.audit that sent this row again.';
COMMENT ON COLUMN outbox.message.replayed_by IS 'The operation in outbox.audit that replayed this row after it had been published.';
COMMENT ON COLUMN outbox.history.replayed_by IS 'The operation in outbox.audit that replayed this row after it had been published.';

-- ── Dead letters ───────────────────────────────────────────────────────────────────────────────

-- The functions below change rows that are dead and no others. Each returns how many it changed and its operation in the audit;
-- if it changed nothing, it leaves no row there. To go on with an operation, pass it to the next call.

-- Locks those of these rows that are dead. Returns their ids and topics.
CREATE FUNCTION outbox.dead_lock(INOUT ids bigint[], OUT topics text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Many small transactions instead of a large one: the relay waits for none of these rows, but other operators do.
    IF (cardinality(ids) <= 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('ids', 'at most 10000 ids');
    END IF;
    SELECT coalesce(array_agg(d.id ORDER BY d.id), '{}'), coalesce(array_agg(DISTINCT d.topic), '{}')
    INTO ids, topics
    FROM (
        SELECT m.id, m.topic FROM outbox.message m
        WHERE m.id = ANY (dead_lock.ids) AND m.dead_at IS NOT NULL
        ORDER BY m.id FOR UPDATE
    ) AS d;
END $$;

-- Makes dead rows pending again. A floor may have passed such a row: available_at puts it where delayed rows are found, which are
-- sent in the order of available_at and id. All rows of an operation get the time when it began, so that they are sent in the
-- order of their ids, however many transactions it has and whatever the clock does meanwhile.
-- Where rows of its key have waited behind one of them, the relay tries it at once and then continues the key in order.
-- A redrive of a replayed row is one more replay of it: its first copy was sent before, and still counts as that of requeued_by.
CREATE FUNCTION outbox.dead_requeue(ids bigint[], operation bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE outbox.message m
    SET dead_at = NULL, attempts = 0,
        requeued_by = CASE WHEN m.replayed_by IS NULL THEN dead_requeue.operation ELSE m.requeued_by END,
        replayed_by = CASE WHEN m.replayed_by IS NOT NULL THEN dead_requeue.operation END,
        available_at = (SELECT a.at FROM outbox.audit a WHERE a.id = dead_requeue.operation)
    WHERE m.id = ANY (dead_requeue.ids);
    UPDATE outbox.hold h SET retry_at = now() WHERE h.head_id = ANY (dead_requeue.ids);
$$;

REVOKE ALL ON FUNCTION outbox.dead_lock, outbox.dead_requeue FROM PUBLIC;

-- Sends dead letters again, once the reason for their refusal is fixed.
CREATE FUNCTION outbox.dead_redrive(ids bigint[], reason text DEFAULT NULL, INOUT operation bigint DEFAULT NULL,
                                    filter jsonb DEFAULT '{}', OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dead record;
BEGIN
    SELECT l.ids, l.topics INTO dead FROM outbox.dead_lock(dead_redrive.ids) AS l;
    changed := cardinality(dead.ids);
    IF changed > 0 THEN
        operation := outbox.audit_record('dead redrive', operation, filter, reason, changed, dead.topics, dead.ids);
        PERFORM outbox.dead_requeue(dead.ids, operation);
    END IF;
END $$;

-- Replaces the payload of a dead letter and sends it again. The audit keeps the old payload. A message cannot be made a tombstone,
-- which would delete its key where the topic is compacted: insert one instead.
CREATE FUNCTION outbox.dead_correct(id bigint, payload jsonb DEFAULT NULL, payload_bytes bytea DEFAULT NULL, reason text DEFAULT NULL,
                                    INOUT operation bigint DEFAULT NULL, filter jsonb DEFAULT '{}', OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dead record;
    earlier record;
BEGIN
    IF num_nonnulls(dead_correct.payload, dead_correct.payload_bytes) = 0 THEN
        PERFORM outbox.refuse_argument('payload', 'given, or payload_bytes', 'P4000');
    ELSIF num_nonnulls(dead_correct.payload, dead_correct.payload_bytes) = 2 THEN
        -- The rule, the text and the code are those of an INSERT.
        RAISE check_violation USING
            MESSAGE = 'new row for relation "message" violates check constraint "message_has_one_payload_at_most"',
            TABLE = 'message', CONSTRAINT = 'message_has_one_payload_at_most';
    END IF;
    SELECT l.ids, l.topics INTO dead FROM outbox.dead_lock(ARRAY[dead_correct.id]) AS l;
    changed := cardinality(dead.ids);
    IF changed > 0 THEN
        SELECT m.payload, m.payload_bytes INTO earlier FROM outbox.message m WHERE m.id = dead_correct.id;
        operation := outbox.audit_record('dead correct', operation, filter, reason, changed, dead.topics, dead.ids,
                                         earlier.payload, earlier.payload_bytes);
        UPDATE outbox.message m SET payload = dead_correct.payload, payload_bytes = dead_correct.payload_bytes
        WHERE m.id = dead_correct.id;
        PERFORM outbox.dead_requeue(dead.ids, operation);
    END IF;
END $$;

-- Removes dead letters for good. A key that waited behind one continues: the relay finds the row gone.
CREATE FUNCTION outbox.dead_discard(ids bigint[], reason text DEFAULT NULL, INOUT operation bigint DEFAULT NULL,
                                    filter jsonb DEFAULT '{}', OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dead record;
BEGIN
    SELECT l.ids, l.topics INTO dead FROM outbox.dead_lock(dead_discard.ids) AS l;
    changed := cardinality(dead.ids);
    IF changed > 0 THEN
        operation := outbox.audit_record('dead discard', operation, filter, reason, changed, dead.topics, dead.ids);
        DELETE FROM outbox.message m WHERE m.id = ANY (dead.ids);
        UPDATE outbox.hold h SET retry_at = now() WHERE h.head_id = ANY (dead.ids);
    END IF;
END $$;

REVOKE ALL ON FUNCTION outbox.dead_redrive, outbox.dead_correct, outbox.dead_discard FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.dead_redrive, outbox.dead_correct, outbox.dead_discard TO outbox_operator;

-- ── Holds ──────────────────────────────────────────────────────────────────────────────────────

-- Makes holds due now, each named by its topic and its unit as they are in outbox.hold. A head that is pending is tried again. A
-- head that is dead stays dead, and the rows behind it are sent. A topic as a whole, and a paused partition, has a hold in each
-- lane; all of them are counted.
CREATE FUNCTION outbox.holds_release(topics text[], units text[], reason text DEFAULT NULL, INOUT operation bigint DEFAULT NULL,
                                     filter jsonb DEFAULT '{}', OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due record;
BEGIN
    IF (cardinality(holds_release.topics) = cardinality(holds_release.units) AND cardinality(holds_release.topics) <= 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('topics', 'as many as units, and at most 10000');
    END IF;
    WITH wanted AS MATERIALIZED (
        SELECT h.lane, h.topic, h.unit FROM outbox.hold h
        WHERE (h.topic, h.unit) IN (SELECT w.topic, w.unit FROM unnest(holds_release.topics, holds_release.units) AS w (topic, unit))
        ORDER BY h.lane, h.topic, h.unit FOR UPDATE
    ), released AS (
        UPDATE outbox.hold h SET retry_at = now()
        FROM wanted w WHERE h.lane = w.lane AND h.topic = w.topic AND h.unit = w.unit
        RETURNING h.topic, h.head_id
    )
    SELECT count(*) AS holds, array_agg(DISTINCT r.topic) AS topics,
           coalesce(array_agg(r.head_id ORDER BY r.head_id) FILTER (WHERE r.head_id IS NOT NULL), '{}') AS heads
    INTO due FROM released r;
    changed := due.holds;
    IF changed > 0 THEN
        operation := outbox.audit_record('hold release', operation, filter, reason, changed, due.topics, due.heads);
    END IF;
END $$;

-- The same of one hold: of a key, of an explicit partition, or with neither of the topic as a whole.
CREATE FUNCTION outbox.hold_release(topic text, key text DEFAULT NULL, partition integer DEFAULT NULL, reason text DEFAULT NULL,
                                    INOUT operation bigint DEFAULT NULL, filter jsonb DEFAULT '{}', OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    released record;
BEGIN
    IF num_nonnulls(hold_release.key, hold_release.partition) = 2 THEN
        PERFORM outbox.refuse_argument('partition', 'left out beside a key');
    END IF;
    SELECT r.operation, r.changed INTO released
    FROM outbox.holds_release(
        ARRAY[hold_release.topic], ARRAY[coalesce('k:' || hold_release.key, 'p:' || hold_release.partition, '')],
        hold_release.reason, hold_release.operation, hold_release.filter) AS r;
    operation := released.operation;
    changed := released.changed;
END $$;

REVOKE ALL ON FUNCTION outbox.holds_release, outbox.hold_release FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.holds_release, outbox.hold_release TO outbox_operator;

-- ── The functions of version 1 ─────────────────────────────────────────────────────────────────

-- They do what the functions above do, and so leave the same rows in the audit. Their grants stay.

CREATE OR REPLACE FUNCTION outbox.redrive(ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.changed::bigint FROM outbox.dead_redrive(redrive.ids) AS r
$$;

CREATE OR REPLACE FUNCTION outbox.discard(ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT d.changed::bigint FROM outbox.dead_discard(discard.ids) AS d
$$;

CREATE OR REPLACE FUNCTION outbox.release_hold(topic text, key text DEFAULT NULL, partition integer DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.changed::bigint FROM outbox.hold_release(release_hold.topic, release_hold.key, release_hold.partition) AS r
$$;
