-- Returns why a row could not be read whole: its size, or the error that PostgreSQL raises when it is read. Returns no row if the
-- message no longer exists.
SELECT s.bytes, s.problem FROM outbox.message m, outbox.message_size(m.id) s WHERE m.id = $1
