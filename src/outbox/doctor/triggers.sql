-- The triggers that check messages, each with when it fires: A always, O except in replicas, R only in replicas, D never; NULL
-- if there is none.
SELECT w.name, t.tgenabled::text AS fires
FROM (VALUES ('zz_message_before_insert'), ('message_refuse_update')) AS w (name)
     LEFT JOIN pg_trigger t ON t.tgrelid = 'outbox.message'::regclass AND t.tgname = w.name
ORDER BY w.name
