SELECT outbox.history_drop($1 * interval '1 second') AS days
