//! Rows put into the outbox, and what the outbox says of them.

use crate::world::World;
use crate::{Record, read_topic};

/// Bytes that no compression makes smaller.
pub fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::fill(&mut bytes);
    bytes
}

impl World {
    /// Commits rows in one transaction, over so many keys in turn; without keys, rows that have none.
    pub async fn fill(&self, topic: &str, rows: usize, keys: usize) {
        let key = if keys == 0 {
            "NULL".to_owned()
        } else {
            format!("'k' || n % {keys}")
        };
        let insert = format!(
            "INSERT INTO outbox.message (topic, key, payload)
             SELECT '{topic}', {key}, jsonb_build_object('n', n) FROM generate_series(1, {rows}) n"
        );
        self.execute(&insert).await;
    }

    /// Inserts rows (key, payload) in one statement; answers their ids, in the same order.
    pub async fn insert(&self, topic: &str, rows: &[(Option<&str>, Vec<u8>)]) -> Vec<i64> {
        let keys: Vec<_> = rows.iter().map(|row| row.0).collect();
        let payloads: Vec<_> = rows.iter().map(|row| row.1.as_slice()).collect();
        let inserted = self
            .db
            .query(
                "INSERT INTO outbox.message (topic, key, payload_bytes)
                 SELECT $1, row.key, row.payload FROM unnest($2::text[], $3::bytea[]) AS row (key, payload)
                 RETURNING id",
                &[&topic, &keys, &payloads],
            )
            .await
            .expect("rows are inserted");
        inserted.iter().map(|row| row.get(0)).collect()
    }

    /// Rows and index entries of the outbox that the server has read so far, as far as sessions have told.
    pub async fn rows_read(&self) -> i64 {
        self.count(
            "SELECT sum(idx_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_indexes
             WHERE relid = 'outbox.message'::regclass",
        )
        .await
    }

    /// Waits until no relay has a session any more: one tells what it has read when it ends.
    pub async fn relays_sessions_end(&self) {
        crate::eventually(crate::SOON, "the relay's sessions to end", async || {
            // A pooler keeps them open.
            let sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                            WHERE datname = current_database() AND application_name = 'outboxd'";
            (self.count(sessions).await == 0).then_some(())
        })
        .await;
    }

    /// What is in the topic now.
    pub async fn records(&self, topic: &str) -> Vec<Record> {
        let (kafka, topic) = (self.kafka.clone(), topic.to_owned());
        tokio::task::spawn_blocking(move || read_topic(&kafka, &topic))
            .await
            .expect("reads")
    }

    /// Waits until the row is published.
    pub async fn published(&self, id: i64) {
        crate::eventually(crate::SOON, &format!("row {id} to be published"), async || {
            let sql = format!("SELECT count(*) FROM outbox.message WHERE id = {id} AND published_at IS NOT NULL");
            (self.count(&sql).await == 1).then_some(())
        })
        .await;
    }

    /// Waits until the row is dead; answers why.
    pub async fn dead(&self, id: i64) -> String {
        crate::eventually(crate::SOON, &format!("row {id} to be dead"), async || {
            let sql = "SELECT last_error FROM outbox.message WHERE id = $1 AND dead_at IS NOT NULL";
            let row = self.db.query_opt(sql, &[&id]).await.expect("rows are read")?;
            row.get(0)
        })
        .await
    }

    /// Which rows are marked, and when each was.
    pub async fn marks(&self) -> String {
        self.marks_before("'infinity'").await
    }

    /// The same of those that were marked before a time, in SQL.
    pub async fn marks_before(&self, time: &str) -> String {
        self.text(&format!(
            "SELECT coalesce(string_agg(id || ' ' || published_at, ',' ORDER BY id), '') FROM outbox.message
             WHERE published_at < {time}"
        ))
        .await
    }

    /// Nobody is dead, and no attempt of anybody was counted.
    pub async fn assert_nobody_blamed(&self) {
        let blamed = "SELECT count(*) FROM outbox.message WHERE attempts > 0 OR dead_at IS NOT NULL";
        assert_eq!(self.count(blamed).await, 0, "rows blamed for what is not their fault");
    }

    /// Claims of unordered rows: batches in flight, and rows that may have been sent.
    pub async fn claims(&self) -> i64 {
        self.count("SELECT count(*) FROM outbox.claim").await
    }

    /// A worker that has died claimed whatever is pending, and may have sent it.
    pub async fn abandon_pending(&self) {
        self.execute(
            "INSERT INTO outbox.claim (lease_until, ids)
             SELECT clock_timestamp(), array_agg(id) FROM outbox.message WHERE published_at IS NULL",
        )
        .await;
    }

    pub async fn holds(&self) -> i64 {
        self.count("SELECT count(*) FROM outbox.hold").await
    }

    /// Waits until so many holds are there.
    pub async fn held(&self, count: i64) {
        crate::eventually(crate::SOON, &format!("{count} holds"), async || {
            (self.holds().await == count).then_some(())
        })
        .await;
    }

    /// Waits until the stored floor of the row's lane has passed it.
    pub async fn floor_passes(&self, id: i64) {
        let sql = format!(
            "SELECT count(*) FROM outbox.lane l JOIN outbox.message m ON m.lane = l.lane
             WHERE m.id = {id} AND l.floor >= m.id"
        );
        crate::eventually(crate::SOON, "the stored floor to pass the row", async || {
            (self.count(&sql).await == 1).then_some(())
        })
        .await;
    }

    /// Relays unordered rows until their stored floor has passed this id: where nothing happens, nothing moves it.
    pub async fn unordered_floor_passes(&self, topic: &str, id: i64) {
        let passed = format!("SELECT floor >= {id} FROM outbox.lane WHERE lane = -1");
        crate::eventually(crate::SOON, "the floor of unordered rows to pass", async || {
            self.fill(topic, 1, 0).await;
            self.is_true(&passed).await.then_some(())
        })
        .await;
    }

    /// Other keys that share a lane with this one.
    pub async fn keys_of_same_lane(&self, key: &str, count: i64) -> Vec<String> {
        let rows = self
            .db
            .query(
                r#"SELECT other FROM (SELECT 'other-' || n AS other FROM generate_series(1, 64 * 100 * $2::bigint) n) o
                   WHERE hashtextextended(other COLLATE "C", 0) & 63 = hashtextextended($1::text COLLATE "C", 0) & 63
                   LIMIT $2"#,
                &[&key, &count],
            )
            .await
            .expect("keys are hashed");
        assert_eq!(rows.len() as i64, count);
        rows.iter().map(|row| row.get(0)).collect()
    }
}
