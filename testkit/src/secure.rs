//! A Kafka broker that asks who its clients are: TLS, client certificates, passwords, tokens and ACLs. The tests of a process share
//! one.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{LazyLock, Mutex};

use crate::certificates::{Certificates, Leaf};
use crate::issuer::{CLIENT_ID, CLIENT_SECRET, Issuer, Signer};
use crate::paths::{outboxd, repository};
use crate::relay::RelayBuilder;
use crate::servers::{ADD_ACL, kafka_tool, stack};
use crate::world::World;

static SHARED: LazyLock<SecureKafka> = LazyLock::new(SecureKafka::start);

pub struct SecureKafka {
    /// Tests write there side by side.
    certificates: Mutex<Certificates>,
    /// Signs tokens that the broker trusts.
    pub signer: Signer,
    listeners: HashMap<String, String>,
}

impl SecureKafka {
    /// The one of this process. It takes some seconds at the first call, and is stopped with the stack, or by the next process.
    pub fn get() -> &'static SecureKafka {
        &SHARED
    }

    fn start() -> Self {
        let dir = dev_folder().join(format!("secure-{}", std::process::id()));
        let folder = dir.join("certificates");
        fs::create_dir_all(&folder).expect("a folder");
        let (certificates, signer) = (Certificates::new(&folder), Signer::new());
        let (expired, hosts, common_name) = (true, &["other.example"], "relay");
        let leaf = Leaf::default;
        for (name, leaf) in [
            ("server", leaf()),
            ("expired", Leaf { expired, ..leaf() }),
            ("elsewhere", Leaf { hosts, ..leaf() }),
            ("relay", Leaf { common_name, ..leaf() }),
        ] {
            certificates.leaf(name, leaf);
        }
        fs::write(folder.join("jwks.json"), signer.jwks()).expect("a file");
        let listeners = stack(&["secure-start", &dir.display().to_string()]);
        let listener = |line: &str| {
            let (name, address) = line.split_once(' ').expect("a name and an address");
            (name.to_owned(), address.to_owned())
        };
        let kafka = SecureKafka {
            certificates: Mutex::new(certificates),
            signer,
            listeners: listeners.lines().map(listener).collect(),
        };
        // Topics of a world begin with its name, and that with a t.
        let operations = ["--operation", "Write", "--operation", "Read"];
        let topics = ["--topic", "t", "--resource-pattern-type", "prefixed"];
        let relay = ["--allow-principal", "User:relay"];
        kafka_tool(ADD_ACL, kafka.plain(), &[&relay[..], &operations, &topics].concat());
        kafka
    }

    /// The listener that tests use themselves. A client may do anything there.
    pub fn plain(&self) -> &str {
        self.listener("BROKER")
    }

    pub fn listener(&self, name: &str) -> &str {
        &self.listeners[name]
    }

    /// One of `ca.pem`, `other-ca.pem`, the relay's `relay.pem` and `relay.key`, `server.pem` and `server.key`, or of a test's own.
    pub fn file(&self, name: &str) -> String {
        self.certificates.lock().expect("no panic").path(name)
    }

    /// Issues a certificate: `<name>.pem` and `<name>.key`, in place of earlier ones of this name.
    pub fn issue(&self, name: &str, leaf: Leaf<'_>) {
        self.certificates.lock().expect("no panic").leaf(name, leaf);
    }

    /// Puts the content of one file into another, at once.
    pub fn copy(&self, from: &str, to: &str) {
        self.certificates.lock().expect("no panic").copy(from, to);
    }

    /// An issuer whose tokens the broker trusts.
    pub fn issuer(&'static self) -> Issuer {
        Issuer::start(&self.signer)
    }

    /// The same over TLS, with the broker's own certificate.
    pub fn issuer_over_tls(&'static self) -> Issuer {
        Issuer::start_tls(&self.signer, &self.file("server.pem"), &self.file("server.key"))
    }

    /// A world whose tests use the plain listener.
    pub async fn world(&self) -> World {
        World::with_kafka(self.plain()).await
    }

    /// Allows this user to write to a topic.
    pub fn allow_write(&self, user: &str, topic: &str) {
        let allowed = ["--allow-principal", user, "--operation", "Write", "--topic", topic];
        kafka_tool(ADD_ACL, self.plain(), &allowed);
    }

    /// Gives a user of SCRAM-SHA-512 this password.
    pub fn set_password(&self, user: &str, password: &str) {
        let tool = ["kafka.admin.ConfigCommand", "--alter", "--entity-type", "users"];
        let password = format!("SCRAM-SHA-512=[password={password}]");
        kafka_tool(&tool, self.plain(), &["--entity-name", user, "--add-config", &password]);
    }

    /// Over TLS to this listener, without a login.
    pub fn over_tls(&self, listener: &str) -> Access {
        Access {
            brokers: self.listener(listener).to_owned(),
            properties: Vec::new(),
            flags: Vec::new(),
        }
        .with("security.protocol", "ssl")
        .with("ssl.ca.location", &self.file("ca.pem"))
    }

    /// By the client certificate of the relay.
    pub fn by_certificate(&self) -> Access {
        self.over_tls("MTLS")
            .with("ssl.certificate.location", &self.file("relay.pem"))
            .with("ssl.key.location", &self.file("relay.key"))
    }

    /// By a password.
    pub fn by_password(&self, mechanism: &str, user: &str, password: &str) -> Access {
        self.over_tls("SASL")
            .with("security.protocol", "sasl_ssl")
            .with("sasl.mechanism", mechanism)
            .with("sasl.username", user)
            .with("sasl.password", password)
    }

    /// By a token. The access does not say yet where it comes from.
    pub fn by_token(&self) -> Access {
        self.over_tls("OAUTH")
            .with("security.protocol", "sasl_ssl")
            .with("sasl.mechanism", "OAUTHBEARER")
    }

    /// By tokens of this issuer.
    pub fn by_issuer(&self, issuer: &Issuer) -> Access {
        self.by_token()
            .with("sasl.oauthbearer.method", "oidc")
            .with("sasl.oauthbearer.token.endpoint.url", &issuer.endpoint())
            .with("sasl.oauthbearer.client.id", CLIENT_ID)
            .with("sasl.oauthbearer.client.secret", CLIENT_SECRET)
    }
}

/// As in the script that runs the servers.
fn dev_folder() -> PathBuf {
    let folder = std::env::var_os("OUTBOXD_DEV_DIR").map_or_else(|| repository().join(".dev"), PathBuf::from);
    fs::create_dir_all(&folder).expect("a folder");
    folder.canonicalize().expect("it exists")
}

/// How to reach a broker: its address, properties and more flags.
#[derive(Clone)]
pub struct Access {
    pub brokers: String,
    properties: Vec<(String, String)>,
    flags: Vec<String>,
}

impl Access {
    /// The same with this property, in place of another value of it.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.properties.retain(|(known, _)| known != name);
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with this flag.
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// The same by way of a properties file.
    pub fn in_file(mut self, path: &str) -> Self {
        fs::write(path, self.text()).expect("a file");
        self.properties.clear();
        self.flag("--kafka-properties-file", path)
    }

    /// The properties as the text of a file.
    pub fn text(&self) -> String {
        let line = |(name, value): &(String, String)| format!("{name}={value}\n");
        self.properties.iter().map(line).collect()
    }

    /// The properties and the other flags, as arguments.
    pub fn arguments(&self) -> Vec<String> {
        let property = |(name, value): &(String, String)| ["--kafka-property".to_owned(), format!("{name}={value}")];
        let properties = self.properties.iter().flat_map(property);
        properties.chain(self.flags.iter().cloned()).collect()
    }

    /// A relay of this world that reaches Kafka so. On a busy machine a first login takes longer than the second in which other tests
    /// expect an answer to a batch.
    pub fn relay(&self, world: &World) -> RelayBuilder {
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        RelayBuilder::new(&world.database_url, &self.brokers)
            .args(&["--batch-deadline", "4s", "--lease", "10s"])
            .args(&arguments)
    }

    /// Runs `outboxd verify` on this world, to its end.
    pub fn verify(&self, world: &World) -> Output {
        let mut command = outboxd();
        command.args([
            "verify",
            "--database-url",
            &world.database_url,
            "--kafka-brokers",
            &self.brokers,
        ]);
        command.args(self.arguments()).output().expect("outboxd runs")
    }
}
