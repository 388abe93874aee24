-- Claims of unordered rows are made one at a time, because only the other claims tell which rows are taken. The claim is a
-- statement of its own after this one: a statement that waits for this lock keeps the snapshot it began with, and would not see
-- the claim made meanwhile.
SELECT FROM outbox.lane WHERE lane = -1 FOR NO KEY UPDATE
