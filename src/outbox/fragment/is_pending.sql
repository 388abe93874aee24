m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
