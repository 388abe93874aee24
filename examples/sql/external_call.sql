-- A card is charged once, by a provider outside our database.
--
-- The claim is committed first, because a transaction cannot undo a charge. Anything can happen between the claim and the answer, so a
-- claim whose lock has expired is examined before it is run again. The provider gets a key of ours that is the same in every
-- attempt, and a provider that remembers keys answers a second call with the first charge.
--
--   what fails                                | what remains               | what the retry does
--   ------------------------------------------+----------------------------+-----------------------------------------
--   the connection, before the claim          | nothing                    | executes
--   the process, before the call              | a stale claim              | take over, call
--   the process, after the call               | a stale claim, a charge    | take over, call: the provider replays
--   the answer of the provider is lost        | the claim, perhaps a charge | fail retryable; the retry calls again
--   the card is declined                      | a final failure            | P4030, always; a new try needs a new key
--   the answer to our last COMMIT is lost     | the charge and its answer  | replays the answer
--   a slow attempt ends after its successor   | the answer of the successor | P4010: the slow one changes nothing
BEGIN;
DROP SCHEMA IF EXISTS external_call CASCADE;
DELETE FROM outbox.idempotency_request WHERE scope = 'external_call';
DELETE FROM outbox.message WHERE idempotency_scope = 'external_call';
CREATE SCHEMA external_call;

-- The provider. Imagine it elsewhere: it knows nothing of our transactions.
CREATE TABLE external_call.charge (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    idempotency_key  text NOT NULL UNIQUE,
    cents            bigint NOT NULL
);
CREATE FUNCTION external_call.provider_charge(idempotency_key text, cents bigint) RETURNS bigint LANGUAGE sql AS $$
    INSERT INTO external_call.charge (idempotency_key, cents) VALUES (idempotency_key, cents) ON CONFLICT DO NOTHING;
    SELECT c.id FROM external_call.charge c WHERE c.idempotency_key = provider_charge.idempotency_key;
$$;
COMMIT;

-- 1. The claim, committed. lock_for is longer than the provider's timeout.
SELECT kind, granted, attempt
FROM outbox.idempotency_claim('external_call', 'pay-1', outbox.request_hash('{"cents": 500}'), lock_for => '1 millisecond');

-- 2. The call. Its key is the command's, without the attempt: every attempt is the same charge.
SELECT external_call.provider_charge('external_call/pay-1', 500) AS charge;

-- 3. Here the process dies. The lock expires (it was absurdly short), and a retry learns that instead of being executed.
SELECT pg_sleep(0.01);
SELECT kind, granted
FROM outbox.idempotency_claim('external_call', 'pay-1', outbox.request_hash('{"cents": 500}'));

-- 4. Find out what became of it. Ask the provider if it can be asked; NULL means that nobody knows, and needs a person.
SELECT r.key, outbox.idempotency_classify(r, EXISTS (SELECT FROM external_call.charge c
                                                     WHERE c.idempotency_key = r.scope || '/' || r.key)) AS verdict
FROM outbox.idempotency_request r WHERE r.scope = 'external_call';

-- 5. Take over, commit that claim as well, and call again with the same key.
SELECT kind, granted, attempt
FROM outbox.idempotency_claim('external_call', 'pay-1', outbox.request_hash('{"cents": 500}'), take_over => true);
SELECT external_call.provider_charge('external_call/pay-1', 500) AS charge;

-- 6. End the command: message and answer in one transaction, with the attempt number that the claim returned.
DO $$
DECLARE
    charge bigint := (SELECT id FROM external_call.charge WHERE idempotency_key = 'external_call/pay-1');
BEGIN
    PERFORM outbox.enqueue('example.payments', 'pay-1', jsonb_build_object('charge', charge), event_type => 'Charged',
                           idempotency_scope => 'external_call', idempotency_key => 'pay-1');
    PERFORM outbox.idempotency_succeed('external_call', 'pay-1', 2, 'charge', charge::text);
END $$;

DO $$
DECLARE
    claim outbox.idempotency_answer;
BEGIN
    ASSERT (SELECT count(*) FROM external_call.charge) = 1, 'charged once';
    claim := outbox.idempotency_claim('external_call', 'pay-1', outbox.request_hash('{"cents": 500}'));
    ASSERT claim.kind = 'replay' AND claim.result_id = (SELECT id::text FROM external_call.charge), 'and known';

    -- The first process was only slow, and now it is too late.
    BEGIN
        PERFORM outbox.idempotency_fail('external_call', 'pay-1', 1, true, 'timeout');
        RAISE EXCEPTION 'a zombie changed the answer';
    EXCEPTION WHEN SQLSTATE 'P4011' THEN NULL;
    END;

    -- Declined for good: the same key will never be tried again.
    claim := outbox.idempotency_claim('external_call', 'pay-2', outbox.request_hash('{"cents": 9}'));
    PERFORM outbox.idempotency_fail('external_call', 'pay-2', claim.attempt, false, 'card_declined');
    BEGIN
        PERFORM outbox.idempotency_begin('external_call', 'pay-2', outbox.request_hash('{"cents": 9}'));
        RAISE EXCEPTION 'a declined card was tried again';
    EXCEPTION WHEN SQLSTATE 'P4030' THEN NULL;
    END;
END $$;
