-- What a message must be, said once a session and not once a statement: PostgreSQL reads and plans a table's CHECKs anew for every
-- INSERT, and for twelve of them took as long as for the rest of it, while it keeps what a domain says. So, as V5 does for commands,
-- the rules are those of a domain, and the one CHECK of the table holds each row against it. An error names the rule, as before.

-- What every row has comes first: what lies behind a NULL takes longer to find, and each rule looks anew.
CREATE TYPE outbox.message_record AS (
    -- How many there are, not what they say: a mark would have to read the largest column of its row.
    payloads           integer,
    attempts           smallint,
    topic              text,
    key                text,
    partition          integer,
    available_at       timestamptz,
    published_at       timestamptz,
    dead_at            timestamptz,
    lease_until        timestamptz,
    claim_token        uuid,
    event_type         text,
    idempotency_scope  text,
    idempotency_key    text,
    headers            jsonb
);

CREATE DOMAIN outbox.message_state AS outbox.message_record
    -- Not '^[…]{1,249}$': a bounded repetition costs 35 µs a row, this 0.7.
    CONSTRAINT message_topic_is_a_legal_kafka_name
        CHECK ((VALUE).topic !~ '[^a-zA-Z0-9._-]' AND octet_length((VALUE).topic) BETWEEN 1 AND 249
               AND (VALUE).topic <> '.' AND (VALUE).topic <> '..')
    CONSTRAINT message_key_is_at_most_1024_bytes CHECK (octet_length((VALUE).key) <= 1024)
    CONSTRAINT message_partition_is_not_negative CHECK ((VALUE).partition >= 0)
    CONSTRAINT message_has_one_payload_at_most CHECK ((VALUE).payloads <= 1)
    CONSTRAINT message_without_payload_is_a_tombstone_and_needs_a_key CHECK ((VALUE).payloads > 0 OR (VALUE).key IS NOT NULL)
    CONSTRAINT message_headers_are_a_json_object CHECK (jsonb_typeof((VALUE).headers) = 'object')
    CONSTRAINT message_headers_do_not_use_the_relays_names
        CHECK (NOT (VALUE).headers ?| ARRAY['message-id', 'event-type', 'aggregate-type', 'aggregate-id',
                                            'aggregate-version', 'possible-duplicate'])
    -- NULLs never collide in a unique index: a key without scope or type would let duplicates in.
    CONSTRAINT message_idempotency_key_needs_scope_and_event_type
        CHECK ((VALUE).idempotency_key IS NULL OR ((VALUE).idempotency_scope IS NOT NULL AND (VALUE).event_type IS NOT NULL))
    CONSTRAINT message_attempts_are_not_negative CHECK ((VALUE).attempts >= 0)
    CONSTRAINT message_is_not_both_published_and_dead CHECK ((VALUE).published_at IS NULL OR (VALUE).dead_at IS NULL)
    CONSTRAINT message_that_is_published_or_dead_waits_for_nothing
        CHECK (((VALUE).published_at IS NULL AND (VALUE).dead_at IS NULL) OR (VALUE).available_at IS NULL)
    -- Since V6, for replicas of a version before it.
    CONSTRAINT message_is_claimed_by_a_record CHECK ((VALUE).claim_token IS NULL AND (VALUE).lease_until IS NULL);

-- NOT VALID: all rows are so already, by the rules that go, and reading them would keep applications waiting.
ALTER TABLE outbox.message
    DROP CONSTRAINT message_topic_is_a_legal_kafka_name,
    DROP CONSTRAINT message_key_is_at_most_1024_bytes,
    DROP CONSTRAINT message_partition_is_not_negative,
    DROP CONSTRAINT message_has_one_payload_at_most,
    DROP CONSTRAINT message_without_payload_is_a_tombstone_and_needs_a_key,
    DROP CONSTRAINT message_headers_are_a_json_object,
    DROP CONSTRAINT message_headers_do_not_use_the_relays_names,
    DROP CONSTRAINT message_idempotency_key_needs_scope_and_event_type,
    DROP CONSTRAINT message_attempts_are_not_negative,
    DROP CONSTRAINT message_is_not_both_published_and_dead,
    DROP CONSTRAINT message_that_is_published_or_dead_waits_for_nothing,
    DROP CONSTRAINT message_is_claimed_by_a_record,
    -- Always true, unless the cast is refused.
    ADD CONSTRAINT message_is_of_a_lawful_state CHECK (
        ROW(num_nonnulls(payload, payload_bytes), attempts, topic, key, partition, available_at, published_at, dead_at, lease_until,
            claim_token, event_type, idempotency_scope, idempotency_key, headers)::outbox.message_state IS DISTINCT FROM NULL) NOT VALID;
