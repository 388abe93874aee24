SELECT outbox.timeline() AS timeline
