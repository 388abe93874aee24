-- Oldest outboxd schema that may run on this: 1
--
-- Consumers: a message that is delivered many times has one effect. Two tools, for the application's role (outbox_producer):
--
--   outbox.consume_once   a marker beside the effect, in the same transaction. For consumers that act at once.
--   outbox.inbox_*        the message is stored first and processed later, with retries, order by key and poison messages.
--
-- The life of a row in outbox.inbox_message, enforced by the CHECKs below:
--
--   received ──(claimed)──▶ claimed ──(done)──────────────▶ done
--      ▲                      │  └────(last attempt failed, or its worker died in it)─▶ poison ──(discarded)─▶ done
--      ├───(failed: backoff)──┤                                                           │
--      ├───(lease ran out)────┘                                                           │
--      └───(replayed)─────────────────────────────────────────────────────────────────────┘
--
-- Times are clock_timestamp(): now() is that of a transaction that may have waited for another.
--
-- SQLSTATEs of the functions here:
--   P4000 consumer or source missing, P4001 message id missing, P4003 hash missing, P4004 an argument out of its limits,
--   P4010 / P4011 / P4012 done / failed / heartbeat refused (the message is not yours any more),
--   P4050 message id reused with another payload.

-- ── Arguments ──────────────────────────────────────────────────────────────────────────────────

-- How error messages name a message: its id may be long, and may be a secret.
CREATE FUNCTION outbox.message_digest(message_id text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT left(encode(sha256(convert_to(message_id, 'UTF8')), 'hex'), 12)
$$;

CREATE FUNCTION outbox.refuse_name(name text, given text, code text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF outbox.is_name(given) THEN
        RETURN;
    END IF;
    PERFORM outbox.refuse_argument(refuse_name.name, '1 to 255 bytes, not all of them whitespace',
                                   CASE WHEN outbox.is_blank(given) THEN code ELSE 'P4004' END);
END $$;

-- Says which of the three is wrong. Callers check them first, so that a correct call does not pay for this.
CREATE FUNCTION outbox.refuse_identity(consumer text, source text, message_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.refuse_name('consumer', consumer, 'P4000');
    PERFORM outbox.refuse_name('source', source, 'P4000');
    PERFORM outbox.refuse_name('message_id', message_id, 'P4001');
END $$;

CREATE FUNCTION outbox.refuse_other_payload(consumer text, source text, message_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM nextval('outbox.consumer_conflicts');
    RAISE EXCEPTION 'message % of % is known to % with another payload',
        outbox.message_digest(refuse_other_payload.message_id), refuse_other_payload.source, refuse_other_payload.consumer
    USING ERRCODE = 'P4050',
          DETAIL = 'The id is shown as the first 12 digits of its SHA-256: outbox.message_digest(message_id).',
          HINT = 'Do not retry, and do not acknowledge it as a duplicate: park it for a person. The sender reused an id, or the hash covers something that changes on the way.';
END $$;

REVOKE ALL ON FUNCTION outbox.message_digest, outbox.refuse_name, outbox.refuse_identity, outbox.refuse_other_payload FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.message_digest TO outbox_producer, outbox_operator;

-- ── Counters ───────────────────────────────────────────────────────────────────────────────────

-- A duplicate is counted without a write: nextval on an unlogged sequence writes no WAL, assigns no transaction id, and stays
-- counted when the transaction fails. The counts start again at 0 after a crash or a failover.
CREATE UNLOGGED SEQUENCE outbox.consumer_duplicates;
CREATE UNLOGGED SEQUENCE outbox.consumer_conflicts;
-- Messages whose claim was taken over after its lease ran out.
CREATE UNLOGGED SEQUENCE outbox.inbox_taken_over;

-- Duplicates by consumer: 32 consumers have a sequence of their own, the others share consumer_duplicates. A consumer gets its
-- sequence with a message that is new, which writes anyway.
CREATE TABLE outbox.consumer_slot (
    consumer  text PRIMARY KEY,
    slot      smallint NOT NULL UNIQUE CONSTRAINT consumer_slot_is_1_to_32 CHECK (slot BETWEEN 1 AND 32),
    counter   regclass NOT NULL
);

COMMENT ON TABLE outbox.consumer_slot IS 'Which consumer counts its duplicates in which sequence outbox.consumer_duplicates_N.';

DO $$
BEGIN
    FOR slot IN 1..32 LOOP
        EXECUTE format('CREATE UNLOGGED SEQUENCE outbox.consumer_duplicates_%s', slot);
        -- To read the count.
        EXECUTE format('GRANT SELECT ON SEQUENCE outbox.consumer_duplicates_%s TO outbox_operator, outbox_relay', slot);
    END LOOP;
END $$;

-- Gives a consumer its sequence, if one is free. One transaction at a time does so, and no other waits for it: the next message
-- of that consumer will do.
CREATE FUNCTION outbox.consumer_assign_slot(consumer text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    free smallint;
    counter regclass;
BEGIN
    SELECT min(n) INTO free FROM generate_series(1, 32) n WHERE NOT EXISTS (SELECT FROM outbox.consumer_slot s WHERE s.slot = n);
    IF free IS NULL OR NOT pg_try_advisory_xact_lock(hashtextextended('outbox.consumer_slot', 0)) THEN
        RETURN;
    END IF;
    counter := ('outbox.consumer_duplicates_' || free)::regclass;
    INSERT INTO outbox.consumer_slot (consumer, slot, counter) VALUES (consumer_assign_slot.consumer, free, counter) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM setval(counter, 1, false);
    END IF;
END $$;

-- Since the last crash or failover. Without a name: of all consumers that have no sequence of their own.
CREATE VIEW outbox.consumer_duplicate_counters AS
SELECT s.consumer, coalesce(pg_sequence_last_value(s.counter), 0) AS duplicates_suppressed
FROM outbox.consumer_slot s
UNION ALL
SELECT NULL, CASE WHEN d.is_called THEN d.last_value ELSE 0 END FROM outbox.consumer_duplicates d;

CREATE VIEW outbox.consumer_counters AS
SELECT (SELECT sum(d.duplicates_suppressed)::bigint FROM outbox.consumer_duplicate_counters d) AS duplicates_suppressed,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.consumer_conflicts) AS conflicts,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.inbox_taken_over) AS taken_over;

REVOKE ALL ON FUNCTION outbox.consumer_assign_slot FROM PUBLIC;
GRANT SELECT ON outbox.consumer_counters, outbox.consumer_duplicate_counters TO outbox_relay, outbox_operator;

-- ── Consume once ───────────────────────────────────────────────────────────────────────────────

-- One row per message that took effect.
CREATE TABLE outbox.processed_message (
    processed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumer      text NOT NULL,
    source        text NOT NULL,
    message_id    text NOT NULL,
    payload_hash  bytea NOT NULL,
    outcome       text,
    result_type   text,
    result_id     text,
    PRIMARY KEY (consumer, source, message_id),
    CONSTRAINT processed_message_names_are_1_to_255_bytes
        CHECK (octet_length(consumer) BETWEEN 1 AND 255 AND octet_length(source) BETWEEN 1 AND 255
               AND octet_length(message_id) BETWEEN 1 AND 255),
    CONSTRAINT processed_message_hash_is_1_to_64_bytes
        CHECK (octet_length(payload_hash) BETWEEN 1 AND 64),
    CONSTRAINT processed_message_result_is_at_most_255_bytes_each
        CHECK (octet_length(outcome) <= 255 AND octet_length(result_type) <= 255 AND octet_length(result_id) <= 255)
);

-- For the purge.
CREATE INDEX processed_message_by_age ON outbox.processed_message (processed_at);

COMMENT ON TABLE outbox.processed_message IS 'Which messages took effect. Written by outbox.consume_once.';

-- True the first time, false for a duplicate. Call it in the transaction that has the effect: both commit, or neither. While
-- another transaction consumes the same message this waits for its end, and then returns false, or true if that one rolled back.
-- Under REPEATABLE READ and SERIALIZABLE it fails with 40001 instead of returning false: retry.
CREATE FUNCTION outbox.consume_once(
    consumer text, source text, message_id text, payload_hash bytea,
    outcome text DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    known bytea;
BEGIN
    IF NOT (outbox.is_name(consume_once.consumer) AND outbox.is_name(consume_once.source) AND outbox.is_name(consume_once.message_id)) THEN
        PERFORM outbox.refuse_identity(consume_once.consumer, consume_once.source, consume_once.message_id);
    END IF;
    IF coalesce(octet_length(consume_once.payload_hash), 0) = 0 THEN
        PERFORM outbox.refuse_argument('payload_hash', '1 to 64 bytes, best a SHA-256', 'P4003');
    END IF;
    IF octet_length(consume_once.payload_hash) > 64 THEN
        PERFORM outbox.refuse_argument('payload_hash', '1 to 64 bytes: a hash, not the payload');
    END IF;
    IF greatest(octet_length(consume_once.outcome), octet_length(consume_once.result_type), octet_length(consume_once.result_id)) > 255 THEN
        PERFORM outbox.refuse_argument('outcome, result_type, result_id', 'at most 255 bytes each');
    END IF;
    LOOP
        -- Read first: a duplicate must not write, not even a row lock.
        SELECT p.payload_hash INTO known FROM outbox.processed_message p
        WHERE p.consumer = consume_once.consumer AND p.source = consume_once.source AND p.message_id = consume_once.message_id;
        IF FOUND THEN
            IF known <> consume_once.payload_hash THEN
                PERFORM outbox.refuse_other_payload(consume_once.consumer, consume_once.source, consume_once.message_id);
            END IF;
            PERFORM nextval(coalesce((SELECT s.counter FROM outbox.consumer_slot s WHERE s.consumer = consume_once.consumer),
                                     'outbox.consumer_duplicates'::regclass));
            RETURN false;
        END IF;
        INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, outcome, result_type, result_id)
        VALUES (consume_once.consumer, consume_once.source, consume_once.message_id, consume_once.payload_hash,
                consume_once.outcome, consume_once.result_type, consume_once.result_id)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF NOT EXISTS (SELECT FROM outbox.consumer_slot s WHERE s.consumer = consume_once.consumer) THEN
                PERFORM outbox.consumer_assign_slot(consume_once.consumer);
            END IF;
            RETURN true;
        END IF;
        -- Another transaction was faster, and has committed by now: read again.
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION outbox.consume_once FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.consume_once TO outbox_producer;
GRANT SELECT ON outbox.processed_message TO outbox_operator;
-- To sample their age.
GRANT SELECT (processed_at) ON outbox.processed_message TO outbox_relay;

-- ── The inbox ──────────────────────────────────────────────────────────────────────────────────

CREATE TABLE outbox.inbox_message (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    received_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Not claimed before: the time asked for, the end of a backoff, or the end of the lease of its present claim. One column for
    -- all, so that the message of a crashed worker becomes due by itself.
    next_attempt_at  timestamptz NOT NULL,
    claimed_at       timestamptz,
    done_at          timestamptz,
    poison_at        timestamptz,
    -- The fencing token: raised by every claim, never lowered.
    token            integer NOT NULL DEFAULT 0,
    -- Since it was received, or replayed.
    attempts         smallint NOT NULL DEFAULT 0,
    max_attempts     smallint NOT NULL,
    priority         smallint NOT NULL,
    -- An earlier message of its key is unfinished, so that no claim need read this one: many may wait for one. It may be false
    -- for a message that does wait (claims check again), but not for long true for one that does not.
    behind           boolean NOT NULL DEFAULT false,
    consumer         text NOT NULL,
    source           text NOT NULL,
    message_id       text NOT NULL,
    key              text,
    event_type       text,
    claimed_by       text,
    outcome          text,
    last_error       text,
    payload_hash     bytea NOT NULL,
    headers          jsonb,
    payload          jsonb,
    payload_bytes    bytea,
    CONSTRAINT inbox_message_names_are_1_to_255_bytes
        CHECK (octet_length(consumer) BETWEEN 1 AND 255 AND octet_length(source) BETWEEN 1 AND 255
               AND octet_length(message_id) BETWEEN 1 AND 255),
    CONSTRAINT inbox_message_key_is_at_most_1024_bytes
        CHECK (octet_length(key) <= 1024),
    CONSTRAINT inbox_message_hash_is_1_to_64_bytes
        CHECK (octet_length(payload_hash) BETWEEN 1 AND 64),
    CONSTRAINT inbox_message_has_one_payload_at_most
        CHECK (payload IS NULL OR payload_bytes IS NULL),
    CONSTRAINT inbox_message_headers_are_a_json_object
        CHECK (jsonb_typeof(headers) = 'object'),
    CONSTRAINT inbox_message_attempts_are_within_their_limit
        CHECK (attempts BETWEEN 0 AND max_attempts AND max_attempts BETWEEN 1 AND 1000 AND token >= attempts),
    CONSTRAINT inbox_message_behind_another_has_a_key_and_was_never_claimed
        CHECK (NOT behind OR (key IS NOT NULL AND token = 0)),
    CONSTRAINT inbox_message_is_claimed_done_or_poison
        CHECK (num_nonnulls(claimed_at, done_at, poison_at) <= 1)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE UNIQUE INDEX inbox_message_identity ON outbox.inbox_message (consumer, source, message_id);
-- What a claim reads: nothing that is done, however much of that there is.
CREATE INDEX inbox_message_unfinished ON outbox.inbox_message (consumer, priority DESC, next_attempt_at, id)
    WHERE done_at IS NULL AND poison_at IS NULL AND NOT behind;
-- What such a claim does not read, by key.
CREATE INDEX inbox_message_behind ON outbox.inbox_message (consumer, source, key, id) WHERE behind;
-- The unfinished messages of a key in their order. Poison messages too: a later message must not overtake one.
CREATE INDEX inbox_message_key_order ON outbox.inbox_message (consumer, source, key, id)
    WHERE done_at IS NULL AND key IS NOT NULL;
CREATE INDEX inbox_message_at_work ON outbox.inbox_message (consumer, source, key) WHERE claimed_at IS NOT NULL AND key IS NOT NULL;
CREATE INDEX inbox_message_poison ON outbox.inbox_message (consumer, poison_at) WHERE poison_at IS NOT NULL;
CREATE INDEX inbox_message_done ON outbox.inbox_message (done_at) WHERE done_at IS NOT NULL;

COMMENT ON TABLE outbox.inbox_message IS 'Messages to be processed. Written by outbox.inbox_receive.';
COMMENT ON COLUMN outbox.inbox_message.key IS 'Messages of one consumer, source and key are processed in the order of id; NULL: no order.';
COMMENT ON COLUMN outbox.inbox_message.priority IS 'Higher first.';

-- ── Order by key ───────────────────────────────────────────────────────────────────────────────

-- Is there an unfinished message of this key? If so, its first message (the head) stays locked: it cannot be finished before the
-- caller has committed, and then the caller's message is found and woken. A head that is being finished at this moment does not
-- count.
CREATE FUNCTION outbox.inbox_lock_head(consumer text, source text, key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM outbox.inbox_message m
    WHERE m.consumer = inbox_lock_head.consumer AND m.source = inbox_lock_head.source AND m.key = inbox_lock_head.key
      AND m.done_at IS NULL AND m.id = (
          SELECT h.id FROM outbox.inbox_message h
          WHERE h.consumer = inbox_lock_head.consumer AND h.source = inbox_lock_head.source AND h.key = inbox_lock_head.key
            AND h.done_at IS NULL
          ORDER BY h.id LIMIT 1)
    FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- The head of a key is finished: lets the next message of the key be claimed.
CREATE FUNCTION outbox.inbox_wake(consumer text, source text, key text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    UPDATE outbox.inbox_message m SET behind = false
    WHERE m.behind AND m.id = (
        SELECT n.id FROM outbox.inbox_message n
        WHERE n.consumer = inbox_wake.consumer AND n.source = inbox_wake.source AND n.key = inbox_wake.key AND n.done_at IS NULL
        ORDER BY n.id LIMIT 1);
END $$;

-- Where inbox_wake_stranded stopped: the id of the message it read last, 0 for the beginning. A sequence, because it is written
-- outside of transactions: no claim waits for another's scan. A crash sets it back to 0.
CREATE UNLOGGED SEQUENCE outbox.inbox_scan_position MINVALUE 0 START 0;

-- A transaction under REPEATABLE READ or SERIALIZABLE that finishes a head cannot see a message that has been stored since, and so
-- does not wake it. Now and then a claim therefore reads the first waiting message of each key, and wakes it where no earlier one
-- is unfinished. It reads a bounded number of keys, of all consumers; the next scan continues after the last of them.
CREATE FUNCTION outbox.inbox_wake_stranded(keys_max integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last record;
    first_behind bigint[];
BEGIN
    SELECT m.consumer, m.source, m.key INTO last
    FROM outbox.inbox_scan_position p JOIN outbox.inbox_message m ON m.id = p.last_value;
    first_behind := ARRAY(
        -- From key to key by index, however many messages each has. No consumer is named '', so that sorts before all of them.
        WITH RECURSIVE waiting AS (
            (SELECT b.consumer, b.source, b.key, b.id, 1 AS number FROM outbox.inbox_message b
             WHERE b.behind AND (b.consumer, b.source, b.key) > (coalesce(last.consumer, ''), coalesce(last.source, ''), coalesce(last.key, ''))
             ORDER BY b.consumer, b.source, b.key, b.id LIMIT 1)
            UNION ALL
            SELECT n.consumer, n.source, n.key, n.id, w.number + 1 FROM waiting w CROSS JOIN LATERAL (
                SELECT b.consumer, b.source, b.key, b.id FROM outbox.inbox_message b
                WHERE b.behind AND (b.consumer, b.source, b.key) > (w.consumer, w.source, w.key)
                ORDER BY b.consumer, b.source, b.key, b.id LIMIT 1) n
            WHERE w.number < keys_max
        )
        SELECT w.id FROM waiting w ORDER BY w.number);
    PERFORM setval('outbox.inbox_scan_position', coalesce(first_behind[keys_max], 0));
    UPDATE outbox.inbox_message m SET behind = false
    WHERE m.behind AND m.id = ANY (ARRAY(
        SELECT s.id FROM outbox.inbox_message s
        WHERE s.id = ANY (first_behind)
          -- Not NOT EXISTS: the planner may make a join of that, over all waiting messages of every key.
          AND s.id = (
            SELECT e.id FROM outbox.inbox_message e
            WHERE e.consumer = s.consumer AND e.source = s.source AND e.key = s.key AND e.done_at IS NULL
            ORDER BY e.id LIMIT 1)
        FOR NO KEY UPDATE SKIP LOCKED));
END $$;

REVOKE ALL ON FUNCTION outbox.inbox_lock_head, outbox.inbox_wake, outbox.inbox_wake_stranded FROM PUBLIC;

-- ── Receive, claim, finish ─────────────────────────────────────────────────────────────────────

-- Stores a message unless it is known. True: stored now; false: known before, in whatever state.
CREATE FUNCTION outbox.inbox_receive(
    consumer text, source text, message_id text, payload jsonb DEFAULT NULL, payload_bytes bytea DEFAULT NULL,
    key text DEFAULT NULL, event_type text DEFAULT NULL, headers jsonb DEFAULT NULL,
    priority integer DEFAULT 0, not_before timestamptz DEFAULT NULL, max_attempts integer DEFAULT 10,
    payload_hash bytea DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    known bytea;
    hash bytea := coalesce(inbox_receive.payload_hash, sha256(coalesce(
        inbox_receive.payload_bytes, convert_to(inbox_receive.payload::text, 'UTF8'), '')));
BEGIN
    IF NOT (outbox.is_name(inbox_receive.consumer) AND outbox.is_name(inbox_receive.source) AND outbox.is_name(inbox_receive.message_id)) THEN
        PERFORM outbox.refuse_identity(inbox_receive.consumer, inbox_receive.source, inbox_receive.message_id);
    END IF;
    IF inbox_receive.payload IS NOT NULL AND inbox_receive.payload_bytes IS NOT NULL THEN
        PERFORM outbox.refuse_argument('payload, payload_bytes', 'one of the two at most');
    END IF;
    IF greatest(octet_length(inbox_receive.payload_bytes), octet_length(inbox_receive.payload::text)) > 1048576 THEN
        PERFORM outbox.refuse_argument('payload', 'at most 1 MiB: keep larger ones elsewhere and store where');
    END IF;
    IF octet_length(hash) NOT BETWEEN 1 AND 64 THEN
        PERFORM outbox.refuse_argument('payload_hash', '1 to 64 bytes');
    END IF;
    IF octet_length(inbox_receive.key) > 1024 THEN
        PERFORM outbox.refuse_argument('key', 'at most 1,024 bytes');
    END IF;
    IF octet_length(inbox_receive.event_type) > 255 THEN
        PERFORM outbox.refuse_argument('event_type', 'at most 255 bytes');
    END IF;
    IF jsonb_typeof(inbox_receive.headers) <> 'object' OR octet_length(inbox_receive.headers::text) > 65536 THEN
        PERFORM outbox.refuse_argument('headers', 'a JSON object of at most 64 KiB');
    END IF;
    IF (inbox_receive.priority BETWEEN -32768 AND 32767) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('priority', '-32768 to 32767; higher goes first');
    END IF;
    IF (inbox_receive.max_attempts BETWEEN 1 AND 1000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('max_attempts', '1 to 1000');
    END IF;
    IF inbox_receive.not_before IN ('infinity', '-infinity') THEN
        PERFORM outbox.refuse_argument('not_before', 'a finite time');
    END IF;
    LOOP
        SELECT m.payload_hash INTO known FROM outbox.inbox_message m
        WHERE m.consumer = inbox_receive.consumer AND m.source = inbox_receive.source AND m.message_id = inbox_receive.message_id;
        IF FOUND THEN
            IF known <> hash THEN
                PERFORM outbox.refuse_other_payload(inbox_receive.consumer, inbox_receive.source, inbox_receive.message_id);
            END IF;
            PERFORM nextval(coalesce((SELECT s.counter FROM outbox.consumer_slot s WHERE s.consumer = inbox_receive.consumer),
                                     'outbox.consumer_duplicates'::regclass));
            RETURN false;
        END IF;
        INSERT INTO outbox.inbox_message (consumer, source, message_id, key, event_type, headers, payload, payload_bytes, payload_hash,
                                          priority, next_attempt_at, max_attempts, behind)
        VALUES (inbox_receive.consumer, inbox_receive.source, inbox_receive.message_id, inbox_receive.key, inbox_receive.event_type,
                inbox_receive.headers, inbox_receive.payload, inbox_receive.payload_bytes, hash,
                inbox_receive.priority, coalesce(inbox_receive.not_before, clock_timestamp()), inbox_receive.max_attempts,
                inbox_receive.key IS NOT NULL
                    AND outbox.inbox_lock_head(inbox_receive.consumer, inbox_receive.source, inbox_receive.key))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF NOT EXISTS (SELECT FROM outbox.consumer_slot s WHERE s.consumer = inbox_receive.consumer) THEN
                PERFORM outbox.consumer_assign_slot(inbox_receive.consumer);
            END IF;
            RETURN true;
        END IF;
    END LOOP;
END $$;

-- Claims up to `messages_max` due messages for `lease`, and returns each with the token that inbox_done and inbox_fail demand. Commit before
-- you work: the claim must stand when the work fails. Sessions that claim at the same time get different messages, and none waits.
-- Of a key it returns one message at most: the next one is due once that is done.
CREATE FUNCTION outbox.inbox_claim(
    consumer text, messages_max integer DEFAULT 10, lease interval DEFAULT '1 minute', claimed_by text DEFAULT NULL
) RETURNS TABLE (id bigint, token integer, attempt integer, source text, message_id text, key text, event_type text, headers jsonb,
                 payload jsonb, payload_bytes bytea, received_at timestamptz, lease_until timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- Read once: a function whose value changes from row to row is no condition for an index.
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox.refuse_name('consumer', inbox_claim.consumer, 'P4000');
    IF (inbox_claim.messages_max BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('messages_max', '1 to 10000');
    END IF;
    IF outbox.is_lock_span(inbox_claim.lease) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('lease', 'more than nothing and at most a day');
    END IF;
    IF octet_length(inbox_claim.claimed_by) > 255 THEN
        PERFORM outbox.refuse_argument('claimed_by', 'at most 255 bytes');
    END IF;
    IF random() < 0.05 THEN
        PERFORM outbox.inbox_wake_stranded();
    END IF;
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT m.id, m.next_attempt_at AS due_at, m.claimed_at IS NOT NULL AS lease_ran_out FROM outbox.inbox_message m
        WHERE m.consumer = inbox_claim.consumer AND m.done_at IS NULL AND m.poison_at IS NULL AND NOT m.behind
          AND m.next_attempt_at <= moment
          AND (m.key IS NULL OR NOT EXISTS (
              SELECT FROM outbox.inbox_message e
              WHERE e.consumer = m.consumer AND e.source = m.source AND e.key = m.key AND e.done_at IS NULL AND e.id < m.id))
          -- Of two that were stored at the same time the one with the higher id may be claimed already.
          AND (m.key IS NULL OR NOT EXISTS (
              SELECT FROM outbox.inbox_message w
              WHERE w.consumer = m.consumer AND w.source = m.source AND w.key = m.key AND w.claimed_at IS NOT NULL
                AND w.next_attempt_at > moment))
        ORDER BY m.priority DESC, m.next_attempt_at, m.id
        LIMIT inbox_claim.messages_max
        -- Not FOR UPDATE: a session that stores a message behind this one has its key locked.
        FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE outbox.inbox_message m
        SET token = m.token + 1,
            -- A message that kills its worker each time is never reported as failed.
            attempts = least(m.attempts + 1, m.max_attempts),
            poison_at = CASE WHEN m.attempts >= m.max_attempts THEN moment END,
            last_error = CASE WHEN m.attempts >= m.max_attempts THEN 'the lease of the last attempt ran out' ELSE m.last_error END,
            claimed_at = CASE WHEN m.attempts < m.max_attempts THEN moment END,
            claimed_by = inbox_claim.claimed_by,
            next_attempt_at = outbox.later(moment, inbox_claim.lease)
        WHERE m.id = ANY (ARRAY(SELECT d.id FROM due d))
        RETURNING m.*, CASE WHEN m.id = ANY (ARRAY(SELECT d.id FROM due d WHERE d.lease_ran_out)) THEN nextval('outbox.inbox_taken_over') END
    )
    SELECT t.id, t.token, t.attempts::integer, t.source, t.message_id, t.key, t.event_type, t.headers, t.payload, t.payload_bytes,
           t.received_at, t.next_attempt_at
    FROM taken t JOIN due d ON d.id = t.id WHERE t.poison_at IS NULL
    -- In the order in which they were chosen: the claim itself changes when a message is due.
    ORDER BY t.priority DESC, d.due_at, t.id;
END $$;

-- Says why a worker may not act on a message.
CREATE FUNCTION outbox.refuse_token(verb text, id bigint, token integer, code text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_token integer;
    state text;
BEGIN
    SELECT m.token, CASE WHEN m.done_at IS NOT NULL THEN 'done' WHEN m.poison_at IS NOT NULL THEN 'poison'
                         WHEN m.claimed_at IS NOT NULL THEN 'claimed' ELSE 'waiting' END
    INTO found_token, state FROM outbox.inbox_message m WHERE m.id = refuse_token.id;
    RAISE EXCEPTION 'inbox message % is not yours to call %', coalesce(refuse_token.id::text, 'NULL'), refuse_token.verb
    USING ERRCODE = refuse_token.code,
          DETAIL = CASE WHEN state IS NULL THEN 'There is no such message.'
                        ELSE format('You have token %s; the message is %s and its token %s.',
                                    coalesce(refuse_token.token::text, 'NULL'), state, found_token) END,
          HINT = 'Roll back: your lease ran out and another attempt has taken over, or this call repeats an earlier one.';
END $$;

-- Finishes a message, in the transaction that has the effect, so that both commit or neither. Refused (P4010) unless the token is
-- that of the latest claim: a worker whose message was taken over rolls back. A worker that did not receive the answer may repeat
-- the call: it returns false if this very attempt was finished with this outcome before. Then what else the transaction has done is
-- a repeat, too: roll it back.
CREATE FUNCTION outbox.inbox_done(id bigint, token integer, outcome text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    finished record;
BEGIN
    IF octet_length(inbox_done.outcome) > 255 THEN
        PERFORM outbox.refuse_argument('outcome', 'at most 255 bytes');
    END IF;
    -- Waits for a session that is storing a message behind this one: see inbox_lock_head.
    PERFORM FROM outbox.inbox_message m
    WHERE m.id = inbox_done.id AND m.token = inbox_done.token AND m.claimed_at IS NOT NULL AND m.key IS NOT NULL FOR UPDATE;
    UPDATE outbox.inbox_message m
    SET done_at = clock_timestamp(), claimed_at = NULL, last_error = NULL, outcome = inbox_done.outcome
    WHERE m.id = inbox_done.id AND m.token = inbox_done.token AND m.claimed_at IS NOT NULL
    RETURNING m.consumer, m.source, m.key INTO finished;
    IF NOT FOUND THEN
        PERFORM FROM outbox.inbox_message m
        WHERE m.id = inbox_done.id AND m.token = inbox_done.token AND m.done_at IS NOT NULL
          AND m.outcome IS NOT DISTINCT FROM inbox_done.outcome;
        IF NOT FOUND THEN
            PERFORM outbox.refuse_token('done', inbox_done.id, inbox_done.token, 'P4010');
        END IF;
        RETURN false;
    END IF;
    IF finished.key IS NOT NULL THEN
        PERFORM outbox.inbox_wake(finished.consumer, finished.source, finished.key);
    END IF;
    RETURN true;
END $$;

-- Reports a failed attempt, after the effect was rolled back, in a transaction of its own. Returns when the message is due again, or
-- NULL: it is poison, because this was its last attempt or `retryable` is false. The wait doubles with every attempt, and is jittered
-- down to half.
CREATE FUNCTION outbox.inbox_fail(
    id bigint, token integer, error text DEFAULT NULL, retryable boolean DEFAULT true,
    backoff_min interval DEFAULT '1 second', backoff_max interval DEFAULT '10 minutes'
) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    due timestamptz;
BEGIN
    IF inbox_fail.retryable IS NULL THEN
        PERFORM outbox.refuse_argument('retryable', 'true or false');
    END IF;
    IF (inbox_fail.backoff_min >= interval '0' AND inbox_fail.backoff_min <= inbox_fail.backoff_max
        AND inbox_fail.backoff_max <= interval '30 days') IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('backoff_min, backoff_max', 'from nothing up to 30 days, the lesser one first');
    END IF;
    UPDATE outbox.inbox_message m
    SET claimed_at = NULL,
        -- An error may be of any length; a row should not.
        last_error = left(inbox_fail.error, 2000),
        poison_at = CASE WHEN NOT inbox_fail.retryable OR m.attempts >= m.max_attempts THEN clock_timestamp() END,
        next_attempt_at = clock_timestamp() + make_interval(secs => (0.5 + random() / 2) * least(
            extract(epoch FROM inbox_fail.backoff_max)::float8,
            extract(epoch FROM inbox_fail.backoff_min)::float8 * 2.0 ^ least(m.attempts - 1, 60)))
    WHERE m.id = inbox_fail.id AND m.token = inbox_fail.token AND m.claimed_at IS NOT NULL
    RETURNING CASE WHEN m.poison_at IS NULL THEN m.next_attempt_at END INTO due;
    IF NOT FOUND THEN
        PERFORM outbox.refuse_token('failed', inbox_fail.id, inbox_fail.token, 'P4011');
    END IF;
    RETURN due;
END $$;

-- Extends the lease of a message whose work takes long, never shortens it; returns until when. Refused (P4012) unless the token is
-- that of the latest claim: a worker whose message was taken over stops.
CREATE FUNCTION outbox.inbox_heartbeat(id bigint, token integer, lease interval DEFAULT '1 minute') RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    IF outbox.is_lock_span(inbox_heartbeat.lease) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('lease', 'more than nothing and at most a day');
    END IF;
    UPDATE outbox.inbox_message m
    SET next_attempt_at = greatest(m.next_attempt_at, outbox.later(clock_timestamp(), inbox_heartbeat.lease))
    WHERE m.id = inbox_heartbeat.id AND m.token = inbox_heartbeat.token AND m.claimed_at IS NOT NULL
    RETURNING m.next_attempt_at INTO until;
    IF NOT FOUND THEN
        PERFORM outbox.refuse_token('under way', inbox_heartbeat.id, inbox_heartbeat.token, 'P4012');
    END IF;
    RETURN until;
END $$;

REVOKE ALL ON FUNCTION outbox.inbox_receive, outbox.inbox_claim, outbox.refuse_token, outbox.inbox_done, outbox.inbox_fail,
    outbox.inbox_heartbeat FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.inbox_receive, outbox.inbox_claim, outbox.inbox_done, outbox.inbox_fail, outbox.inbox_heartbeat
    TO outbox_producer;

-- ── Operators ──────────────────────────────────────────────────────────────────────────────────

-- Gives poison messages all their attempts again: the message with this id, or up to `messages_max` of the consumer, oldest first. Returns
-- how many. What is not poison is left alone.
CREATE FUNCTION outbox.inbox_replay(consumer text, id bigint DEFAULT NULL, messages_max integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    replayed bigint;
BEGIN
    PERFORM outbox.refuse_name('consumer', inbox_replay.consumer, 'P4000');
    IF (inbox_replay.messages_max BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('messages_max', '1 to 10000');
    END IF;
    UPDATE outbox.inbox_message m
    SET poison_at = NULL, attempts = 0, next_attempt_at = clock_timestamp()
    WHERE m.id = ANY (ARRAY(
        SELECT p.id FROM outbox.inbox_message p
        WHERE p.consumer = inbox_replay.consumer AND p.poison_at IS NOT NULL
          AND (inbox_replay.id IS NULL OR p.id = inbox_replay.id)
        ORDER BY p.poison_at LIMIT inbox_replay.messages_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS replayed = ROW_COUNT;
    RETURN replayed;
END $$;

-- Processes a message that is done, or was discarded, once more and with all its attempts: its effect happens again, unless the
-- consumer itself prevents that. In the order of its key it is where it was, before every unfinished message that was stored
-- later. False: it is not done.
CREATE FUNCTION outbox.inbox_replay_done(consumer text, id bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM outbox.refuse_name('consumer', inbox_replay_done.consumer, 'P4000');
    UPDATE outbox.inbox_message m
    SET done_at = NULL, outcome = NULL, attempts = 0, next_attempt_at = clock_timestamp()
    WHERE m.consumer = inbox_replay_done.consumer AND m.id = inbox_replay_done.id AND m.done_at IS NOT NULL;
    RETURN FOUND;
END $$;

-- Gives a poison message up for good: its effect will not happen, and its key continues. False: it is not poison.
CREATE FUNCTION outbox.inbox_discard(consumer text, id bigint, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    finished record;
BEGIN
    PERFORM outbox.refuse_name('consumer', inbox_discard.consumer, 'P4000');
    IF octet_length(inbox_discard.reason) > 200 THEN
        PERFORM outbox.refuse_argument('reason', 'at most 200 bytes');
    END IF;
    PERFORM FROM outbox.inbox_message m
    WHERE m.consumer = inbox_discard.consumer AND m.id = inbox_discard.id AND m.poison_at IS NOT NULL AND m.key IS NOT NULL FOR UPDATE;
    UPDATE outbox.inbox_message m
    SET poison_at = NULL, done_at = clock_timestamp(), outcome = concat_ws(': ', 'discarded', inbox_discard.reason)
    WHERE m.consumer = inbox_discard.consumer AND m.id = inbox_discard.id AND m.poison_at IS NOT NULL
    RETURNING m.source, m.key INTO finished;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF finished.key IS NOT NULL THEN
        PERFORM outbox.inbox_wake(inbox_discard.consumer, finished.source, finished.key);
    END IF;
    RETURN true;
END $$;

CREATE VIEW outbox.inbox_backlog AS
SELECT m.consumer,
       count(*) AS unfinished,
       count(*) FILTER (WHERE m.claimed_at IS NULL AND m.next_attempt_at <= clock_timestamp() AND NOT m.behind) AS due,
       count(*) FILTER (WHERE m.claimed_at IS NULL AND m.next_attempt_at > clock_timestamp() AND NOT m.behind) AS waiting,
       count(*) FILTER (WHERE m.behind) AS behind,
       count(*) FILTER (WHERE m.claimed_at IS NOT NULL AND m.next_attempt_at > clock_timestamp()) AS claimed,
       count(*) FILTER (WHERE m.claimed_at IS NOT NULL AND m.next_attempt_at <= clock_timestamp()) AS lease_ran_out,
       max(m.attempts) AS attempts_max,
       min(m.received_at) AS oldest_received_at,
       clock_timestamp() - min(m.received_at) AS oldest_age
FROM (
    -- In two parts, as the indexes are: nothing that is done is read.
    SELECT * FROM outbox.inbox_message WHERE done_at IS NULL AND poison_at IS NULL AND NOT behind
    UNION ALL
    SELECT * FROM outbox.inbox_message WHERE behind
) AS m
GROUP BY m.consumer;

CREATE VIEW outbox.inbox_poison AS
SELECT m.consumer, count(*) AS messages, min(m.poison_at) AS oldest_poison_at,
       -- Messages that wait for one of these in the order of their key.
       (SELECT count(*) FROM outbox.inbox_message b
        WHERE b.consumer = m.consumer AND b.done_at IS NULL AND b.poison_at IS NULL AND b.key IS NOT NULL
          AND EXISTS (SELECT FROM outbox.inbox_message p
                      WHERE p.consumer = b.consumer AND p.source = b.source AND p.key = b.key AND p.poison_at IS NOT NULL
                        AND p.done_at IS NULL AND p.id < b.id)) AS blocked,
       (array_agg(m.id ORDER BY m.poison_at))[1:10] AS first_ids,
       (array_agg(m.last_error ORDER BY m.poison_at DESC))[1] AS latest_error
FROM outbox.inbox_message m
WHERE m.poison_at IS NOT NULL
GROUP BY m.consumer;

REVOKE ALL ON FUNCTION outbox.inbox_replay, outbox.inbox_replay_done, outbox.inbox_discard FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.inbox_replay, outbox.inbox_replay_done, outbox.inbox_discard TO outbox_operator;
GRANT SELECT ON outbox.inbox_message, outbox.inbox_backlog, outbox.inbox_poison TO outbox_operator;
-- To count messages. The relay may not read what they say.
GRANT SELECT (consumer, priority, next_attempt_at, done_at, poison_at, behind) ON outbox.inbox_message TO outbox_relay;

-- ── Retention ──────────────────────────────────────────────────────────────────────────────────

-- Small steps that lock only the rows they remove, and skip rows that are locked. Each returns how many rows it removed; fewer than
-- `rows_max`: nothing is left for now, except rows that were locked.

-- A message that comes again after its marker is gone has its effect again: keep markers longer than any source can repeat.
CREATE FUNCTION outbox.purge_processed(older_than interval, rows_max integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    old timestamptz;
BEGIN
    PERFORM outbox.check_purge_arguments(older_than, rows_max);
    -- Read once: a function whose value changes from row to row is no condition for an index.
    old := outbox.later(clock_timestamp(), -older_than);
    DELETE FROM outbox.processed_message
    WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM outbox.processed_message p WHERE p.processed_at < old
        ORDER BY p.processed_at LIMIT rows_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

-- Only what is done. Unfinished and poison messages stay, however old.
CREATE FUNCTION outbox.purge_inbox(older_than interval, rows_max integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    old timestamptz;
BEGIN
    PERFORM outbox.check_purge_arguments(older_than, rows_max);
    old := outbox.later(clock_timestamp(), -older_than);
    DELETE FROM outbox.inbox_message
    WHERE ctid = ANY (ARRAY(
        SELECT m.ctid FROM outbox.inbox_message m WHERE m.done_at < old
        ORDER BY m.done_at LIMIT rows_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

REVOKE ALL ON FUNCTION outbox.purge_processed, outbox.purge_inbox FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.purge_processed, outbox.purge_inbox TO outbox_relay, outbox_operator;
