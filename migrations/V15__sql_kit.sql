-- Oldest outboxd schema that may run on this: 13
--
-- The SQL kit, corrected: intervals, merges, ends of commands that nobody ends, the inbox, and counts.

-- Intervals count in seconds: a day has 24 hours, a month 30 days, a year 365.25 days. Added by the calendar, a day has 23 hours when
-- the clock goes forward and 25 when it goes back, and a long interval leaves the range of time with an error of its own (22008).
CREATE FUNCTION outbox.seconds(span interval) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN date_part('epoch', span);

-- For spans whose range has been checked.
CREATE FUNCTION outbox.later(at timestamptz, span interval) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN at + make_interval(secs => date_part('epoch', span));

-- More than nothing and at most a day: a lock, a lease.
CREATE FUNCTION outbox.is_lock_span(span interval) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN outbox.seconds(span) > 0 AND outbox.seconds(span) <= 86400;

-- At least the lock and at most ten years.
CREATE FUNCTION outbox.is_expiry_span(span interval, lock_for interval) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN outbox.seconds(span) >= outbox.seconds(lock_for) AND outbox.seconds(span) <= 315576000;

-- What a claim must be given. Asked before any time is computed.
DROP FUNCTION outbox.idempotency_is_claim(text, text, bytea, text, timestamptz, timestamptz, timestamptz);
CREATE FUNCTION outbox.idempotency_is_claim(
    scope text, key text, request_hash bytea, claimed_by text, lock_for interval, expires_in interval
) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN outbox.is_name(scope) AND outbox.is_name(key)
    AND octet_length(request_hash) BETWEEN 16 AND 64
    AND outbox.is_lock_span(lock_for) AND outbox.is_expiry_span(expires_in, lock_for)
    AND (claimed_by IS NULL OR octet_length(claimed_by) <= 255);

CREATE OR REPLACE FUNCTION outbox.idempotency_check_claim(request_hash bytea, lock_for interval, claimed_by text, expires_in interval) RETURNS void
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

-- As before but for the intervals.
CREATE OR REPLACE FUNCTION outbox.idempotency_grant_again(
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
        heartbeat_at = NULL, locked_until = outbox.later(at, lock_for), expires_at = greatest(r.expires_at, outbox.later(at, expires_in))
    WHERE r.scope = seen.scope AND r.key = seen.key AND r.attempt_count = seen.attempt_count
      AND r.status = seen.status AND r.locked_until IS NOT DISTINCT FROM seen.locked_until
    RETURNING r.attempt_count INTO granted;
    RETURN granted;
END $$;

CREATE UNLOGGED SEQUENCE outbox.idempotency_taken_over;

-- As before but for the intervals, and takeovers are counted.
CREATE OR REPLACE FUNCTION outbox.idempotency_claim_unanswered(
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
            VALUES (at, at, at, outbox.later(at, expires_in), outbox.later(at, lock_for), 1, scope, key, request_hash, 'processing',
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
            IF kind = 'stale' THEN
                counted := nextval('outbox.idempotency_taken_over');
            END IF;
        END IF;
        RETURN ROW(kind, attempt IS NOT NULL, attempt, seen.result_type, seen.result_id, seen.response_code, seen.response_body,
                   seen.failure_code, seen.failure_message,
                   CASE WHEN kind = 'active' THEN seen.locked_until - at END)::outbox.idempotency_answer;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'P4099', MESSAGE = 'the state of the command cannot be told',
        DETAIL = outbox.idempotency_name(scope, key) || ' It changed under a hundred looks in a row.',
        HINT = 'Retry; if it stays, look for what makes and deletes rows of outbox.idempotency_request.';
END $$;

-- As before but for the intervals: their range is checked before anything is added.
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

-- As before but for the interval.
CREATE OR REPLACE FUNCTION outbox.idempotency_heartbeat(scope text, key text, attempt integer, lock_for interval DEFAULT '30 seconds') RETURNS timestamptz
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

-- What an attempt ends with: each message names the argument that is wrong.

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

-- As before but for that refusal.
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

-- As before but for that check.
CREATE OR REPLACE FUNCTION outbox.idempotency_fail(
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

-- Commands that nobody ends.

-- What is to be done about a command that is stale, or that may be retried and has expired; NULL for any other. Whether its effect
-- exists only the application's own tables can tell, so the caller looks: true, false, or NULL where nobody can know.
CREATE OR REPLACE FUNCTION outbox.idempotency_classify(
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

-- Commands without an answer whose clients do not retry any more: stale, or failed and to be retried. The first condition is the index's.
CREATE VIEW outbox.idempotency_expired AS
SELECT r.scope, r.key, r.status, r.attempt_count, r.claimed_by, r.claimed_at, r.updated_at, r.expires_at,
       statement_timestamp() - r.expires_at AS expired_for, r.failure_code, r.failure_message
FROM outbox.idempotency_request r
WHERE (r.locked_until IS NOT NULL OR r.failure_code IS NOT NULL)
  AND (r.locked_until <= statement_timestamp() OR r.status = 'failed_retryable')
  AND r.expires_at <= statement_timestamp();

-- Says why a command may not be abandoned.
CREATE FUNCTION outbox.idempotency_refuse_abandon(scope text, key text, attempt integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seen outbox.idempotency_request;
BEGIN
    PERFORM outbox.idempotency_check_name(scope, key);
    IF attempt IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'P4004', MESSAGE = 'the attempt is missing', DETAIL = outbox.idempotency_name(scope, key),
            HINT = 'Pass the attempt_count that outbox.idempotency_expired shows.';
    END IF;
    SELECT r.* INTO seen FROM outbox.idempotency_request r WHERE r.scope = scope AND r.key = key;
    RAISE EXCEPTION USING ERRCODE = 'P4013', MESSAGE = 'the command may not be abandoned',
        DETAIL = outbox.idempotency_name(scope, key) || CASE
            WHEN seen.scope IS NULL THEN ' There is no such command.'
            WHEN seen.attempt_count <> attempt THEN format(' Its last attempt is %s, not %s.', seen.attempt_count, attempt)
            WHEN seen.completed_at IS NOT NULL THEN format(' It is %s.', seen.status)
            WHEN seen.locked_until > clock_timestamp() THEN ' It is being executed.'
            ELSE ' It has not expired.'
        END,
        HINT = 'Look again at outbox.idempotency_expired: only what it shows may be abandoned.';
END $$;

-- Ends an expired command that nobody will retry: failed for good, with the code abandoned, and so purged in time. True where that was
-- new. Only for the attempt that was looked at: a client that comes back at this moment has its next attempt.
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

-- Ages that retention takes. Asked before any time is computed.
CREATE OR REPLACE FUNCTION outbox.refuse_purge(older_than interval, most integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (outbox.seconds(older_than) BETWEEN 3600 AND 3155760000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('older_than', 'an hour to a hundred years');
    END IF;
    IF (most BETWEEN 1 AND 100000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('most', '1 to 100000');
    END IF;
END $$;

-- Ends commands whose lock ran out so long ago, for good and with the code orphaned: what became of them nobody knows, so nothing runs
-- again by itself. For the relay's maintenance, where it is switched on. Answers how many; passes over what somebody is ending.
CREATE FUNCTION outbox.idempotency_end_orphaned(older_than interval, most integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    old timestamptz;
    ended bigint;
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    old := outbox.later(moment, -older_than);
    UPDATE outbox.idempotency_request r
    SET status = 'failed_final', failure_code = 'orphaned', locked_until = NULL, updated_at = moment, completed_at = moment,
        failure_message = format('nobody ended attempt %s, whose lock ran out at %s', r.attempt_count,
                                 to_char(r.locked_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
        expires_at = outbox.idempotency_kept_until(r.expires_at, r.claimed_at, moment)
    WHERE r.ctid = ANY (ARRAY(
        SELECT o.ctid FROM outbox.idempotency_request o WHERE o.locked_until < old
        ORDER BY o.locked_until LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END $$;

-- As before but for the interval.
CREATE OR REPLACE FUNCTION outbox.purge_processed(older_than interval, most integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    old timestamptz;
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    -- Read once: a function that changes from row to row is no condition for an index.
    old := outbox.later(clock_timestamp(), -older_than);
    DELETE FROM outbox.processed_message
    WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM outbox.processed_message p WHERE p.processed_at < old
        ORDER BY p.processed_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

CREATE OR REPLACE FUNCTION outbox.purge_inbox(older_than interval, most integer DEFAULT 2000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    purged bigint;
    old timestamptz;
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    old := outbox.later(clock_timestamp(), -older_than);
    DELETE FROM outbox.inbox_message
    WHERE ctid = ANY (ARRAY(
        SELECT m.ctid FROM outbox.inbox_message m WHERE m.done_at < old
        ORDER BY m.done_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END $$;

-- Merges. A version with conflict wants a person. With a record: several regions executed the command, with different results; the
-- record is the earliest, and the others have to be compensated. With nothing but scope and key: two requests ran under one key.

-- One record of two, whatever the order and the grouping. Two commands are refused before anything else is compared. The attempt and
-- the expiry are the higher of both: no token that the other region has granted is granted again, and no client's horizon is cut.
CREATE OR REPLACE FUNCTION outbox.idempotency_merge(a outbox.idempotency_version, b outbox.idempotency_version) RETURNS outbox.idempotency_version
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

-- Stores a merged record in this region, whose name is given as in the merge, and answers what is there now. What has happened here since
-- the record was read is merged into it first, under its lock. Where nothing is known, or two requests ran under one key, nothing is stored.
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
        DETAIL = outbox.idempotency_name((merged.request).scope, (merged.request).key) || ' It changed under a hundred looks in a row.',
        HINT = 'Retry; if it stays, look for what makes and deletes rows of outbox.idempotency_request.';
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

-- Since the counters began: with the schema, or with the last crash. Of attempts that were rolled back too.
CREATE OR REPLACE VIEW outbox.idempotency_suppression AS
SELECT g.last_value - (NOT g.is_called)::integer AS granted,
       r.last_value - (NOT r.is_called)::integer AS replayed,
       c.last_value - (NOT c.is_called)::integer AS conflicted,
       t.last_value - (NOT t.is_called)::integer AS taken_over
FROM outbox.idempotency_granted g, outbox.idempotency_replayed r, outbox.idempotency_conflicted c, outbox.idempotency_taken_over t;

-- Duplicates by consumer. A duplicate may not write, so it counts in an unlogged sequence: the consumer's own, of which there are 32, or,
-- where these are taken, one for all others. A consumer gets its sequence with a message that is new, which writes anyway.
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

-- Those that have messages already, from one to the next by index.
INSERT INTO outbox.consumer_slot (consumer, slot, counter)
WITH RECURSIVE processed AS (
    SELECT min(p.consumer) AS consumer FROM outbox.processed_message p
    UNION ALL
    SELECT (SELECT min(p.consumer) FROM outbox.processed_message p WHERE p.consumer > c.consumer) FROM processed c WHERE c.consumer IS NOT NULL
), inbox AS (
    SELECT min(m.consumer) AS consumer FROM outbox.inbox_message m
    UNION ALL
    SELECT (SELECT min(m.consumer) FROM outbox.inbox_message m WHERE m.consumer > c.consumer) FROM inbox c WHERE c.consumer IS NOT NULL
)
SELECT k.consumer, k.slot, ('outbox.consumer_duplicates_' || k.slot)::regclass
FROM (SELECT c.consumer, row_number() OVER (ORDER BY c.consumer) AS slot
      FROM (SELECT consumer FROM processed UNION SELECT consumer FROM inbox) AS c WHERE c.consumer IS NOT NULL) AS k
WHERE k.slot <= 32;

-- Gives a consumer its sequence, if one is free. One transaction at a time does so, and no other waits for it: the next message will do.
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

-- Messages whose claim was taken over after its lease ran out.
CREATE UNLOGGED SEQUENCE outbox.inbox_taken_over;

CREATE OR REPLACE VIEW outbox.consumer_counters AS
SELECT (SELECT sum(d.duplicates_suppressed)::bigint FROM outbox.consumer_duplicate_counters d) AS duplicates_suppressed,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.consumer_conflicts) AS conflicts,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.inbox_taken_over) AS taken_over;

-- As before but for the count.
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
        -- Another was faster, and has committed by now: look again.
    END LOOP;
END $$;

-- As before but for the count.
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
                    AND outbox.inbox_hold_head(inbox_receive.consumer, inbox_receive.source, inbox_receive.key))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF NOT EXISTS (SELECT FROM outbox.consumer_slot s WHERE s.consumer = inbox_receive.consumer) THEN
                PERFORM outbox.consumer_assign_slot(inbox_receive.consumer);
            END IF;
            RETURN true;
        END IF;
    END LOOP;
END $$;

-- As before, but what it answers is in the order in which it was chosen, takeovers are counted, and the lease is a span of seconds.
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
            next_attempt_at = outbox.later(moment, inbox_claim.lease)
        WHERE m.id = ANY (ARRAY(SELECT d.id FROM due d))
        RETURNING m.*, CASE WHEN m.id = ANY (ARRAY(SELECT d.id FROM due d WHERE d.lease_ran_out)) THEN nextval('outbox.inbox_taken_over') END
    )
    SELECT t.id, t.token, t.attempts::integer, t.source, t.message_id, t.key, t.event_type, t.headers, t.payload, t.payload_bytes,
           t.received_at, t.next_attempt_at
    FROM taken t JOIN due d ON d.id = t.id WHERE t.poison_at IS NULL
    -- As they were chosen: a claim itself changes when a message is due.
    ORDER BY t.priority DESC, d.due_at, t.id;
END $$;

-- As before, but a worker that did not hear the answer may repeat the call: false, if this very attempt was done with this outcome before.
-- Then what the transaction has done besides is a repeat, too: roll it back.
DROP FUNCTION outbox.inbox_done(bigint, integer, text);
CREATE FUNCTION outbox.inbox_done(id bigint, token integer, outcome text DEFAULT NULL) RETURNS boolean
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
        PERFORM FROM outbox.inbox_message m
        WHERE m.id = inbox_done.id AND m.token = inbox_done.token AND m.done_at IS NOT NULL
          AND m.outcome IS NOT DISTINCT FROM inbox_done.outcome;
        IF NOT FOUND THEN
            PERFORM outbox.refuse_token('done', inbox_done.id, inbox_done.token, 'P4010');
        END IF;
        RETURN false;
    END IF;
    IF line.key IS NOT NULL THEN
        PERFORM outbox.inbox_wake(line.consumer, line.source, line.key);
    END IF;
    RETURN true;
END $$;

-- Extends the lease of a message whose work takes long, never shortens it; answers until when. Refused (P4012) unless the token is that of
-- the latest claim: a worker that was taken over stops.
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

-- A message that is done, or was discarded, is worked off once more, with all its attempts: its effect happens again, unless the consumer
-- itself prevents that. It stands in the line of its key where it stood: before all that is unfinished and was stored later. False: it is not done.
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

REVOKE ALL ON FUNCTION outbox.seconds, outbox.later, outbox.is_lock_span, outbox.is_expiry_span, outbox.idempotency_is_claim,
    outbox.idempotency_refuse_answer, outbox.idempotency_check_failure, outbox.idempotency_refuse_abandon, outbox.idempotency_abandon,
    outbox.idempotency_end_orphaned, outbox.idempotency_store, outbox.idempotency_overwrite, outbox.consumer_assign_slot,
    outbox.inbox_done, outbox.inbox_heartbeat, outbox.inbox_replay_done FROM PUBLIC;

GRANT EXECUTE ON FUNCTION outbox.inbox_done, outbox.inbox_heartbeat TO outbox_producer;
-- Whoever stores a record passes the fence of its attempts: for operators alone.
GRANT EXECUTE ON FUNCTION outbox.idempotency_abandon, outbox.idempotency_store, outbox.inbox_replay_done TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.idempotency_end_orphaned TO outbox_relay, outbox_operator;
GRANT SELECT ON outbox.idempotency_expired TO outbox_operator;
GRANT SELECT ON outbox.consumer_duplicate_counters TO outbox_operator, outbox_relay;
