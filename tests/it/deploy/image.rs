//! The image: what is in it, and that it runs as the chart would run it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::*;

use super::container::{Container, Image, Pod};
use super::helm::{Release, succeed};

#[test]
#[ignore = "long: make test-all"]
fn the_same_sources_give_the_same_image() {
    let first = Image::get();
    let again = Image::build("target/image-again");
    assert_eq!(first.digest, again.digest);
    let bom = |image: &Image| fs::read_to_string(image.dir.join("sbom.cdx.json")).expect("text");
    assert_eq!(bom(first), bom(&again));
    // Another tool than the one that made it reads every blob.
    let copy = tempfile::tempdir().expect("a folder");
    let from = format!("oci:{}:{}", first.dir.join("oci").display(), env!("CARGO_PKG_VERSION"));
    let to = format!("oci:{}:copy", copy.path().display());
    succeed(Command::new("skopeo").args(["copy", "--quiet", "--preserve-digests", &from, &to]));
    fs::remove_dir_all(&again.dir).expect("removed");
}

/// What the Dockerfile says after a word.
fn instruction(word: &str) -> String {
    let dockerfile = text_of("Dockerfile");
    let (_, image) = dockerfile.split_once("FROM scratch").expect("the last stage");
    let line = image.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word}")).trim().to_owned()
}

#[test]
#[ignore = "long: make test-all"]
fn it_is_the_image_that_the_dockerfile_describes() {
    let config = &Image::get().config["config"];
    let list = |word| serde_json::from_str::<Value>(&instruction(word)).expect("a list");
    assert_eq!(config["Entrypoint"], list("ENTRYPOINT"));
    assert_eq!(config["Cmd"], list("CMD"));
    assert_eq!(config["User"], instruction("USER"));
    assert_eq!(
        config["ExposedPorts"],
        json!({format!("{}/tcp", instruction("EXPOSE")): {}})
    );
}

#[test]
#[ignore = "long: make test-all"]
fn it_has_no_file_that_the_binary_does_not_need() {
    let root = Image::get().dir.join("rootfs");
    let files = succeed(
        Command::new("find")
            .arg(&root)
            .args(["-type", "f", "-printf", "%P %m\n"]),
    );
    let others = files.lines().filter(|line| !line.contains(".so."));
    let expected = [
        "etc/nsswitch.conf 644",
        "etc/passwd 644",
        "etc/ssl/certs/ca-certificates.crt 644",
        "usr/local/bin/outboxd 755",
    ];
    assert_eq!(others.collect::<BTreeSet<_>>(), expected.into());
}

/// Packages that are linked into the binary, by name and version.
fn linked_crates() -> BTreeSet<String> {
    let mut tree = Command::new("cargo");
    tree.current_dir(repository()).args([
        "tree",
        "--locked",
        "--package=outboxd",
        "--edges=normal",
        "--target=x86_64-unknown-linux-gnu",
        "--prefix=none",
        "--format={p}",
    ]);
    let tree = succeed(&mut tree);
    let crates = tree.lines().map(|line| {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        format!("{name}@{}", words.next().expect("a version").trim_start_matches('v'))
    });
    crates.filter(|name| !name.starts_with("outboxd@")).collect()
}

#[test]
#[ignore = "long: make test-all"]
fn the_bill_of_materials_names_all_that_is_in_it() {
    let bom = fs::read_to_string(Image::get().dir.join("sbom.cdx.json")).expect("text");
    let bom: Value = serde_json::from_str(&bom).expect("JSON");
    assert_eq!(bom["bomFormat"], "CycloneDX");
    let purls: Vec<&str> = bom["components"]
        .as_array()
        .expect("components")
        .iter()
        .map(|component| component["purl"].as_str().expect("a purl"))
        .collect();
    let of = |kind: &str| -> BTreeSet<String> {
        let purls = purls.iter().filter_map(|purl| purl.strip_prefix(kind));
        purls
            .map(|purl| purl.split('?').next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(
        of("pkg:cargo/"),
        linked_crates(),
        "the crates of the binary, and no others"
    );
    let packages: BTreeSet<String> = of("pkg:deb/debian/")
        .iter()
        .map(|package| package.split('@').next().expect("a name").to_owned())
        .collect();
    let expected = ["ca-certificates", "libc6", "libgcc-s1", "libssl3"];
    assert_eq!(packages, expected.map(str::to_owned).into());
}

/// A release for the servers of a test.
fn release(kafka: &str, port: u16) -> Release {
    Release::of("minimal")
        // A comma would begin another value.
        .set(&format!("kafka.brokers={}", kafka.replace(',', "\\,")))
        .set(&format!("httpPort={port}"))
        .set("settings.OUTBOXD_LOG_FORMAT=json")
        .set("settings.OUTBOXD_LEASE=6s")
        .set("settings.OUTBOXD_BATCH_DEADLINE=1s")
        .set("verify.enabled=true")
        .set("verify.login.urlSecret.name=outboxd-operator")
        .set("verify.args={--serialized-keys}")
}

fn run_to_its_end(mut container: Container) -> (Option<i32>, String) {
    let status = container.wait(SOON * 2);
    (status.code(), container.log())
}

async fn ready(container: &Container, address: &str) {
    eventually(SOON, "the container to be ready", async || {
        let answer = outboxd::http::ask(address, "/readyz", Duration::from_secs(5)).ok();
        answer.filter(|answer| answer.contains(" 200 ")).map(drop)
    })
    .await;
    assert!(container.log().contains("outboxd starts"));
}

#[tokio::test]
#[ignore = "long, and needs root: make test-all"]
async fn it_runs_as_the_chart_runs_it_from_the_migration_to_the_last_row() {
    // The roles belong to the server, and a login that only migrates may not create them.
    let _roles = World::new().await;
    let world = World::empty().await;
    let owner = world.login("owner", &[]).await;
    let grant = format!("GRANT CREATE ON DATABASE {name} TO {name}_owner", name = world.name);
    world.execute(&grant).await;
    let relay_url = world.login("relay", &["outbox_relay"]).await;
    let operator_url = world.login("operator", &["outbox_operator"]).await;
    let topic = world.topic("orders", 4, &[]).await;
    let port = free_port();
    let release = release(&world.kafka, port);
    let address = format!("127.0.0.1:{port}");

    let migration = Pod::of(&release, "Job", "-migrate").with_file("outboxd-migration", "url", &owner);
    let (code, log) = run_to_its_end(migration.start());
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("Applied"), "{log}");

    let relay = Pod::of(&release, "Deployment", "outboxd").with_file("outboxd-relay", "url", &relay_url);
    let mut relay = relay.start();
    ready(&relay, &address).await;
    confined(&relay);
    world.fill(&topic, 20_000, 50).await;
    world.drained(SOON * 4).await;
    let healthcheck = relay.exec(&["/usr/local/bin/outboxd", "healthcheck"]);
    assert!(healthcheck.status.success(), "{}", stderr_of(&healthcheck));

    let verify = Pod::of(&release, "CronJob", "-verify").with_file("outboxd-operator", "url", &operator_url);
    let (code, log) = run_to_its_end(verify.start());
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("The promises held"), "{log}");

    let doctor = Pod::of(&release, "Pod", "-doctor").with_file("outboxd-relay", "url", &relay_url);
    let (code, log) = run_to_its_end(doctor.start());
    assert!(log.contains("db.connect") && log.contains("kafka.connect"), "{log}");
    assert_ne!(code, Some(64), "{log}");

    relay.signal("TERM");
    assert_eq!(relay.wait(SOON).code(), Some(0), "{}", relay.log());
    assert!(relay.log().contains("stopped"), "{}", relay.log());
    assert!(
        world
            .is_true("SELECT bool_and(stopped_at IS NOT NULL) FROM outbox.worker")
            .await
    );
}

/// What the kernel says of the process: the user, what it may do, and how much memory it may use.
fn confined(container: &Container) {
    let pid = container.state()["pid"].as_u64().expect("a pid");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name}: {status}")).trim().to_owned()
    };
    assert_eq!(
        field("Uid").split_whitespace().collect::<BTreeSet<_>>(),
        ["65532"].into()
    );
    assert_eq!(
        field("Gid").split_whitespace().collect::<BTreeSet<_>>(),
        ["65532"].into()
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2", "a filter");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts")).expect("mounts");
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == Some("/"))
        .expect("a root");
    let options = root.split(' ').nth(3).expect("options");
    assert!(options.split(',').any(|option| option == "ro"), "{root}");
    assert_eq!(memory_limit(pid), 256 << 20);
}

/// The limit of the memory cgroup that a process is in, of either version.
fn memory_limit(pid: u64) -> u64 {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("groups");
    let first = groups.lines().find_map(|line| line.split_once(":memory:"));
    let file = match first {
        Some((_, path)) => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
        None => {
            let path = groups
                .lines()
                .find_map(|line| line.strip_prefix("0::"))
                .expect("a group");
            format!("/sys/fs/cgroup{path}/memory.max")
        }
    };
    let limit = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    limit.trim().parse().expect("a number")
}

#[tokio::test]
#[ignore = "long, and needs root: make test-all"]
async fn a_secret_that_changes_is_used_without_a_restart() {
    let world = World::new().await;
    let (one, other) = (
        world.login("one", &["outbox_relay"]).await,
        world.login("other", &["outbox_relay"]).await,
    );
    let topic = world.topic("orders", 1, &[]).await;
    let port = free_port();
    let pod = Pod::of(&release(&world.kafka, port), "Deployment", "outboxd");
    let relay = pod.with_file("outboxd-relay", "url", &one).start();
    ready(&relay, &format!("127.0.0.1:{port}")).await;
    let login = format!("{}_one", world.name);
    world
        .until(&format!(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = '{login}'"
        ))
        .await;

    // In place: the file stays the one that is mounted.
    fs::write(relay.projected("database/url"), &other).expect("written");
    world
        .execute(&format!(
            "ALTER ROLE {login} NOLOGIN;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{login}'"
        ))
        .await;
    world.fill(&topic, 100, 5).await;
    world.drained(SOON * 2).await;
    assert_eq!(relay.log().matches("outboxd starts").count(), 1, "no restart");
}
