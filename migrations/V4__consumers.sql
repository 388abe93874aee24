-- The way in: a message consumed many times has one effect. Two tools, for the application's role (outbox_producer):
--
--   outbox.consume_once   a marker beside the effect, in the same transaction. For consumers that act at once.
--   outbox.inbox_*        the message is stored first and worked off later, with retries, order per key and poison.
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
-- SQLSTATEs of all functions here:
--   P4000 consumer or source missing, P4001 message id missing, P4003 hash missing, P4004 an argument out of its limits,
--   P4010 / P4011 done / failed refused (the message is not yours any more), P4050 message id reused with another payload.

-- Counted without making a duplicate write: nextval on an unlogged sequence writes no WAL, assigns no transaction id, and
-- stays counted when the transaction fails. They start again at 0 after a crash or a failover.
CREATE UNLOGGED SEQUENCE outbox.consumer_duplicates;
CREATE UNLOGGED SEQUENCE outbox.consumer_conflicts;

CREATE VIEW outbox.consumer_counters AS
SELECT (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.consumer_duplicates) AS duplicates_suppressed,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.consumer_conflicts) AS conflicts;

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

CREATE INDEX processed_message_by_age ON outbox.processed_message (processed_at);

CREATE TABLE outbox.inbox_message (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    received_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Not claimed before: the time asked for, the end of a backoff, or the end of the lease of whoever has it now. One
    -- column, so that a crashed worker's message becomes due by itself.
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
    -- Stands behind an unfinished message of its key, so that no claim need look at it: a line may be long. It may be false
    -- for one that does stand behind (claims look again), never for long true for one that does not.
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
-- What a claim reads: nothing that is done, however much of it lies behind.
CREATE INDEX inbox_message_unfinished ON outbox.inbox_message (consumer, priority DESC, next_attempt_at, id)
    WHERE done_at IS NULL AND poison_at IS NULL AND NOT behind;
-- What such a claim passes over, by key.
CREATE INDEX inbox_message_behind ON outbox.inbox_message (consumer, source, key, id) WHERE behind;
-- Who stands before a message of a key. Poison too: order is order.
CREATE INDEX inbox_message_line ON outbox.inbox_message (consumer, source, key, id)
    WHERE done_at IS NULL AND key IS NOT NULL;
CREATE INDEX inbox_message_at_work ON outbox.inbox_message (consumer, source, key) WHERE claimed_at IS NOT NULL AND key IS NOT NULL;
CREATE INDEX inbox_message_poison ON outbox.inbox_message (consumer, poison_at) WHERE poison_at IS NOT NULL;
CREATE INDEX inbox_message_done ON outbox.inbox_message (done_at) WHERE done_at IS NOT NULL;

COMMENT ON TABLE outbox.processed_message IS 'Which messages took effect. Written by outbox.consume_once.';
COMMENT ON TABLE outbox.inbox_message IS 'Messages to be worked off. Written by outbox.inbox_receive.';
COMMENT ON COLUMN outbox.inbox_message.key IS 'Messages of one consumer, source and key are worked off in the order of id; NULL: no order.';
COMMENT ON COLUMN outbox.inbox_message.priority IS 'Higher first.';

-- Long names never reach an error message, and ids only as a digest: they may be secrets.
CREATE FUNCTION outbox.message_digest(message_id text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT left(encode(sha256(convert_to(message_id, 'UTF8')), 'hex'), 12)
$$;

CREATE FUNCTION outbox.refuse_argument(name text, limits text, code text DEFAULT 'P4004') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is %', refuse_argument.name, CASE WHEN code = 'P4004' THEN 'out of its limits' ELSE 'missing' END
    USING ERRCODE = code, DETAIL = format('%s must be %s.', refuse_argument.name, limits),
          HINT = 'The call itself is wrong: a retry will not help.';
END $$;

CREATE FUNCTION outbox.refuse_name(name text, given text, code text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(given) BETWEEN 1 AND 255 THEN
        RETURN;
    END IF;
    PERFORM outbox.refuse_argument(refuse_name.name, '1 to 255 bytes',
                                   CASE WHEN coalesce(given, '') = '' THEN code ELSE 'P4004' END);
END $$;

-- Says which of the three is wrong. Callers look first, so that a good call does not pay for it.
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

-- True the first time, false for a duplicate. Call it in the transaction that has the effect: both commit, or neither.
-- While another transaction consumes the same message this waits for its end, and then answers false, or true if that one
-- rolled back. Under REPEATABLE READ and SERIALIZABLE it fails with 40001 instead of answering false: retry.
CREATE FUNCTION outbox.consume_once(
    consumer text, source text, message_id text, payload_hash bytea,
    outcome text DEFAULT NULL, result_type text DEFAULT NULL, result_id text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    known bytea;
BEGIN
    IF (octet_length(consume_once.consumer) BETWEEN 1 AND 255 AND octet_length(consume_once.source) BETWEEN 1 AND 255
        AND octet_length(consume_once.message_id) BETWEEN 1 AND 255) IS NOT TRUE THEN
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
        -- First of all a look: a duplicate must not write, not even a row lock.
        SELECT p.payload_hash INTO known FROM outbox.processed_message p
        WHERE p.consumer = consume_once.consumer AND p.source = consume_once.source AND p.message_id = consume_once.message_id;
        IF FOUND THEN
            IF known <> consume_once.payload_hash THEN
                PERFORM outbox.refuse_other_payload(consume_once.consumer, consume_once.source, consume_once.message_id);
            END IF;
            PERFORM nextval('outbox.consumer_duplicates');
            RETURN false;
        END IF;
        INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, outcome, result_type, result_id)
        VALUES (consume_once.consumer, consume_once.source, consume_once.message_id, consume_once.payload_hash,
                consume_once.outcome, consume_once.result_type, consume_once.result_id)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
        -- Another was faster, and has committed by now: look again.
    END LOOP;
END $$;

-- Is there an unfinished message of this key? Whoever is told so holds its head: the head cannot be finished before the caller
-- has committed, and then the caller's message is seen and woken. A head that is being finished at this moment does not count.
CREATE FUNCTION outbox.inbox_hold_head(consumer text, source text, key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM outbox.inbox_message m
    WHERE m.consumer = inbox_hold_head.consumer AND m.source = inbox_hold_head.source AND m.key = inbox_hold_head.key
      AND m.done_at IS NULL AND m.id = (
          SELECT h.id FROM outbox.inbox_message h
          WHERE h.consumer = inbox_hold_head.consumer AND h.source = inbox_hold_head.source AND h.key = inbox_hold_head.key
            AND h.done_at IS NULL
          ORDER BY h.id LIMIT 1)
    FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- The head of a key is finished: the next one is.
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

-- Under REPEATABLE READ and SERIALIZABLE a head is finished by a transaction that cannot see who has come since. So now and then
-- a claim looks at the first one behind in each line, and wakes it where nobody stands before it.
CREATE FUNCTION outbox.inbox_wake_stranded(consumer text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    UPDATE outbox.inbox_message m SET behind = false
    WHERE m.behind AND m.id = ANY (ARRAY(
        SELECT s.id FROM outbox.inbox_message s WHERE s.id = ANY (ARRAY(
        -- From line to line by index, however long each is.
        WITH RECURSIVE line AS (
            (SELECT b.source, b.key, b.id FROM outbox.inbox_message b
             WHERE b.consumer = inbox_wake_stranded.consumer AND b.behind ORDER BY b.source, b.key, b.id LIMIT 1)
            UNION ALL
            SELECT n.source, n.key, n.id FROM line l CROSS JOIN LATERAL (
                SELECT b.source, b.key, b.id FROM outbox.inbox_message b
                WHERE b.consumer = inbox_wake_stranded.consumer AND b.behind AND (b.source, b.key) > (l.source, l.key)
                ORDER BY b.source, b.key, b.id LIMIT 1) n
        )
        -- Not NOT EXISTS: the planner may make a join of that, over the whole of every line.
        SELECT l.id FROM line l WHERE l.id = (
            SELECT e.id FROM outbox.inbox_message e
            WHERE e.consumer = inbox_wake_stranded.consumer AND e.source = l.source AND e.key = l.key AND e.done_at IS NULL
            ORDER BY e.id LIMIT 1)))
        FOR NO KEY UPDATE SKIP LOCKED));
END $$;

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
    IF (octet_length(inbox_receive.consumer) BETWEEN 1 AND 255 AND octet_length(inbox_receive.source) BETWEEN 1 AND 255
        AND octet_length(inbox_receive.message_id) BETWEEN 1 AND 255) IS NOT TRUE THEN
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
            PERFORM nextval('outbox.consumer_duplicates');
            RETURN false;
        END IF;
        INSERT INTO outbox.inbox_message (consumer, source, message_id, key, event_type, headers, payload, payload_bytes, payload_hash,
                                          priority, next_attempt_at, max_attempts, behind)
        VALUES (inbox_receive.consumer, inbox_receive.source, inbox_receive.message_id, inbox_receive.key, inbox_receive.event_type,
                inbox_receive.headers, inbox_receive.payload, inbox_receive.payload_bytes, hash,
                inbox_receive.priority, coalesce(inbox_receive.not_before, clock_timestamp()), inbox_receive.max_attempts,
                inbox_receive.key IS NOT NULL
                    AND outbox.inbox_hold_head(inbox_receive.consumer, inbox_receive.source, inbox_receive.key))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
    END LOOP;
END $$;

-- Takes up to `most` due messages for `lease`, and answers each with the token that inbox_done and inbox_fail demand. Commit
-- before you work: the claim must stand when the work fails. Sessions that claim at once get different messages, and none waits.
-- Of a key it answers one message at most: the next one is due once that is done.
CREATE FUNCTION outbox.inbox_claim(
    consumer text, most integer DEFAULT 10, lease interval DEFAULT '1 minute', claimed_by text DEFAULT NULL
) RETURNS TABLE (id bigint, token integer, attempt integer, source text, message_id text, key text, event_type text, headers jsonb,
                 payload jsonb, payload_bytes bytea, received_at timestamptz, lease_until timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- Read once: a function that changes from row to row is no condition for an index.
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox.refuse_name('consumer', inbox_claim.consumer, 'P4000');
    IF (inbox_claim.most BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('most', '1 to 10000');
    END IF;
    IF (inbox_claim.lease > interval '0' AND inbox_claim.lease <= interval '1 day') IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('lease', 'more than nothing and at most a day');
    END IF;
    IF octet_length(inbox_claim.claimed_by) > 255 THEN
        PERFORM outbox.refuse_argument('claimed_by', 'at most 255 bytes');
    END IF;
    IF random() < 0.05 THEN
        PERFORM outbox.inbox_wake_stranded(inbox_claim.consumer);
    END IF;
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT m.id FROM outbox.inbox_message m
        WHERE m.consumer = inbox_claim.consumer AND m.done_at IS NULL AND m.poison_at IS NULL AND NOT m.behind
          AND m.next_attempt_at <= moment
          AND (m.key IS NULL OR NOT EXISTS (
              SELECT FROM outbox.inbox_message e
              WHERE e.consumer = m.consumer AND e.source = m.source AND e.key = m.key AND e.done_at IS NULL AND e.id < m.id))
          -- Of two that were stored at the same time the one with the higher id may be at work already.
          AND (m.key IS NULL OR NOT EXISTS (
              SELECT FROM outbox.inbox_message w
              WHERE w.consumer = m.consumer AND w.source = m.source AND w.key = m.key AND w.claimed_at IS NOT NULL
                AND w.next_attempt_at > moment))
        ORDER BY m.priority DESC, m.next_attempt_at, m.id
        LIMIT inbox_claim.most
        -- Not FOR UPDATE: whoever stores a message behind this one holds its key.
        FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE outbox.inbox_message m
        SET token = m.token + 1,
            -- A message that kills its worker each time never gets to say that it failed.
            attempts = least(m.attempts + 1, m.max_attempts),
            poison_at = CASE WHEN m.attempts >= m.max_attempts THEN moment END,
            last_error = CASE WHEN m.attempts >= m.max_attempts THEN 'the lease of the last attempt ran out' ELSE m.last_error END,
            claimed_at = CASE WHEN m.attempts < m.max_attempts THEN moment END,
            claimed_by = inbox_claim.claimed_by,
            next_attempt_at = moment + inbox_claim.lease
        WHERE m.id = ANY (ARRAY(SELECT d.id FROM due d))
        RETURNING m.*
    )
    SELECT t.id, t.token, t.attempts::integer, t.source, t.message_id, t.key, t.event_type, t.headers, t.payload, t.payload_bytes,
           t.received_at, t.next_attempt_at
    FROM taken t WHERE t.poison_at IS NULL
    ORDER BY t.priority DESC, t.id;
END $$;

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

-- In the transaction that has the effect, so that both commit or neither. Refused (P4010) unless the token is that of the
-- latest claim: a worker that was taken over rolls back.
CREATE FUNCTION outbox.inbox_done(id bigint, token integer, outcome text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    line record;
BEGIN
    IF octet_length(inbox_done.outcome) > 255 THEN
        PERFORM outbox.refuse_argument('outcome', 'at most 255 bytes');
    END IF;
    -- Waits for whoever is storing a message behind this one: see inbox_hold_head.
    PERFORM FROM outbox.inbox_message m
    WHERE m.id = inbox_done.id AND m.token = inbox_done.token AND m.claimed_at IS NOT NULL AND m.key IS NOT NULL FOR UPDATE;
    UPDATE outbox.inbox_message m
    SET done_at = clock_timestamp(), claimed_at = NULL, last_error = NULL, outcome = inbox_done.outcome
    WHERE m.id = inbox_done.id AND m.token = inbox_done.token AND m.claimed_at IS NOT NULL
    RETURNING m.consumer, m.source, m.key INTO line;
    IF NOT FOUND THEN
        PERFORM outbox.refuse_token('done', inbox_done.id, inbox_done.token, 'P4010');
    END IF;
    IF line.key IS NOT NULL THEN
        PERFORM outbox.inbox_wake(line.consumer, line.source, line.key);
    END IF;
END $$;

-- After the effect was rolled back, in a transaction of its own. Answers when the message is due again, or NULL: it is poison,
-- because this was its last attempt or `retryable` is false. The wait doubles with every attempt, and is jittered down to half.
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

-- Poison gets all its attempts again: the message with this id, or up to `most` of the consumer, oldest first. Answers how many.
-- What is not poison is left alone.
CREATE FUNCTION outbox.inbox_replay(consumer text, id bigint DEFAULT NULL, most integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    replayed bigint;
BEGIN
    PERFORM outbox.refuse_name('consumer', inbox_replay.consumer, 'P4000');
    IF (inbox_replay.most BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('most', '1 to 10000');
    END IF;
    UPDATE outbox.inbox_message m
    SET poison_at = NULL, attempts = 0, next_attempt_at = clock_timestamp()
    WHERE m.id = ANY (ARRAY(
        SELECT p.id FROM outbox.inbox_message p
        WHERE p.consumer = inbox_replay.consumer AND p.poison_at IS NOT NULL
          AND (inbox_replay.id IS NULL OR p.id = inbox_replay.id)
        ORDER BY p.poison_at LIMIT inbox_replay.most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS replayed = ROW_COUNT;
    RETURN replayed;
END $$;

-- Gives a poison message up for good: its effect will not happen, and its key goes on. False: it is not poison.
CREATE FUNCTION outbox.inbox_discard(consumer text, id bigint, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    line record;
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
    RETURNING m.source, m.key INTO line;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF line.key IS NOT NULL THEN
        PERFORM outbox.inbox_wake(inbox_discard.consumer, line.source, line.key);
    END IF;
    RETURN true;
END $$;

-- For operators.

CREATE VIEW outbox.inbox_backlog AS
SELECT m.consumer,
       count(*) AS unfinished,
       count(*) FILTER (WHERE m.claimed_at IS NULL AND m.next_attempt_at <= clock_timestamp() AND NOT m.behind) AS due,
       count(*) FILTER (WHERE m.claimed_at IS NULL AND m.next_attempt_at > clock_timestamp() AND NOT m.behind) AS waiting,
       count(*) FILTER (WHERE m.behind) AS behind,
       count(*) FILTER (WHERE m.claimed_at IS NOT NULL AND m.next_attempt_at > clock_timestamp()) AS claimed,
       count(*) FILTER (WHERE m.claimed_at IS NOT NULL AND m.next_attempt_at <= clock_timestamp()) AS lease_ran_out,
       max(m.attempts) AS most_attempts,
       min(m.received_at) AS oldest_received_at,
       clock_timestamp() - min(m.received_at) AS oldest_age
FROM (
    -- In two parts, as the indexes are: nothing of what is done is read.
    SELECT * FROM outbox.inbox_message WHERE done_at IS NULL AND poison_at IS NULL AND NOT behind
    UNION ALL
    SELECT * FROM outbox.inbox_message WHERE behind
) AS m
GROUP BY m.consumer;

CREATE VIEW outbox.inbox_poison AS
SELECT m.consumer, count(*) AS messages, min(m.poison_at) AS oldest_poison_at,
       -- Messages that stand behind one of these in the line of their key.
       (SELECT count(*) FROM outbox.inbox_message b
        WHERE b.consumer = m.consumer AND b.done_at IS NULL AND b.poison_at IS NULL AND b.key IS NOT NULL
          AND EXISTS (SELECT FROM outbox.inbox_message p
                      WHERE p.consumer = b.consumer AND p.source = b.source AND p.key = b.key AND p.poison_at IS NOT NULL
                        AND p.done_at IS NULL AND p.id < b.id)) AS held_behind,
       (array_agg(m.id ORDER BY m.poison_at))[1:10] AS first_ids,
       (array_agg(m.last_error ORDER BY m.poison_at DESC))[1] AS latest_error
FROM outbox.inbox_message m
WHERE m.poison_at IS NOT NULL
GROUP BY m.consumer;

-- Reads what lies above the floors, not what is published behind them.
CREATE VIEW outbox.message_pending AS
SELECT p.topic, count(*) AS pending,
       count(*) FILTER (WHERE p.available_at > clock_timestamp()) AS delayed,
       max(p.attempts) AS most_attempts,
       min(p.created_at) AS oldest_created_at,
       clock_timestamp() - min(p.created_at) AS oldest_age
FROM (
    SELECT m.topic, m.available_at, m.attempts, m.created_at FROM outbox.message m
    WHERE m.id > least((SELECT min(l.floor) FROM outbox.lane l), (SELECT min(h.resume_floor) FROM outbox.hold h))
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
    UNION ALL
    SELECT m.topic, m.available_at, m.attempts, m.created_at FROM outbox.message m WHERE m.available_at IS NOT NULL
) AS p
GROUP BY p.topic;

-- Retention: small steps that lock only what they remove and skip what others have locked. Each answers how many rows went;
-- fewer than `most`: nothing is left for now, but for rows that somebody holds.

CREATE FUNCTION outbox.refuse_purge(older_than interval, most integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (older_than >= interval '1 hour') IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('older_than', 'an hour or more');
    END IF;
    IF (most BETWEEN 1 AND 100000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('most', '1 to 100000');
    END IF;
END $$;

-- A message that comes again after its marker is gone has its effect again: keep markers longer than any source can repeat.
CREATE FUNCTION outbox.purge_processed(older_than interval, most integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    -- Read once: a function that changes from row to row is no condition for an index.
    old timestamptz := clock_timestamp() - older_than;
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    DELETE FROM outbox.processed_message
    WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM outbox.processed_message p WHERE p.processed_at < old
        ORDER BY p.processed_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

-- Only what is done. Unfinished and poison messages stay, however old.
CREATE FUNCTION outbox.purge_inbox(older_than interval, most integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    old timestamptz := clock_timestamp() - older_than;
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    DELETE FROM outbox.inbox_message
    WHERE ctid = ANY (ARRAY(
        SELECT m.ctid FROM outbox.inbox_message m WHERE m.done_at < old
        ORDER BY m.done_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

-- Only what has its answer and is expired, and ended an hour ago at least: once it is gone its key starts again at attempt 1, and
-- whoever held that attempt before should be gone as well. A command under way, stale, or to be retried stays, however old: nobody
-- knows what became of it.
CREATE FUNCTION outbox.purge_idempotency(most integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox.refuse_purge(interval '1 hour', most);
    DELETE FROM outbox.idempotency_request
    WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM outbox.idempotency_request r
        WHERE r.expires_at < moment AND r.completed_at < moment - interval '1 hour'
        ORDER BY r.expires_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

REVOKE ALL ON FUNCTION outbox.message_digest, outbox.refuse_argument, outbox.refuse_name, outbox.refuse_identity,
    outbox.refuse_other_payload, outbox.refuse_token, outbox.refuse_purge, outbox.inbox_hold_head, outbox.inbox_wake,
    outbox.inbox_wake_stranded, outbox.consume_once, outbox.inbox_receive, outbox.inbox_claim,
    outbox.inbox_done, outbox.inbox_fail, outbox.inbox_replay, outbox.inbox_discard, outbox.purge_processed, outbox.purge_inbox,
    outbox.purge_idempotency FROM PUBLIC;

GRANT EXECUTE ON FUNCTION outbox.consume_once, outbox.inbox_receive, outbox.inbox_claim, outbox.inbox_done, outbox.inbox_fail
    TO outbox_producer;
GRANT EXECUTE ON FUNCTION outbox.inbox_replay, outbox.inbox_discard TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.message_digest TO outbox_producer, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.purge_processed, outbox.purge_inbox, outbox.purge_idempotency TO outbox_relay, outbox_operator;
GRANT SELECT ON outbox.processed_message, outbox.inbox_message, outbox.inbox_backlog, outbox.inbox_poison, outbox.message_pending,
    outbox.consumer_counters TO outbox_operator;
GRANT SELECT ON outbox.consumer_counters TO outbox_relay;
-- To count them; what they say is not the relay's business.
GRANT SELECT (consumer, priority, next_attempt_at, done_at, poison_at, behind) ON outbox.inbox_message TO outbox_relay;
GRANT SELECT (processed_at) ON outbox.processed_message TO outbox_relay;
