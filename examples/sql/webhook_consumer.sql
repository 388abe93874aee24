-- A provider repeats a webhook until it is answered. It has one payment and one outgoing message, however often it arrives.
--
-- what fails                                        | what remains                    | what the repeat does
-- --------------------------------------------------|---------------------------------|------------------------------------------
-- the process, before COMMIT                        | nothing                         | everything, once
-- the process, after COMMIT and before its answer   | event, payment, message         | answers 'duplicate', writes nothing
-- the INSERT of the payment (a CHECK refuses it)    | nothing, not even the marker    | is refused again, until code or data is fixed
-- the connection, while COMMIT is under way         | all of it or nothing            | either of the first two
-- the provider sends one event twice at once        | event, payment, message, once   | the second waits for the first: 'duplicate'
-- the provider reuses an id for another event       | the first payment, a rejection  | answers 'conflict', adds no rejection; a person looks
-- the relay or Kafka                                | event, payment, message         | nothing to repeat: the relay sends it later
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS webhook_consumer CASCADE;
CREATE SCHEMA webhook_consumer;
DELETE FROM outbox.processed_message WHERE consumer = 'webhook-consumer';
DELETE FROM outbox.message WHERE topic = 'example.webhook-payments';

-- Each event as it arrived. The marker of consume_once is purged after some time; this table is yours to keep.
CREATE TABLE webhook_consumer.incoming_event (
    id           text PRIMARY KEY,
    body         jsonb NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE webhook_consumer.payment (
    id        text PRIMARY KEY,
    event_id  text NOT NULL UNIQUE REFERENCES webhook_consumer.incoming_event,
    amount    numeric NOT NULL CONSTRAINT payment_amount_is_positive CHECK (amount > 0)
);

-- For a person to check: one row for each body that arrived under the id of another event, however often it arrives.
CREATE TABLE webhook_consumer.rejected (
    event_id     text NOT NULL,
    body_hash    bytea NOT NULL,
    body         jsonb NOT NULL,
    rejected_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text NOT NULL,
    PRIMARY KEY (event_id, body_hash)
);

-- Your handler calls this. Answer 'processed' and 'duplicate' with HTTP 200, 'conflict' with 409.
CREATE FUNCTION webhook_consumer.receive(event_id text, body jsonb) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    body_hash bytea := outbox.request_hash(body);
    why text;
BEGIN
    IF NOT outbox.consume_once('webhook-consumer', 'provider', event_id, body_hash,
                               outcome => 'paid', result_type => 'payment', result_id => body->>'payment') THEN
        RETURN 'duplicate';
    END IF;
    INSERT INTO webhook_consumer.incoming_event (id, body) VALUES (event_id, body);
    INSERT INTO webhook_consumer.payment (id, event_id, amount) VALUES (body->>'payment', event_id, (body->>'amount')::numeric);
    PERFORM outbox.enqueue(topic => 'example.webhook-payments', key => body->>'payment', payload => body, event_type => 'PaymentReceived');
    RETURN 'processed';
EXCEPTION WHEN SQLSTATE 'P4050' THEN
    GET STACKED DIAGNOSTICS why = MESSAGE_TEXT;
    INSERT INTO webhook_consumer.rejected (event_id, body_hash, body, reason) VALUES (event_id, body_hash, body, why)
    ON CONFLICT DO NOTHING;
    RETURN 'conflict';
END $$;

DO $$
BEGIN
    ASSERT webhook_consumer.receive('evt_1', '{"payment": "p1", "amount": 10}') = 'processed';
    -- Repeated, with its keys in another order: jsonb normalizes both to one text.
    ASSERT webhook_consumer.receive('evt_1', '{"amount": 10, "payment": "p1"}') = 'duplicate';
    -- The same id, another body.
    ASSERT webhook_consumer.receive('evt_1', '{"payment": "p1", "amount": 9999}') = 'conflict';
    ASSERT webhook_consumer.receive('evt_1', '{"payment": "p1", "amount": 9999}') = 'conflict', 'repeated, as the provider does';
    ASSERT webhook_consumer.receive('evt_1', '{"payment": "p1", "amount": 8888}') = 'conflict', 'yet another one';
    ASSERT webhook_consumer.receive('evt_2', '{"payment": "p2", "amount": 5}') = 'processed';
END $$;

-- If the effect fails, its marker is rolled back, too: once the data is fixed, the same event is processed.
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
    ASSERT (SELECT array_agg(e.id ORDER BY e.id) = '{evt_1,evt_2}' FROM webhook_consumer.incoming_event e), 'two events';
    ASSERT (SELECT count(*) = 2 FROM outbox.message WHERE topic = 'example.webhook-payments'), 'two messages out';
    ASSERT (SELECT array_agg(event_id || ' ' || (body->>'amount') ORDER BY body->>'amount') = '{evt_1 8888,evt_1 9999}'
            FROM webhook_consumer.rejected), 'one rejection for each conflict';
END $$;
