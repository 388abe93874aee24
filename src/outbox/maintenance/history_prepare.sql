SELECT outbox.history_prepare()
