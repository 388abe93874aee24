//! The schema: applied by `outboxd migrate`, verified by `outboxd run`.

use refinery::{Migration, Runner};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Error, Outbox, Result, in_schema};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// All migrations, in the configured schema.
fn migrations(schema: &str) -> Result<Vec<Migration>> {
    embedded::migrations::runner()
        .get_migrations()
        .iter()
        .map(|migration| {
            let sql = migration.sql().unwrap_or_default();
            let name = format!("V{}__{}", migration.version(), migration.name());
            Ok(Migration::unapplied(&name, &in_schema(sql, schema))?)
        })
        .collect()
}

/// The version this binary brings.
pub fn known_version() -> i32 {
    let newest = embedded::migrations::runner()
        .get_migrations()
        .iter()
        .map(|migration| migration.version())
        .max();
    newest.unwrap_or(0)
}

/// Longest wait for a lock on a table that relays and applications use.
const LOCK_TIMEOUT: &str = "5s";

/// Applies what is missing; answers the versions applied. Two at once do not collide: the second waits.
/// Needs a session of its own, so connect directly, not through a transaction pooler.
pub async fn apply(client: &mut Client, schema: &str) -> Result<Vec<i32>> {
    let lock = format!("SELECT pg_advisory_lock(hashtextextended('{schema}.schema_history', 0))");
    client.batch_execute(&lock).await?;
    // Whatever waits for a lock on our tables makes everybody behind it wait: a backup must not stop every relay.
    let prepare = format!("SET lock_timeout = '{LOCK_TIMEOUT}'; CREATE SCHEMA IF NOT EXISTS {schema}");
    client.batch_execute(&prepare).await?;
    let mut runner = Runner::new(&migrations(schema)?).set_abort_divergent(true);
    runner.set_migration_table_name(format!("{schema}.schema_history"));
    let report = runner.run_async(client).await.map_err(explain)?;
    let unlock = format!("SELECT pg_advisory_unlock(hashtextextended('{schema}.schema_history', 0))");
    client.batch_execute(&unlock).await?;
    Ok(report.applied_migrations().iter().map(|m| m.version()).collect())
}

/// The runner's words are about files; ours are about what to do.
fn explain(error: refinery::Error) -> Error {
    match error.kind() {
        refinery::error::Kind::MissingVersion(found) => from_the_future(found.version()),
        refinery::error::Kind::DivergentVersion(found, _) => Error::Schema(format!(
            "migration {found} was applied here with another text than this outboxd brings. Use a released outboxd"
        )),
        refinery::error::Kind::Connection(_, cause) if is_locked_out(cause.as_ref()) => Error::Busy(format!(
            "a table of the outbox is locked; the migration waited {LOCK_TIMEOUT} for it and was undone. Run it again \
             when the backup or the long transaction is over (SELECT pid, xact_start, query FROM pg_stat_activity \
             ORDER BY xact_start)"
        )),
        _ => error.into(),
    }
}

fn is_locked_out(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(tokio_postgres::Error::code)
        == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

fn from_the_future(found: i32) -> Error {
    let known = known_version();
    Error::Schema(format!(
        "the outbox schema is at version {found}, this outboxd knows only {known}. Upgrade outboxd"
    ))
}

impl Outbox {
    /// Is the schema the one this binary knows, on a server we can write to, with the privileges we need?
    pub async fn verify(&self) -> Result<()> {
        let row = self.query_one(&self.statements.schema_version, &[]).await?;
        if row.try_get("read_only")? {
            return Err(Error::Schema(
                "this server is a read-only standby. Point --database-url at the primary, or name every server in it \
                 and add target_session_attrs=read-write"
                    .to_owned(),
            ));
        }
        self.verify_schema().await?;
        self.verify_permissions().await?;
        self.verify_sequence().await
    }

    /// Is the schema there, in a version this binary knows? A standby and an operator's login will do.
    pub async fn verify_schema(&self) -> Result<()> {
        let row = self.query_one(&self.statements.schema_version, &[]).await?;
        if !row.try_get::<_, bool>("present")? {
            return Err(Error::Schema(
                "the outbox schema is missing. Run `outboxd migrate` first, or start with `outboxd run --migrate`"
                    .to_owned(),
            ));
        }
        let row = self.query_one(&self.statements.schema_history, &[]).await?;
        let found = row.try_get::<_, Option<i32>>("version")?.unwrap_or(0);
        let known = known_version();
        if found < known {
            return Err(Error::Schema(format!(
                "the outbox schema is at version {found}, this outboxd needs {known}. Run `outboxd migrate`"
            )));
        }
        if found > known {
            return Err(from_the_future(found));
        }
        Ok(())
    }

    async fn verify_permissions(&self) -> Result<()> {
        let rows = self.query(&self.statements.permissions, &[]).await?;
        if rows.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = rows.iter().map(|row| row.get("what")).collect();
        Err(Error::Permission(missing.join(", ")))
    }

    async fn verify_sequence(&self) -> Result<()> {
        let row = self.query_one(&self.statements.sequence_cache, &[]).await?;
        let cache: i64 = row.try_get("cache")?;
        if cache != 1 {
            return Err(Error::Schema(format!(
                "the id sequence has CACHE {cache}; order needs CACHE 1. \
                 Run ALTER SEQUENCE … message_id_seq CACHE 1"
            )));
        }
        Ok(())
    }
}
