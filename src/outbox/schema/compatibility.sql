SELECT oldest_schema FROM outbox.compatibility
