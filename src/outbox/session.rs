//! One connection at work: how a statement is sent, directly or through a transaction pooler.

use std::sync::Arc;

use deadpool_postgres::Object;
use futures_util::TryStreamExt;
use futures_util::future::try_join3;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Row, RowStream, Statement};

use super::param::{Params, typed};
use super::{Error, Result};

pub struct Session {
    client: Object,
    /// Behind a transaction pooler: the settings, as SQL for one transaction.
    local_settings: Option<Arc<str>>,
}

/// A statement as this session can send it.
enum Prepared<'a> {
    Named(Statement),
    Text(&'a str),
}

impl Session {
    pub fn new(client: Object, local_settings: Option<Arc<str>>) -> Self {
        Session { client, local_settings }
    }

    /// Closes the connection instead of giving it back.
    pub fn close(self) {
        drop(Object::take(self.client));
    }

    /// Runs one statement and hands its rows to `read`.
    pub async fn run<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        read: impl AsyncFnOnce(RowStream) -> Result<T>,
    ) -> Result<T> {
        let statement = self.prepared(sql).await?;
        match &self.local_settings {
            None => read(self.send(&statement, params).await?).await,
            // The next statement may meet another server connection, so this one brings its settings along and leaves
            // nothing behind: no named statement, no setting.
            Some(settings) => {
                self.run_behind(&format!("BEGIN; {settings}"), &statement, params, read)
                    .await
            }
        }
    }

    /// Runs `sql` behind `first`, in one transaction and one round trip. It sees what was committed while `first` waited,
    /// whatever isolation the login has by default.
    pub async fn query_behind(&self, first: &str, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        let statement = self.prepared(sql).await?;
        let settings = self.local_settings.as_deref().unwrap_or("");
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {settings};\n{first}");
        let read = async |rows: RowStream| Ok(rows.try_collect().await?);
        self.run_behind(&begin, &statement, params, read).await
    }

    /// All three are sent at once, when first polled: one round trip. Where one of them fails, the COMMIT is a rollback.
    async fn run_behind<T>(
        &self,
        begin: &str,
        statement: &Prepared<'_>,
        params: Params<'_>,
        read: impl AsyncFnOnce(RowStream) -> Result<T>,
    ) -> Result<T> {
        let begin = async { Ok(self.client.batch_execute(begin).await?) };
        let answer = async { read(self.send(statement, params).await?).await };
        let commit = async { Ok::<_, Error>(self.client.batch_execute("COMMIT").await?) };
        let ((), answer, ()) = try_join3(begin, answer, commit).await?;
        Ok(answer)
    }

    /// Behind a transaction pooler nothing can be prepared: there a statement is sent as it is.
    async fn prepared<'a>(&self, sql: &'a str) -> Result<Prepared<'a>> {
        match self.local_settings {
            None => Ok(Prepared::Named(self.client.prepare_cached(sql).await?)),
            Some(_) => Ok(Prepared::Text(sql)),
        }
    }

    async fn send(&self, statement: &Prepared<'_>, params: Params<'_>) -> Result<RowStream> {
        match statement {
            Prepared::Named(statement) => {
                let params = params.iter().map(|param| *param as &(dyn ToSql + Sync));
                Ok(self.client.query_raw(statement, params).await?)
            }
            Prepared::Text(sql) => Ok(self.client.query_typed_raw(sql, typed(params)).await?),
        }
    }

    pub async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        self.run(sql, params, async |rows| Ok(rows.try_collect().await?)).await
    }

    /// Answers how many rows it touched.
    pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.run(sql, params, async |rows| {
            futures_util::pin_mut!(rows);
            while rows.try_next().await?.is_some() {}
            Ok(rows.rows_affected().unwrap_or(0))
        })
        .await
    }

    /// For several statements that stand or fall together. Each sees what was committed while the one before it waited for a lock,
    /// whatever isolation the login has by default.
    pub async fn transaction(&mut self) -> Result<Transaction<'_>> {
        let read_committed = IsolationLevel::ReadCommitted;
        let transaction = self.client.build_transaction().isolation_level(read_committed).start();
        let transaction = transaction.await?;
        if let Some(settings) = &self.local_settings {
            transaction.batch_execute(settings).await?;
        }
        Ok(Transaction(transaction))
    }
}

/// Its statements are run once, so none is prepared: each is one round trip, as are several that are awaited together, which run in
/// the order they are polled in. Rolled back when dropped.
pub struct Transaction<'a>(deadpool_postgres::Transaction<'a>);

impl Transaction<'_> {
    pub async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>> {
        let rows = self.0.query_typed_raw(sql, typed(params)).await?;
        Ok(rows.try_collect().await?)
    }

    pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        let params: Vec<_> = typed(params).collect();
        Ok(self.0.execute_typed(sql, &params).await?)
    }

    pub async fn commit(self) -> Result<()> {
        Ok(self.0.commit().await?)
    }
}
