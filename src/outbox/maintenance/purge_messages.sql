SELECT reached, purged, young FROM outbox.purge_message($1 * interval '1 second', $2, $3)
