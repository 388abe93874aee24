-- Oldest outboxd schema that may run on this: 1
--
-- How long idempotent commands and inbox messages take, for metrics.

-- ── Commands ───────────────────────────────────────────────────────────────────────────────────

-- Attempts are counted by outcome and duration in unlogged sequences, as grants are: counting writes no WAL, assigns no transaction
-- id, and waits for nobody. The count starts again at zero after a crash or a failover, and includes attempts that were rolled back.
-- Of each outcome there is one sequence for each bound of a duration, and one for what took longer.
--
-- The text of the function and of the view is made here, because both name each of the thirty sequences.
DO $$
DECLARE
    outcomes text[] := ARRAY['succeeded', 'failed_retryable', 'failed_final'];
    bounds float8[] := ARRAY[0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60];
    counter text;
    counters text[] := '{}';
    counts text[] := '{}';
BEGIN
    FOR outcome IN 1..3 LOOP
        FOR bucket IN 1..10 LOOP
            counter := format('outbox.idempotency_%s_in_%s', outcomes[outcome], bucket);
            EXECUTE 'CREATE UNLOGGED SEQUENCE ' || counter;
            counters := counters || format('%L::regclass', counter);
            counts := counts || format('SELECT %L AS outcome, %s AS at_most_seconds, last_value - (NOT is_called)::integer AS attempts FROM %s',
                                       outcomes[outcome], coalesce(bounds[bucket]::text, 'NULL') || '::float8', counter);
        END LOOP;
    END LOOP;
    -- Inlined where it is called: outcome 0 is succeeded, 1 failed_retryable, 2 failed_final.
    EXECUTE format('CREATE FUNCTION outbox.idempotency_count_duration(outcome integer, took interval) RETURNS bigint
                    LANGUAGE sql VOLATILE
                    RETURN nextval((ARRAY[%s])[10 * outcome + 1 + width_bucket(outbox.seconds(took), %L::float8[])])',
                   array_to_string(counters, ', '), bounds);
    EXECUTE 'CREATE VIEW outbox.idempotency_durations AS ' || array_to_string(counts, ' UNION ALL ');
END $$;

COMMENT ON VIEW outbox.idempotency_durations IS
    'Attempts of commands by outcome and duration, from grant to end, since the last crash or failover. at_most_seconds is NULL for those that took longer than all others.';

REVOKE ALL ON FUNCTION outbox.idempotency_count_duration FROM PUBLIC;
GRANT SELECT ON outbox.idempotency_durations TO outbox_relay, outbox_operator;

-- As in V2, and counts the duration of the attempt.
CREATE OR REPLACE FUNCTION outbox.idempotency_succeed(
    scope text, key text, attempt integer, result_type text DEFAULT NULL, result_id text DEFAULT NULL,
    response_code integer DEFAULT NULL, response_body jsonb DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    at pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    granted_at pg_catalog.timestamptz;
    counted pg_catalog.int8;
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
      AND r.attempt_count OPERATOR(pg_catalog.=) attempt
    RETURNING r.claimed_at INTO granted_at;
    IF NOT FOUND THEN
        PERFORM outbox.idempotency_check_repeated(scope, key, attempt, result_type, result_id, response_code, response_body);
        RETURN false;
    END IF;
    counted := outbox.idempotency_count_duration(0, at OPERATOR(pg_catalog.-) granted_at);
    RETURN true;
END $$;

-- As in V2, and counts the duration of the attempt.
CREATE OR REPLACE FUNCTION outbox.idempotency_fail(
    scope text, key text, attempt integer, retryable boolean, failure_code text, failure_message text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
    -- Cut rather than refused: a long message must not keep a failure from being recorded.
    message text := left(failure_message, 1000);
    ended text := CASE WHEN retryable THEN 'failed_retryable' ELSE 'failed_final' END;
    granted_at timestamptz;
    counted bigint;
BEGIN
    PERFORM outbox.idempotency_check_failure(retryable, failure_code);
    UPDATE outbox.idempotency_request r
    SET status = ended, failure_code = failure_code, failure_message = message, locked_until = NULL, updated_at = at,
        completed_at = CASE WHEN NOT retryable THEN at END,
        expires_at = outbox.idempotency_kept_until(r.expires_at, r.claimed_at, at)
    WHERE r.scope = scope AND r.key = key AND r.status = 'processing' AND r.attempt_count = attempt
    RETURNING r.claimed_at INTO granted_at;
    IF FOUND THEN
        counted := outbox.idempotency_count_duration(CASE WHEN retryable THEN 1 ELSE 2 END, at - granted_at);
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

-- ── The inbox ──────────────────────────────────────────────────────────────────────────────────

-- The relay reads when messages were received and finished, and nothing of what they say. A finished row tells how long it took, so
-- no call counts anything.
CREATE VIEW outbox.inbox_finished AS
SELECT m.consumer,
       CASE WHEN m.outcome = 'discarded' OR m.outcome LIKE 'discarded: %' THEN 'discarded' ELSE 'done' END AS outcome,
       m.done_at AS finished_at, m.done_at - m.received_at AS took
FROM outbox.inbox_message m
WHERE m.done_at IS NOT NULL;

COMMENT ON VIEW outbox.inbox_finished IS 'Inbox messages that are done or were discarded, and how long that took from their receipt.';

GRANT SELECT ON outbox.inbox_finished TO outbox_relay, outbox_operator;
GRANT SELECT (received_at) ON outbox.inbox_message TO outbox_relay;
