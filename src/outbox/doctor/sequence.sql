-- How the sequence of ids draws them, and how many are left.
SELECT s.seqcache AS cache, s.seqincrement AS increment, s.seqcycle AS cycles, s.seqmax - q.last_value AS ids_left
FROM pg_sequence s, outbox.message_id_seq q
WHERE s.seqrelid = 'outbox.message_id_seq'::regclass
