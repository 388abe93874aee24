-- Is the message (m) a dead letter that the filter names? Empty arrays and NULL restrict nothing. Ages count from its death.
m.dead_at > '-infinity'
AND (cardinality($1::text[]) = 0 OR m.topic = ANY ($1))
AND (cardinality($2::text[]) = 0 OR m.key = ANY ($2))
AND ($3::text IS NULL OR strpos(lower(m.last_error), lower($3)) > 0)
AND ($4::float8 IS NULL OR m.dead_at < statement_timestamp() - make_interval(secs => $4))
AND ($5::float8 IS NULL OR m.dead_at >= statement_timestamp() - make_interval(secs => $5))
-- The subquery is read once, so the text is parsed once.
AND ($6::text IS NULL OR m.id <@ (SELECT $6::int8multirange))
AND (cardinality($7::uuid[]) = 0 OR m.message_id = ANY ($7))
