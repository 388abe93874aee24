SELECT dropped, locked FROM outbox.history_expire($1 * interval '1 second')
