SELECT outbox.purge_processed($1 * interval '1 second', $2) AS purged
