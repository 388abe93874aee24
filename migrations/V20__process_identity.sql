-- Oldest outboxd schema that may run on this: 19
--
-- Which process a worker is, so that its successor can prove that it is gone and need not wait for its lease. NULL where nothing
-- can be proven: behind a transaction pooler, and for workers of an earlier version.
ALTER TABLE outbox.worker
    ADD COLUMN pod_uid          text,
    -- Host name, boot id and process id namespace: within one of these a process id means one process.
    ADD COLUMN machine          text,
    ADD COLUMN pid              bigint,
    -- Process ids come again; with its start time, in clock ticks since the machine booted, one is unique.
    ADD COLUMN process_started  bigint,
    -- Every session of the process holds a shared advisory lock under this key: while one is left, the process may live.
    ADD COLUMN session_key      bigint;
