//! Applies the schema for `outboxd migrate`, and verifies it for `outboxd run`.

use refinery::{Migration, Runner};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tracing::{info, warn};

use super::from_row::{FromRow, from_row};
use super::{Error, Outbox, Result, in_schema};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// All migrations of this binary, as written for the schema `outbox`.
fn bundled() -> Vec<Migration> {
    let embedded = embedded::migrations::runner();
    embedded
        .get_migrations()
        .iter()
        .cloned()
        .chain(extra_migration())
        .collect()
}

/// A migration of a later release, for tests: with it and without it this source acts as two releases.
#[cfg(feature = "failpoints")]
fn extra_migration() -> Option<Migration> {
    let file = std::path::PathBuf::from(std::env::var_os("OUTBOXD_EXTRA_MIGRATION")?);
    let sql = std::fs::read_to_string(&file).ok()?;
    Migration::unapplied(file.file_stem()?.to_str()?, &sql).ok()
}

#[cfg(not(feature = "failpoints"))]
fn extra_migration() -> Option<Migration> {
    None
}

/// All migrations of this binary, for the configured schema.
fn migrations(schema: &str) -> Result<Vec<Migration>> {
    bundled()
        .iter()
        .map(|migration| {
            let sql = migration.sql().unwrap_or_default();
            let name = format!("V{}__{}", migration.version(), migration.name());
            Ok(Migration::unapplied(&name, &in_schema(sql, schema))?)
        })
        .collect()
}

/// The newest schema version that this binary knows.
pub fn known_version() -> i32 {
    bundled().iter().map(Migration::version).max().unwrap_or(0)
}

/// Longest wait for a lock on a table that relays and applications use.
const LOCK_TIMEOUT: &str = "5s";

/// Applies missing migrations and returns their versions. A second process that does so waits for the first. Needs a direct
/// connection, since a transaction pooler does not keep the session.
pub async fn apply(client: &mut Client, schema: &str) -> Result<Vec<i32>> {
    let lock = format!("SELECT pg_advisory_lock(hashtextextended('{schema}.schema_history', 0))");
    client.batch_execute(&lock).await?;
    // While this waits for a lock on a table, all later requests queue behind it. So a backup that has the lock must not make
    // this wait for long.
    let prepare = format!("SET lock_timeout = '{LOCK_TIMEOUT}'; CREATE SCHEMA IF NOT EXISTS {schema}");
    client.batch_execute(&prepare).await?;
    let applied = apply_missing(client, schema).await?;
    let unlock = format!("SELECT pg_advisory_unlock(hashtextextended('{schema}.schema_history', 0))");
    client.batch_execute(&unlock).await?;
    Ok(applied)
}

async fn apply_missing(client: &mut Client, schema: &str) -> Result<Vec<i32>> {
    let applied = read_applied(client, schema).await?;
    applied.refuse_unreleased(schema)?;
    if applied.version > known_version() {
        let sql = in_schema(include_str!("compatibility.sql"), schema);
        check_newer(
            applied.version,
            client.query_one(&sql, &[]).await?.try_get("oldest_schema")?,
        )?;
        return Ok(Vec::new());
    }
    let mut runner = Runner::new(&migrations(schema)?).set_abort_divergent(true);
    runner.set_migration_table_name(format!("{schema}.schema_history"));
    let report = runner.run_async(client).await.map_err(migration_error)?;
    let applied: Vec<i32> = report.applied_migrations().iter().map(Migration::version).collect();
    if !applied.is_empty() {
        let timeline = in_schema(include_str!("timeline.sql"), schema);
        warn_of_unknown_timeline(client.query_one(&timeline, &[]).await?.try_get(0)?);
    }
    Ok(applied)
}

/// What `schema_history` says about applied migrations.
struct Applied {
    /// The newest one, or 0 if there is none.
    version: i32,
    /// The checksum of the first one.
    first_checksum: Option<String>,
}

from_row!(Applied: version, first_checksum);

impl Applied {
    const NOTHING: Applied = Applied {
        version: 0,
        first_checksum: None,
    };

    /// Refuses a schema whose V1 differs from that of this binary. The migrations were rewritten before the first release, and
    /// none of today's continues such a schema, at any version.
    fn refuse_unreleased(&self, schema: &str) -> Result<()> {
        let first = migrations(schema)?
            .into_iter()
            .find(|migration| migration.version() == 1);
        let ours = first.map(|migration| migration.checksum().to_string());
        if self.first_checksum.is_some() && self.first_checksum != ours {
            return Err(Error::Schema(format!(
                "the schema {schema} was made by an unreleased outboxd and cannot be upgraded: drain it with that outboxd, then \
                 DROP SCHEMA {schema} CASCADE, or use another --schema"
            )));
        }
        Ok(())
    }
}

async fn read_applied(client: &Client, schema: &str) -> Result<Applied> {
    let present = in_schema(include_str!("schema_present.sql"), schema);
    if !client.query_one(&present, &[]).await?.try_get::<_, bool>("present")? {
        return Ok(Applied::NOTHING);
    }
    let history = in_schema(include_str!("applied_version.sql"), schema);
    Applied::from_row(&client.query_one(&history, &[]).await?)
}

/// The warning for a managed server that refuses the functions that return its timeline.
const TIMELINE_UNKNOWN: &str = "this server does not say which timeline it is on (it refuses pg_current_wal_insert_lsn or \
    pg_walfile_name), so a failover cannot be told from a restart: after either, what is pending is sent as possible-duplicate, \
    and lanes are taken one lease later";

fn warn_of_unknown_timeline(timeline: Option<String>) {
    if timeline.is_none() {
        warn!("{TIMELINE_UNKNOWN}");
    }
}

/// Replaces errors about migration files by ones that say what to do.
fn migration_error(error: refinery::Error) -> Error {
    match error.kind() {
        refinery::error::Kind::DivergentVersion(found, _) => Error::Schema(format!(
            "migration {found} was applied here with another text than this outboxd brings. Use a released outboxd"
        )),
        refinery::error::Kind::Connection(_, cause) if is_lock_timeout(cause.as_ref()) => Error::Busy(format!(
            "a table of the outbox is locked; the migration waited {LOCK_TIMEOUT} for it and was undone. Run it again \
             when the backup or the long transaction is over (SELECT pid, xact_start, query FROM pg_stat_activity \
             ORDER BY xact_start)"
        )),
        _ => error.into(),
    }
}

fn is_lock_timeout(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(tokio_postgres::Error::code)
        == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Checks that this binary may run on a schema that is newer than it knows. The newest migration has stored which binaries may.
fn check_newer(found: i32, oldest: i32) -> Result<()> {
    let known = known_version();
    if known < oldest {
        return Err(Error::Schema(format!(
            "the outbox schema is at version {found}, which takes an outboxd that knows at least {oldest}; this one knows only {known}. \
             Upgrade outboxd"
        )));
    }
    info!(
        schema = found,
        known, "the outbox schema is newer than this outboxd, and allows it to run"
    );
    Ok(())
}

impl Outbox {
    /// Checks the schema, that the server accepts writes, the privileges, and the id sequence.
    pub async fn verify(&self) -> Result<()> {
        let (_, read_only): (bool, bool) = self.query_one(&self.statements.schema_present, &[]).await?;
        if read_only {
            return Err(Error::Schema(
                "this server is a read-only standby. Point --database-url at the primary, or name every server in it \
                 and add target_session_attrs=read-write"
                    .to_owned(),
            ));
        }
        self.verify_schema().await?;
        self.verify_permissions().await?;
        self.verify_sequence().await?;
        warn_of_unknown_timeline(self.query_one(&self.statements.timeline, &[]).await?);
        Ok(())
    }

    /// Checks that the schema exists, in a version that this binary may run on. This works on a standby and with an operator's
    /// login.
    pub async fn verify_schema(&self) -> Result<()> {
        let (present, _): (bool, bool) = self.query_one(&self.statements.schema_present, &[]).await?;
        if !present {
            return Err(Error::Schema(
                "the outbox schema is missing. Run `outboxd migrate` first, or start with `outboxd run --migrate`"
                    .to_owned(),
            ));
        }
        let applied: Applied = self.query_one(&self.statements.applied_version, &[]).await?;
        applied.refuse_unreleased(&self.schema)?;
        let found = applied.version;
        let known = known_version();
        if found < known {
            return Err(Error::Schema(format!(
                "the outbox schema is at version {found}, this outboxd needs {known}. Run `outboxd migrate`"
            )));
        }
        if found > known {
            check_newer(found, self.query_one(&self.statements.compatibility, &[]).await?)?;
        }
        Ok(())
    }

    async fn verify_permissions(&self) -> Result<()> {
        let missing = self.missing_privileges().await?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::Permission(missing.join(", ")))
    }

    async fn verify_sequence(&self) -> Result<()> {
        let cache: i64 = self.query_one(&self.statements.sequence_cache, &[]).await?;
        if cache != 1 {
            return Err(Error::Schema(format!(
                "the id sequence has CACHE {cache}; order needs CACHE 1. \
                 Run ALTER SEQUENCE … message_id_seq CACHE 1"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_LINE: &str = "-- Oldest outboxd schema that may run on this: ";

    #[test]
    fn each_migration_says_which_binaries_may_run_on_it() {
        let mut oldest = 0;
        for migration in &bundled() {
            let (name, sql) = (migration, migration.sql().unwrap_or_default());
            let first = sql.lines().next().unwrap_or_default();
            let said = first.strip_prefix(FIRST_LINE).and_then(|number| number.parse().ok());
            let said: i32 = said.unwrap_or_else(|| {
                panic!(
                    "{name} lacks its first line `{FIRST_LINE}N`. N is the number of the oldest migration that a binary must bring to \
                     run on this schema: that of the migration before, unless older binaries cannot"
                )
            });
            assert!(
                oldest <= said && said <= migration.version(),
                "{name}: {said} after {oldest}"
            );
            let written = format!("UPDATE outbox.compatibility SET oldest_schema = {said};");
            assert!(
                said == oldest || oldest == 0 || sql.contains(&written),
                "{name} shuts out binaries that the migration before it allowed, and must write so: `{written}`"
            );
            oldest = said;
        }
        assert!(oldest > 0, "there are migrations");
    }

    /// Databases carry the checksum of each migration they applied, and `migrate` refuses to go on when it differs.
    #[test]
    fn a_migration_is_never_edited() {
        const RELEASED: [(i32, u64); 7] = [
            (1, 3_383_300_451_071_046_825),
            (2, 2_060_427_644_070_184_196),
            (3, 2_768_880_924_671_776_675),
            (4, 13_820_479_795_613_375_100),
            (5, 7_304_384_699_643_701_432),
            (6, 1_580_344_323_081_722_595),
            (7, 7_499_342_696_390_583_106),
        ];
        let bundled: Vec<(i32, u64)> = bundled()
            .iter()
            .map(|migration| (migration.version(), migration.checksum()))
            .collect();
        assert_eq!(
            bundled, RELEASED,
            "a change of the schema is a new migration; a new migration gets a line in this list"
        );
    }
}
