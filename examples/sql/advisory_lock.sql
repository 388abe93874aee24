-- A resource that is not a row (the report of a day that does not exist yet, a file, a slot of a partner) is used by one session at a time.
--
-- A transaction-level advisory lock serializes them and ends with the transaction, however that ends. It remembers nothing: what
-- has been done is read from a table, under the lock.
--
--   what fails                                | what remains              | what the retry does
--   ------------------------------------------+---------------------------+------------------------------------------
--   the connection, before the lock           | nothing                   | builds the report
--   the process, under the lock               | nothing; the lock is gone | builds the report
--   the report cannot be built                | nothing; the lock is gone | builds the report
--   the answer to COMMIT is lost              | the report                | finds it
--   two at once, both may wait                | one report                | the second waits, and finds it
--   two at once, the second may not wait      | one report                | is told "busy", comes again
--   two resources have the same hash          | both reports              | one waits for the other: slower, not wrong
BEGIN;
DROP SCHEMA IF EXISTS advisory_lock CASCADE;
CREATE SCHEMA advisory_lock;
CREATE TABLE advisory_lock.sale (day date NOT NULL, cents bigint NOT NULL);
CREATE TABLE advisory_lock.report (day date PRIMARY KEY, cents bigint NOT NULL);
INSERT INTO advisory_lock.sale VALUES ('2030-01-01', 100), ('2030-01-01', 250), ('2030-01-02', 7);

-- One name for the resource, everywhere. The hash has 64 bits: two names hardly ever collide, and if they do, one session waits.
CREATE FUNCTION advisory_lock.lock_of(day date) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('advisory_lock/report/' || to_char(day, 'YYYY-MM-DD'), 0)
$$;

CREATE FUNCTION advisory_lock.build(day date, may_wait boolean DEFAULT true) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF may_wait THEN
        PERFORM pg_advisory_xact_lock(advisory_lock.lock_of(day));
    ELSIF NOT pg_try_advisory_xact_lock(advisory_lock.lock_of(day)) THEN
        RETURN 'busy';
    END IF;
    -- A separate statement, so that it sees what the previous session has committed.
    IF EXISTS (SELECT FROM advisory_lock.report r WHERE r.day = day) THEN
        RETURN 'found';
    END IF;
    INSERT INTO advisory_lock.report (day, cents)
    SELECT day, coalesce(sum(s.cents), 0) FROM advisory_lock.sale s WHERE s.day = day;
    RETURN 'built';
END $$;
COMMIT;

-- An interrupted attempt leaves neither the report nor the lock.
BEGIN;
SELECT advisory_lock.build('2030-01-01');
SELECT count(*) = 1 AS locked FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;

DO $$
BEGIN
    ASSERT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), 'the lock is gone';
    ASSERT advisory_lock.build('2030-01-01') = 'built', 'by the retry';
    ASSERT advisory_lock.build('2030-01-01') = 'found', 'by the next one';
    ASSERT advisory_lock.build('2030-01-02', may_wait => false) = 'built', 'another day, another lock';
    ASSERT (SELECT string_agg(cents::text, ' ' ORDER BY day) FROM advisory_lock.report) = '350 7', 'each once';
END $$;
