-- A ledger transaction of several entries, consumed once: all of its entries or none, and they sum to zero.
--
-- what fails                                        | what remains                     | what the repeat does
-- --------------------------------------------------|----------------------------------|-----------------------------------------
-- the process, between two entries                  | nothing                          | everything, once
-- the process, after COMMIT, before its offset      | all entries, marker, message     | false; writes nothing
-- the entries do not sum to zero                    | nothing, not even the marker     | is refused again (23514)
-- one entry is refused (an unknown account)         | nothing, not even the marker     | is refused again (23503)
-- the message is delivered twice at once            | all entries, once                | the second waits for the first: false
-- the id is reused with other entries               | the first entries                | P4050: park it for a person
-- two messages book the same accounts crosswise      | all entries of both              | nothing: neither waits for the other
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS ledger_transaction CASCADE;
CREATE SCHEMA ledger_transaction;
DELETE FROM outbox.processed_message WHERE consumer = 'ledger-transaction';
DELETE FROM outbox.message WHERE topic = 'example.ledger';

CREATE TABLE ledger_transaction.account (id text PRIMARY KEY);
INSERT INTO ledger_transaction.account VALUES ('cash'), ('sales'), ('tax');

-- The reference locks an account FOR KEY SHARE, a lock that sessions can share: bookings of the same accounts do not wait for each
-- other. If accounts have a balance they do. Then update accounts in the order of their ids, or be ready for 40P01.
CREATE TABLE ledger_transaction.entry (
    transaction_id  text NOT NULL,
    line            integer NOT NULL,
    account_id      text NOT NULL REFERENCES ledger_transaction.account,
    amount          numeric NOT NULL,
    PRIMARY KEY (transaction_id, line)
);

-- Books the whole transaction. It is checked before anything is written.
CREATE FUNCTION ledger_transaction.book(transaction_id text, entries jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF (SELECT sum((e->>'amount')::numeric) <> 0 FROM jsonb_array_elements(entries) e) IS NOT FALSE THEN
        RAISE EXCEPTION 'entries do not sum to zero' USING ERRCODE = 'check_violation';
    END IF;
    IF NOT outbox.consume_once('ledger-transaction', 'bookings', transaction_id, sha256(convert_to(entries::text, 'UTF8')),
                               result_type => 'ledger_transaction', result_id => transaction_id) THEN
        RETURN false;
    END IF;
    INSERT INTO ledger_transaction.entry
    SELECT transaction_id, e.line, e.entry->>'account', (e.entry->>'amount')::numeric
    FROM jsonb_array_elements(entries) WITH ORDINALITY AS e (entry, line);
    PERFORM outbox.enqueue(topic => 'example.ledger', key => transaction_id, payload => entries, event_type => 'TransactionBooked');
    RETURN true;
END $$;

DO $$
DECLARE
    sale jsonb := '[{"account": "cash", "amount": 119}, {"account": "sales", "amount": -100}, {"account": "tax", "amount": -19}]';
BEGIN
    ASSERT ledger_transaction.book('t1', sale);
    ASSERT NOT ledger_transaction.book('t1', sale), 'delivered again';
    ASSERT ledger_transaction.book('t2', '[{"account": "cash", "amount": -5}, {"account": "sales", "amount": 5}]');
END $$;

DO $$
BEGIN
    PERFORM ledger_transaction.book('t3', '[{"account": "cash", "amount": 1}]');
    RAISE EXCEPTION 'money out of nothing';
EXCEPTION WHEN check_violation THEN NULL;
END $$;

DO $$
BEGIN
    PERFORM ledger_transaction.book('t4', '[{"account": "cash", "amount": 1}, {"account": "unknown", "amount": -1}]');
    RAISE EXCEPTION 'an unknown account';
EXCEPTION WHEN foreign_key_violation THEN NULL;
END $$;

DO $$
BEGIN
    PERFORM ledger_transaction.book('t1', '[{"account": "cash", "amount": 1}, {"account": "sales", "amount": -1}]');
    RAISE EXCEPTION 'other entries under a known id';
EXCEPTION WHEN SQLSTATE 'P4050' THEN NULL;
END $$;

DO $$
BEGIN
    ASSERT (SELECT count(*) = 5 AND sum(amount) = 0 FROM ledger_transaction.entry), 'five entries of two transactions';
    ASSERT (SELECT count(*) = 2 FROM outbox.processed_message WHERE consumer = 'ledger-transaction'), 'what was refused left no marker';
    ASSERT (SELECT count(*) = 2 FROM outbox.message WHERE topic = 'example.ledger'), 'and no message';
END $$;
