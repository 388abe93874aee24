//! The settings of clients: ours, and the user's, which come from flags and files and are read again while the process runs.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;

use super::properties::{self, Property};
use super::security::{self, Security};
use super::{OVERRUN, record_lifetime};
use crate::credentials::file;
use crate::credentials::token::{self, TokenSource};

/// The client accepts no larger value.
const SOCKET_TIMEOUT_MAX: Duration = Duration::from_secs(300);

const FILE_FLAG: &str = "--kafka-properties-file";

/// What a client is for.
#[derive(Clone, Copy, Debug)]
enum Role {
    Producer,
    Consumer,
}

/// Where the user's part of the settings comes from.
#[derive(Clone, Debug, Default)]
pub struct UserSettings {
    pub flags: Vec<Property>,
    pub file: Option<PathBuf>,
    /// The sources of tokens that flags name.
    pub tokens: Vec<TokenSource>,
}

/// The settings of clients, as they were read, and where to read them again.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    source: Source,
    pub(super) read: Settings,
}

#[derive(Clone, Debug)]
struct Source {
    /// The brokers and our own settings. There is no secret among them.
    ours: ClientConfig,
    role: Role,
    user: UserSettings,
}

/// Settings that the client library accepts.
#[derive(Clone)]
pub(super) struct Settings {
    pub config: ClientConfig,
    pub security: Security,
    pub tokens: Option<TokenSource>,
    /// Differs if a property, or a file that one names, has changed.
    fingerprint: u64,
}

impl fmt::Debug for Settings {
    /// The client library's own output leaves out only some of the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("security", &self.security)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl ClientSettings {
    /// The settings of every producer, or what is wrong with the user's part of them.
    pub fn producer(ours: ClientConfig, user: UserSettings) -> Result<Self, Vec<String>> {
        ClientSettings::of(ours, Role::Producer, user)
    }

    /// The same for a consumer.
    pub fn consumer(ours: ClientConfig, user: UserSettings) -> Result<Self, Vec<String>> {
        ClientSettings::of(ours, Role::Consumer, user)
    }

    fn of(ours: ClientConfig, role: Role, user: UserSettings) -> Result<Self, Vec<String>> {
        let source = Source { ours, role, user };
        let read = source.read(None)?;
        // It is there before the process starts. Later, one that is gone for a moment is only reported.
        let lacking: Vec<String> = read.tokens.iter().filter_map(unreadable).collect();
        if !lacking.is_empty() {
            return Err(lacking);
        }
        Ok(ClientSettings { source, read })
    }

    /// The settings as they are now, or `None` if they have not changed.
    pub(super) fn read_again(&self, known: &Settings) -> Result<Option<Settings>, Vec<String>> {
        let read = self.source.read(Some(known))?;
        Ok((read.fingerprint != known.fingerprint).then_some(read))
    }
}

/// Why the file of tokens cannot be read, if they come from one.
fn unreadable(tokens: &TokenSource) -> Option<String> {
    let TokenSource::File(path) = tokens else { return None };
    file::read(token::FILE_FLAG, path).err()
}

impl Source {
    /// Reads the settings. Those that are the `known` ones need not be checked again.
    fn read(&self, known: Option<&Settings>) -> Result<Settings, Vec<String>> {
        let (in_file, problems) = match &self.user.file {
            Some(path) => properties::of_file(&file::read(FILE_FLAG, path).map_err(|problem| vec![problem])?),
            None => (Vec::new(), Vec::new()),
        };
        let own = properties::merge(in_file, self.user.flags.clone());
        let fingerprint = fingerprint(&own);
        if let Some(known) = known.filter(|known| problems.is_empty() && known.fingerprint == fingerprint) {
            return Ok(known.clone());
        }
        match self.check(&own, fingerprint) {
            Ok(settings) if problems.is_empty() => Ok(settings),
            Ok(_) => Err(problems),
            Err(more) => Err([problems, more].concat()),
        }
    }

    /// The settings with these properties, or what is wrong with them.
    fn check(&self, own: &[Property], fingerprint: u64) -> Result<Settings, Vec<String>> {
        let security = Security::of(own).map_err(|problem| vec![problem])?;
        let tokens = security::token_source(&security, own, &self.user.tokens)?;
        let mut config = self.ours.clone();
        let pairs = security::of_client(own).map(|property| (property.name.clone(), property.value().to_owned()));
        config.extend(pairs);
        match refusal(self.role, &config, own) {
            Some(problem) => Err(vec![problem]),
            None => Ok(Settings {
                config,
                security,
                tokens,
                fingerprint,
            }),
        }
    }
}

/// A number that changes with the properties and with the content of the files that they name.
fn fingerprint(own: &[Property]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for property in own {
        (property.canonical(), property.value()).hash(&mut hasher);
    }
    for path in security::files(own) {
        hash_file(&path, &mut hasher);
    }
    hasher.finish()
}

/// Hashes what a file contains, or, of a directory, which files it has and when each was written.
fn hash_file(path: &Path, hasher: &mut DefaultHasher) {
    if let Ok(content) = fs::read(path) {
        return content.hash(hasher);
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let written = |path: PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let mut entries: Vec<_> = entries
        .map(|entry| (entry.file_name(), written(entry.path())))
        .collect();
    entries.sort();
    entries.hash(hasher);
}

/// Why the client library does not accept the settings, if so. It reads some of them, such as certificates and the SASL mechanism,
/// only when a client is created, so one is created and dropped.
fn refusal(role: Role, config: &ClientConfig, own: &[Property]) -> Option<String> {
    if let Err(error) = config.create_native_config() {
        return Some(problem(error, own));
    }
    // Nothing more needs checking if all settings are ours.
    if own.is_empty() {
        return None;
    }
    // Without brokers the client does not connect.
    let mut offline = config.clone();
    offline.remove("bootstrap.servers");
    let created = match role {
        Role::Producer => offline.create::<BaseProducer>().map(drop),
        Role::Consumer => offline.create::<BaseConsumer>().map(drop),
    };
    created.err().map(|error| problem(error, own))
}

fn problem(error: KafkaError, own: &[Property]) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, name, _) => match own.iter().find(|property| property.name == name) {
            Some(property) => format!("{} is not accepted: {reason}", property.label()),
            None => format!("the Kafka client does not accept its setting {name}: {reason}"),
        },
        KafkaError::ClientCreation(reason) => match property_in(&reason, own) {
            Some(property) => format!("{} is not accepted: {reason}", property.label()),
            None => format!("the Kafka client does not accept its properties: {reason}"),
        },
        other => format!("the Kafka client does not accept its settings: {other}"),
    }
}

/// The property that the client's reason is about: it contains its name, or quotes its value.
fn property_in<'a>(reason: &str, own: &'a [Property]) -> Option<&'a Property> {
    let words = reason.split(|c: char| c.is_whitespace() || c == ':');
    let named = own.iter().find(|property| reason.contains(&property.name));
    let quoted = || {
        own.iter()
            .find(|property| !property.value().is_empty() && words.clone().any(|word| word == property.value()))
    };
    named.or_else(quoted)
}

/// Our settings of every producer.
pub fn of_producer(brokers: &str, deadline: Duration, rows: usize, bytes: usize) -> ClientConfig {
    let mut config = ClientConfig::new();
    let longest_send = (deadline + OVERRUN).min(SOCKET_TIMEOUT_MAX).as_millis().to_string();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "outboxd")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", record_lifetime(deadline).as_millis().to_string())
        // A batch is complete when it is handed over, so waiting for more records only adds latency.
        .set("linger.ms", "0")
        .set("compression.type", "lz4")
        .set("batch.size", "1000000")
        // We set no limit of our own. The topic decides, and its refusal is the reason that we report.
        .set("message.max.bytes", "100000000")
        .set("queue.buffering.max.messages", rows.max(1).to_string())
        .set(
            "queue.buffering.max.kbytes",
            // It must exceed the largest record, since one larger than the whole queue could never be sent.
            (bytes / 1024).clamp(128 * 1024, 2_000_000).to_string(),
        )
        .set("socket.keepalive.enable", "true")
        // The client reconnects to a broker that gives no answer for longer than any send may take. With the defaults, up to a
        // minute, publishing would still stop long after a network that dropped packets works again.
        .set("socket.timeout.ms", &longest_send)
        .set("socket.connection.setup.timeout.ms", &longest_send)
        .set("api.version.request.timeout.ms", &longest_send)
        .set("reconnect.backoff.max.ms", "2000")
        .set("topic.metadata.refresh.interval.ms", "60000");
    config
}

/// Our settings of a consumer that reads topics once, from given offsets, and little at a time.
pub fn of_consumer(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "outboxd-verify")
        // The client requires a name, though the group is never joined and nothing is committed.
        .set("group.id", "outboxd-verify")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // An offset that no longer exists is an error, not a reason to start elsewhere.
        .set("auto.offset.reset", "error")
        .set("enable.partition.eof", "true")
        // These limits count compressed bytes, so they are small: records may be much larger once they are uncompressed.
        .set("fetch.message.max.bytes", "131072")
        .set("fetch.max.bytes", "1048576")
        .set("queued.min.messages", "10000")
        .set("queued.max.messages.kbytes", "4096")
        // A few large records fill the queue, and by default the client would then pause for a second.
        .set("fetch.queue.backoff.ms", "5")
        .set("socket.keepalive.enable", "true");
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> ClientConfig {
        of_producer("localhost:9092", Duration::from_secs(5), 4000, 1 << 25)
    }

    fn settings(flags: &[(&str, &str)], file: Option<&Path>) -> Result<ClientSettings, Vec<String>> {
        let flags = flags.iter().map(|(name, value)| Property::flag(name, value)).collect();
        let user = UserSettings {
            flags,
            file: file.map(Path::to_owned),
            tokens: Vec::new(),
        };
        ClientSettings::producer(ours(), user)
    }

    fn problem_with(flags: &[(&str, &str)]) -> Option<String> {
        settings(flags, None).err().map(|problems| problems.concat())
    }

    #[test]
    fn what_a_client_refuses_only_when_it_is_made_is_named() {
        assert_eq!(
            problem_with(&[
                ("security.protocol", "ssl"),
                ("ssl.endpoint.identification.algorithm", "none")
            ]),
            None
        );
        let sasl = ("security.protocol", "sasl_plaintext");
        for (own, name) in [
            (
                &[("security.protocol", "ssl"), ("ssl.ca.location", "/nowhere/ca.pem")][..],
                "ssl.ca.location",
            ),
            (
                &[
                    ("security.protocol", "ssl"),
                    ("ssl.certificate.location", "/nowhere/c.pem"),
                ],
                "ssl.certificate.location",
            ),
            (&[sasl, ("sasl.mechanisms", "GUESSWORK")], "sasl.mechanisms"),
            (&[sasl, ("sasl.mechanism", "GUESSWORK")], "sasl.mechanism"),
            (&[("compression.typ", "lz4")], "compression.typ"),
        ] {
            let problem = problem_with(own).expect(name);
            assert!(
                problem.contains(&format!("--kafka-property {name} is not accepted")),
                "{problem}"
            );
        }
    }

    #[test]
    fn the_client_accepts_our_settings() {
        assert_eq!(problem_with(&[]), None);
        let consumer = ClientSettings::consumer(of_consumer("localhost:9092"), UserSettings::default());
        assert!(consumer.is_ok());
    }

    #[test]
    fn a_property_of_the_file_is_named_with_it() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("kafka.properties");
        fs::write(&path, "security.protocol=sasl_plaintext\nsasl.mechanism=GUESSWORK\n").expect("a file");
        let problem = settings(&[], Some(&path)).expect_err("no such mechanism").concat();
        assert!(
            problem.contains("--kafka-properties-file: sasl.mechanism is not accepted"),
            "{problem}"
        );
        let missing = settings(&[], Some(&folder.path().join("none"))).expect_err("no such file");
        assert!(missing.concat().contains(FILE_FLAG), "{missing:?}");
    }

    #[test]
    fn a_change_of_the_file_or_of_a_file_that_it_names_is_noticed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (path, crl) = (folder.path().join("kafka.properties"), folder.path().join("crl.pem"));
        let plain = format!("sasl.password=s3cret\nssl.crl.location={}\n", crl.display());
        fs::write(&path, &plain).expect("a file");
        let settings = settings(&[], Some(&path)).expect("valid");
        assert!(!format!("{settings:?}").contains("s3cret"), "{settings:?}");
        let unchanged = settings.read_again(&settings.read).expect("valid");
        assert!(unchanged.is_none());

        fs::write(&crl, "a list").expect("a file");
        let changed = settings.read_again(&settings.read).expect("valid").expect("a new file");
        assert!(settings.read_again(&changed).expect("valid").is_none());
        fs::write(&path, plain.replace("s3cret", "n3w")).expect("a file");
        let changed = settings.read_again(&changed).expect("valid").expect("a new password");
        assert_eq!(changed.config.get("sasl.password"), Some("n3w"));

        fs::write(&path, "acks=1").expect("a file");
        assert!(settings.read_again(&changed).is_err());
    }
}
