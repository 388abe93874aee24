//! Sends statements on a connection, directly or through a transaction pooler.

use std::sync::Arc;

use deadpool_postgres::Object;
use futures_util::TryStreamExt;
use futures_util::future::try_join3;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Row, RowStream, Statement};

use super::from_row::FromRow;
use super::param::{Params, typed};
use super::{Error, Result};

pub struct Session {
    client: Object,
    /// The settings as SQL for one transaction. `None` without a transaction pooler.
    local_settings: Option<Arc<str>>,
}

/// A statement in the form in which this session can send it.
enum Prepared<'a> {
    Named(Statement),
    Text(&'a str),
}

impl Session {
    pub fn new(client: Object, local_settings: Option<Arc<str>>) -> Self {
        Session { client, local_settings }
    }

    /// Closes the connection instead of returning it to the pool.
    pub fn close(self) {
        drop(Object::take(self.client));
    }

    /// Runs one statement and passes its rows to `read`.
    pub async fn run<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        read: impl AsyncFnOnce(RowStream) -> Result<T>,
    ) -> Result<T> {
        let statement = self.prepared(sql).await?;
        match &self.local_settings {
            None => read(self.send(&statement, params).await?).await,
            // The next statement may run on another server connection, so this one brings its settings and leaves neither a
            // setting nor a prepared statement.
            Some(settings) => {
                self.run_in_transaction(&format!("BEGIN; {settings}"), &statement, params, read)
                    .await
            }
        }
    }

    /// Runs `sql` after `first`, in one transaction and one round trip. At any default isolation level of the login, `sql` sees
    /// what was committed while `first` waited.
    pub async fn query_after<T: FromRow>(&self, first: &str, sql: &str, params: Params<'_>) -> Result<Vec<T>> {
        let statement = self.prepared(sql).await?;
        let settings = self.local_settings.as_deref().unwrap_or("");
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {settings};\n{first}");
        self.run_in_transaction(&begin, &statement, params, read_all).await
    }

    /// Sends all three commands at once, in one round trip. If one of the first two fails, COMMIT rolls back.
    async fn run_in_transaction<T>(
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

    /// Behind a transaction pooler nothing can be prepared, so a statement is sent as text.
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

    pub async fn query<T: FromRow>(&self, sql: &str, params: Params<'_>) -> Result<Vec<T>> {
        self.run(sql, params, read_all).await
    }

    /// Returns the number of rows affected.
    pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.run(sql, params, async |rows| {
            futures_util::pin_mut!(rows);
            while rows.try_next().await?.is_some() {}
            Ok(rows.rows_affected().unwrap_or(0))
        })
        .await
    }

    /// Begins a transaction of several statements. At any default isolation level of the login, each sees what was committed
    /// while the one before it waited for a lock.
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

async fn read_all<T: FromRow>(rows: RowStream) -> Result<Vec<T>> {
    let rows: Vec<Row> = rows.try_collect().await?;
    rows.iter().map(T::from_row).collect()
}

/// A transaction, rolled back when dropped. Its statements are not prepared, so each is one round trip. Statements that are
/// awaited together share one, and run in the order in which they are polled.
pub struct Transaction<'a>(deadpool_postgres::Transaction<'a>);

impl Transaction<'_> {
    pub async fn query<T: FromRow>(&self, sql: &str, params: Params<'_>) -> Result<Vec<T>> {
        read_all(self.0.query_typed_raw(sql, typed(params)).await?).await
    }

    pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        let params: Vec<_> = typed(params).collect();
        Ok(self.0.execute_typed(sql, &params).await?)
    }

    pub async fn commit(self) -> Result<()> {
        Ok(self.0.commit().await?)
    }
}
