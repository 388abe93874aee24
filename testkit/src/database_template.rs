//! A migrated database that others are copied from: that is quicker than to migrate each.

use std::path::Path;

use tokio::sync::OnceCell;
use tokio_postgres::Client;

use crate::world::{connect, migrate, with_database};

static TEMPLATE: OnceCell<String> = OnceCell::const_new();

/// Its name. The first test that asks for it makes it. There is one for each process of tests, since another may test another binary.
pub async fn of(server_url: &str) -> &'static str {
    TEMPLATE.get_or_init(|| migrated(server_url)).await
}

async fn migrated(server_url: &str) -> String {
    let server = connect(server_url).await;
    remove_old(&server).await;
    let name = format!("template_{}", std::process::id());
    for sql in [
        // Left by one with the same number, or by ourselves, if what follows failed.
        format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
        format!("CREATE DATABASE {name}"),
    ] {
        server.batch_execute(&sql).await.expect(&sql);
    }
    migrate(&with_database(server_url, &name));
    name
}

/// A stack may outlive many processes of tests, and these leave their templates behind.
async fn remove_old(server: &Client) {
    let sql = "SELECT substr(datname, 10) FROM pg_database WHERE datname ~ '^template_[0-9]+$'";
    for row in server.query(sql, &[]).await.expect(sql) {
        let process: &str = row.get(0);
        if !Path::new("/proc").join(process).exists() {
            let drop = format!("DROP DATABASE IF EXISTS template_{process} WITH (FORCE)");
            server.batch_execute(&drop).await.expect("an old template goes");
        }
    }
}
