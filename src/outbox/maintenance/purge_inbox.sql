SELECT outbox.purge_inbox($1 * interval '1 second', $2) AS purged
