-- Which process of the server runs this statement, and after how many milliseconds it ends a session that is idle in a
-- transaction (0: never).
SELECT pg_backend_pid() AS pid,
       (SELECT s.setting::bigint FROM pg_settings s WHERE s.name = 'idle_in_transaction_session_timeout') AS idle_timeout_ms
