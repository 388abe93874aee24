-- A balance is computed from events. Each is applied once, in one statement that takes effect only if the marker was inserted.
--
-- what fails                                        | what remains                | what the repeat does
-- --------------------------------------------------|-----------------------------|----------------------------------------------
-- the process, before COMMIT                        | nothing                     | everything, once
-- the process, after COMMIT, before its offset      | balance and marker          | changes nothing, writes nothing
-- the event is delivered twice at once              | balance and marker, once    | the second waits for the first, changes nothing
-- the account does not exist yet                    | it does, with this balance  | changes nothing
-- the effect (a CHECK refuses the balance)          | nothing, not even a marker  | is refused again
-- the whole topic is replayed from its beginning    | the same balances           | changes nothing
-- an event id is reused with another amount         | the first amount            | P4050: park it for a person
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS balance_projection CASCADE;
CREATE SCHEMA balance_projection;
DELETE FROM outbox.processed_message WHERE consumer = 'balance-projection';

CREATE TABLE balance_projection.balance (
    account  text PRIMARY KEY,
    amount   bigint NOT NULL CONSTRAINT balance_is_not_negative CHECK (amount >= 0),
    events   integer NOT NULL
);

-- The gate is in the FROM of an INSERT … SELECT, which always evaluates it. The WHERE of an UPDATE does not: with no row to update
-- the gate is never called, and an UPDATE that runs before its row exists would leave a marker without an effect. Hence the
-- upsert. MATERIALIZED makes sure that it is called once, whatever the planner chooses.
CREATE FUNCTION balance_projection.apply(event_id text, account text, delta bigint) RETURNS boolean LANGUAGE sql AS $$
    WITH gate AS MATERIALIZED (
        SELECT outbox.consume_once('balance-projection', 'ledger', event_id,
                                   sha256(convert_to(jsonb_build_array(account, delta)::text, 'UTF8'))) AS first
    ), applied AS (
        INSERT INTO balance_projection.balance AS b (account, amount, events)
        SELECT account, delta, 1 FROM gate WHERE gate.first
        ON CONFLICT (account) DO UPDATE SET amount = b.amount + excluded.amount, events = b.events + 1
        RETURNING 1
    )
    SELECT count(*) = 1 FROM applied
$$;

CREATE TABLE balance_projection.event (n integer PRIMARY KEY, account text, delta bigint);
INSERT INTO balance_projection.event SELECT n, 'account-' || n % 3, n FROM generate_series(1, 30) n;

-- Apply the history twice, the second time backwards.
SELECT count(*) FILTER (WHERE balance_projection.apply('e' || n, account, delta)) AS applied FROM balance_projection.event;
SELECT count(*) FILTER (WHERE balance_projection.apply('e' || n, account, delta)) AS applied
FROM (SELECT * FROM balance_projection.event ORDER BY n DESC) AS backwards;

DO $$
BEGIN
    ASSERT (SELECT sum(amount) = 465 AND sum(events) = 30 AND count(*) = 3 FROM balance_projection.balance), 'each event once';
    ASSERT NOT EXISTS (
        SELECT FROM (SELECT account, sum(delta) AS amount FROM balance_projection.event GROUP BY account) e
        FULL JOIN balance_projection.balance b USING (account) WHERE e.amount IS DISTINCT FROM b.amount), 'the same as a sum';
END $$;

-- An effect that is refused leaves no marker.
DO $$
BEGIN
    PERFORM balance_projection.apply('overdraft', 'account-0', -1000000);
    RAISE EXCEPTION 'a negative balance went through';
EXCEPTION WHEN check_violation THEN
    ASSERT NOT EXISTS (SELECT FROM outbox.processed_message WHERE consumer = 'balance-projection' AND message_id = 'overdraft');
END $$;

-- An id that is reused with another amount is refused.
DO $$
BEGIN
    PERFORM balance_projection.apply('e1', 'account-1', 1000);
    RAISE EXCEPTION 'another amount went through';
EXCEPTION WHEN SQLSTATE 'P4050' THEN
    ASSERT (SELECT sum(amount) = 465 FROM balance_projection.balance);
END $$;
