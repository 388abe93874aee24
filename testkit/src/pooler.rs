//! A PgBouncer in transaction mode between the relays of a world and their PostgreSQL.

use crate::relay::RelayBuilder;
use crate::servers::{address_of, clean_up, stack};

pub struct PgBouncer {
    dir: tempfile::TempDir,
    server: String,
    address: String,
}

impl PgBouncer {
    /// Set for a run of the whole suite through poolers: one a world. It cannot choose between two servers, though.
    pub fn is_wanted_before(server_url: &str) -> bool {
        std::env::var_os("OUTBOXD_TEST_POOLER").is_some() && !address_of(server_url).contains(',')
    }

    pub fn before(server_url: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let server = address_of(server_url).to_owned();
        let address = stack(&["pgbouncer-start", &dir.path().display().to_string(), &server]);
        PgBouncer { dir, server, address }
    }

    /// The same login and database, by way of the pooler.
    pub fn through(&self, url: &str) -> String {
        assert_eq!(address_of(url), self.server, "a database of its server");
        url.replacen(&self.server, &self.address, 1)
    }

    /// Ends it at once, whatever its clients do.
    pub fn stop(&self) {
        stack(&["pgbouncer-stop", &self.path()]);
    }

    pub fn restart(&self) {
        let address = stack(&["pgbouncer-start", &self.path(), &self.server]);
        assert_eq!(address, self.address, "the same port again");
    }

    fn path(&self) -> String {
        self.dir.path().display().to_string()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        clean_up(&["pgbouncer-stop", &self.path(), "--wipe"]);
    }
}

impl RelayBuilder {
    pub fn pooled(self) -> Self {
        self.env("OUTBOXD_DATABASE_POOLER", "transaction")
    }
}
