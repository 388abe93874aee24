-- The way in, for less and with narrower gates.
--
-- A new command for less: the rules of a record are readied once a session instead of in every statement, a first claim is a look
-- and an INSERT, and what has not succeeded has one index instead of two.

-- The rules of a record, each a CHECK under the name it had, but readied once a session: PostgreSQL reads and plans the text of a
-- table's CHECK anew in every statement, and took longer for twelve of them than for the INSERT, while it keeps what a domain says.
-- So a rule for one column is a domain of that column. A rule for several is one of a record's state, a domain as well: the one CHECK
-- that the table has holds each row against it, and an error names the rule.
--
-- A domain reads, compares and sorts like what it is over. The table is rewritten, so its views go and come back as they were, and indexes are
-- made afterwards.
CREATE DOMAIN outbox.idempotency_scope_name AS text COLLATE "C"
    CONSTRAINT idempotency_scope_is_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.idempotency_key_name AS text COLLATE "C"
    CONSTRAINT idempotency_key_is_1_to_255_bytes CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN outbox.idempotency_hash AS bytea
    CONSTRAINT idempotency_hash_is_16_to_64_bytes CHECK (octet_length(VALUE) BETWEEN 16 AND 64);
CREATE DOMAIN outbox.idempotency_status AS text COLLATE "C"
    CONSTRAINT idempotency_status_is_known CHECK (VALUE IN ('processing', 'succeeded', 'failed_retryable', 'failed_final'));
CREATE DOMAIN outbox.idempotency_attempt AS integer
    CONSTRAINT idempotency_attempts_begin_at_one CHECK (VALUE >= 1);
CREATE DOMAIN outbox.idempotency_body AS jsonb
    CONSTRAINT idempotency_body_is_at_most_64_kib CHECK (octet_length(VALUE::text) <= 65536);

-- What the columns of a record must be to each other. The life of a record, as V3 draws it, is in the first five.
CREATE TYPE outbox.idempotency_record AS (
    created_at       timestamptz,
    expires_at       timestamptz,
    locked_until     timestamptz,
    completed_at     timestamptz,
    response_code    integer,
    status           text COLLATE "C",
    result_type      text,
    result_id        text,
    failure_code     text,
    failure_message  text,
    response_body    jsonb
);
CREATE DOMAIN outbox.idempotency_state AS outbox.idempotency_record
    CONSTRAINT idempotency_lock_is_for_processing CHECK (((VALUE).status = 'processing') = ((VALUE).locked_until IS NOT NULL))
    CONSTRAINT idempotency_completed_is_terminal
        CHECK (((VALUE).status IN ('succeeded', 'failed_final')) = ((VALUE).completed_at IS NOT NULL))
    CONSTRAINT idempotency_answer_is_of_a_success
        CHECK ((VALUE).status = 'succeeded'
               OR num_nonnulls((VALUE).result_type, (VALUE).result_id, (VALUE).response_code, (VALUE).response_body) = 0)
    CONSTRAINT idempotency_result_id_needs_a_type CHECK ((VALUE).result_id IS NULL OR (VALUE).result_type IS NOT NULL)
    CONSTRAINT idempotency_failure_has_a_code
        CHECK (CASE (VALUE).status WHEN 'processing' THEN true
                                   WHEN 'succeeded' THEN (VALUE).failure_code IS NULL AND (VALUE).failure_message IS NULL
                                   ELSE (VALUE).failure_code IS NOT NULL END)
    CONSTRAINT idempotency_expires_after_it_was_made CHECK ((VALUE).expires_at > (VALUE).created_at);

DROP VIEW outbox.idempotency_stale, outbox.idempotency_retried;
DROP INDEX outbox.idempotency_request_expires, outbox.idempotency_request_locked, outbox.idempotency_request_failed;
ALTER TABLE outbox.idempotency_request
    DROP CONSTRAINT idempotency_scope_is_1_to_255_bytes, ALTER scope TYPE outbox.idempotency_scope_name,
    DROP CONSTRAINT idempotency_key_is_1_to_255_bytes, ALTER key TYPE outbox.idempotency_key_name,
    DROP CONSTRAINT idempotency_hash_is_16_to_64_bytes, ALTER request_hash TYPE outbox.idempotency_hash,
    DROP CONSTRAINT idempotency_status_is_known, ALTER status TYPE outbox.idempotency_status,
    DROP CONSTRAINT idempotency_attempts_begin_at_one, ALTER attempt_count TYPE outbox.idempotency_attempt,
    DROP CONSTRAINT idempotency_body_is_at_most_64_kib, ALTER response_body TYPE outbox.idempotency_body,
    DROP CONSTRAINT idempotency_lock_is_for_processing, DROP CONSTRAINT idempotency_completed_is_terminal,
    DROP CONSTRAINT idempotency_answer_is_of_a_success, DROP CONSTRAINT idempotency_result_id_needs_a_type,
    DROP CONSTRAINT idempotency_failure_has_a_code, DROP CONSTRAINT idempotency_expires_after_it_was_made,
    -- Always true, unless the cast is refused.
    ADD CONSTRAINT idempotency_record_is_of_a_lawful_state CHECK (
        ROW(created_at, expires_at, locked_until, completed_at, response_code, status, result_type, result_id, failure_code,
            failure_message, response_body)::outbox.idempotency_state IS DISTINCT FROM NULL);

-- One index for whatever has not succeeded: what is under way by the end of its lock, what has failed by when. And one for the
-- purge, without those that it never takes: they would lie at its old end for good, passed over by every step.
CREATE INDEX idempotency_request_unsettled ON outbox.idempotency_request (locked_until, updated_at)
    WHERE locked_until IS NOT NULL OR failure_code IS NOT NULL;
CREATE INDEX idempotency_request_purgeable ON outbox.idempotency_request (expires_at) WHERE completed_at IS NOT NULL;

CREATE VIEW outbox.idempotency_stale AS
SELECT r.scope, r.key, r.attempt_count, r.claimed_by, r.claimed_at, r.heartbeat_at, r.locked_until,
       statement_timestamp() - r.locked_until AS stale_for, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE r.locked_until <= statement_timestamp();

CREATE VIEW outbox.idempotency_retried AS
SELECT r.scope, r.key, r.status, r.attempt_count, r.claimed_by, r.created_at, r.updated_at, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE r.attempt_count >= 3 AND (r.locked_until IS NOT NULL OR r.failure_code IS NOT NULL);

GRANT SELECT ON outbox.idempotency_stale, outbox.idempotency_retried TO outbox_operator;

-- Does a name say nothing? And is it one: 1 to 255 bytes, not all of them whitespace? Like all functions with such a body these are
-- bound to their operators here and now, and are taken into the statement that asks: so they need no search path, and cost no call.
CREATE FUNCTION outbox.is_blank(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(btrim(name, E' \t\n\r\f\x0B'), '') = '';

CREATE FUNCTION outbox.is_name(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN NOT outbox.is_blank(name) AND octet_length(name) <= 255;

-- What a claim must be given.
CREATE FUNCTION outbox.idempotency_is_claim(
    scope text, key text, request_hash bytea, claimed_by text, at timestamptz, until timestamptz, expires timestamptz
) RETURNS boolean
LANGUAGE sql STABLE
RETURN outbox.is_name(scope) AND outbox.is_name(key)
    AND octet_length(request_hash) BETWEEN 16 AND 64
    AND until > at AND until <= at + interval '1 day'
    AND expires >= until AND expires <= at + interval '10 years'
    AND (claimed_by IS NULL OR octet_length(claimed_by) <= 255);

-- May this command run, or what was its answer? A replay takes no row lock, no transaction id and no WAL.
--
-- A look, and only where it finds nothing an INSERT: that waits for whoever is about to end an attempt, while the answer is that
-- one is under way. The look is one statement and the INSERT another: in one, the loser of two first claims would wait, and then
-- see nothing with the snapshot it began with. Where another was faster, and for what is no claim, idempotency_claim_unanswered
-- tells. clock_timestamp(), never now(): that is when the transaction began.
--
-- Setting a search path would cost a replay a tenth of its time: so every name is qualified here, and the rest is elsewhere.
CREATE OR REPLACE FUNCTION outbox.idempotency_claim(
    scope text, key text, request_hash bytea, lock_for interval DEFAULT '30 seconds', take_over boolean DEFAULT false,
    claimed_by text DEFAULT NULL, expires_in interval DEFAULT '7 days'
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    answer outbox.idempotency_answer;
    counted pg_catalog.int8;
    at pg_catalog.timestamptz;
    until pg_catalog.timestamptz;
    expires pg_catalog.timestamptz;
BEGIN
    SELECT CASE WHEN r.status OPERATOR(pg_catalog.=) 'succeeded' AND r.request_hash OPERATOR(pg_catalog.=) request_hash THEN 'replay' END,
           false, NULL::pg_catalog.int4, r.result_type, r.result_id, r.response_code, r.response_body,
           NULL::pg_catalog.text, NULL::pg_catalog.text, NULL::pg_catalog.interval
    INTO answer
    FROM outbox.idempotency_request r
    WHERE r.scope OPERATOR(pg_catalog.=) scope AND r.key OPERATOR(pg_catalog.=) key;
    IF answer.kind IS NOT NULL THEN
        counted := pg_catalog.nextval('outbox.idempotency_replayed');
        RETURN answer;
    ELSIF NOT FOUND THEN
        at := pg_catalog.clock_timestamp();
        until := at OPERATOR(pg_catalog.+) lock_for;
        expires := at OPERATOR(pg_catalog.+) expires_in;
        IF outbox.idempotency_is_claim(scope, key, request_hash, claimed_by, at, until, expires) THEN
            INSERT INTO outbox.idempotency_request (created_at, updated_at, claimed_at, expires_at, locked_until, attempt_count, scope, key,
                                                    request_hash, status, claimed_by)
            VALUES (at, at, at, expires, until, 1, scope, key, request_hash, 'processing',
                    coalesce(claimed_by, pg_catalog.concat('pid ', pg_catalog.pg_backend_pid())))
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                counted := pg_catalog.nextval('outbox.idempotency_granted');
                answer.kind := 'new';
                answer.granted := true;
                answer.attempt := 1;
                RETURN answer;
            END IF;
        END IF;
    END IF;
    RETURN outbox.idempotency_claim_unanswered(scope, key, request_hash, lock_for, take_over, claimed_by, expires_in);
END $$;

-- What may be kept as an answer, and until when: an attempt may take long, and its answer has the time to be asked for all the same.
-- Changed seldom, for it is indexed.
CREATE FUNCTION outbox.idempotency_is_answer(result_type text, result_id text, response_body jsonb) RETURNS boolean
LANGUAGE sql STABLE
RETURN (result_id IS NULL OR result_type IS NOT NULL) AND (response_body IS NULL OR octet_length(response_body::text) <= 65536);

CREATE FUNCTION outbox.idempotency_kept_until(expires_at timestamptz, claimed_at timestamptz, at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN CASE WHEN expires_at - at < (expires_at - claimed_at) / 2 THEN at + (expires_at - claimed_at) ELSE expires_at END;

-- Refuses the end of an attempt that is not under way, unless it has ended with these very words: the answer to the first may be lost.
CREATE FUNCTION outbox.idempotency_check_repeated(
    scope text, key text, attempt integer, result_type text, result_id text, response_code integer, response_body jsonb
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM FROM outbox.idempotency_request r
    WHERE r.scope = scope AND r.key = key AND r.status = 'succeeded' AND r.attempt_count = attempt
      AND (r.result_type, r.result_id, r.response_code, r.response_body)
          IS NOT DISTINCT FROM (result_type, result_id, response_code, response_body);
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_refuse('P4010', 'the attempt may not succeed', scope, key, attempt);
    END IF;
END $$;

-- Ends an attempt well; true where that was new. A lock that has run out is no hindrance, a later attempt is.
-- As before, but without a search path to set: every name is qualified.
CREATE OR REPLACE FUNCTION outbox.idempotency_succeed(
    scope text, key text, attempt integer, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    response_code integer DEFAULT NULL, response_body jsonb DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    at pg_catalog.timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF NOT outbox.idempotency_is_answer(result_type, result_id, response_body) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'that is no answer to keep',
            DETAIL = 'A result_id needs a result_type, and a response_body has at most 64 KiB.',
            HINT = 'Keep what identifies the result, and let a replay read the rest from where it is.';
    END IF;
    UPDATE outbox.idempotency_request r
    SET status = 'succeeded', result_type = result_type, result_id = result_id, response_code = response_code,
        response_body = response_body, failure_code = NULL, failure_message = NULL, locked_until = NULL,
        updated_at = at, completed_at = at, expires_at = outbox.idempotency_kept_until(r.expires_at, r.claimed_at, at)
    WHERE r.scope OPERATOR(pg_catalog.=) scope AND r.key OPERATOR(pg_catalog.=) key
      AND r.status OPERATOR(pg_catalog.=) 'processing'
      AND r.attempt_count OPERATOR(pg_catalog.=) attempt;
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_check_repeated(scope, key, attempt, result_type, result_id, response_code, response_body);
        RETURN false;
    END IF;
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION outbox.is_blank, outbox.is_name, outbox.idempotency_is_claim, outbox.idempotency_is_answer, outbox.idempotency_kept_until,
    outbox.idempotency_check_repeated FROM PUBLIC;
-- Asked by idempotency_scope, which is its caller's.
GRANT EXECUTE ON FUNCTION outbox.is_blank TO outbox_producer;

-- A name of nothing but whitespace is as missing as none at all.

CREATE OR REPLACE FUNCTION outbox.refuse_name(name text, given text, code text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF outbox.is_name(given) THEN
        RETURN;
    END IF;
    PERFORM outbox.refuse_argument(refuse_name.name, '1 to 255 bytes, not all of them whitespace',
                                   CASE WHEN outbox.is_blank(given) THEN code ELSE 'P4004' END);
END $$;

-- As before but for the names.
CREATE OR REPLACE FUNCTION outbox.consume_once(
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

-- As before but for the names.
CREATE OR REPLACE FUNCTION outbox.inbox_receive(
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

CREATE OR REPLACE FUNCTION outbox.idempotency_check_name(scope text, key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF outbox.is_blank(scope) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'the scope of the command is missing',
            DETAIL = 'The scope is NULL or blank.', HINT = 'Pass the operation, or tenant/operation.';
    ELSIF outbox.is_blank(key) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4001', MESSAGE = 'the idempotency key is missing',
            DETAIL = 'The key is NULL or blank.', HINT = 'The client draws one key for a command, and repeats it with every retry.';
    ELSIF octet_length(scope) > 255 OR octet_length(key) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the scope or the idempotency key is too long',
            DETAIL = format('The scope has %s bytes, the key %s; each may have 255.', octet_length(scope), octet_length(key)),
            HINT = 'Use a uuid, or a hash of what identifies the command.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.idempotency_scope(tenant text, operation text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF outbox.is_blank(tenant) OR outbox.is_blank(operation) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'the scope of the command is missing',
            DETAIL = 'The tenant or the operation is NULL or blank.', HINT = 'Pass both, or a scope of your own.';
    ELSIF strpos(tenant, '/') > 0 THEN
        -- Otherwise a/b of tenant c and b of tenant c/a could be one scope.
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the tenant contains a slash',
            DETAIL = 'The scope is tenant/operation: the first slash ends the tenant.', HINT = 'Pass an id of the tenant, not a path.';
    END IF;
    RETURN tenant || '/' || operation;
END $$;

-- Under REPEATABLE READ and SERIALIZABLE a head is finished by a transaction that cannot see who has come since. So now and then a
-- claim looks at the first one behind in each line, and wakes it where nobody stands before it. At a bounded number of lines, of
-- whatever consumer; the next look goes on behind the last of them. Where that was is kept outside of transactions, so that no claim
-- waits for another's look: a sequence holds the id of the message last seen, 0 for the beginning. A crash sets it back to that.
CREATE UNLOGGED SEQUENCE outbox.inbox_looked_at MINVALUE 0 START 0;

DROP FUNCTION outbox.inbox_wake_stranded(text);
CREATE FUNCTION outbox.inbox_wake_stranded(lines_max integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last record;
    first_behind bigint[];
BEGIN
    SELECT m.consumer, m.source, m.key INTO last
    FROM outbox.inbox_looked_at l JOIN outbox.inbox_message m ON m.id = l.last_value;
    first_behind := ARRAY(
        -- From line to line by index, however long each is. No consumer is named '', so that is before all of them.
        WITH RECURSIVE line AS (
            (SELECT b.consumer, b.source, b.key, b.id, 1 AS number FROM outbox.inbox_message b
             WHERE b.behind AND (b.consumer, b.source, b.key) > (coalesce(last.consumer, ''), coalesce(last.source, ''), coalesce(last.key, ''))
             ORDER BY b.consumer, b.source, b.key, b.id LIMIT 1)
            UNION ALL
            SELECT n.consumer, n.source, n.key, n.id, l.number + 1 FROM line l CROSS JOIN LATERAL (
                SELECT b.consumer, b.source, b.key, b.id FROM outbox.inbox_message b
                WHERE b.behind AND (b.consumer, b.source, b.key) > (l.consumer, l.source, l.key)
                ORDER BY b.consumer, b.source, b.key, b.id LIMIT 1) n
            WHERE l.number < lines_max
        )
        SELECT l.id FROM line l ORDER BY l.number);
    PERFORM setval('outbox.inbox_looked_at', coalesce(first_behind[lines_max], 0));
    UPDATE outbox.inbox_message m SET behind = false
    WHERE m.behind AND m.id = ANY (ARRAY(
        SELECT s.id FROM outbox.inbox_message s
        WHERE s.id = ANY (first_behind)
          -- Not NOT EXISTS: the planner may make a join of that, over the whole of every line.
          AND s.id = (
            SELECT e.id FROM outbox.inbox_message e
            WHERE e.consumer = s.consumer AND e.source = s.source AND e.key = s.key AND e.done_at IS NULL
            ORDER BY e.id LIMIT 1)
        FOR NO KEY UPDATE SKIP LOCKED));
END $$;

-- As before but for that look.
CREATE OR REPLACE FUNCTION outbox.inbox_claim(
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
        PERFORM outbox.inbox_wake_stranded();
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

REVOKE ALL ON FUNCTION outbox.inbox_wake_stranded FROM PUBLIC;

-- For the operator: how often the commands of a scope were tried again, over the records that are there. A walk over the table. How
-- often an answer was read again is counted for all scopes together: to count it by scope a replay would have to write.
CREATE VIEW outbox.idempotency_by_scope AS
SELECT r.scope,
       count(*) AS commands,
       count(*) FILTER (WHERE r.status = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE r.status = 'failed_final') AS failed_final,
       count(*) FILTER (WHERE r.status IN ('processing', 'failed_retryable')) AS unfinished,
       count(*) FILTER (WHERE r.attempt_count > 1) AS tried_again,
       -- Each was granted after a failure or a takeover: one command still, and one answer.
       sum(r.attempt_count - 1) AS attempts_beyond_the_first,
       max(r.attempt_count) AS most_attempts
FROM outbox.idempotency_request r
GROUP BY r.scope;

GRANT SELECT ON outbox.idempotency_by_scope TO outbox_operator;
