SELECT operation, changed FROM outbox.dead_discard($1, $2, $3, $4::text::jsonb)
