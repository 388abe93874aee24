-- A copy of another service's state, kept up to date by events with a version. Old and repeated events change nothing. No marker
-- is needed: the version in the row is the marker, and it does not grow with history.
--
-- what fails                                        | what remains              | what the repeat does
-- --------------------------------------------------|---------------------------|------------------------------------------------
-- the process, before COMMIT                        | the version before        | applies it
-- the process, after COMMIT, before its offset      | the new version           | changes nothing, writes nothing
-- an older event arrives late                       | the newer state           | changes nothing
-- a version is missing in between                   | the newest state there is | nothing: events carry the whole state
-- one event delivered twice at once                 | the new version           | the second waits for the row, changes nothing
-- the topic is replayed from its beginning          | the same state            | changes nothing
-- one version comes with two different states       | the first of them         | P4050: park it for a person
--
-- Events that carry a difference instead of the whole state need every version: use consume_once, or the inbox with a key.
--
-- Run it in psql after `outboxd migrate`, as often as you like.

DROP SCHEMA IF EXISTS version_gated_update CASCADE;
CREATE SCHEMA version_gated_update;

CREATE TABLE version_gated_update.customer (
    id       text PRIMARY KEY,
    version  bigint NOT NULL,
    state    jsonb NOT NULL
);

-- True if this version or a newer one is known, so that there is nothing to apply. P4050 if it is known with another state.
CREATE FUNCTION version_gated_update.is_known(id text, version bigint, state jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    known version_gated_update.customer;
BEGIN
    SELECT * INTO known FROM version_gated_update.customer c WHERE c.id = id AND c.version >= version;
    IF FOUND AND known.version = version AND known.state <> state THEN
        RAISE EXCEPTION 'version % of % is known with another state', version, outbox.message_digest(id) USING ERRCODE = 'P4050';
    END IF;
    RETURN known.id IS NOT NULL;
END $$;

-- Returns 'applied' or 'ignored'. A deletion is a state, too ({"deleted": true}): if the row were deleted, old events would be applied again.
CREATE FUNCTION version_gated_update.apply(id text, version bigint, state jsonb) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    -- Read first: an INSERT that ends in a conflict locks the row, and so writes.
    IF version_gated_update.is_known(id, version, state) THEN
        RETURN 'ignored';
    END IF;
    INSERT INTO version_gated_update.customer AS c VALUES (id, version, state)
    ON CONFLICT ON CONSTRAINT customer_pkey DO UPDATE SET version = excluded.version, state = excluded.state
        WHERE c.version < excluded.version;
    IF FOUND THEN
        RETURN 'applied';
    END IF;
    -- Another session was faster, and has committed by now.
    PERFORM version_gated_update.is_known(id, version, state);
    RETURN 'ignored';
END $$;

DO $$
BEGIN
    -- The row does not exist yet, and the first event to come is not the first there was.
    ASSERT version_gated_update.apply('c1', 2, '{"name": "Ada"}') = 'applied';
    ASSERT version_gated_update.apply('c1', 2, '{"name": "Ada"}') = 'ignored', 'repeated';
    ASSERT version_gated_update.apply('c1', 1, '{"name": "A."}') = 'ignored', 'older';
    ASSERT version_gated_update.apply('c1', 5, '{"name": "Ada L."}') = 'applied', 'newer, with a gap';
    ASSERT version_gated_update.apply('c1', 4, '{"name": "late"}') = 'ignored', 'late';
    ASSERT version_gated_update.apply('c1', 6, '{"deleted": true}') = 'applied';
    ASSERT version_gated_update.apply('c1', 5, '{"name": "Ada L."}') = 'ignored', 'nothing comes back to life';
END $$;

DO $$
BEGIN
    PERFORM version_gated_update.apply('c1', 6, '{"deleted": false}');
    RAISE EXCEPTION 'one version with two states';
EXCEPTION WHEN SQLSTATE 'P4050' THEN NULL;
END $$;

-- Repeats in any order end in the same state.
DO $$
DECLARE
    event record;
BEGIN
    FOR event IN SELECT n FROM generate_series(1, 20) n, generate_series(1, 3) ORDER BY random() LOOP
        PERFORM version_gated_update.apply('c2', event.n, jsonb_build_object('n', event.n));
    END LOOP;
    ASSERT (SELECT (version, state->>'n') = (20, '20') FROM version_gated_update.customer WHERE id = 'c2');
END $$;
