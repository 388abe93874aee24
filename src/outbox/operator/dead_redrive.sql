SELECT operation, changed FROM outbox.dead_redrive($1, $2, $3, $4::text::jsonb)
