-- What encrypts this session. Behind a pooler it is the session between the pooler and the server.
SELECT ssl AS is_encrypted, version AS protocol, cipher, client_dn AS client_certificate
FROM pg_stat_ssl WHERE pid = pg_backend_pid()
