-- An order changes its state only from the state that the caller expects, and each command takes effect once.
--
-- One UPDATE compares and sets the state. The outcome of each command is stored beside it, also a refusal: a retry gets the answer
-- of the first try, even if the order has changed since. For commands that touch one row this table is enough:
-- there is no claim, and no lock that can expire.
--
--   what fails                                | what remains              | what the retry does
--   ------------------------------------------+---------------------------+------------------------------------------
--   the connection, before the command        | nothing                   | executes
--   the process, after the command's row      | nothing: rolled back      | executes
--   the process, after the transition         | nothing: rolled back      | executes
--   the answer to COMMIT is lost              | transition and outcome    | reads the outcome
--   the same command twice at once            | one transition            | the second waits, then reads the outcome
--   two commands expect the same state        | one transition            | the second is refused, and stays refused
--   the command id is used for another change | the first outcome         | is refused: the client has a bug
BEGIN;
DROP SCHEMA IF EXISTS compare_and_set CASCADE;
DELETE FROM outbox.message WHERE idempotency_scope = 'compare_and_set';

CREATE SCHEMA compare_and_set;
CREATE TABLE compare_and_set.orders (
    id       bigint PRIMARY KEY,
    status   text NOT NULL CHECK (status IN ('placed', 'paid', 'shipped', 'cancelled')),
    version  bigint NOT NULL DEFAULT 1
);
CREATE TABLE compare_and_set.command (
    order_id    bigint NOT NULL REFERENCES compare_and_set.orders,
    command_id  text NOT NULL,
    expected    text NOT NULL,
    wanted      text NOT NULL,
    outcome     text CHECK (outcome IN ('done', 'refused')),
    PRIMARY KEY (order_id, command_id)
);

CREATE FUNCTION compare_and_set.transition(order_id bigint, command_id text, expected text, wanted text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    before compare_and_set.command;
    reached bigint;
BEGIN
    INSERT INTO compare_and_set.command (order_id, command_id, expected, wanted)
    VALUES (order_id, command_id, expected, wanted) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO before FROM compare_and_set.command c WHERE c.order_id = order_id AND c.command_id = command_id;
        IF (before.expected, before.wanted) <> (expected, wanted) THEN
            RAISE EXCEPTION 'the command id was used for another change' USING ERRCODE = 'P4002';
        END IF;
        RETURN before.outcome;
    END IF;
    UPDATE compare_and_set.orders o SET status = wanted, version = o.version + 1
    WHERE o.id = order_id AND o.status = expected RETURNING o.version INTO reached;
    IF FOUND THEN
        PERFORM outbox.enqueue('example.orders', order_id::text, jsonb_build_object('status', wanted), event_type => 'OrderMoved',
                               aggregate_version => reached, idempotency_scope => 'compare_and_set',
                               idempotency_key => order_id || '/' || command_id);
    END IF;
    UPDATE compare_and_set.command c SET outcome = CASE WHEN reached IS NULL THEN 'refused' ELSE 'done' END
    WHERE c.order_id = order_id AND c.command_id = command_id;
    RETURN CASE WHEN reached IS NULL THEN 'refused' ELSE 'done' END;
END $$;

INSERT INTO compare_and_set.orders (id, status) VALUES (42, 'placed');
COMMIT;

SELECT compare_and_set.transition(42, 'pay-1', 'placed', 'paid') AS paid;
SELECT compare_and_set.transition(42, 'cancel-1', 'placed', 'cancelled') AS too_late;
SELECT compare_and_set.transition(42, 'ship-1', 'paid', 'shipped') AS shipped;
-- Late repeats of all three change nothing and get the same answers.
SELECT compare_and_set.transition(42, 'pay-1', 'placed', 'paid') AS paid;
SELECT compare_and_set.transition(42, 'cancel-1', 'placed', 'cancelled') AS too_late;
SELECT compare_and_set.transition(42, 'ship-1', 'paid', 'shipped') AS shipped;

DO $$
BEGIN
    ASSERT compare_and_set.transition(42, 'pay-1', 'placed', 'paid') = 'done', 'as the first time';
    ASSERT compare_and_set.transition(42, 'cancel-1', 'placed', 'cancelled') = 'refused', 'as the first time';
    ASSERT compare_and_set.transition(42, 'ship-1', 'paid', 'shipped') = 'done', 'as the first time';
    ASSERT (SELECT (status, version) = ('shipped', 3) FROM compare_and_set.orders), 'two transitions';
    ASSERT (SELECT count(*) FROM outbox.message WHERE idempotency_scope = 'compare_and_set') = 2, 'two messages';
    BEGIN
        PERFORM compare_and_set.transition(42, 'pay-1', 'placed', 'cancelled');
        RAISE EXCEPTION 'a command id was accepted for another change';
    EXCEPTION WHEN SQLSTATE 'P4002' THEN NULL;
    END;
END $$;
