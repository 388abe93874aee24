-- Stamps this worker stopped. Precedes the return of its lanes, in the same transaction.
UPDATE outbox.worker SET stopped_at = clock_timestamp() WHERE id = $1 AND stopped_at IS NULL
