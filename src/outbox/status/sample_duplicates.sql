-- Duplicates that consumers have ignored since the server started, by consumer; the last row is that of all others.
SELECT consumer, duplicates_suppressed FROM outbox.consumer_duplicate_counters
