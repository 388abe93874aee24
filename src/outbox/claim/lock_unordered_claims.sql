-- The first half of a claim of unordered rows: claims are made one at a time, for the moment a claim takes. A claim writes nothing to the
-- rows, so only the other claims tell which are taken. A statement that waits here continues with the snapshot it began with, in which
-- the claim that was made before it is missing: hence the claim itself is a statement of its own, after this one.
SELECT FROM outbox.lane WHERE lane = -1 FOR NO KEY UPDATE
