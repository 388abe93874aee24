SELECT operation, changed FROM outbox.holds_release($1, $2, $3, $4, $5::text::jsonb)
