//! A PostgreSQL server that speaks TLS and asks every login but `postgres` for a password or a client certificate.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use crate::certificates::{Certificates, Leaf};
use crate::servers::{OwnPostgres, Stack};
use crate::world::{World, connect};
use crate::{SOON, eventually};

/// `postgres` is the test's own, and needs neither. PostgreSQL 15 knows no patterns here, so logins are told apart by their roles.
const HBA: &str = "\
host    all  postgres         127.0.0.1/32  trust
hostssl all  +by_password     127.0.0.1/32  scram-sha-256
hostssl all  +by_certificate  127.0.0.1/32  cert
host    all  all              127.0.0.1/32  reject
";

pub struct SecurePostgres {
    pub server: OwnPostgres,
    pub certificates: Certificates,
    data: PathBuf,
    _folder: tempfile::TempDir,
}

impl SecurePostgres {
    /// It shows the certificate `server`, and clients need one of the trusted CA.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let certificates = Certificates::new(folder.path());
        certificates.leaf("server", Leaf::default());
        let server = OwnPostgres::start();
        let session = connect(&server.url).await;
        let data: String = session
            .query_one("SHOW data_directory", &[])
            .await
            .expect("shown")
            .get(0);
        let postgres = SecurePostgres {
            server,
            certificates,
            data: data.into(),
            _folder: folder,
        };
        postgres.install("pg_hba.conf", HBA);
        session
            .batch_execute("CREATE ROLE by_password; CREATE ROLE by_certificate")
            .await
            .expect("two roles");
        let ca_file = "ALTER SYSTEM SET ssl_ca_file = 'root.crt'";
        session.batch_execute(ca_file).await.expect(ca_file);
        postgres.install_trusted("ca.pem");
        postgres.install_certificate("server");
        postgres.speak_tls(true).await;
        postgres
    }

    /// A migrated world on it.
    pub async fn world(&self) -> World {
        World::on(&self.server.url, &Stack::get().kafka).await
    }

    /// A database on it without the schema.
    pub async fn empty_world(&self, kafka: &str) -> World {
        World::empty_on(&self.server.url, kafka).await
    }

    /// Shows this certificate from now on.
    pub async fn show(&self, leaf: &str) {
        self.install_certificate(leaf);
        self.reload().await;
    }

    /// Accepts client certificates of this CA only from now on.
    pub async fn trust(&self, ca: &str) {
        self.install_trusted(ca);
        self.reload().await;
    }

    pub async fn speak_tls(&self, on: bool) {
        let switch = format!("ALTER SYSTEM SET ssl = {on}");
        let session = connect(&self.server.url).await;
        session.batch_execute(&switch).await.expect(&switch);
        self.reload().await;
    }

    fn install_certificate(&self, leaf: &str) {
        for (kind, file) in [("pem", "server.crt"), ("key", "server.key")] {
            let text = fs::read_to_string(self.certificates.path(&format!("{leaf}.{kind}")));
            self.install(file, &text.expect("issued"));
        }
    }

    fn install_trusted(&self, ca: &str) {
        let text = fs::read_to_string(self.certificates.path(ca));
        self.install("root.crt", &text.expect("there"));
    }

    /// Writes a file of the server's own, as it insists on for keys.
    fn install(&self, file: &str, text: &str) {
        let path = self.data.join(file);
        let owner = fs::metadata(&self.data).expect("its data");
        fs::write(&path, text).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        chown(&path, Some(owner.uid()), Some(owner.gid())).expect("given away");
    }

    /// Waits until new sessions are served by what is configured now. A server forks them after it has read everything.
    async fn reload(&self) {
        let loaded = async || -> String {
            let session = connect(&self.server.url).await;
            let row = session.query_one("SELECT pg_conf_load_time()::text", &[]).await;
            row.expect("a time").get(0)
        };
        let before = loaded().await;
        let session = connect(&self.server.url).await;
        session.batch_execute("SELECT pg_reload_conf()").await.expect("allowed");
        eventually(SOON, "the configuration to be read", async || {
            (loaded().await != before).then_some(())
        })
        .await;
    }
}

impl World {
    /// A login with these roles and this password; answers its URL, which has the password.
    pub async fn login_with(&self, name: &str, roles: &[&str], password: &str) -> String {
        let url = self.login(name, roles).await;
        let login = format!("{}_{name}", self.name);
        self.execute(&format!("ALTER ROLE {login} PASSWORD '{password}'")).await;
        url.replacen(&format!("{login}@"), &format!("{login}:{password}@"), 1)
    }

    /// Ends all sessions of a login; answers how many there were.
    pub async fn end_sessions(&self, name: &str) -> i64 {
        self.count(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{}_{name}'",
            self.name
        ))
        .await
    }
}
