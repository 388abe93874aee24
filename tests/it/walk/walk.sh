#!/usr/bin/env bash
# What a new user does on the first day, by commands alone. Everybody but the administrator needs TLS and a password.
#
#   OUTBOXD                          the binary
#   SERVER                           host:port/database of an empty database
#   DATABASE_CA                      the CA of its server
#   OUTBOXD_KAFKA_BROKERS            brokers that want TLS and a login
#   OUTBOXD_KAFKA_PROPERTIES_FILE    how to log in
#   TOPIC                            a topic that takes small records only
#   FOLDER                           for files of its own
set -euo pipefail

die() { echo "walk: $*" >&2; tail -n 20 "$FOLDER/log" >&2; exit 1; }

outboxd() { "$OUTBOXD" "$@"; }

# url LOGIN
url() { echo "postgres://$1@$SERVER?sslmode=verify-full&sslrootcert=$DATABASE_CA"; }

# says TEXT COMMAND...: the command succeeds, and says this.
says() {
  local text=$1 said
  shift
  echo "$ $*"
  said=$("$@" 2>&1) || die "$* failed: $said"
  echo "$said"
  [[ $said == *"$text"* ]] || die "$* does not say \"$text\""
}

# await COMMAND...: waits until it succeeds.
await() {
  local tries=300
  echo "$ $*"
  until "$@" >/dev/null 2>&1; do
    ((tries-- > 0)) || die "waited in vain for: $*"
    sleep 0.1
  done
}

# insert KEY PAYLOAD: as the application does it.
insert() {
  PGPASSWORD=shop-s3cret psql "$(url shop)" -qX -v ON_ERROR_STOP=1 -v topic="$TOPIC" -v key="$1" -v payload="$2" <<'SQL'
INSERT INTO outbox.message (topic, key, payload) VALUES (:'topic', :'key', :'payload');
SQL
}

all_is_published() { outboxd status --check --max-pending 0 --allow-paused; }
rows_wait() { [[ $(outboxd hold list --json) == *"\"$TOPIC\""* ]]; }
has_dead_letter() { [[ $(outboxd dead list --json) == *'"id":'* ]]; }

relay=
trap 'if [[ $relay ]]; then kill -KILL "$relay" || true; fi' EXIT

# The schema, and a login for each that has no more than its role.
says "schema" outboxd migrate --database-url "$(url postgres)"
psql "$(url postgres)" -qX -v ON_ERROR_STOP=1 <<'SQL'
CREATE ROLE relay LOGIN PASSWORD 'relay-s3cret' IN ROLE outbox_relay, by_password;
CREATE ROLE shop LOGIN PASSWORD 'shop-s3cret' IN ROLE outbox_producer, by_password;
CREATE ROLE operator LOGIN PASSWORD 'operator-s3cret' IN ROLE outbox_operator, by_password;
SQL

# The relay, after a look at what it will find.
echo relay-s3cret >"$FOLDER/relay-password"
as_relay=(--database-url "$(url relay)" --database-password-file "$FOLDER/relay-password")
says "TLS" outboxd doctor "${as_relay[@]}"
"$OUTBOXD" run "${as_relay[@]}" --max-attempts 1 --http-listen 127.0.0.1:0 >"$FOLDER/log" 2>&1 &
relay=$!

# From here on the operator, whose password is in the file that psql reads as well.
echo "*:*:*:operator:operator-s3cret" >"$FOLDER/pgpass"
chmod 600 "$FOLDER/pgpass"
export PGPASSFILE=$FOLDER/pgpass
OUTBOXD_DATABASE_URL=$(url operator)
export OUTBOXD_DATABASE_URL
await outboxd status --check

# Messages arrive, and one that the topic refuses becomes a dead letter.
for order in 1 2 3; do insert "customer-$order" "{\"order\": $order}"; done
insert customer-1 "{\"order\": 4, \"note\": \"$(head -c 3000 /dev/urandom | base64 --wrap=0)\"}"
await has_dead_letter
await all_is_published

# It is seen, corrected, sent again, and in the audit.
says "customer-1" outboxd dead list --topic "$TOPIC"
id=4
says "too large" outboxd dead show "$id"
outboxd dead show "$id" --payload | grep --quiet '"order": 4' || die "the payload is not that of the message"
echo '{"order": 4}' >"$FOLDER/payload.json"
says "1 of 1 dead letter" outboxd dead redrive --id "$id" --payload-file "$FOLDER/payload.json" --reason "the note was too long" --yes
await all_is_published
await outboxd status --check --max-dead 0
says "the note was too long" outboxd audit

# The topic is paused, and continues.
says "in effect on 1 worker" outboxd pause --topic "$TOPIC" --reason "the consumer is being replaced" --yes
insert customer-2 '{"order": 5}'
await rows_wait
says "the consumer is being replaced" outboxd status
says "with 1 pending row" outboxd resume --topic "$TOPIC" --dry-run
says "in effect on 1 worker" outboxd resume --topic "$TOPIC" --yes
await all_is_published

# A range is sent once more. A replay waits until rows have been published for a minute; here they are made to look older.
psql "$(url postgres)" -qX -v ON_ERROR_STOP=1 <<'SQL'
UPDATE outbox.message SET created_at = created_at - interval '1 hour', published_at = published_at - interval '1 hour';
SQL
says "3 messages" outboxd replay --topic "$TOPIC" --id 1-3 --dry-run
says "3 of 3 messages" outboxd replay --topic "$TOPIC" --id 1-3 --reason "the consumer lost them" --yes
await all_is_published

# What PostgreSQL and Kafka have is the same, and nothing is wrong.
says "The promises held" outboxd verify
says "replay" outboxd audit
says "TLS" outboxd doctor "${as_relay[@]}"

# A stop as a rollout makes it loses nothing.
kill "$relay"
wait "$relay" || die "the relay ended with $?"
relay=
