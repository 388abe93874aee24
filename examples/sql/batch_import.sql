-- A file is imported line by line. Each line has its own result, a bad line stops no other, and an interrupted import continues.
--
-- The lines are stored first. A step imports a few that are not done, in one transaction; call it until it returns zero.
-- The hash of the file is its key: uploading the file again finds the existing import.
--
--   what fails                                | what remains              | what the retry does
--   ------------------------------------------+---------------------------+------------------------------------------
--   the upload                                | nothing: rolled back      | uploads
--   the answer to the upload is lost          | the import, nothing done  | finds the import
--   a line is bad                             | its error, the others done | skips it: it has a result
--   the process, in the middle of a step      | the steps before          | continues after them
--   the answer to a step is lost              | the step                  | continues after it
--   two processes import at once              | each line done once       | they share the lines (SKIP LOCKED)
--   the same file is imported next year       | the products of the first | creates nothing twice: the sku is unique
BEGIN;
DROP SCHEMA IF EXISTS batch_import CASCADE;
CREATE SCHEMA batch_import;
CREATE TABLE batch_import.product (
    sku    text PRIMARY KEY,
    cents  bigint NOT NULL CHECK (cents >= 0)
);
CREATE TABLE batch_import.import (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    file_hash  bytea NOT NULL UNIQUE
);
CREATE TABLE batch_import.line (
    import_id  bigint NOT NULL REFERENCES batch_import.import,
    line_no    integer NOT NULL,
    content    jsonb NOT NULL,
    outcome    text CHECK (outcome IN ('made', 'known', 'bad')),
    error      text,
    PRIMARY KEY (import_id, line_no)
);
CREATE INDEX line_to_do ON batch_import.line (import_id, line_no) WHERE outcome IS NULL;

CREATE FUNCTION batch_import.upload(content jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    made bigint;
BEGIN
    INSERT INTO batch_import.import (file_hash) VALUES (outbox.request_hash(content))
    ON CONFLICT DO NOTHING RETURNING id INTO made;
    IF NOT FOUND THEN
        RETURN (SELECT id FROM batch_import.import WHERE file_hash = outbox.request_hash(content));
    END IF;
    INSERT INTO batch_import.line (import_id, line_no, content)
    SELECT made, line_no, line FROM jsonb_array_elements(content) WITH ORDINALITY AS l (line, line_no);
    RETURN made;
END $$;

CREATE FUNCTION batch_import.import_line(content jsonb, OUT outcome text, OUT error text) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO batch_import.product (sku, cents) VALUES (content->>'sku', (content->>'cents')::bigint)
    ON CONFLICT DO NOTHING;
    outcome := CASE WHEN FOUND THEN 'made' ELSE 'known' END;
EXCEPTION
    -- These errors are the fault of the line. Any other error (40001, 40P01, a full disk) ends the step, which is then repeated.
    WHEN integrity_constraint_violation OR data_exception THEN
        outcome := 'bad';
        error := SQLERRM;
END $$;

CREATE FUNCTION batch_import.step(import_id bigint, line_count integer DEFAULT 100) RETURNS integer LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    taken batch_import.line;
    result record;
    done integer := 0;
BEGIN
    FOR taken IN SELECT * FROM batch_import.line l WHERE l.import_id = import_id AND l.outcome IS NULL
                 ORDER BY l.line_no LIMIT line_count FOR UPDATE SKIP LOCKED LOOP
        result := batch_import.import_line(taken.content);
        UPDATE batch_import.line l SET outcome = result.outcome, error = result.error
        WHERE l.import_id = taken.import_id AND l.line_no = taken.line_no;
        done := done + 1;
    END LOOP;
    RETURN done;
END $$;
COMMIT;

SELECT batch_import.upload('[{"sku": "a", "cents": 1}, {"sku": "b", "cents": -1}, {"sku": "c", "cents": "x"},
                             {"sku": "a", "cents": 2}, {"cents": 3}, {"sku": "d", "cents": 4}]') AS import;
SELECT batch_import.step(1, 2) AS done;

-- The second step is interrupted: nothing of it remains.
BEGIN;
SELECT batch_import.step(1, 2) AS done;
ROLLBACK;

DO $$
BEGIN
    ASSERT (SELECT count(*) FROM batch_import.line WHERE outcome IS NOT NULL) = 2, 'the first step remains';
    ASSERT batch_import.upload((SELECT jsonb_agg(content ORDER BY line_no) FROM batch_import.line)) = 1, 'the same file, the same import';
    ASSERT batch_import.step(1, 3) = 3, 'it goes on';
    ASSERT batch_import.step(1, 3) = 1, 'to the end';
    ASSERT batch_import.step(1, 3) = 0, 'and no further';
    ASSERT (SELECT string_agg(outcome, ' ' ORDER BY line_no) FROM batch_import.line) = 'made bad bad known bad made', 'a result each';
    ASSERT (SELECT string_agg(sku || cents, ' ' ORDER BY sku) FROM batch_import.product) = 'a1 d4', 'the good ones';
END $$;

SELECT line_no, outcome, error FROM batch_import.line ORDER BY line_no;
