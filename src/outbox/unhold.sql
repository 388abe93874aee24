DELETE FROM outbox.hold WHERE lane = $1 AND topic = $2 AND unit = $3
