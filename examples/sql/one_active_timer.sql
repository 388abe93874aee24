-- A user has at most one running timer. A partial unique index enforces that, and makes starting one retry-safe.
--
-- No key is needed, because the state itself shows whether the command was executed. After a start, one timer is running. A stop
-- names the timer that the client saw running, so that a late repeat does not stop the next one.
--
--   what fails                                | what remains              | what the retry does
--   ------------------------------------------+---------------------------+------------------------------------------
--   the connection, before the INSERT         | nothing                   | starts the timer
--   the process, before COMMIT                | nothing: rolled back      | starts the timer
--   the answer to COMMIT is lost              | a running timer           | gets that timer
--   two clients start at once                 | one running timer         | the second waits, and gets it
--   a start is repeated after a stop          | a stopped timer           | starts another: say so, or pass a key
--   a stop is repeated                        | a stopped timer           | is told that it was stopped
--   a stop arrives after the next start       | the new timer, running    | is told that its own was stopped
BEGIN;
DROP SCHEMA IF EXISTS one_active_timer CASCADE;
CREATE SCHEMA one_active_timer;
CREATE TABLE one_active_timer.timer (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id     bigint NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    stopped_at  timestamptz
);
CREATE UNIQUE INDEX one_running_timer_a_user ON one_active_timer.timer (user_id) WHERE stopped_at IS NULL;

CREATE FUNCTION one_active_timer.start(user_id bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    running bigint;
BEGIN
    LOOP
        INSERT INTO one_active_timer.timer (user_id) VALUES (user_id) ON CONFLICT DO NOTHING RETURNING id INTO running;
        IF NOT FOUND THEN
            SELECT t.id INTO running FROM one_active_timer.timer t WHERE t.user_id = user_id AND t.stopped_at IS NULL;
        END IF;
        -- If neither found one, it was stopped between the two statements.
        EXIT WHEN running IS NOT NULL;
    END LOOP;
    RETURN running;
END $$;

-- True if this call stopped it.
CREATE FUNCTION one_active_timer.stop(timer_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE one_active_timer.timer SET stopped_at = clock_timestamp() WHERE id = timer_id AND stopped_at IS NULL;
    RETURN FOUND;
END $$;
COMMIT;

SELECT one_active_timer.start(7) AS first, one_active_timer.start(7) AS again;

DO $$
DECLARE
    first bigint := one_active_timer.start(7);
    second bigint;
BEGIN
    ASSERT (SELECT count(*) FROM one_active_timer.timer) = 1, 'one timer';
    ASSERT one_active_timer.stop(first), 'stopped';
    ASSERT NOT one_active_timer.stop(first), 'stopped before';
    second := one_active_timer.start(7);
    ASSERT second <> first, 'another one';
    ASSERT NOT one_active_timer.stop(first), 'a late repeat';
    ASSERT EXISTS (SELECT FROM one_active_timer.timer WHERE id = second AND stopped_at IS NULL), 'the new one runs';
    BEGIN
        INSERT INTO one_active_timer.timer (user_id) VALUES (7);
        RAISE EXCEPTION 'a second running timer was accepted';
    EXCEPTION WHEN unique_violation THEN NULL;
    END;
END $$;
