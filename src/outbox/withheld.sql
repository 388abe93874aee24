-- Why a row did not come whole: its size, or what PostgreSQL says when it is read. No row: it is gone.
SELECT s.bytes, s.problem FROM outbox.message m, outbox.message_size(m.id) s WHERE m.id = $1
