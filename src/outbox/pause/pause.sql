SELECT version, changed FROM outbox.pause($1, $2, $3)
