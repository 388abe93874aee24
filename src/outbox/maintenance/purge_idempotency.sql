SELECT outbox.purge_idempotency($1) AS purged
