//! Idempotent commands: one effect and one answer, whatever is repeated, at once or late, and whichever process dies.

mod arguments;
mod counters;
mod fence;
mod merge;
mod races;
mod replays;
mod retention;

use testkit::*;
use tokio_postgres::{Client, Error};

/// The hash of the request that every command here makes, unless it says otherwise.
const HASH: &str = "outbox.request_hash('{\"n\": 1}')";
const OTHER_HASH: &str = "outbox.request_hash('{\"n\": 2}')";

/// What a claim answers.
#[derive(Debug, PartialEq)]
struct Answer {
    kind: String,
    granted: bool,
    attempt: Option<i32>,
    result: Option<String>,
    response: Option<String>,
    failure: Option<String>,
    has_retry_after: bool,
}

/// Calls idempotency_claim, or another function that answers like it, with these arguments.
async fn call(db: &Client, function: &str, arguments: &str) -> Result<Answer, Error> {
    let sql = format!(
        "SELECT kind, granted, attempt, result_type || ' ' || result_id, response_code || ' ' || response_body::text,
                failure_code || ' ' || coalesce(failure_message, ''), retry_after IS NOT NULL
         FROM outbox.{function}({arguments})"
    );
    let row = db.query_one(&sql, &[]).await?;
    Ok(Answer {
        kind: row.get(0),
        granted: row.get(1),
        attempt: row.get(2),
        result: row.get(3),
        response: row.get(4),
        failure: row.get(5),
        has_retry_after: row.get(6),
    })
}

/// Claims a key of the scope `orders`; `more` are further arguments, beginning with a comma.
async fn claim(db: &Client, key: &str, more: &str) -> Answer {
    try_claim(db, key, more).await.expect("an answer")
}

async fn try_claim(db: &Client, key: &str, more: &str) -> Result<Answer, Error> {
    call(db, "idempotency_claim", &format!("'orders', '{key}', {HASH}{more}")).await
}

async fn run(db: &Client, sql: &str) -> Result<(), Error> {
    db.batch_execute(sql).await
}

/// The SQLSTATE of a statement that must be refused.
async fn refusal(db: &Client, sql: &str) -> String {
    state(&db.query(sql, &[]).await.expect_err(sql))
}

fn state(error: &Error) -> String {
    error.code().expect("an error of the server").code().to_owned()
}

/// A world with a business table that itself refuses nothing.
async fn world() -> World {
    let world = World::new().await;
    world
        .execute("CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, key text)")
        .await;
    world
}

/// The default protocol: claim, effect, message and answer in one transaction. Answers what the client is told.
async fn order(db: &Client, key: &str) -> Result<String, Error> {
    in_transaction(db, "READ COMMITTED", &[key]).await
}

/// The same for several commands in one transaction. What goes wrong rolls all of it back.
async fn in_transaction(db: &Client, isolation: &str, keys: &[&str]) -> Result<String, Error> {
    run(db, &format!("BEGIN ISOLATION LEVEL {isolation}")).await?;
    let mut answers = Vec::new();
    for key in keys {
        match execute_or_replay(db, key).await {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                run(db, "ROLLBACK").await?;
                return Err(error);
            }
        }
    }
    run(db, "COMMIT").await?;
    Ok(answers.join(", "))
}

async fn execute_or_replay(db: &Client, key: &str) -> Result<String, Error> {
    let answer = try_claim(db, key, "").await?;
    match answer.attempt {
        Some(attempt) => {
            effect(db, key).await?;
            succeed(db, key, attempt).await
        }
        None => Ok(answer.response.expect("a stored answer")),
    }
}

/// The business write and its message.
async fn effect(db: &Client, key: &str) -> Result<(), Error> {
    run(
        db,
        &format!(
            "INSERT INTO effect (key) VALUES ('{key}');
             SELECT outbox.enqueue('orders', '{key}', '1', event_type => 'Placed',
                                   idempotency_scope => 'orders', idempotency_key => '{key}')"
        ),
    )
    .await
}

/// Ends the attempt with the effect as its result; answers what a replay will.
async fn succeed(db: &Client, key: &str, attempt: i32) -> Result<String, Error> {
    let sql = format!(
        "SELECT outbox.idempotency_succeed('orders', '{key}', {attempt}, 'effect', id::text, 201,
                                           jsonb_build_object('id', id)), '201 ' || jsonb_build_object('id', id)::text
         FROM effect WHERE key = '{key}'"
    );
    let row = db.query_one(&sql, &[]).await?;
    assert!(row.get::<_, bool>(0), "it was not known before");
    Ok(row.get(1))
}

/// What the tests of commands ask of a world.
trait Commands {
    async fn effects(&self) -> i64;

    /// Everything there is to know about the commands.
    async fn requests(&self) -> String;

    async fn status(&self, key: &str) -> String;

    /// A claim of its own transaction whose lock has run out.
    async fn stale(&self, key: &str);
}

impl Commands for World {
    async fn effects(&self) -> i64 {
        let effects = self.count("SELECT count(*) FROM effect").await;
        assert_eq!(self.pending().await, effects, "each effect has its message");
        effects
    }

    async fn requests(&self) -> String {
        self.text(
            "SELECT coalesce(string_agg(r::text, E'\\n' ORDER BY scope, key), '') FROM outbox.idempotency_request r",
        )
        .await
    }

    async fn status(&self, key: &str) -> String {
        self.text(&format!(
            "SELECT status FROM outbox.idempotency_request WHERE key = '{key}'"
        ))
        .await
    }

    async fn stale(&self, key: &str) {
        assert!(claim(&self.db, key, ", lock_for => '1 millisecond'").await.granted);
        self.until(&format!(
            "SELECT count(*) = 1 FROM outbox.idempotency_stale WHERE key = '{key}'"
        ))
        .await;
    }
}
