//! docs/deploy.md, from its top to its end. What needs no cluster is run as it is written there; what does is replaced by what its pods
//! would run, and helm renders each release of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use testkit::*;

use super::helm::{Release, succeed, tool};

const PAGE: &str = "docs/deploy.md";
const NEEDS_A_CLUSTER: &str = "# needs a cluster";

/// A block of commands, under the heading that it is in.
struct Block {
    heading: String,
    text: String,
}

impl Block {
    fn needs_a_cluster(&self) -> bool {
        self.text.starts_with(NEEDS_A_CLUSTER)
    }

    /// A cluster, or an engine or a registry of containers.
    fn is_marked(&self) -> bool {
        self.text.starts_with("# needs ")
    }
}

fn blocks() -> Vec<Block> {
    let page = text_of(PAGE);
    let mut blocks = Vec::new();
    let mut heading = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title;
        } else if line.trim() == "```sh" {
            // A block in a list is indented as its list is.
            let indent = line.len() - line.trim_start().len();
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            let text: Vec<&str> = block.map(|line| line.get(indent..).unwrap_or("")).collect();
            blocks.push(Block {
                heading: heading.to_owned(),
                text: text.join("\n"),
            });
        }
    }
    blocks
}

/// The simple commands of all blocks that need a cluster, a line each.
fn cluster_commands(program: &str) -> Vec<Vec<String>> {
    let blocks = blocks();
    let lines = blocks.iter().filter(|block| block.needs_a_cluster());
    let lines = lines.flat_map(|block| {
        let text = block.text.replace("\\\n", " ");
        let lines = text
            .lines()
            .flat_map(|line| line.split(" | ").map(str::to_owned).collect::<Vec<_>>());
        lines.collect::<Vec<_>>()
    });
    let commands = lines.filter_map(|line| {
        let line = line
            .split(" #")
            .next()
            .unwrap_or_default()
            .trim_end_matches('|')
            .to_owned();
        let words = line
            .trim()
            .starts_with(program)
            .then(|| shell_words::split(line.trim()))?;
        Some(words.unwrap_or_else(|error| panic!("{line}: {error}")))
    });
    commands.collect()
}

/// Where the page's blocks run: a folder with the repository's `deploy`, and Kafka's tools and outboxd on the path.
struct Shell {
    dir: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Shell {
    fn new(postgres: &OwnPostgres, kafka: &OwnKafka) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        symlink(repository().join("deploy"), dir.path().join("deploy")).expect("a link");
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).expect("a folder");
        symlink(binary(), bin.join("outboxd")).expect("a link");
        for (script, class) in [
            ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
            ("kafka-acls.sh", "org.apache.kafka.tools.AclCommand"),
            (
                "kafka-console-consumer.sh",
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
            ),
        ] {
            let text = format!(
                "#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -cp '{}/*' {class} \"$@\"\n",
                Stack::get().kafka_libs
            );
            let path = bin.join(script);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        let tools = repository().join(".dev/bin");
        let path = std::env::var("PATH").expect("a path");
        let (_, address) = postgres.url.split_once('@').expect("a login");
        let environment = vec![
            ("PATH", format!("{}:{}:{path}", bin.display(), tools.display())),
            ("ADMIN_URL", postgres.url.clone()),
            ("DB", address.to_owned()),
            ("BROKERS", kafka.address.clone()),
        ];
        Shell { dir, environment }
    }

    /// Runs a block as a shell would, and keeps what it exports.
    fn run(&mut self, block: &Block) -> String {
        let exported = self.dir.path().join("exported");
        let script = format!("{}\nenv -0 >{}", block.text, exported.display());
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(self.dir.path())
            .envs(self.environment.iter().map(|(name, value)| (*name, value)))
            .output()
            .expect("bash runs");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{}: {}\n{stdout}{}",
            block.heading,
            block.text,
            stderr_of(&output)
        );
        let exported = fs::read_to_string(exported).expect("the environment");
        for name in ["SHOP_URL", "OUTBOXD_DATABASE_URL", "MIGRATION_URL"] {
            let value = exported
                .split('\0')
                .find_map(|variable| variable.strip_prefix(&format!("{name}=")));
            if let Some(value) = value {
                self.environment.push((name, value.to_owned()));
            }
        }
        stdout
    }

    fn secret(&self, name: &str) -> String {
        self.dir.path().join("secrets").join(name).display().to_string()
    }

    fn values(&self) -> Release {
        Release::with_file("outboxd", self.dir.path().join("shop.yaml"))
    }
}

/// Blocks that another test runs, because they take minutes: the word by which they are known, and the test.
const RUN_ELSEWHERE: [(&str, &str); 1] = [("deploy/image/build", "deploy::image")];

/// Blocks that say where things are, which this test knows better.
const ADDRESSES: &str = "export ADMIN_URL=postgres://postgres@";

#[tokio::test]
#[ignore = "long, and needs helm: make test-all"]
async fn the_page_leads_from_nothing_to_a_relay_that_publishes_and_back() {
    let (postgres, kafka) = (OwnPostgres::start(), OwnKafka::guarded_for_named_users());
    let mut shell = Shell::new(&postgres, &kafka);
    let mut relay = None;
    for block in blocks() {
        if block.is_marked() {
            match block.heading.as_str() {
                // The hook's Job and the Deployment.
                "5. Install" if relay.is_none() => {
                    migrate(&shell.secret("migration-url"));
                    let pod = RelayBuilder::without_database(&kafka.address);
                    let pod = pod.args(&["--database-url-file", &shell.secret("relay-url")]);
                    relay = Some(pod.start_ready().await);
                }
                "Uninstall" => relay.take().expect("a relay").stop(),
                _ => {}
            }
            continue;
        }
        let is_elsewhere = RUN_ELSEWHERE.iter().any(|(word, _)| block.text.contains(word));
        if is_elsewhere || block.text.starts_with(ADDRESSES) {
            continue;
        }
        let said = shell.run(&block);
        match block.heading.as_str() {
            "5. Install" => check_releases(&shell),
            "6. Send a message" if block.text.contains("consumer") => assert!(said.contains("99.90"), "{said}"),
            "7. Watch it" => assert!(said.contains("The promises held"), "{said}"),
            _ => {}
        }
    }
    assert!(relay.is_none(), "it was uninstalled");
    let db = connect(&postgres.url).await;
    let left = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'outbox%' OR rolname = 'shop'";
    let left: i64 = db.query_one(left, &[]).await.expect("an answer").get(0);
    assert_eq!(left, 0, "nothing is left");
}

fn migrate(url_file: &str) {
    let mut migrate = outboxd();
    succeed(migrate.args(["migrate", "--database-url-file", url_file]));
}

/// Every `helm upgrade` of the page, rendered; and what the page's other commands name is there.
fn check_releases(shell: &Shell) {
    let mut named = BTreeSet::new();
    let mut mounted = BTreeSet::new();
    let mut upgrades = 0;
    for words in cluster_commands("helm ") {
        match words[1].as_str() {
            "upgrade" => upgrades += 1,
            other => {
                succeed(tool("helm").args([other, "--help"]));
                continue;
            }
        }
        let release = words
            .iter()
            .skip(2)
            .find(|word| !word.starts_with('-'))
            .expect("a release");
        let sets = words.iter().zip(&words[1..]).filter(|(flag, _)| *flag == "--set");
        let release = sets.fold(shell.values().named(release), |release, (_, value)| release.set(value));
        for object in release.objects() {
            let kind = object["kind"].as_str().expect("a kind").to_lowercase();
            named.insert(format!(
                "{kind}/{}",
                object["metadata"]["name"].as_str().expect("a name")
            ));
        }
        mounted.extend(mounts(&release.text()));
    }
    assert!(upgrades >= 6, "{upgrades}");
    for object in objects_of_kubectl() {
        assert!(
            named.contains(&object),
            "the page names {object}, the chart prints {named:?}"
        );
    }
    // Strimzi makes these.
    let made: BTreeSet<String> = ["outboxd", "main-cluster-ca-cert"].map(str::to_owned).into();
    let created = made.union(&created_by_kubectl()).cloned().collect::<BTreeSet<_>>();
    assert!(mounted.is_subset(&created), "mounted {mounted:?}, created {created:?}");
}

/// The Secrets and ConfigMaps that a manifest's projected volumes name.
fn mounts(manifest: &str) -> BTreeSet<String> {
    let lines = manifest.lines().zip(manifest.lines().skip(1));
    let names = lines.filter(|(line, _)| matches!(line.trim(), "- secret:" | "- configMap:"));
    names
        .map(|(_, name)| name.trim().trim_start_matches("name: ").trim_matches('"').to_owned())
        .collect()
}

/// What `kubectl create` makes, by name.
fn created_by_kubectl() -> BTreeSet<String> {
    let commands = cluster_commands("kubectl ");
    let created =
        commands.iter().filter_map(
            |words| match words[1..].iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["create", "secret", "generic", name, ..] | ["create", "configmap", name, ..] => Some(name.to_owned()),
                _ => None,
            },
        );
    created.collect()
}

/// Objects that other commands of kubectl name as kind/name.
fn objects_of_kubectl() -> BTreeSet<String> {
    let commands = cluster_commands("kubectl ");
    let words = commands
        .iter()
        .flatten()
        .map(|word| word.trim_start_matches("--from=").to_owned());
    let objects = words.filter(|word| {
        ["job/", "service/", "cronjob/", "deployment/"]
            .iter()
            .any(|kind| word.starts_with(kind))
    });
    let objects: BTreeSet<String> = objects.collect();
    assert!(objects.len() >= 2, "{objects:?}");
    objects
}

#[test]
fn files_that_the_page_names_exist() {
    let page = text_of(PAGE);
    for word in page.split(|c: char| c.is_whitespace() || "()`".contains(c)) {
        let path = word.trim_start_matches("../");
        if path.starts_with("deploy/") && !path.contains('=') {
            let path = path
                .split('#')
                .next()
                .unwrap_or_default()
                .trim_end_matches(['.', ',', ':', ')']);
            assert!(repository().join(path).exists(), "{PAGE} names {path}");
        }
    }
}
