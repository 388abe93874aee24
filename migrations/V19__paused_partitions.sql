-- Oldest outboxd schema that may run on this: 19
--
-- A partition without a leader, or with too few replicas in sync, keeps back its own rows and no others. In outbox.hold it is the unit
-- 's:3/12': partition 3 of a topic that had 12 partitions when it was paused. The hold's own count decides which rows it keeps back, so that
-- no row slips out of it, and none into it, when the topic is given more partitions meanwhile.
ALTER TABLE outbox.hold
    ADD COLUMN partition integer GENERATED ALWAYS AS (
        CASE WHEN unit ~ '^s:[0-9]{1,9}/[0-9]{1,9}$' THEN split_part(substr(unit, 3), '/', 1)::integer END) STORED,
    ADD COLUMN partitions integer GENERATED ALWAYS AS (
        CASE WHEN unit ~ '^s:[0-9]{1,9}/[0-9]{1,9}$' THEN split_part(unit, '/', 2)::integer END) STORED,
    DROP CONSTRAINT hold_unit_is_a_key_a_partition_or_everything,
    ADD CONSTRAINT hold_unit_is_a_key_a_partition_or_everything
        CHECK (unit = '' OR unit ~ '^(k:|p:)' OR coalesce(partition < partitions, false));

COMMENT ON COLUMN outbox.hold.partition IS 'The paused partition, where the hold is of one: unit s:partition/partitions.';
COMMENT ON COLUMN outbox.hold.partitions IS 'How many partitions the topic had when this one was paused.';

-- A topic that refuses all its keys has thousands of holds; its paused partitions are found without reading those.
CREATE INDEX hold_of_partition ON outbox.hold (lane, topic) WHERE partition IS NOT NULL;

-- Kafka's flavour of murmur2 over the UTF-8 bytes of a record's key, without its sign: modulo the number of partitions it is the
-- partition that the Java client's default partitioner chooses. Frozen, as Kafka's own is.
CREATE FUNCTION outbox.murmur2(record_key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    data constant bytea := pg_catalog.convert_to(record_key, 'UTF8');
    size constant integer := pg_catalog.length(data);
    tail constant integer := size & -4;
    -- 32 bits of a bigint: a product of two words fits, since the multiplier is below 2^31.
    hash bigint := 2538058380 # size;
    k bigint;
BEGIN
    FOR i IN 0 .. tail - 4 BY 4 LOOP
        k := (get_byte(data, i) | (get_byte(data, i + 1) << 8) | (get_byte(data, i + 2) << 16) | (get_byte(data, i + 3) << 24))
             * 1540483477::bigint & 4294967295;
        hash := (hash * 1540483477 & 4294967295) # ((k # (k >> 24)) * 1540483477 & 4294967295);
    END LOOP;
    IF tail < size THEN
        FOR i IN tail .. size - 1 LOOP
            hash := hash # (get_byte(data, i)::bigint << (8 * (i - tail)));
        END LOOP;
        hash := hash * 1540483477 & 4294967295;
    END IF;
    hash := (hash # (hash >> 13)) * 1540483477 & 4294967295;
    RETURN (hash # (hash >> 15)) & 2147483647;
END $$;

-- What keeps a row back: its whole topic, its own key or explicit partition, or the paused partition it belongs to. One row for each
-- hold. PostgreSQL puts the query in the place of the call: each hold is looked for by its whole key, and the hash is computed
-- once, and only where its topic has a paused partition in its lane.
CREATE FUNCTION outbox.holds_of(lane smallint, topic text, key text, partition integer, message_id uuid) RETURNS SETOF text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT h.unit FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = ''
    UNION ALL
    SELECT h.unit FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = coalesce('k:' || $3, 'p:' || $4)
    UNION ALL
    SELECT h.unit FROM outbox.hold h
    WHERE h.lane = $1 AND h.topic = $2 AND h.partition IS NOT NULL
      AND h.partition = coalesce($4, (SELECT outbox.murmur2(coalesce($3, $5::text))) % h.partitions)
$$;

REVOKE ALL ON FUNCTION outbox.murmur2, outbox.holds_of FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.murmur2, outbox.holds_of TO outbox_relay, outbox_operator;

-- A binary that does not know holds of this unit would claim rows past those that they keep back.
UPDATE outbox.compatibility SET oldest_schema = 19;
