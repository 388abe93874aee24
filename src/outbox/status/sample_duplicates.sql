-- Counts duplicates that consumers have ignored since the server started. The last row counts those of all consumers not named.
SELECT consumer, duplicates_suppressed FROM outbox.consumer_duplicate_counters
