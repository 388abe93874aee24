-- Idempotent commands: the same command attempted many times has one effect and one stable answer.
--
-- The life of a row in outbox.idempotency_request, enforced by the CHECKs below:
--
--                  succeed
--   processing ───────────────▶ succeeded         replayed for as long as the row is there
--    │  ▲  │         fail, for good
--    │  │  └──────────────────▶ failed_final      refused for as long as the row is there
--    │  └── claim ──┐
--    └── fail ──▶ failed_retryable
--
-- A processing row whose locked_until has passed is stale. That is no state of its own: its holder may be dead, or slow.
-- attempt_count is the fencing token: each grant raises it, and whoever ends an attempt must name its own.
--
-- An expired row is still a row until it is purged. Were it absent instead, a claim would have to reset it: one instant
-- would turn a stable answer into a second execution, and a read into a write.

CREATE TABLE outbox.idempotency_request (
    -- Wide fixed columns first: no padding.
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL,
    locked_until     timestamptz,
    heartbeat_at     timestamptz,
    completed_at     timestamptz,
    attempt_count    integer NOT NULL,
    response_code    integer,
    scope            text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    request_hash     bytea NOT NULL,
    status           text COLLATE "C" NOT NULL,
    claimed_by       text NOT NULL,
    result_type      text,
    result_id        text,
    -- Of the last attempt that failed; kept while another one is under way.
    failure_code     text,
    failure_message  text,
    response_body    jsonb,

    CONSTRAINT idempotency_request_pkey PRIMARY KEY (scope, key),
    CONSTRAINT idempotency_scope_is_1_to_255_bytes CHECK (octet_length(scope) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_is_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_hash_is_16_to_64_bytes CHECK (octet_length(request_hash) BETWEEN 16 AND 64),
    CONSTRAINT idempotency_status_is_known
        CHECK (status IN ('processing', 'succeeded', 'failed_retryable', 'failed_final')),
    CONSTRAINT idempotency_attempts_begin_at_one CHECK (attempt_count >= 1),
    CONSTRAINT idempotency_lock_is_for_processing CHECK ((status = 'processing') = (locked_until IS NOT NULL)),
    CONSTRAINT idempotency_completed_is_terminal
        CHECK ((status IN ('succeeded', 'failed_final')) = (completed_at IS NOT NULL)),
    CONSTRAINT idempotency_answer_is_of_a_success
        CHECK (status = 'succeeded'
               OR (result_type IS NULL AND result_id IS NULL AND response_code IS NULL AND response_body IS NULL)),
    CONSTRAINT idempotency_result_id_needs_a_type CHECK (result_id IS NULL OR result_type IS NOT NULL),
    CONSTRAINT idempotency_body_is_at_most_64_kib CHECK (octet_length(response_body::text) <= 65536),
    CONSTRAINT idempotency_failure_has_a_code
        CHECK (CASE status WHEN 'processing' THEN true
                           WHEN 'succeeded' THEN failure_code IS NULL AND failure_message IS NULL
                           ELSE failure_code IS NOT NULL END),
    CONSTRAINT idempotency_expires_after_it_was_made CHECK (expires_at > created_at)
)
WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- For the purge.
CREATE INDEX idempotency_request_expires ON outbox.idempotency_request (expires_at);
-- For the operator: what is stale or failed, among millions that succeeded. Not by status: ending an attempt asks for that,
-- and the planner would prefer so small an index to the primary key, and walk over every claim that ended lately.
CREATE INDEX idempotency_request_locked ON outbox.idempotency_request (locked_until) WHERE locked_until IS NOT NULL;
CREATE INDEX idempotency_request_failed ON outbox.idempotency_request (updated_at) WHERE failure_code IS NOT NULL;

COMMENT ON TABLE outbox.idempotency_request IS 'Commands and their answers. Use the functions outbox.idempotency_…; never write here.';
COMMENT ON COLUMN outbox.idempotency_request.attempt_count IS 'The fencing token: succeed, fail and heartbeat must name it.';
COMMENT ON COLUMN outbox.idempotency_request.expires_at IS 'Not purged before; answered until it is purged.';

-- How often, over the life of the server. Unlogged: nextval then writes no WAL and draws no transaction id, so that a
-- replay stays a read, and the count survives a claim that is refused. After a crash or a failover they start again at zero.
-- nextval is refused in a READ ONLY transaction and on a standby, so a claim is as well.
CREATE UNLOGGED SEQUENCE outbox.idempotency_granted;
CREATE UNLOGGED SEQUENCE outbox.idempotency_replayed;
CREATE UNLOGGED SEQUENCE outbox.idempotency_conflicted;

-- What a claim answers. kind: new, replay, active, stale, retryable or final.
CREATE TYPE outbox.idempotency_answer AS (
    kind             text,
    granted          boolean,
    -- Only where granted: nobody else is to end that attempt.
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

-- A canonical hash for callers without one: the order of keys, whitespace and repeated keys (the last one counts) do not
-- matter. Numbers are exact: 1e2 is 100, but 1.0 is not 1. NULL is answered with NULL, which a claim refuses.
CREATE FUNCTION outbox.request_hash(request jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(convert_to(request::text, 'UTF8'))
$$;

-- How a key is named in messages: they end up in logs, where the key itself has no business.
CREATE FUNCTION outbox.idempotency_name(scope text, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('Scope %s, key with md5 %s….', scope, left(md5(key), 8))
$$;

-- Refuses what cannot name a command.
CREATE FUNCTION outbox.idempotency_check_name(scope text, key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF scope IS NULL OR btrim(scope) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'the scope of the command is missing',
            DETAIL = 'The scope is NULL or blank.', HINT = 'Pass the operation, or tenant/operation.';
    ELSIF key IS NULL OR btrim(key) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4001', MESSAGE = 'the idempotency key is missing',
            DETAIL = 'The key is NULL or blank.', HINT = 'The client draws one key for a command, and repeats it with every retry.';
    ELSIF octet_length(scope) > 255 OR octet_length(key) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the scope or the idempotency key is too long',
            DETAIL = format('The scope has %s bytes, the key %s; each may have 255.', octet_length(scope), octet_length(key)),
            HINT = 'Use a uuid, or a hash of what identifies the command.';
    END IF;
END $$;

-- Refuses the rest that a claim may be given wrongly. Called only where something is.
CREATE FUNCTION outbox.idempotency_check_claim(request_hash bytea, lock_for interval, claimed_by text, expires_in interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- An interval is compared by months of thirty days, and added by the calendar.
    at timestamptz := clock_timestamp();
BEGIN
    IF request_hash IS NULL OR request_hash = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4003', MESSAGE = 'the hash of the request is missing',
            DETAIL = 'The hash is NULL or empty.', HINT = 'Pass outbox.request_hash(request), or a SHA-256 of your own.';
    ELSIF octet_length(request_hash) NOT BETWEEN 16 AND 64 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'that is no hash of a request',
            DETAIL = format('It has %s bytes, not 16 to 64.', octet_length(request_hash)),
            HINT = 'Name the arguments behind the hash: lock_for => …. Pass outbox.request_hash(request), or a SHA-256 of your own.';
    ELSIF (at + lock_for > at AND at + lock_for <= at + interval '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'lock_for is out of range',
            DETAIL = format('It is %s.', coalesce(lock_for::text, 'NULL')),
            HINT = 'More than nothing and at most a day; work that takes longer sends heartbeats.';
    ELSIF (at + expires_in >= at + lock_for AND at + expires_in <= at + interval '10 years') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'expires_in is out of range',
            DETAIL = format('It is %s, lock_for is %s.', coalesce(expires_in::text, 'NULL'), lock_for),
            HINT = 'At least lock_for and at most ten years: longer than any client retries.';
    ELSIF octet_length(claimed_by) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'claimed_by is too long',
            DETAIL = format('It has %s bytes, not at most 255.', octet_length(claimed_by)), HINT = 'Pass a host and a process.';
    END IF;
END $$;

-- The next attempt, if nobody was faster: the attempt that was seen must still be the last one, in the same state and
-- under the same lock. Of two that saw it, the second waits for the first, finds it changed, and gets NULL.
CREATE FUNCTION outbox.idempotency_grant_again(
    seen outbox.idempotency_request, lock_for interval, claimed_by text, expires_in interval
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    granted integer;
BEGIN
    UPDATE outbox.idempotency_request r
    SET status = 'processing', attempt_count = r.attempt_count + 1, claimed_by = claimed_by, claimed_at = at, updated_at = at,
        heartbeat_at = NULL, locked_until = at + lock_for, expires_at = greatest(r.expires_at, at + expires_in)
    WHERE r.scope = seen.scope AND r.key = seen.key AND r.attempt_count = seen.attempt_count
      AND r.status = seen.status AND r.locked_until IS NOT DISTINCT FROM seen.locked_until
    RETURNING r.attempt_count INTO granted;
    RETURN granted;
END $$;

-- A claim of a command that has not succeeded before, or not with this request.
--
-- Statements of their own, not one: in one, the loser of two first attempts would wait, and then see nothing with the
-- snapshot it began with. clock_timestamp(), never now(): that is when the transaction began, long ago for one that has
-- waited.
CREATE FUNCTION outbox.idempotency_claim_unanswered(
    scope text, key text, request_hash bytea, lock_for interval, take_over boolean, claimed_by text, expires_in interval
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz;
    seen outbox.idempotency_request;
    kind text;
    attempt integer;
    counted bigint;
BEGIN
    PERFORM outbox.idempotency_check_name(scope, key);
    PERFORM outbox.idempotency_check_claim(request_hash, lock_for, claimed_by, expires_in);
    -- More than one round only where somebody else made, granted, ended or purged the command between two statements.
    FOR round IN 1..100 LOOP
        SELECT r.* INTO seen FROM outbox.idempotency_request r WHERE r.scope = scope AND r.key = key;
        at := clock_timestamp();
        IF NOT FOUND THEN
            INSERT INTO outbox.idempotency_request (created_at, updated_at, claimed_at, expires_at, locked_until,
                attempt_count, scope, key, request_hash, status, claimed_by)
            VALUES (at, at, at, at + expires_in, at + lock_for, 1, scope, key, request_hash, 'processing',
                    coalesce(claimed_by, 'pid ' || pg_backend_pid()))
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
            counted := nextval('outbox.idempotency_granted');
            RETURN ROW('new', true, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.idempotency_answer;
        END IF;
        IF seen.request_hash <> request_hash THEN
            counted := nextval('outbox.idempotency_conflicted');
            RAISE EXCEPTION USING ERRCODE = 'P4002', MESSAGE = 'the idempotency key was used for another request',
                DETAIL = outbox.idempotency_name(scope, key),
                HINT = 'A retry repeats the request as it was; another request needs a key of its own. Do not retry.';
        END IF;
        kind := CASE seen.status
            WHEN 'succeeded' THEN 'replay'
            WHEN 'failed_final' THEN 'final'
            WHEN 'failed_retryable' THEN 'retryable'
            WHEN 'processing' THEN CASE WHEN seen.locked_until > at THEN 'active' ELSE 'stale' END
        END;
        IF kind = 'replay' THEN
            counted := nextval('outbox.idempotency_replayed');
        ELSIF kind = 'retryable' OR kind = 'stale' AND take_over THEN
            attempt := outbox.idempotency_grant_again(seen, lock_for, coalesce(claimed_by, 'pid ' || pg_backend_pid()),
                                                      expires_in);
            CONTINUE WHEN attempt IS NULL;
            counted := nextval('outbox.idempotency_granted');
        END IF;
        RETURN ROW(kind, attempt IS NOT NULL, attempt, seen.result_type, seen.result_id, seen.response_code, seen.response_body,
                   seen.failure_code, seen.failure_message,
                   CASE WHEN kind = 'active' THEN seen.locked_until - at END)::outbox.idempotency_answer;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'P4099', MESSAGE = 'the state of the command cannot be told',
        DETAIL = outbox.idempotency_name(scope, key) || ' It changed under a hundred looks in a row.',
        HINT = 'Retry; if it stays, look for what makes and deletes rows of outbox.idempotency_request.';
END $$;

-- May this command run, or what was its answer? A replay takes no row lock, no transaction id and no WAL.
--
-- Setting a search path would cost a replay a tenth of its time: so every name is qualified here, and the rest is elsewhere.
CREATE FUNCTION outbox.idempotency_claim(
    scope text, key text, request_hash bytea, lock_for interval DEFAULT '30 seconds', take_over boolean DEFAULT false,
    claimed_by text DEFAULT NULL, expires_in interval DEFAULT '7 days'
) RETURNS outbox.idempotency_answer
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    answer outbox.idempotency_answer;
    counted pg_catalog.int8;
BEGIN
    SELECT 'replay'::pg_catalog.text, false, NULL::pg_catalog.int4, r.result_type, r.result_id, r.response_code, r.response_body,
           NULL::pg_catalog.text, NULL::pg_catalog.text, NULL::pg_catalog.interval
    INTO answer
    FROM outbox.idempotency_request r
    WHERE r.scope OPERATOR(pg_catalog.=) scope AND r.key OPERATOR(pg_catalog.=) key
      AND r.status OPERATOR(pg_catalog.=) 'succeeded' AND r.request_hash OPERATOR(pg_catalog.=) request_hash;
    IF NOT FOUND THEN
        RETURN outbox.idempotency_claim_unanswered(scope, key, request_hash, lock_for, take_over, claimed_by, expires_in);
    END IF;
    counted := pg_catalog.nextval('outbox.idempotency_replayed');
    RETURN answer;
END $$;

-- The scope of an operation of a tenant.
CREATE FUNCTION outbox.idempotency_scope(tenant text, operation text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF btrim(tenant) = '' OR btrim(operation) = '' OR tenant IS NULL OR operation IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'the scope of the command is missing',
            DETAIL = 'The tenant or the operation is NULL or blank.', HINT = 'Pass both, or a scope of your own.';
    ELSIF strpos(tenant, '/') > 0 THEN
        -- Otherwise a/b of tenant c and b of tenant c/a could be one scope.
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the tenant contains a slash',
            DETAIL = 'The scope is tenant/operation: the first slash ends the tenant.', HINT = 'Pass an id of the tenant, not a path.';
    END IF;
    RETURN tenant || '/' || operation;
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

-- The same for callers who prefer exceptions: what it answers is granted, or a replay.
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

-- Says why an attempt may not do what it asked for.
CREATE FUNCTION outbox.idempotency_refuse(code text, what text, scope text, key text, attempt integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seen outbox.idempotency_request;
BEGIN
    PERFORM outbox.idempotency_check_name(scope, key);
    IF attempt IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the attempt is missing', DETAIL = outbox.idempotency_name(scope, key),
            HINT = 'Pass the attempt that the claim answered.';
    END IF;
    SELECT r.* INTO seen FROM outbox.idempotency_request r WHERE r.scope = scope AND r.key = key;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what,
        DETAIL = outbox.idempotency_name(scope, key) || CASE
            WHEN seen.scope IS NULL THEN ' There is no such claim.'
            WHEN seen.attempt_count = attempt THEN format(' Attempt %s is %s already.', attempt, seen.status)
            WHEN seen.attempt_count > attempt THEN format(' Attempt %s was followed by attempt %s.', attempt, seen.attempt_count)
            ELSE format(' Attempt %s was never granted.', attempt)
        END,
        HINT = 'This attempt is over: roll back what it did, and claim again with the same key to get the answer.';
END $$;

-- Ends an attempt well; true where that was new. An attempt may repeat its own words: the answer to the first may be lost.
-- A lock that has run out is no hindrance, a later attempt is.
CREATE FUNCTION outbox.idempotency_succeed(
    scope text, key text, attempt integer, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    response_code integer DEFAULT NULL, response_body jsonb DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    IF result_id IS NOT NULL AND result_type IS NULL OR octet_length(response_body::text) > 65536 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'that is no answer to keep',
            DETAIL = 'A result_id needs a result_type, and a response_body has at most 64 KiB.',
            HINT = 'Keep what identifies the result, and let a replay read the rest from where it is.';
    END IF;
    UPDATE outbox.idempotency_request r
    SET status = 'succeeded', result_type = result_type, result_id = result_id, response_code = response_code,
        response_body = response_body, failure_code = NULL, failure_message = NULL, locked_until = NULL,
        updated_at = at, completed_at = at,
        -- An attempt may take long: its answer has the time to be asked for all the same. Changed seldom, for it is indexed.
        expires_at = CASE WHEN r.expires_at - at < (r.expires_at - r.claimed_at) / 2 THEN at + (r.expires_at - r.claimed_at)
                          ELSE r.expires_at END
    WHERE r.scope = scope AND r.key = key AND r.status = 'processing' AND r.attempt_count = attempt;
    IF FOUND THEN
        RETURN true;
    END IF;
    PERFORM FROM outbox.idempotency_request r
    WHERE r.scope = scope AND r.key = key AND r.status = 'succeeded' AND r.attempt_count = attempt
      AND (r.result_type, r.result_id, r.response_code, r.response_body)
          IS NOT DISTINCT FROM (result_type, result_id, response_code, response_body);
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_refuse('P4010', 'the attempt may not succeed', scope, key, attempt);
    END IF;
    RETURN false;
END $$;

-- Ends an attempt badly: to be tried again, or for good. True where that was new.
CREATE FUNCTION outbox.idempotency_fail(
    scope text, key text, attempt integer, retryable boolean, failure_code text, failure_message text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    -- Cut rather than refused: a long message must not keep a failure from being told.
    message text := left(failure_message, 1000);
    ended text := CASE WHEN retryable THEN 'failed_retryable' ELSE 'failed_final' END;
BEGIN
    IF (retryable IS NOT NULL AND btrim(failure_code) <> '' AND octet_length(failure_code) <= 255) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'that does not say how the attempt failed',
            DETAIL = 'retryable is NULL, or the failure_code is NULL, blank or longer than 255 bytes.',
            HINT = 'Pass whether it may be tried again, and a short code such as card_declined.';
    END IF;
    UPDATE outbox.idempotency_request r
    SET status = ended, failure_code = failure_code, failure_message = message, locked_until = NULL, updated_at = at,
        completed_at = CASE WHEN NOT retryable THEN at END,
        expires_at = CASE WHEN r.expires_at - at < (r.expires_at - r.claimed_at) / 2 THEN at + (r.expires_at - r.claimed_at)
                          ELSE r.expires_at END
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

-- Extends the lock of a long attempt, never shortens it; answers until when.
CREATE FUNCTION outbox.idempotency_heartbeat(scope text, key text, attempt integer, lock_for interval DEFAULT '30 seconds') RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    until timestamptz;
BEGIN
    IF (lock_for > interval '0' AND lock_for <= interval '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'lock_for is out of range',
            DETAIL = format('It is %s.', coalesce(lock_for::text, 'NULL')), HINT = 'More than nothing and at most a day.';
    END IF;
    UPDATE outbox.idempotency_request r
    SET locked_until = greatest(r.locked_until, at + lock_for), heartbeat_at = at, updated_at = at
    WHERE r.scope = scope AND r.key = key AND r.status = 'processing' AND r.attempt_count = attempt
    RETURNING r.locked_until INTO until;
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_refuse('P4012', 'the attempt has no lock to extend', scope, key, attempt);
    END IF;
    RETURN until;
END $$;

-- What is to be done about a stale claim; NULL for one that is not stale. Whether its effect exists only the application's
-- own tables can tell, so the caller looks: true, false, or NULL where nobody can know.
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
        WHEN (request.status = 'processing' AND request.locked_until <= at) IS NOT TRUE THEN NULL
        WHEN effect_exists THEN 'already_succeeded'
        WHEN effect_exists IS NULL THEN 'needs_a_person'
        -- No client of it retries any more.
        WHEN request.expires_at <= at THEN 'abandoned'
        WHEN request.attempt_count >= attempts_max THEN 'needs_a_person'
        ELSE 'safe_to_retry'
    END;
END $$;

-- A record and the region that holds it. Without a request: nothing known there. With conflict: two regions used one key
-- for two requests, and nobody can merge them.
CREATE TYPE outbox.idempotency_version AS (
    region    text,
    conflict  boolean,
    request   outbox.idempotency_request
);

-- Does the first record win? A total order: a success wins, the earliest, for its answer was given; of the rest the latest,
-- which knows most; then the region; and of one region at one instant any, as long as it is always the same.
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
    -- Both are taken from both records by the merge, so they may not decide it.
    x.attempt_count := 1;
    y.attempt_count := 1;
    x.expires_at := 'infinity';
    y.expires_at := 'infinity';
    RETURN hash_record_extended(x, 0) < hash_record_extended(y, 0);
END $$;

-- One record of two, whatever the order and the grouping. The attempt and the expiry are the higher of both: no token that
-- the other region has granted is granted again, and no client's horizon is cut.
CREATE FUNCTION outbox.idempotency_merge(a outbox.idempotency_version, b outbox.idempotency_version) RETURNS outbox.idempotency_version
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    won outbox.idempotency_version;
    x outbox.idempotency_request := a.request;
    y outbox.idempotency_request := b.request;
BEGIN
    IF a.conflict OR b.conflict OR x.request_hash <> y.request_hash THEN
        won.conflict := true;
        RETURN won;
    ELSIF x.scope IS NULL OR y.scope IS NULL THEN
        won := CASE WHEN x.scope IS NULL THEN b ELSE a END;
        RETURN won;
    ELSIF (x.scope, x.key) <> (y.scope, y.key) THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'two commands cannot be merged',
            DETAIL = outbox.idempotency_name(x.scope, x.key) || ' ' || outbox.idempotency_name(y.scope, y.key),
            HINT = 'Join the regions by scope and key.';
    END IF;
    won := CASE WHEN outbox.idempotency_outranks(a, b) THEN a ELSE b END;
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

-- For the operator.

-- statement_timestamp(): an index can be searched for it, unlike for clock_timestamp().
CREATE VIEW outbox.idempotency_stale AS
SELECT r.scope, r.key, r.attempt_count, r.claimed_by, r.claimed_at, r.heartbeat_at, r.locked_until,
       statement_timestamp() - r.locked_until AS stale_for, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE r.locked_until <= statement_timestamp();

-- A success has neither a lock nor a failure.
CREATE VIEW outbox.idempotency_retried AS
SELECT r.scope, r.key, r.status, r.attempt_count, r.claimed_by, r.created_at, r.updated_at, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE r.attempt_count >= 3 AND (r.locked_until IS NOT NULL OR r.failure_code IS NOT NULL);

-- Since the counters began: with the schema, or with the last crash. Of attempts that were rolled back too.
CREATE VIEW outbox.idempotency_suppression AS
SELECT g.last_value - (NOT g.is_called)::integer AS granted,
       r.last_value - (NOT r.is_called)::integer AS replayed,
       c.last_value - (NOT c.is_called)::integer AS conflicted
FROM outbox.idempotency_granted g, outbox.idempotency_replayed r, outbox.idempotency_conflicted c;

REVOKE ALL ON FUNCTION outbox.request_hash, outbox.idempotency_claim_unanswered, outbox.idempotency_name, outbox.idempotency_check_name,
    outbox.idempotency_check_claim, outbox.idempotency_grant_again, outbox.idempotency_scope, outbox.idempotency_refuse,
    outbox.idempotency_succeed, outbox.idempotency_fail, outbox.idempotency_heartbeat, outbox.idempotency_classify,
    outbox.idempotency_outranks,
    outbox.idempotency_claim(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_claim(text, text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_merge(outbox.idempotency_version, outbox.idempotency_version),
    outbox.idempotency_merge(outbox.idempotency_request, text, outbox.idempotency_request, text) FROM PUBLIC;

-- Through the functions alone: whoever could write the table could pass the fence.
GRANT EXECUTE ON FUNCTION outbox.request_hash, outbox.idempotency_scope, outbox.idempotency_succeed, outbox.idempotency_fail,
    outbox.idempotency_heartbeat,
    outbox.idempotency_claim(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_claim(text, text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, bytea, interval, boolean, text, interval),
    outbox.idempotency_begin(text, text, text, bytea, interval, boolean, text, interval)
    TO outbox_producer, outbox_operator;

GRANT EXECUTE ON FUNCTION outbox.idempotency_classify, outbox.idempotency_name, outbox.idempotency_outranks,
    outbox.idempotency_merge(outbox.idempotency_version, outbox.idempotency_version),
    outbox.idempotency_merge(outbox.idempotency_request, text, outbox.idempotency_request, text)
    TO outbox_operator;
GRANT SELECT ON outbox.idempotency_request, outbox.idempotency_stale, outbox.idempotency_retried, outbox.idempotency_suppression
    TO outbox_operator;
-- To count them; what they say is not the relay's business.
GRANT SELECT (scope, status, locked_until, failure_code, updated_at, completed_at, expires_at) ON outbox.idempotency_request TO outbox_relay;
GRANT SELECT ON outbox.idempotency_suppression TO outbox_relay;
