-- How many bytes a message (m) has, as far as its columns tell without being read.
coalesce(octet_length(m.payload_bytes), pg_column_size(m.payload), 0)::bigint
+ coalesce(octet_length(m.key), 0) + coalesce(pg_column_size(m.headers), 0)
