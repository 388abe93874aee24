-- An order is created once, however often the client asks, and a cart is ordered once, whatever key the command has.
--
-- Claim, order, message and answer are one transaction. A retry reads the existing order and does not update it. The key
-- identifies the command, customer and cart identify the order. Each is unique by itself, and outlives the record of the command.
--
--   what fails                                | what remains              | what the retry does
--   ------------------------------------------+---------------------------+------------------------------------------
--   the process or the connection, before COMMIT | nothing: rolled back   | executes
--   the message or the answer, after the order  | nothing: rolled back    | executes
--   the answer to COMMIT is lost              | order, message and answer | replays the answer
--   two clients send it at once               | one order                 | the second waits, then replays
--   the key is used for another order         | the first order           | P4002: the client has a bug
--   the cart is sent under another key        | the first order           | finds it, sends nothing; another amount: P4002
--   the record was purged long ago            | order, perhaps message    | finds the order, sends nothing; another order: P4002
BEGIN;
DROP SCHEMA IF EXISTS create_order_once CASCADE;
DELETE FROM outbox.idempotency_request WHERE scope = 'create_order_once';
DELETE FROM outbox.message WHERE idempotency_scope = 'create_order_once';

CREATE SCHEMA create_order_once;
CREATE TABLE create_order_once.orders (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Two constraints that outlive the record of a command: a key creates one order, and so does a cart.
    command_key  text NOT NULL UNIQUE,
    customer     text NOT NULL,
    cart         text NOT NULL,
    cents        bigint NOT NULL CHECK (cents > 0),
    UNIQUE (customer, cart)
);

-- The existing order that prevented a new one. If it is not the order that was requested, this fails with P4002: the sender of the
-- command must not learn of somebody else's order.
CREATE FUNCTION create_order_once.existing(command_key text, customer text, cart text, cents bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    found create_order_once.orders;
BEGIN
    -- One order may have the key and another the cart. One that does not match sorts first.
    SELECT o.* INTO STRICT found FROM create_order_once.orders o
    WHERE o.command_key = command_key OR (o.customer, o.cart) = (customer, cart)
    ORDER BY (o.customer, o.cart, o.cents) = (customer, cart, cents) LIMIT 1;
    IF (found.customer, found.cart, found.cents) <> (customer, cart, cents) THEN
        RAISE EXCEPTION 'the key or the cart was used for another order' USING ERRCODE = 'P4002',
            HINT = 'A retry repeats the request as it was; another order needs a key and a cart of its own. Do not retry.';
    END IF;
    RETURN found.id;
END $$;

CREATE FUNCTION create_order_once.place(command_key text, customer text, cart text, cents bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    request jsonb := jsonb_build_object('customer', customer, 'cart', cart, 'cents', cents);
    claim outbox.idempotency_answer := outbox.idempotency_begin('create_order_once', command_key, outbox.request_hash(request));
    order_id bigint;
BEGIN
    IF NOT claim.granted THEN
        RETURN claim.result_id;
    END IF;
    INSERT INTO create_order_once.orders (command_key, customer, cart, cents) VALUES (command_key, customer, cart, cents)
    ON CONFLICT DO NOTHING RETURNING id INTO order_id;
    IF order_id IS NULL THEN
        order_id := create_order_once.existing(command_key, customer, cart, cents);
    ELSE
        PERFORM outbox.enqueue('example.orders', order_id::text, request, event_type => 'OrderPlaced',
                               idempotency_scope => 'create_order_once', idempotency_key => command_key);
    END IF;
    PERFORM outbox.idempotency_succeed('create_order_once', command_key, claim.attempt, 'order', order_id::text, 201);
    RETURN order_id;
END $$;

-- True if this command is refused because another order has its key or its cart.
CREATE FUNCTION create_order_once.is_refused(command_key text, customer text, cart text, cents bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM create_order_once.place(command_key, customer, cart, cents);
    RETURN false;
EXCEPTION WHEN SQLSTATE 'P4002' THEN
    RETURN true;
END $$;
COMMIT;

-- The client sends the command, gets no answer, and sends it again.
SELECT create_order_once.place('c0ffee', 'ada', 'cart-1', 9990) AS first;
SELECT create_order_once.place('c0ffee', 'ada', 'cart-1', 9990) AS again;

DO $$
DECLARE
    version xid := (SELECT xmin FROM create_order_once.orders);
BEGIN
    ASSERT create_order_once.place('c0ffee', 'ada', 'cart-1', 9990) = (SELECT id FROM create_order_once.orders), 'the same order';
    ASSERT create_order_once.is_refused('c0ffee', 'ada', 'cart-1', 1), 'another order under the same key';

    -- Two tabs, two keys, one cart.
    ASSERT create_order_once.place('facade', 'ada', 'cart-1', 9990) = (SELECT id FROM create_order_once.orders), 'the order of the cart';
    ASSERT create_order_once.is_refused('ad0be', 'ada', 'cart-1', 1), 'the same cart for another amount';

    BEGIN
        PERFORM create_order_once.place('decade', 'bob', 'cart-2', -1);
        RAISE EXCEPTION 'an order for less than nothing was accepted';
    EXCEPTION WHEN check_violation THEN NULL;
    END;
    ASSERT NOT EXISTS (SELECT FROM outbox.idempotency_request WHERE scope = 'create_order_once' AND key = 'decade'),
        'a failure leaves no claim';

    -- This is what the purge does after the record has expired.
    DELETE FROM outbox.idempotency_request WHERE scope = 'create_order_once';
    ASSERT create_order_once.place('c0ffee', 'ada', 'cart-1', 9990) = (SELECT id FROM create_order_once.orders), 'still the same order';
    DELETE FROM outbox.idempotency_request WHERE scope = 'create_order_once';
    ASSERT create_order_once.is_refused('c0ffee', 'eve', 'cart-3', 5), 'nobody is told of the order of another';
    ASSERT create_order_once.is_refused('c0ffee', 'ada', 'cart-1', 1), 'nor is it taken for another amount';
    ASSERT (SELECT count(*) FROM create_order_once.orders) = 1, 'one order';
    ASSERT (SELECT count(*) FROM outbox.message WHERE idempotency_scope = 'create_order_once') = 1, 'one message';
    ASSERT (SELECT xmin FROM create_order_once.orders) = version, 'never written again';
    ASSERT create_order_once.place('beef', 'ada', 'cart-4', 9990) <> (SELECT min(id) FROM create_order_once.orders), 'another cart, another order';
END $$;
