SELECT ARRAY(SELECT DISTINCT topic FROM outbox.hold WHERE lane = $1) AS held_topics
