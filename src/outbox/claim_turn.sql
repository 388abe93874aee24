-- The first half of a claim of rows without a lane: claimers take turns, for the moment a claim takes. A claim writes nothing to
-- the rows, so only the records of others tell which are taken. A statement that waits here goes on with the snapshot it came
-- with, in which the record of whoever went before is missing: hence the claim is a statement of its own behind this one.
SELECT FROM outbox.lane WHERE lane = -1 FOR NO KEY UPDATE
