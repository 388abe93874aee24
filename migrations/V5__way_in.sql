-- The way in, for less and with narrower gates.
--
-- A new command for less: the rules of a record are readied once a session instead of in every statement, a first claim is a look
-- and an INSERT, and a record that succeeds passes through three indexes instead of four.

-- One index for whatever has not succeeded: what is under way by the end of its lock, what has failed by when. And one for the
-- purge, without those that it never takes: they would lie at its old end for good, passed over by every step.
-- Made before anything is dropped: while they grow, answers are still read.
CREATE INDEX idempotency_request_unsettled ON outbox.idempotency_request (locked_until, updated_at)
    WHERE locked_until IS NOT NULL OR failure_code IS NOT NULL;
CREATE INDEX idempotency_request_purgeable ON outbox.idempotency_request (expires_at) WHERE completed_at IS NOT NULL;
DROP INDEX outbox.idempotency_request_expires, outbox.idempotency_request_locked, outbox.idempotency_request_failed;

-- The rules of a record, each under its name, as a trigger instead of twelve CHECKs: PostgreSQL reads and plans the text of every
-- CHECK anew in every statement, and took longer for that than for the INSERT. What a function says is planned once a session. After
-- the row, since a trigger before an update locks the row first, and writes that down. As with a CHECK, what is unknown breaks no
-- rule, the first one broken in the order of names is named, and all is undone.
--
-- Without a search path of its own: every function that writes here sets the same one, and another would be set for each row.
CREATE FUNCTION outbox.idempotency_check_record() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    broken text := CASE
        WHEN NEW.status <> 'succeeded' AND num_nonnulls(NEW.result_type, NEW.result_id, NEW.response_code, NEW.response_body) > 0
            THEN 'idempotency_answer_is_of_a_success'
        WHEN NEW.attempt_count < 1
            THEN 'idempotency_attempts_begin_at_one'
        WHEN octet_length(NEW.response_body::text) > 65536
            THEN 'idempotency_body_is_at_most_64_kib'
        WHEN (NEW.status IN ('succeeded', 'failed_final')) <> (NEW.completed_at IS NOT NULL)
            THEN 'idempotency_completed_is_terminal'
        WHEN NEW.expires_at <= NEW.created_at
            THEN 'idempotency_expires_after_it_was_made'
        WHEN NEW.status = 'succeeded' AND num_nonnulls(NEW.failure_code, NEW.failure_message) > 0
             OR NEW.status NOT IN ('processing', 'succeeded') AND NEW.failure_code IS NULL
            THEN 'idempotency_failure_has_a_code'
        WHEN octet_length(NEW.request_hash) NOT BETWEEN 16 AND 64
            THEN 'idempotency_hash_is_16_to_64_bytes'
        WHEN octet_length(NEW.key) NOT BETWEEN 1 AND 255
            THEN 'idempotency_key_is_1_to_255_bytes'
        WHEN (NEW.status = 'processing') <> (NEW.locked_until IS NOT NULL)
            THEN 'idempotency_lock_is_for_processing'
        WHEN NEW.result_id IS NOT NULL AND NEW.result_type IS NULL
            THEN 'idempotency_result_id_needs_a_type'
        WHEN octet_length(NEW.scope) NOT BETWEEN 1 AND 255
            THEN 'idempotency_scope_is_1_to_255_bytes'
        WHEN NEW.status NOT IN ('processing', 'succeeded', 'failed_retryable', 'failed_final')
            THEN 'idempotency_status_is_known'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA, CONSTRAINT = broken,
            MESSAGE = format('new row for relation "%s" violates check constraint "%s"', TG_TABLE_NAME, broken),
            HINT = 'Use the functions idempotency_…; never write the table.';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER idempotency_request_is_lawful AFTER INSERT OR UPDATE ON outbox.idempotency_request
    FOR EACH ROW EXECUTE FUNCTION outbox.idempotency_check_record();
ALTER TABLE outbox.idempotency_request
    -- For a session that replays the log of another server as well.
    ENABLE ALWAYS TRIGGER idempotency_request_is_lawful,
    DROP CONSTRAINT idempotency_answer_is_of_a_success, DROP CONSTRAINT idempotency_attempts_begin_at_one,
    DROP CONSTRAINT idempotency_body_is_at_most_64_kib, DROP CONSTRAINT idempotency_completed_is_terminal,
    DROP CONSTRAINT idempotency_expires_after_it_was_made, DROP CONSTRAINT idempotency_failure_has_a_code,
    DROP CONSTRAINT idempotency_hash_is_16_to_64_bytes, DROP CONSTRAINT idempotency_key_is_1_to_255_bytes,
    DROP CONSTRAINT idempotency_lock_is_for_processing, DROP CONSTRAINT idempotency_result_id_needs_a_type,
    DROP CONSTRAINT idempotency_scope_is_1_to_255_bytes, DROP CONSTRAINT idempotency_status_is_known;

-- The first claim of a command: true where it is granted. False where another was faster, or for what is no command: both are told
-- by idempotency_claim_unanswered. clock_timestamp(), never now(): that is when the transaction began.
CREATE FUNCTION outbox.idempotency_claim_first(
    scope text, key text, request_hash bytea, lock_for interval, claimed_by text, expires_in interval
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
    until timestamptz := at + lock_for;
    expires timestamptz := at + expires_in;
BEGIN
    IF (btrim(scope) <> '' AND octet_length(scope) <= 255 AND btrim(key) <> '' AND octet_length(key) <= 255
        AND octet_length(request_hash) BETWEEN 16 AND 64 AND until > at AND until <= at + interval '1 day'
        AND expires >= until AND expires <= at + interval '10 years'
        AND (claimed_by IS NULL OR octet_length(claimed_by) <= 255)) IS NOT TRUE THEN
        RETURN false;
    END IF;
    INSERT INTO outbox.idempotency_request (created_at, updated_at, claimed_at, expires_at, locked_until, attempt_count, scope, key,
                                            request_hash, status, claimed_by)
    VALUES (at, at, at, expires, until, 1, scope, key, request_hash, 'processing', coalesce(claimed_by, 'pid ' || pg_backend_pid()))
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- May this command run, or what was its answer? A replay takes no row lock, no transaction id and no WAL.
--
-- A look, and only where it finds nothing an INSERT: that waits for whoever is about to end an attempt, while the answer is that
-- one is under way. The look is one statement and the INSERT another: in one, the loser of two first claims would wait, and then
-- see nothing with the snapshot it began with.
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
    ELSIF FOUND OR NOT outbox.idempotency_claim_first(scope, key, request_hash, lock_for, claimed_by, expires_in) THEN
        RETURN outbox.idempotency_claim_unanswered(scope, key, request_hash, lock_for, take_over, claimed_by, expires_in);
    END IF;
    counted := pg_catalog.nextval('outbox.idempotency_granted');
    answer.kind := 'new';
    answer.granted := true;
    answer.attempt := 1;
    RETURN answer;
END $$;

REVOKE ALL ON FUNCTION outbox.idempotency_check_record, outbox.idempotency_claim_first FROM PUBLIC;
