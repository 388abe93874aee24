-- An order is created once, however often the client asks.
--
-- Claim, order, message and answer are one transaction. A retry gets the order that is there: read, not updated again.
--
--   what fails                                | what remains              | what the retry does
--   ------------------------------------------+---------------------------+------------------------------------------
--   the connection, before the claim          | nothing                   | executes
--   the process, behind the claim             | nothing: rolled back      | executes
--   the message or the answer, behind the order | nothing: rolled back    | executes
--   the answer to COMMIT is lost              | order, message and answer | replays the answer
--   two clients send it at once               | one order                 | the second waits, then replays
--   the key is used for another order         | the first order           | P4002: the client has a bug
--   the record was purged long ago            | order, perhaps message    | finds the order by its key, sends nothing
BEGIN;
DROP SCHEMA IF EXISTS create_order_once CASCADE;
DELETE FROM outbox.idempotency_request WHERE scope = 'create_order_once';
DELETE FROM outbox.message WHERE idempotency_scope = 'create_order_once';

CREATE SCHEMA create_order_once;
CREATE TABLE create_order_once.orders (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The rule that outlives every record of a command.
    command_key  text NOT NULL UNIQUE,
    customer     text NOT NULL,
    cents        bigint NOT NULL CHECK (cents > 0)
);

CREATE FUNCTION create_order_once.place(command_key text, customer text, cents bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    request jsonb := jsonb_build_object('customer', customer, 'cents', cents);
    claim outbox.idempotency_answer := outbox.idempotency_begin('create_order_once', command_key, outbox.request_hash(request));
    order_id bigint;
BEGIN
    IF NOT claim.granted THEN
        RETURN claim.result_id;
    END IF;
    INSERT INTO create_order_once.orders (command_key, customer, cents) VALUES (command_key, customer, cents)
    ON CONFLICT DO NOTHING RETURNING id INTO order_id;
    IF order_id IS NULL THEN
        SELECT o.id INTO order_id FROM create_order_once.orders o WHERE o.command_key = command_key;
    ELSE
        PERFORM outbox.enqueue('example.orders', order_id::text, request, event_type => 'OrderPlaced',
                               idempotency_scope => 'create_order_once', idempotency_key => command_key);
    END IF;
    PERFORM outbox.idempotency_succeed('create_order_once', command_key, claim.attempt, 'order', order_id::text, 201);
    RETURN order_id;
END $$;
COMMIT;

-- The client sends it, hears nothing, and sends it again.
SELECT create_order_once.place('c0ffee', 'ada', 9990) AS first;
SELECT create_order_once.place('c0ffee', 'ada', 9990) AS again;

DO $$
DECLARE
    version xid := (SELECT xmin FROM create_order_once.orders);
BEGIN
    ASSERT create_order_once.place('c0ffee', 'ada', 9990) = (SELECT id FROM create_order_once.orders), 'the same order';
    ASSERT (SELECT count(*) FROM outbox.message WHERE idempotency_scope = 'create_order_once') = 1, 'one message';

    BEGIN
        PERFORM create_order_once.place('c0ffee', 'ada', 1);
        RAISE EXCEPTION 'another order under the same key was accepted';
    EXCEPTION WHEN SQLSTATE 'P4002' THEN NULL;
    END;

    BEGIN
        PERFORM create_order_once.place('decade', 'bob', -1);
        RAISE EXCEPTION 'an order for less than nothing was accepted';
    EXCEPTION WHEN check_violation THEN NULL;
    END;
    ASSERT NOT EXISTS (SELECT FROM outbox.idempotency_request WHERE scope = 'create_order_once' AND key = 'decade'),
        'a failure leaves no claim';

    -- As the purge does, when the record has expired.
    DELETE FROM outbox.idempotency_request WHERE scope = 'create_order_once';
    ASSERT create_order_once.place('c0ffee', 'ada', 9990) = (SELECT id FROM create_order_once.orders), 'still the same order';
    ASSERT (SELECT count(*) FROM outbox.message WHERE idempotency_scope = 'create_order_once') = 1, 'still one message';
    ASSERT (SELECT xmin FROM create_order_once.orders) = version, 'never written again';
END $$;
