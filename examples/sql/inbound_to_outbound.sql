-- Kafka → inbox → effect → outbox → Kafka: an order arrives, is shipped once, and the shipment is published.
--
-- what fails                                        | what remains                     | what the repeat does
-- --------------------------------------------------|----------------------------------|-----------------------------------------
-- the receiver, before its COMMIT                   | nothing; the offset is old       | Kafka delivers again: stored
-- the receiver, after COMMIT, before its offset     | the message in the inbox         | Kafka delivers again: known, ignored
-- the worker, between claim and work                | a claimed message                | claimed again when the lease has expired
-- the worker, before its COMMIT                     | a claimed message, no shipment   | the same
-- the worker pauses past its lease                  | what its successor did           | its own done is refused (P4010): rolled back
-- the work, every time (an unknown article)         | poison after the last attempt    | a person fixes it, then inbox_replay
-- the relay or Kafka, on the way out                | shipment and outgoing message    | the relay sends it later
--
-- The messages of one order are processed one after the other, because `key` is its number.
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS inbound_to_outbound CASCADE;
CREATE SCHEMA inbound_to_outbound;
DELETE FROM outbox.inbox_message WHERE consumer = 'example-shipping';
DELETE FROM outbox.message WHERE topic = 'example.shipments';

CREATE TABLE inbound_to_outbound.article (id text PRIMARY KEY);
INSERT INTO inbound_to_outbound.article VALUES ('bolt'), ('nut');

CREATE TABLE inbound_to_outbound.shipment (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id  text NOT NULL,
    article   text NOT NULL REFERENCES inbound_to_outbound.article,
    pieces    integer NOT NULL
);

-- The Kafka consumer calls this for each record, before it commits its offset. The id is the header message-id if the sender
-- sets one, otherwise the position of the record ('partition/offset').
CREATE FUNCTION inbound_to_outbound.receive(topic text, record_id text, order_id text, value jsonb) RETURNS boolean LANGUAGE sql AS $$
    SELECT outbox.inbox_receive('example-shipping', topic, record_id, payload => value, key => order_id, max_attempts => 2)
$$;

-- Processes one claimed message: effect, outgoing message and done, in one transaction.
CREATE FUNCTION inbound_to_outbound.ship(inbox_id bigint, token integer, value jsonb, outgoing text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    shipped inbound_to_outbound.shipment;
BEGIN
    INSERT INTO inbound_to_outbound.shipment (order_id, article, pieces)
    VALUES (value->>'order', value->>'article', (value->>'pieces')::integer) RETURNING * INTO shipped;
    PERFORM outbox.enqueue(topic => outgoing, key => shipped.order_id, payload => to_jsonb(shipped), event_type => 'Shipped');
    PERFORM outbox.inbox_done(inbox_id, token);
END $$;

-- One round of a worker. A service does the same: claim, commit, and then process each message in a transaction of its own.
CREATE PROCEDURE inbound_to_outbound.work(outgoing text DEFAULT 'example.shipments') LANGUAGE plpgsql AS $$
DECLARE
    claimed record;
    why text;
BEGIN
    FOR claimed IN SELECT * FROM outbox.inbox_claim('example-shipping', messages_max => 10, lease => '30 seconds') LOOP
        -- Keep the claim, whatever becomes of the work, and keep the work on the message before.
        COMMIT;
        BEGIN
            PERFORM inbound_to_outbound.ship(claimed.id, claimed.token, claimed.payload, outgoing);
        EXCEPTION WHEN OTHERS THEN
            -- The block has rolled back what the work wrote. Record the failure.
            GET STACKED DIAGNOSTICS why = MESSAGE_TEXT;
            PERFORM outbox.inbox_fail(claimed.id, claimed.token, why, backoff_min => '0', backoff_max => '0');
        END;
    END LOOP;
END $$;

-- Every record arrives twice, and one order names an unknown article.
SELECT inbound_to_outbound.receive('orders', r.id, r.value->>'order', r.value) AS stored
FROM (VALUES ('0/0', '{"order": "A", "article": "bolt", "pieces": 3}'::jsonb),
             ('0/1', '{"order": "A", "article": "nut", "pieces": 4}'),
             ('0/2', '{"order": "B", "article": "cog", "pieces": 1}')) AS r (id, value), generate_series(1, 2)
ORDER BY r.id;

-- A's second message waits for its first. B fails twice and then is poison.
CALL inbound_to_outbound.work();
CALL inbound_to_outbound.work();

DO $$
BEGIN
    ASSERT (SELECT array_agg(order_id || ' ' || article ORDER BY id) = '{A bolt,A nut}' FROM inbound_to_outbound.shipment), 'once, in order';
    ASSERT (SELECT messages = 1 AND latest_error LIKE '%foreign key%' FROM outbox.inbox_poison WHERE consumer = 'example-shipping'), 'B is poison';
    -- Fix the cause, and replay.
    INSERT INTO inbound_to_outbound.article VALUES ('cog');
    ASSERT outbox.inbox_replay('example-shipping') = 1;
END $$;

CALL inbound_to_outbound.work();

DO $$
BEGIN
    ASSERT (SELECT count(*) = 3 FROM inbound_to_outbound.shipment), 'three shipments';
    ASSERT (SELECT count(*) = 3 FROM outbox.message WHERE topic = 'example.shipments'), 'three messages out';
    ASSERT NOT EXISTS (SELECT FROM outbox.inbox_message WHERE consumer = 'example-shipping' AND done_at IS NULL), 'nothing is left';
END $$;
