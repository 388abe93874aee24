-- Counts pending rows that are due and were delayed, redriven or replayed, up to $1. Ordered so that only the index meant for it fits.
SELECT count(*) FROM (SELECT FROM outbox.message m WHERE m.available_at <= statement_timestamp() ORDER BY m.available_at LIMIT $1) AS due
