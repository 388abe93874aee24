//! WAL written between two moments, by what it is.

use tokio_postgres::Client;

use crate::Outcome;

/// A moment in the WAL.
pub struct Moment(String);

#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub bytes: f64,
    /// Images of pages touched for the first time since a checkpoint: they tell of checkpoints more than of what was written.
    pub image_bytes: f64,
}

impl Moment {
    pub async fn now(db: &Client) -> Outcome<Self> {
        db.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect").await?;
        let row = db.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await?;
        Ok(Moment(row.get(0)))
    }

    pub async fn written_since(&self, db: &Client) -> Outcome<Written> {
        // What is not flushed yet cannot be read; a commit of our own brings it to disk.
        db.batch_execute("SELECT pg_logical_emit_message(true, 'bench', '')")
            .await?;
        let sum = "SELECT coalesce(sum(record_size), 0)::float8, coalesce(sum(fpi_size), 0)::float8
                   FROM pg_get_wal_stats($1::text::pg_lsn, pg_current_wal_flush_lsn())";
        let row = db.query_one(sum, &[&self.0]).await?;
        Ok(Written {
            bytes: row.get(0),
            image_bytes: row.get(1),
        })
    }
}
