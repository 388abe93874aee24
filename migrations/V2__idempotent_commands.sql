-- Oldest outboxd schema that may run on this: 1
--
-- Idempotent commands: the same command attempted many times has one effect and one stable answer.
--
-- The life of a row in outbox.idempotency_request, enforced by the constraints below:
--
--                  succeed
--   processing ───────────────▶ succeeded         replayed for as long as the row is there
--    │  ▲  │         fail, for good
--    │  │  └──────────────────▶ failed_final      refused for as long as the row is there
--    │  └── claim ──┐
--    └── fail ──▶ failed_retryable
--
-- A processing row whose locked_until has passed is stale. That is not a state of its own: the process that claimed it may be
-- dead, or slow. attempt_count is the fencing token: each grant raises it, and a call that ends an attempt must name its own.
--
-- An expired row is still a row until it is purged. Were it treated as absent, a claim would have to reset it: at one instant a
-- stable answer would turn into a second execution, and a read into a write.
--
-- Times are clock_timestamp(), never now(): that is when the transaction began, long ago for one that has waited.
--
-- SQLSTATEs of the functions here:
--   P4000 scope missing, P4001 key missing, P4002 key used for another request, P4003 hash missing, P4004 an argument out of its
--   limits, P4010 / P4011 / P4012 succeed / fail / heartbeat refused (the attempt is over), P4013 abandon refused,
--   P4029 the command is under way or stale, P4030 it has failed for good, P4099 its state changes too fast to be read.

-- ── Commands ───────────────────────────────────────────────────────────────────────────────────

-- The rules of a row are constraints of domains. PostgreSQL parses and plans the CHECKs of a table anew in every statement, which
-- took longer for twelve of them than the INSERT itself; what a domain says it prepares once a session. A rule for one column is
-- a domain of that column. A rule for several columns is a constraint of idempotency_state, and the table's one CHECK casts each
-- row to it. An error names the rule that is broken.
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

-- The first five draw the diagram above.
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

CREATE TABLE outbox.idempotency_request (
    -- Wide fixed columns come first: no padding.
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL,
    locked_until     timestamptz,
    heartbeat_at     timestamptz,
    completed_at     timestamptz,
    attempt_count    outbox.idempotency_attempt NOT NULL,
    response_code    integer,
    scope            outbox.idempotency_scope_name NOT NULL,
    key              outbox.idempotency_key_name NOT NULL,
    request_hash     outbox.idempotency_hash NOT NULL,
    status           outbox.idempotency_status NOT NULL,
    claimed_by       text NOT NULL,
    result_type      text,
    result_id        text,
    -- Of the last attempt that failed; kept while the next one is under way.
    failure_code     text,
    failure_message  text,
    response_body    outbox.idempotency_body,

    CONSTRAINT idempotency_request_pkey PRIMARY KEY (scope, key),
    -- Always true, unless the cast is refused.
    CONSTRAINT idempotency_record_is_of_a_lawful_state CHECK (
        ROW(created_at, expires_at, locked_until, completed_at, response_code, status, result_type, result_id, failure_code,
            failure_message, response_body)::outbox.idempotency_state IS DISTINCT FROM NULL)
)
WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- What has not succeeded, among millions of rows that have: attempts under way by the end of their lock, failures by their time.
-- Not by status: the calls that end an attempt ask for that, and the planner would prefer so small an index to the primary key,
-- and read every claim that ended lately.
CREATE INDEX idempotency_request_open ON outbox.idempotency_request (locked_until, updated_at)
    WHERE locked_until IS NOT NULL OR failure_code IS NOT NULL;
-- For the purge, without the rows that it never takes: they would stay at the old end of the index, and every step would read them.
CREATE INDEX idempotency_request_purgeable ON outbox.idempotency_request (expires_at) WHERE completed_at IS NOT NULL;

COMMENT ON TABLE outbox.idempotency_request IS 'Commands and their answers. Use the functions outbox.idempotency_…; never write here.';
COMMENT ON COLUMN outbox.idempotency_request.attempt_count IS 'The fencing token: succeed, fail and heartbeat must name it.';
COMMENT ON COLUMN outbox.idempotency_request.expires_at IS 'Not purged before; answered until it is purged.';

-- Counters over the life of the server. The sequences are unlogged: nextval then writes no WAL and assigns no transaction id, so
-- that a replay stays a read, and the count survives a claim that is rolled back. They start again at zero after a crash or a
-- failover. nextval is refused in a READ ONLY transaction and on a standby, so a claim is as well.
CREATE UNLOGGED SEQUENCE outbox.idempotency_granted;
CREATE UNLOGGED SEQUENCE outbox.idempotency_replayed;
CREATE UNLOGGED SEQUENCE outbox.idempotency_conflicted;
CREATE UNLOGGED SEQUENCE outbox.idempotency_taken_over;

-- ── Names, spans and hashes ────────────────────────────────────────────────────────────────────

-- Functions with a RETURN body are bound to their operators when they are created, and inlined in the statement that calls them:
-- they need no search_path, and cost no call.

CREATE FUNCTION outbox.is_blank(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(btrim(name, E' \t\n\r\f\x0B'), '') = '';

-- 1 to 255 bytes, not all of them whitespace.
CREATE FUNCTION outbox.is_name(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN NOT outbox.is_blank(name) AND octet_length(name) <= 255;

-- The range of a lock or a lease: more than nothing and at most a day.
CREATE FUNCTION outbox.is_lock_span(span interval) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN outbox.seconds(span) > 0 AND outbox.seconds(span) <= 86400;

-- At least the lock and at most ten years.
CREATE FUNCTION outbox.is_expiry_span(span interval, lock_for interval) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN outbox.seconds(span) >= outbox.seconds(lock_for) AND outbox.seconds(span) <= 315576000;

-- A canonical hash for callers without one of their own: the order of keys, whitespace and repeated keys (the last one counts) do
-- not matter. Numbers are exact: 1e2 is 100, but 1.0 is not 1. The hash of NULL is NULL, which a claim refuses.
CREATE FUNCTION outbox.request_hash(request jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(convert_to(request::text, 'UTF8'))
$$;

-- How error messages name a command. They end up in logs, where the key itself must not appear.
CREATE FUNCTION outbox.idempotency_name(scope text, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('Scope %s, key with md5 %s….', scope, left(md5(key), 8))
$$;

-- The scope of an operation of a tenant.
CREATE FUNCTION outbox.idempotency_scope(tenant text, operation text) RETURNS text
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

REVOKE ALL ON FUNCTION outbox.is_blank, outbox.is_name, outbox.is_lock_span, outbox.is_expiry_span, outbox.request_hash,
    outbox.idempotency_name, outbox.idempotency_scope FROM PUBLIC;
-- idempotency_scope runs with the rights of its caller, and calls is_blank.
GRANT EXECUTE ON FUNCTION outbox.request_hash, outbox.idempotency_scope, outbox.is_blank TO outbox_producer, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.idempotency_name TO outbox_operator;

-- ── Claim ──────────────────────────────────────────────────────────────────────────────────────

-- What a claim returns. kind: new, replay, active, stale, retryable or final.
CREATE TYPE outbox.idempotency_answer AS (
    kind             text,
    granted          boolean,
    -- Set only if the attempt is granted: the token that is needed to end it.
    attempt          integer,
    result_type      text,
    result_id        text,
    response_code    integer,
    response_body    jsonb,
    failure_code     text,
    failure_message  text,
    -- Until the lock of an active attempt runs out.
    retry_after      interval
);

-- Refuses a scope and a key that cannot name a command.
CREATE FUNCTION outbox.idempotency_check_name(scope text, key text) RETURNS void
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

-- Refuses the other arguments of a claim that are wrong. Called only where one of them is.
CREATE FUNCTION outbox.idempotency_check_claim(request_hash bytea, lock_for interval, claimed_by text, expires_in interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF request_hash IS NULL OR request_hash = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4003', MESSAGE = 'the hash of the request is missing',
            DETAIL = 'The hash is NULL or empty.', HINT = 'Pass outbox.request_hash(request), or a SHA-256 of your own.';
    ELSIF octet_length(request_hash) NOT BETWEEN 16 AND 64 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'that is no hash of a request',
            DETAIL = format('It has %s bytes, not 16 to 64.', octet_length(request_hash)),
            HINT = 'Name the arguments behind the hash: lock_for => …. Pass outbox.request_hash(request), or a SHA-256 of your own.';
    ELSIF outbox.is_lock_span(lock_for) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'lock_for is out of range',
            DETAIL = format('It is %s.', coalesce(lock_for::text, 'NULL')),
            HINT = 'More than nothing and at most a day; work that takes longer sends heartbeats.';
    ELSIF outbox.is_expiry_span(expires_in, lock_for) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'expires_in is out of range',
            DETAIL = format('It is %s, lock_for is %s.', coalesce(expires_in::text, 'NULL'), lock_for),
            HINT = 'At least lock_for and at most ten years: longer than any client retries.';
    ELSIF octet_length(claimed_by) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'claimed_by is too long',
            DETAIL = format('It has %s bytes, not at most 255.', octet_length(claimed_by)), HINT = 'Pass a host and a process.';
    END IF;
END $$;

-- The same rules as one expression, for the first claim of a command. Evaluated before any time is computed.
CREATE FUNCTION outbox.idempotency_is_claim(
    scope text, key text, request_hash bytea, claimed_by text, lock_for interval, expires_in interval
) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN outbox.is_name(scope) AND outbox.is_name(key)
    AND octet_length(request_hash) BETWEEN 16 AND 64
    AND outbox.is_lock_span(lock_for) AND outbox.is_expiry_span(expires_in, lock_for)
    AND (claimed_by IS NULL OR octet_length(claimed_by) <= 255);

-- Grants the next attempt, or returns NULL if another session was faster: the attempt that was read must still be the last one, in
-- the same state and under the same lock. Of two sessions that have read it, the second waits for the first and finds it changed.
CREATE FUNCTION outbox.idempotency_grant_again(
    stored outbox.idempotency_request, lock_for interval, claimed_by text, expires_in interval
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    granted integer;
BEGIN
    UPDATE outbox.idempotency_request r
    SET status = 'processing', attempt_count = r.attempt_count + 1, claimed_by = claimed_by, claimed_at = at, updated_at = at,
        heartbeat_at = NULL, locked_until = outbox.later(at, lock_for), expires_at = greatest(r.expires_at, outbox.later(at, expires_in))
    WHERE r.scope = stored.scope AND r.key = stored.key AND r.attempt_count = stored.attempt_count
      AND r.status = stored.status AND r.locked_until IS NOT DISTINCT FROM stored.locked_until
    RETURNING r.attempt_count INTO granted;
    RETURN granted;
END $$;

-- Claims that are neither a replay nor the first of their command, and first claims that lost a race or have a wrong argument.
CREATE FUNCTION outbox.idempotency_claim_unanswered(
    scope text, key text, request_hash bytea, lock_for interval, take_over boolean, claimed_by text, expires_in interval
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz;
    stored outbox.idempotency_request;
    kind text;
    attempt integer;
    counted bigint;
BEGIN
    PERFORM outbox.idempotency_check_name(scope, key);
    PERFORM outbox.idempotency_check_claim(request_hash, lock_for, claimed_by, expires_in);
    -- More than one round only where another session made, granted, ended or purged the command between two statements.
    FOR round IN 1..100 LOOP
        SELECT r.* INTO stored FROM outbox.idempotency_request r WHERE r.scope = scope AND r.key = key;
        at := clock_timestamp();
        IF NOT FOUND THEN
            INSERT INTO outbox.idempotency_request (created_at, updated_at, claimed_at, expires_at, locked_until,
                attempt_count, scope, key, request_hash, status, claimed_by)
            VALUES (at, at, at, outbox.later(at, expires_in), outbox.later(at, lock_for), 1, scope, key, request_hash, 'processing',
                    coalesce(claimed_by, 'pid ' || pg_backend_pid()))
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
            counted := nextval('outbox.idempotency_granted');
            RETURN ROW('new', true, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.idempotency_answer;
        END IF;
        IF stored.request_hash <> request_hash THEN
            counted := nextval('outbox.idempotency_conflicted');
            RAISE EXCEPTION USING ERRCODE = 'P4002', MESSAGE = 'the idempotency key was used for another request',
                DETAIL = outbox.idempotency_name(scope, key),
                HINT = 'A retry repeats the request as it was; another request needs a key of its own. Do not retry.';
        END IF;
        kind := CASE stored.status
            WHEN 'succeeded' THEN 'replay'
            WHEN 'failed_final' THEN 'final'
            WHEN 'failed_retryable' THEN 'retryable'
            WHEN 'processing' THEN CASE WHEN stored.locked_until > at THEN 'active' ELSE 'stale' END
        END;
        IF kind = 'replay' THEN
            counted := nextval('outbox.idempotency_replayed');
        ELSIF kind = 'retryable' OR kind = 'stale' AND take_over THEN
            attempt := outbox.idempotency_grant_again(stored, lock_for, coalesce(claimed_by, 'pid ' || pg_backend_pid()),
                                                      expires_in);
            CONTINUE WHEN attempt IS NULL;
            counted := nextval('outbox.idempotency_granted');
            IF kind = 'stale' THEN
                counted := nextval('outbox.idempotency_taken_over');
            END IF;
        END IF;
        RETURN ROW(kind, attempt IS NOT NULL, attempt, stored.result_type, stored.result_id, stored.response_code, stored.response_body,
                   stored.failure_code, stored.failure_message,
                   CASE WHEN kind = 'active' THEN stored.locked_until - at END)::outbox.idempotency_answer;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'P4099', MESSAGE = 'the state of the command cannot be told',
        DETAIL = outbox.idempotency_name(scope, key) || ' It changed between two statements a hundred times in a row.',
        HINT = 'Retry; if it stays, look for what makes and deletes rows of outbox.idempotency_request.';
END $$;

-- May this command run, or what was its answer? A replay takes no row lock, no transaction id and no WAL.
--
-- It reads first, and inserts only where it finds nothing: an INSERT would wait for a session that is about to end an attempt,
-- although the answer is that one is under way. Reading and inserting are two statements: in one, the loser of two first claims
-- would wait, and then see nothing with the snapshot it began with. idempotency_claim_unanswered does the rest.
--
-- Setting a search_path would cost a replay a tenth of its time, so every name is qualified.
CREATE FUNCTION outbox.idempotency_claim(
    scope text, key text, request_hash bytea, lock_for interval DEFAULT '30 seconds', take_over boolean DEFAULT false,
    claimed_by text DEFAULT NULL, expires_in interval DEFAULT '7 days'
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    answer outbox.idempotency_answer;
    counted pg_catalog.int8;
    at pg_catalog.timestamptz;
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
    ELSIF NOT FOUND AND outbox.idempotency_is_claim(scope, key, request_hash, claimed_by, lock_for, expires_in) THEN
        at := pg_catalog.clock_timestamp();
        INSERT INTO outbox.idempotency_request (created_at, updated_at, claimed_at, expires_at, locked_until, attempt_count, scope, key,
                                                request_hash, status, claimed_by)
        VALUES (at, at, at, outbox.later(at, expires_in), outbox.later(at, lock_for), 1, scope, key, request_hash, 'processing',
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
    RETURN outbox.idempotency_claim_unanswered(scope, key, request_hash, lock_for, take_over, claimed_by, expires_in);
END $$;

CREATE FUNCTION outbox.idempotency_claim(
    tenant text, operation text, key text, request_hash bytea, lock_for interval DEFAULT '30 seconds',
    take_over boolean DEFAULT false, claimed_by text DEFAULT NULL, expires_in interval DEFAULT '7 days'
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN outbox.idempotency_claim(outbox.idempotency_scope(tenant, operation), key, request_hash, lock_for, take_over,
                                    claimed_by, expires_in);
END $$;

-- The same for callers who prefer exceptions: what it returns is granted, or a replay.
CREATE FUNCTION outbox.idempotency_begin(
    scope text, key text, request_hash bytea, lock_for interval DEFAULT '30 seconds', take_over boolean DEFAULT false,
    claimed_by text DEFAULT NULL, expires_in interval DEFAULT '7 days'
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer outbox.idempotency_answer :=
        outbox.idempotency_claim(scope, key, request_hash, lock_for, take_over, claimed_by, expires_in);
BEGIN
    IF answer.granted OR answer.kind = 'replay' THEN
        RETURN answer;
    ELSIF answer.kind = 'active' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4029', MESSAGE = 'the command is being executed',
            DETAIL = format('%s Its lock runs out in %s s.', outbox.idempotency_name(scope, key),
                            ceil(extract(epoch FROM answer.retry_after))),
            HINT = 'Retry with the same key, later.';
    ELSIF answer.kind = 'stale' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4029', MESSAGE = 'the command was begun, and its lock has run out',
            DETAIL = outbox.idempotency_name(scope, key),
            HINT = 'Find out what became of it (outbox.idempotency_classify); where it is safe, retry with take_over => true.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'P4030', MESSAGE = 'the command has failed for good',
        DETAIL = format('%s Failure: %s', outbox.idempotency_name(scope, key), answer.failure_code),
        HINT = 'Do not retry: a new attempt is a new command with a new key.';
END $$;

CREATE FUNCTION outbox.idempotency_begin(
    tenant text, operation text, key text, request_hash bytea, lock_for interval DEFAULT '30 seconds',
    take_over boolean DEFAULT false, claimed_by text DEFAULT NULL, expires_in interval DEFAULT '7 days'
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN outbox.idempotency_begin(outbox.idempotency_scope(tenant, operation), key, request_hash, lock_for, take_over,
                                    claimed_by, expires_in);
END $$;

REVOKE ALL ON FUNCTION outbox.idempotency_check_name, outbox.idempotency_check_claim, outbox.idempotency_is_claim,
    outbox.idempotency_grant_again, outbox.idempotency_claim_unanswered,
    outbox.idempotency_claim(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_claim(text, text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, text, bytea, interval, boolean, text, interval) FROM PUBLIC;
-- Applications write through functions alone: with rights on the table they could bypass the fence.
GRANT EXECUTE ON FUNCTION
    outbox.idempotency_claim(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_claim(text, text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, text, bytea, interval, boolean, text, interval)
    TO outbox_producer, outbox_operator;

-- ── The end of an attempt ──────────────────────────────────────────────────────────────────────

-- Says why an attempt may not do what it asked for.
CREATE FUNCTION outbox.idempotency_refuse(code text, what text, scope text, key text, attempt integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored outbox.idempotency_request;
BEGIN
    PERFORM outbox.idempotency_check_name(scope, key);
    IF attempt IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the attempt is missing', DETAIL = outbox.idempotency_name(scope, key),
            HINT = 'Pass the attempt that the claim answered.';
    END IF;
    SELECT r.* INTO stored FROM outbox.idempotency_request r WHERE r.scope = scope AND r.key = key;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what,
        DETAIL = outbox.idempotency_name(scope, key) || CASE
            WHEN stored.scope IS NULL THEN ' There is no such claim.'
            WHEN stored.attempt_count = attempt THEN format(' Attempt %s is %s already.', attempt, stored.status)
            WHEN stored.attempt_count > attempt THEN format(' Attempt %s was followed by attempt %s.', attempt, stored.attempt_count)
            ELSE format(' Attempt %s was never granted.', attempt)
        END,
        HINT = 'This attempt is over: roll back what it did, and claim again with the same key to get the answer.';
END $$;

-- Is this an answer that may be kept?
CREATE FUNCTION outbox.idempotency_is_answer(result_type text, result_id text, response_body jsonb) RETURNS boolean
LANGUAGE sql STABLE
RETURN (result_id IS NULL OR result_type IS NOT NULL) AND (response_body IS NULL OR octet_length(response_body::text) <= 65536);

-- Names the argument for which it is not.
CREATE FUNCTION outbox.idempotency_refuse_answer(result_type text, result_id text, response_body jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF result_id IS NOT NULL AND result_type IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'result_type is missing',
            DETAIL = 'A result_id needs a result_type.', HINT = 'Pass what the result is, such as order.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'response_body is too long',
        DETAIL = format('It has %s bytes as text, not at most 65536.', octet_length(response_body::text)),
        HINT = 'Keep what identifies the result, and let a replay read the rest from where it is.';
END $$;

-- When the answer expires. An attempt may take long: its answer can be asked for as long as that of a short one. Changed only
-- where half of that time is over, because expires_at is indexed.
CREATE FUNCTION outbox.idempotency_kept_until(expires_at timestamptz, claimed_at timestamptz, at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN CASE WHEN expires_at - at < (expires_at - claimed_at) / 2 THEN at + (expires_at - claimed_at) ELSE expires_at END;

-- Refuses to end an attempt that is not under way, unless it has ended with this very answer: a client that lost the reply to
-- its first call repeats it.
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

-- Ends an attempt well; true where that is new. A lock that has run out does not prevent it, a later attempt does.
-- Without a search_path to set: every name is qualified.
CREATE FUNCTION outbox.idempotency_succeed(
    scope text, key text, attempt integer, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    response_code integer DEFAULT NULL, response_body jsonb DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    at pg_catalog.timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF NOT outbox.idempotency_is_answer(result_type, result_id, response_body) THEN
        PERFORM outbox.idempotency_refuse_answer(result_type, result_id, response_body);
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

CREATE FUNCTION outbox.idempotency_check_failure(retryable boolean, failure_code text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF retryable IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'retryable is missing',
            DETAIL = 'It is NULL.', HINT = 'Pass whether the command may be tried again.';
    ELSIF outbox.is_blank(failure_code) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'failure_code is missing',
            DETAIL = 'It is NULL or blank.', HINT = 'Pass a short code such as card_declined.';
    ELSIF octet_length(failure_code) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'failure_code is too long',
            DETAIL = format('It has %s bytes, not at most 255.', octet_length(failure_code)),
            HINT = 'Pass a short code such as card_declined, and the rest as failure_message.';
    END IF;
END $$;

-- Ends an attempt badly: to be tried again, or for good. True where that is new.
CREATE FUNCTION outbox.idempotency_fail(
    scope text, key text, attempt integer, retryable boolean, failure_code text, failure_message text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    -- Cut rather than refused: a long message must not keep a failure from being recorded.
    message text := left(failure_message, 1000);
    ended text := CASE WHEN retryable THEN 'failed_retryable' ELSE 'failed_final' END;
BEGIN
    PERFORM outbox.idempotency_check_failure(retryable, failure_code);
    UPDATE outbox.idempotency_request r
    SET status = ended, failure_code = failure_code, failure_message = message, locked_until = NULL, updated_at = at,
        completed_at = CASE WHEN NOT retryable THEN at END,
        expires_at = outbox.idempotency_kept_until(r.expires_at, r.claimed_at, at)
    WHERE r.scope = scope AND r.key = key AND r.status = 'processing' AND r.attempt_count = attempt;
    IF FOUND THEN
        RETURN true;
    END IF;
    PERFORM FROM outbox.idempotency_request r
    WHERE r.scope = scope AND r.key = key AND r.status = ended AND r.attempt_count = attempt
      AND (r.failure_code, r.failure_message) IS NOT DISTINCT FROM (failure_code, message);
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_refuse('P4011', 'the attempt may not fail', scope, key, attempt);
    END IF;
    RETURN false;
END $$;

-- Extends the lock of a long attempt, never shortens it; returns until when.
CREATE FUNCTION outbox.idempotency_heartbeat(scope text, key text, attempt integer, lock_for interval DEFAULT '30 seconds') RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    until timestamptz;
BEGIN
    IF outbox.is_lock_span(lock_for) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'lock_for is out of range',
            DETAIL = format('It is %s.', coalesce(lock_for::text, 'NULL')), HINT = 'More than nothing and at most a day.';
    END IF;
    UPDATE outbox.idempotency_request r
    SET locked_until = greatest(r.locked_until, outbox.later(at, lock_for)), heartbeat_at = at, updated_at = at
    WHERE r.scope = scope AND r.key = key AND r.status = 'processing' AND r.attempt_count = attempt
    RETURNING r.locked_until INTO until;
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_refuse('P4012', 'the attempt has no lock to extend', scope, key, attempt);
    END IF;
    RETURN until;
END $$;

REVOKE ALL ON FUNCTION outbox.idempotency_refuse, outbox.idempotency_is_answer, outbox.idempotency_refuse_answer,
    outbox.idempotency_kept_until, outbox.idempotency_check_repeated, outbox.idempotency_succeed, outbox.idempotency_check_failure,
    outbox.idempotency_fail, outbox.idempotency_heartbeat FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.idempotency_succeed, outbox.idempotency_fail, outbox.idempotency_heartbeat
    TO outbox_producer, outbox_operator;

-- ── Commands that were not ended ──────────────────────────────────────────────────────────────────

-- What to do about a command that is stale, or that may be retried and has expired; NULL for any other. Only the application's own
-- tables can tell whether its effect exists, so the caller finds out: true, false, or NULL if it cannot be known.
CREATE FUNCTION outbox.idempotency_classify(
    request outbox.idempotency_request, effect_exists boolean, attempts_max integer DEFAULT 5,
    at timestamptz DEFAULT clock_timestamp()
) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (attempts_max >= 1 AND at IS NOT NULL) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'a claim cannot be classified by that',
            DETAIL = 'attempts_max is NULL or less than one, or the time is NULL.', HINT = 'Leave them out.';
    END IF;
    RETURN CASE
        WHEN (request.status = 'processing' AND request.locked_until <= at
              OR request.status = 'failed_retryable' AND request.expires_at <= at) IS NOT TRUE THEN NULL
        WHEN effect_exists THEN 'already_succeeded'
        WHEN effect_exists IS NULL THEN 'needs_a_person'
        -- No client of it retries any more.
        WHEN request.expires_at <= at THEN 'abandoned'
        WHEN request.attempt_count >= attempts_max THEN 'needs_a_person'
        ELSE 'safe_to_retry'
    END;
END $$;

-- Says why a command may not be abandoned.
CREATE FUNCTION outbox.idempotency_refuse_abandon(scope text, key text, attempt integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    stored outbox.idempotency_request;
BEGIN
    PERFORM outbox.idempotency_check_name(scope, key);
    IF attempt IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the attempt is missing', DETAIL = outbox.idempotency_name(scope, key),
            HINT = 'Pass the attempt_count that outbox.idempotency_expired shows.';
    END IF;
    SELECT r.* INTO stored FROM outbox.idempotency_request r WHERE r.scope = scope AND r.key = key;
    RAISE EXCEPTION USING ERRCODE = 'P4013', MESSAGE = 'the command may not be abandoned',
        DETAIL = outbox.idempotency_name(scope, key) || CASE
            WHEN stored.scope IS NULL THEN ' There is no such command.'
            WHEN stored.attempt_count <> attempt THEN format(' Its last attempt is %s, not %s.', stored.attempt_count, attempt)
            WHEN stored.completed_at IS NOT NULL THEN format(' It is %s.', stored.status)
            WHEN stored.locked_until > clock_timestamp() THEN ' It is being executed.'
            ELSE ' It has not expired.'
        END,
        HINT = 'Look again at outbox.idempotency_expired: only what it shows may be abandoned.';
END $$;

-- Ends an expired command that no client will retry: failed for good with the code abandoned, and so purged in time. True if that
-- is new. It ends only the attempt that the caller has read: a client that returns at this moment gets its next attempt.
CREATE FUNCTION outbox.idempotency_abandon(scope text, key text, attempt integer, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    UPDATE outbox.idempotency_request r
    SET status = 'failed_final', failure_code = 'abandoned', locked_until = NULL, updated_at = at, completed_at = at,
        -- Without a reason: how it failed before.
        failure_message = left(coalesce(reason, nullif(concat_ws(': ', r.failure_code, r.failure_message), '')), 1000)
    WHERE r.scope = scope AND r.key = key AND r.attempt_count = attempt AND r.expires_at <= at
      AND (r.status = 'failed_retryable' OR r.status = 'processing' AND r.locked_until <= at);
    IF FOUND THEN
        RETURN true;
    END IF;
    PERFORM FROM outbox.idempotency_request r
    WHERE r.scope = scope AND r.key = key AND r.attempt_count = attempt AND r.status = 'failed_final' AND r.failure_code = 'abandoned';
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_refuse_abandon(scope, key, attempt);
    END IF;
    RETURN false;
END $$;

-- Ends commands whose lock ran out this long ago, for good and with the code orphaned. It is unknown what became of them, so none of
-- them runs again by itself. The relay's maintenance calls it if that is configured. Returns how many; skips rows that another
-- session is ending.
CREATE FUNCTION outbox.idempotency_end_orphaned(older_than interval, rows_max integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    old timestamptz;
    ended bigint;
BEGIN
    PERFORM outbox.check_purge_arguments(older_than, rows_max);
    old := outbox.later(moment, -older_than);
    UPDATE outbox.idempotency_request r
    SET status = 'failed_final', failure_code = 'orphaned', locked_until = NULL, updated_at = moment, completed_at = moment,
        failure_message = format('nobody ended attempt %s, whose lock ran out at %s', r.attempt_count,
                                 to_char(r.locked_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
        expires_at = outbox.idempotency_kept_until(r.expires_at, r.claimed_at, moment)
    WHERE r.ctid = ANY (ARRAY(
        SELECT o.ctid FROM outbox.idempotency_request o WHERE o.locked_until < old
        ORDER BY o.locked_until LIMIT rows_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END $$;

-- Removes what has its answer and is expired, an hour after its end at the earliest: once it is gone its key starts again at
-- attempt 1, and a process that ran that attempt before should be gone as well. A command that is under way, stale or to be
-- retried stays, however old, because it is unknown what became of it.
CREATE FUNCTION outbox.purge_idempotency(rows_max integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM outbox.check_purge_arguments(interval '1 hour', rows_max);
    DELETE FROM outbox.idempotency_request
    WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM outbox.idempotency_request r
        WHERE r.expires_at < moment AND r.completed_at < moment - interval '1 hour'
        ORDER BY r.expires_at LIMIT rows_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

REVOKE ALL ON FUNCTION outbox.idempotency_classify, outbox.idempotency_refuse_abandon, outbox.idempotency_abandon,
    outbox.idempotency_end_orphaned, outbox.purge_idempotency FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.idempotency_classify, outbox.idempotency_abandon TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.idempotency_end_orphaned, outbox.purge_idempotency TO outbox_relay, outbox_operator;

-- ── Merging regions ────────────────────────────────────────────────────────────────────────────

-- A record and the region that it comes from. Without a request: nothing is known there. A version with conflict needs a person.
-- With a record: several regions executed the command, with different results; the record is the earliest, and the others have to
-- be compensated. With nothing but scope and key: two requests ran under one key.
CREATE TYPE outbox.idempotency_version AS (
    region    text,
    conflict  boolean,
    request   outbox.idempotency_request
);

-- Does the first record win? A total order: a success wins, the earliest, because its answer was given; of the rest the latest,
-- which knows most; then the region; and of one region at one instant either, as long as it is always the same.
CREATE FUNCTION outbox.idempotency_outranks(a outbox.idempotency_version, b outbox.idempotency_version) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    x outbox.idempotency_request := a.request;
    y outbox.idempotency_request := b.request;
BEGIN
    IF (x.status = 'succeeded') <> (y.status = 'succeeded') THEN
        RETURN x.status = 'succeeded';
    ELSIF x.status = 'succeeded' AND x.completed_at <> y.completed_at THEN
        RETURN x.completed_at < y.completed_at;
    ELSIF x.status <> 'succeeded' AND x.updated_at <> y.updated_at THEN
        RETURN x.updated_at > y.updated_at;
    ELSIF a.region <> b.region THEN
        RETURN a.region COLLATE "C" < b.region COLLATE "C";
    END IF;
    -- The merge takes these from both records, so they may not decide it.
    x.attempt_count := 1;
    y.attempt_count := 1;
    x.expires_at := 'infinity';
    y.expires_at := 'infinity';
    RETURN hash_record_extended(x, 0) < hash_record_extended(y, 0);
END $$;

-- One record of two, independent of order and grouping. Records of two commands are refused before anything else is compared. The
-- attempt and the expiry are the higher of both: no token that the other region has granted is granted again, and no client's
-- time to retry is cut.
CREATE FUNCTION outbox.idempotency_merge(a outbox.idempotency_version, b outbox.idempotency_version) RETURNS outbox.idempotency_version
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    won outbox.idempotency_version;
    x outbox.idempotency_request := a.request;
    y outbox.idempotency_request := b.request;
BEGIN
    IF (x.scope, x.key) <> (y.scope, y.key) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'two commands cannot be merged',
            DETAIL = outbox.idempotency_name(x.scope, x.key) || ' ' || outbox.idempotency_name(y.scope, y.key),
            HINT = 'Join the regions by scope and key.';
    ELSIF a.conflict AND x.request_hash IS NULL OR b.conflict AND y.request_hash IS NULL OR x.request_hash <> y.request_hash THEN
        won.conflict := true;
        won.request.scope := coalesce(x.scope, y.scope);
        won.request.key := coalesce(x.key, y.key);
        RETURN won;
    ELSIF x.scope IS NULL AND y.scope IS NULL THEN
        -- Nothing is known in either region. Of the two names the same is kept in both orders.
        won.region := least(a.region COLLATE "C", b.region COLLATE "C");
        won.conflict := false;
        RETURN won;
    ELSIF x.scope IS NULL OR y.scope IS NULL THEN
        won := CASE WHEN x.scope IS NULL THEN b ELSE a END;
        RETURN won;
    END IF;
    won := CASE WHEN outbox.idempotency_outranks(a, b) THEN a ELSE b END;
    won.conflict := coalesce(a.conflict, false) OR coalesce(b.conflict, false)
        OR x.status = 'succeeded' AND y.status = 'succeeded'
           AND (x.result_type, x.result_id, x.response_code, x.response_body)
               IS DISTINCT FROM (y.result_type, y.result_id, y.response_code, y.response_body);
    won.request.attempt_count := greatest(x.attempt_count, y.attempt_count);
    won.request.expires_at := greatest(x.expires_at, y.expires_at);
    RETURN won;
END $$;

CREATE FUNCTION outbox.idempotency_merge(
    a outbox.idempotency_request, a_region text, b outbox.idempotency_request, b_region text
) RETURNS outbox.idempotency_version
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (a_region <> '' AND b_region <> '') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the region of a record is missing',
            DETAIL = 'A region is NULL or empty.', HINT = 'Every region has a name, the same everywhere.';
    END IF;
    RETURN outbox.idempotency_merge(ROW(a_region, false, a)::outbox.idempotency_version,
                                    ROW(b_region, false, b)::outbox.idempotency_version);
END $$;

-- An UPDATE, not a DELETE and an INSERT: an attempt that waits for the record to end it must find it again.
CREATE FUNCTION outbox.idempotency_overwrite(record outbox.idempotency_request) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    UPDATE outbox.idempotency_request r
    SET created_at = record.created_at, updated_at = record.updated_at, claimed_at = record.claimed_at, expires_at = record.expires_at,
        locked_until = record.locked_until, heartbeat_at = record.heartbeat_at, completed_at = record.completed_at,
        attempt_count = record.attempt_count, response_code = record.response_code, request_hash = record.request_hash,
        status = record.status, claimed_by = record.claimed_by, result_type = record.result_type, result_id = record.result_id,
        failure_code = record.failure_code, failure_message = record.failure_message, response_body = record.response_body
    WHERE r.scope = record.scope AND r.key = record.key;
END $$;

-- Stores a merged record in this region, whose name is given as in the merge, and returns what is there now. What has happened
-- here since the record was read is merged into it first, under its lock. Where nothing is known, or two requests ran under one
-- key, nothing is stored.
CREATE FUNCTION outbox.idempotency_store(merged outbox.idempotency_version, region text) RETURNS outbox.idempotency_version
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here outbox.idempotency_request;
    stored outbox.idempotency_version;
BEGIN
    IF outbox.is_blank(region) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the region of a record is missing',
            DETAIL = 'The region is NULL or blank.', HINT = 'Pass the name of this region, the same as in the merge.';
    END IF;
    FOR round IN 1..100 LOOP
        SELECT r.* INTO here FROM outbox.idempotency_request r
        WHERE r.scope = (merged.request).scope AND r.key = (merged.request).key FOR UPDATE;
        stored := outbox.idempotency_merge(merged, ROW(region, false, here)::outbox.idempotency_version);
        IF (stored.request).request_hash IS NULL OR stored.request IS NOT DISTINCT FROM here THEN
            RETURN stored;
        ELSIF here.scope IS NOT NULL THEN
            PERFORM outbox.idempotency_overwrite(stored.request);
            RETURN stored;
        END IF;
        INSERT INTO outbox.idempotency_request SELECT (stored.request).* ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN stored;
        END IF;
        -- A claim was faster: merge with what it wrote.
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'P4099', MESSAGE = 'the state of the command cannot be told',
        DETAIL = outbox.idempotency_name((merged.request).scope, (merged.request).key)
                 || ' It changed between two statements a hundred times in a row.',
        HINT = 'Retry; if it stays, look for what makes and deletes rows of outbox.idempotency_request.';
END $$;

REVOKE ALL ON FUNCTION outbox.idempotency_outranks, outbox.idempotency_overwrite, outbox.idempotency_store,
    outbox.idempotency_merge(outbox.idempotency_version, outbox.idempotency_version),
    outbox.idempotency_merge(outbox.idempotency_request, text, outbox.idempotency_request, text) FROM PUBLIC;
-- A call that stores a record bypasses the fence of its attempts: for operators alone.
GRANT EXECUTE ON FUNCTION outbox.idempotency_outranks, outbox.idempotency_store,
    outbox.idempotency_merge(outbox.idempotency_version, outbox.idempotency_version),
    outbox.idempotency_merge(outbox.idempotency_request, text, outbox.idempotency_request, text)
    TO outbox_operator;

-- ── Views for operators ────────────────────────────────────────────────────────────────────────

-- statement_timestamp(), because an index can be searched for it, unlike for clock_timestamp().
CREATE VIEW outbox.idempotency_stale AS
SELECT r.scope, r.key, r.attempt_count, r.claimed_by, r.claimed_at, r.heartbeat_at, r.locked_until,
       statement_timestamp() - r.locked_until AS stale_for, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE r.locked_until <= statement_timestamp();

-- Commands without an answer whose clients no longer retry: stale, or failed and to be retried. The first condition is that of
-- the index.
CREATE VIEW outbox.idempotency_expired AS
SELECT r.scope, r.key, r.status, r.attempt_count, r.claimed_by, r.claimed_at, r.updated_at, r.expires_at,
       statement_timestamp() - r.expires_at AS expired_for, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE (r.locked_until IS NOT NULL OR r.failure_code IS NOT NULL)
  AND (r.locked_until <= statement_timestamp() OR r.status = 'failed_retryable')
  AND r.expires_at <= statement_timestamp();

-- A success has neither a lock nor a failure.
CREATE VIEW outbox.idempotency_retried AS
SELECT r.scope, r.key, r.status, r.attempt_count, r.claimed_by, r.created_at, r.updated_at, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE r.attempt_count >= 3 AND (r.locked_until IS NOT NULL OR r.failure_code IS NOT NULL);

-- How often the commands of a scope were tried again, over the rows that are there. It scans the table. Replays are counted for all
-- scopes together: to count them by scope a replay would have to write.
CREATE VIEW outbox.idempotency_by_scope AS
SELECT r.scope,
       count(*) AS commands,
       count(*) FILTER (WHERE r.status = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE r.status = 'failed_final') AS failed_final,
       count(*) FILTER (WHERE r.status IN ('processing', 'failed_retryable')) AS unfinished,
       count(*) FILTER (WHERE r.attempt_count > 1) AS tried_again,
       -- Each was granted after a failure or a takeover: still one command, and one answer.
       sum(r.attempt_count - 1) AS attempts_beyond_the_first,
       max(r.attempt_count) AS attempts_max
FROM outbox.idempotency_request r
GROUP BY r.scope;

-- Since the counters began: with the schema, or with the last crash. Attempts that were rolled back are included.
CREATE VIEW outbox.idempotency_counters AS
SELECT g.last_value - (NOT g.is_called)::integer AS granted,
       r.last_value - (NOT r.is_called)::integer AS replayed,
       c.last_value - (NOT c.is_called)::integer AS conflicted,
       t.last_value - (NOT t.is_called)::integer AS taken_over
FROM outbox.idempotency_granted g, outbox.idempotency_replayed r, outbox.idempotency_conflicted c, outbox.idempotency_taken_over t;

GRANT SELECT ON outbox.idempotency_request, outbox.idempotency_stale, outbox.idempotency_expired, outbox.idempotency_retried,
    outbox.idempotency_by_scope, outbox.idempotency_counters TO outbox_operator;
-- To count commands. The relay may not read what they say.
GRANT SELECT (scope, status, locked_until, failure_code, updated_at, completed_at, expires_at) ON outbox.idempotency_request TO outbox_relay;
GRANT SELECT ON outbox.idempotency_counters TO outbox_relay;
