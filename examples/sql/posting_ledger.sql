-- A ledger of postings per account, numbered without gaps, with the balance after each. The posting itself is the marker.
-- If the effect is a row with a natural key, no other table is needed: its primary key suppresses the duplicate.
--
-- what fails                                        | what remains                 | what the repeat does
-- --------------------------------------------------|------------------------------|---------------------------------------------
-- the process, before COMMIT                        | nothing                      | posts it
-- the process, after COMMIT and before its answer   | the posting                  | answers the same number and balance
-- two different postings to one account at once     | both, one after the other    | answers each its own
-- one posting delivered twice at once               | one posting                  | the second waits, answers the same
-- the balance would become negative                 | nothing                      | is refused again, until there is money
-- a posting id is reused with another amount        | the first posting            | P4050: park it for a person
-- the account does not exist yet                    | it does, with this posting   | answers the same number and balance
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS posting_ledger CASCADE;
CREATE SCHEMA posting_ledger;

CREATE TABLE posting_ledger.account (
    id       text PRIMARY KEY,
    last_no  bigint NOT NULL DEFAULT 0,
    balance  bigint NOT NULL DEFAULT 0 CONSTRAINT account_balance_is_not_negative CHECK (balance >= 0)
);

CREATE TABLE posting_ledger.posting (
    account_id     text NOT NULL REFERENCES posting_ledger.account,
    posting_id     text NOT NULL,
    no             bigint NOT NULL,
    amount         bigint NOT NULL,
    balance_after  bigint NOT NULL,
    PRIMARY KEY (account_id, posting_id),
    UNIQUE (account_id, no)
);

CREATE FUNCTION posting_ledger.post(account text, posting text, amount bigint)
RETURNS posting_ledger.posting LANGUAGE plpgsql AS $$
DECLARE
    known posting_ledger.posting;
BEGIN
    -- Read without a lock first: most repeats end here and write nothing.
    SELECT p.* INTO known FROM posting_ledger.posting p WHERE p.account_id = account AND p.posting_id = posting;
    IF NOT FOUND THEN
        INSERT INTO posting_ledger.account (id) VALUES (account) ON CONFLICT DO NOTHING;
        -- From here on there is one session at a time per account. After a wait, read again.
        PERFORM FROM posting_ledger.account a WHERE a.id = account FOR UPDATE;
        SELECT p.* INTO known FROM posting_ledger.posting p WHERE p.account_id = account AND p.posting_id = posting;
    END IF;
    IF known.no IS NULL THEN
        WITH counted AS (
            UPDATE posting_ledger.account a SET last_no = a.last_no + 1, balance = a.balance + post.amount
            WHERE a.id = account RETURNING a.last_no, a.balance
        )
        INSERT INTO posting_ledger.posting SELECT account, posting, c.last_no, post.amount, c.balance FROM counted c
        RETURNING * INTO known;
    ELSIF known.amount <> post.amount THEN
        RAISE EXCEPTION 'posting % is known with another amount', outbox.message_digest(posting) USING ERRCODE = 'P4050';
    END IF;
    RETURN known;
END $$;

DO $$
DECLARE
    first posting_ledger.posting;
BEGIN
    first := posting_ledger.post('alice', 'p1', 100);
    ASSERT (first.no, first.balance_after) = (1, 100);
    PERFORM posting_ledger.post('alice', 'p2', -30);
    PERFORM posting_ledger.post('bob', 'p1', 7);
    ASSERT posting_ledger.post('alice', 'p1', 100) = first, 'the repeat answers the same, although the balance has moved on';
END $$;

DO $$
BEGIN
    PERFORM posting_ledger.post('alice', 'p1', 101);
    RAISE EXCEPTION 'another amount went through';
EXCEPTION WHEN SQLSTATE 'P4050' THEN NULL;
END $$;

DO $$
BEGIN
    PERFORM posting_ledger.post('alice', 'p3', -1000);
    RAISE EXCEPTION 'a negative balance went through';
EXCEPTION WHEN check_violation THEN NULL;
END $$;

DO $$
BEGIN
    PERFORM posting_ledger.post('alice', 'p4', 1);
    ASSERT (SELECT array_agg(no || ':' || balance_after ORDER BY no) = '{1:100,2:70,3:71}' FROM posting_ledger.posting WHERE account_id = 'alice'),
        'no gap where a posting was refused';
    ASSERT (SELECT bool_and(a.balance = s.sum) AND count(*) = 2 FROM posting_ledger.account a
            JOIN (SELECT account_id, sum(amount) FROM posting_ledger.posting GROUP BY 1) s ON s.account_id = a.id);
END $$;
