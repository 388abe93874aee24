-- With a cache above 1, sessions draw ids in blocks, and the order of ids is no longer the order of transactions.
SELECT seqcache AS cache FROM pg_sequence WHERE seqrelid = 'outbox.message_id_seq'::regclass
