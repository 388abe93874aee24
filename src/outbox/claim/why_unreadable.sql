-- Why a row could not be read whole: its size, or the error that PostgreSQL raises when it is read. No row: it is gone.
SELECT s.bytes, s.problem FROM outbox.message m, outbox.message_size(m.id) s WHERE m.id = $1
