-- Returns all pauses with their version, in one snapshot. If nothing is paused, one row has the version alone.
SELECT v.version, p.topic, p.key, p.reason FROM outbox.pause_version v LEFT JOIN outbox.pause p ON true
