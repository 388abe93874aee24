-- Stamps this worker stopped, before its lanes are freed and in the same transaction.
UPDATE outbox.worker SET stopped_at = clock_timestamp() WHERE id = $1 AND stopped_at IS NULL
