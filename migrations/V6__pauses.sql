-- Oldest outboxd schema that may run on this: 1
--
-- Pauses. An operator stops a topic, one key of it, or everything, and lets it continue later. Rows are written as ever meanwhile,
-- and wait.
--
-- outbox.pause alone says what is paused. The relay keeps back the rows of a paused topic or key as it keeps back those of a topic
-- that accepts nothing: by a row in outbox.hold, which is in the table before any floor passes them. Such a hold is always due, and
-- is not tried while the pause lasts. So a resume only has to delete the pause.

CREATE TABLE outbox.pause (
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who logged in. Neither SET ROLE nor the owner of the functions hides it.
    login   name NOT NULL DEFAULT session_user,
    -- NULL: everything.
    topic   text,
    -- NULL: the whole topic.
    key     text,
    reason  text NOT NULL,

    CONSTRAINT pause_is_there_once UNIQUE NULLS NOT DISTINCT (topic, key),
    CONSTRAINT pause_of_a_key_names_its_topic CHECK (key IS NULL OR topic IS NOT NULL),
    -- As in outbox.message_before_insert: no row could have another topic or key.
    CONSTRAINT pause_topic_is_a_legal_kafka_name CHECK (topic !~ '[^a-zA-Z0-9._-]|^[.]?[.]?$' AND octet_length(topic) <= 249),
    CONSTRAINT pause_key_is_at_most_1024_bytes CHECK (octet_length(key) <= 1024),
    CONSTRAINT pause_has_a_reason CHECK (reason ~ '\S')
);

COMMENT ON TABLE outbox.pause IS 'What operators have paused: outbox.pause(…) adds a row, outbox.resume(…) removes it.';

-- Counts pauses and resumes. A worker reads it with every renewal of its lease, and reads the pauses again if it has changed.
CREATE TABLE outbox.pause_version (version bigint NOT NULL);
CREATE UNIQUE INDEX pause_version_is_one_row ON outbox.pause_version ((true));
INSERT INTO outbox.pause_version VALUES (0);

-- The newest schema version that the worker's binary knows. Binaries that know no version above 5 do not say so.
ALTER TABLE outbox.worker ADD COLUMN knows integer NOT NULL DEFAULT 5;
-- Every send of the worker obeys the pauses of this version, or of a later one.
ALTER TABLE outbox.worker ADD COLUMN pauses_seen bigint NOT NULL DEFAULT 0;

-- The live workers whose binaries know only older versions of the schema, by name. NULL: there are none.
CREATE FUNCTION outbox.workers_that_know_less_than(version integer) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(format('%s (outboxd %s)', w.name, w.version), ', ' ORDER BY w.name)
    FROM outbox.worker w
    WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp() AND w.knows < $1
$$;

-- Pauses a topic, a key of it, or everything (topic NULL). What is paused already stays so, with the new reason. Returns the version
-- of the pauses, and how many were added. The pause is in effect when every live worker has seen that version.
CREATE FUNCTION outbox.pause(topic text, key text, reason text, OUT version bigint, OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    unaware text;
BEGIN
    -- The lock on this row makes pauses and resumes wait for each other, so versions follow the order of commits.
    UPDATE outbox.pause_version v SET version = v.version + 1 RETURNING v.version INTO version;
    unaware := outbox.workers_that_know_less_than(6);
    IF unaware IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('nothing was paused: these workers do not know pauses, and would continue to send: %s', unaware),
            HINT = 'Finish the rollout, then pause again.';
    END IF;
    UPDATE outbox.pause p SET reason = pause.reason, login = session_user
    WHERE p.topic IS NOT DISTINCT FROM pause.topic AND p.key IS NOT DISTINCT FROM pause.key;
    changed := 0;
    IF NOT FOUND THEN
        INSERT INTO outbox.pause (topic, key, reason) VALUES (pause.topic, pause.key, pause.reason);
        changed := 1;
    END IF;
    PERFORM outbox.audit_record('pause', NULL::bigint, outbox.pause_filter(pause.topic, pause.key), pause.reason, changed,
                                array_remove(ARRAY[pause.topic], NULL), '{}'::bigint[]);
END $$;

-- Ends the pause of a topic, of a key, or of everything (topic NULL), and no other pause. Returns as outbox.pause. If there is
-- none, it leaves no row in the audit.
CREATE FUNCTION outbox.resume(topic text, key text, reason text DEFAULT NULL, OUT version bigint, OUT changed integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE outbox.pause_version v SET version = v.version + 1 RETURNING v.version INTO version;
    DELETE FROM outbox.pause p WHERE p.topic IS NOT DISTINCT FROM resume.topic AND p.key IS NOT DISTINCT FROM resume.key;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed > 0 THEN
        PERFORM outbox.audit_record('resume', NULL::bigint, outbox.pause_filter(resume.topic, resume.key), resume.reason, changed,
                                    array_remove(ARRAY[resume.topic], NULL), '{}'::bigint[]);
    END IF;
END $$;

-- What a pause is of, as the audit shows it.
CREATE FUNCTION outbox.pause_filter(topic text, key text) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN topic IS NULL THEN '{"all": true}'::jsonb
                ELSE jsonb_strip_nulls(jsonb_build_object('topic', topic, 'key', key)) END
$$;

REVOKE ALL ON FUNCTION outbox.workers_that_know_less_than, outbox.pause, outbox.resume, outbox.pause_filter FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.pause, outbox.resume TO outbox_operator;
GRANT SELECT ON outbox.pause, outbox.pause_version TO outbox_relay, outbox_operator;
