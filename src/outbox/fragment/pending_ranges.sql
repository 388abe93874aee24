SELECT false AS is_passed, f.floor AS low, 9223372036854775807 AS high FROM (SELECT min(floor) AS floor FROM outbox.lane) f
    UNION ALL
    SELECT true, (SELECT min(resume_floor) FROM outbox.hold), (SELECT min(floor) FROM outbox.lane)
