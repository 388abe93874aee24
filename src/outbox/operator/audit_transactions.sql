-- Reads what each transaction of an operation ($1) changed, or the first $2 of them. A payload above the size limit is left out.
SELECT a.id, a.at, a.changed, a.topics, a.ids, outbox.limit_bytes(a.payload_before, 6291456) AS payload_before,
       '\x' || encode(outbox.limit_bytes(a.payload_bytes_before, 6291456), 'hex') AS payload_bytes_before
FROM outbox.audit a
WHERE a.operation = $1
ORDER BY a.id LIMIT $2
