-- A webhook that the provider repeats until it is answered: one payment, one message out, however often it comes.
--
-- what fails                                        | what remains                    | what the repeat does
-- --------------------------------------------------|---------------------------------|------------------------------------------
-- the process, before COMMIT                        | nothing                         | everything, once
-- the process, after COMMIT and before its answer   | payment, marker, message        | answers 'duplicate', writes nothing
-- the INSERT of the payment (a CHECK refuses it)    | nothing, not even the marker    | is refused again, until code or data is mended
-- the connection, while COMMIT is under way         | all of it or nothing            | either of the first two
-- the provider sends one event twice at once        | payment, marker, message, once  | the second waits for the first: 'duplicate'
-- the provider reuses an id for another event       | the first payment, a rejection  | answers 'conflict' again; a person looks
-- the relay or Kafka                                | payment, marker, message        | nothing to repeat: the relay sends it later
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS webhook_consumer CASCADE;
CREATE SCHEMA webhook_consumer;
DELETE FROM outbox.processed_message WHERE consumer = 'webhook-consumer';
DELETE FROM outbox.message WHERE topic = 'example.payments';

CREATE TABLE webhook_consumer.payment (
    id      text PRIMARY KEY,
    amount  numeric NOT NULL CONSTRAINT payment_amount_is_positive CHECK (amount > 0)
);

-- What a person should look at.
CREATE TABLE webhook_consumer.rejected (
    event_id     text NOT NULL,
    body         jsonb NOT NULL,
    rejected_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text NOT NULL
);

-- What your handler calls. The answer 'processed' or 'duplicate' is HTTP 200, 'conflict' is 409.
CREATE FUNCTION webhook_consumer.receive(event_id text, body jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    why text;
BEGIN
    IF NOT outbox.consume_once('webhook-consumer', 'provider', event_id, sha256(convert_to(body::text, 'UTF8')),
                               outcome => 'paid', result_type => 'payment', result_id => body->>'payment') THEN
        RETURN 'duplicate';
    END IF;
    INSERT INTO webhook_consumer.payment (id, amount) VALUES (body->>'payment', (body->>'amount')::numeric);
    PERFORM outbox.enqueue(topic => 'example.payments', key => body->>'payment', payload => body, event_type => 'PaymentReceived');
    RETURN 'processed';
EXCEPTION WHEN SQLSTATE 'P4050' THEN
    GET STACKED DIAGNOSTICS why = MESSAGE_TEXT;
    INSERT INTO webhook_consumer.rejected (event_id, body, reason) VALUES (event_id, body, why);
    RETURN 'conflict';
END $$;

DO $$
BEGIN
    ASSERT webhook_consumer.receive('evt_1', '{"payment": "p1", "amount": 10}') = 'processed';
    -- Repeated, and with its keys in another order: jsonb has one way to write both.
    ASSERT webhook_consumer.receive('evt_1', '{"amount": 10, "payment": "p1"}') = 'duplicate';
    -- The same id, another body.
    ASSERT webhook_consumer.receive('evt_1', '{"payment": "p1", "amount": 9999}') = 'conflict';
    ASSERT webhook_consumer.receive('evt_2', '{"payment": "p2", "amount": 5}') = 'processed';
END $$;

-- An effect that fails takes its marker along: once the data is mended, the same event is processed.
DO $$
BEGIN
    PERFORM webhook_consumer.receive('evt_3', '{"payment": "p3", "amount": -1}');
    RAISE EXCEPTION 'a negative amount went through';
EXCEPTION WHEN check_violation THEN
    ASSERT NOT EXISTS (SELECT FROM outbox.processed_message WHERE consumer = 'webhook-consumer' AND message_id = 'evt_3');
END $$;

DO $$
BEGIN
    ASSERT (SELECT array_agg(id || '=' || amount ORDER BY id) = '{p1=10,p2=5}' FROM webhook_consumer.payment), 'two payments';
    ASSERT (SELECT count(*) = 2 FROM outbox.message WHERE topic = 'example.payments'), 'two messages out';
    ASSERT (SELECT array_agg(event_id) = '{evt_1}' FROM webhook_consumer.rejected), 'one rejection';
END $$;
