SELECT version, changed FROM outbox.resume($1, $2, $3)
