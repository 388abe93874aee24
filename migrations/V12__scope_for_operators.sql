-- Asked by idempotency_scope, which is its caller's: an operator may call it (V3), but not what it calls since V5.
GRANT EXECUTE ON FUNCTION outbox.is_blank TO outbox_operator;
