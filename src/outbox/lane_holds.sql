SELECT EXISTS (SELECT FROM outbox.hold WHERE lane = $1) AS held
