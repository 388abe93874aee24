//! What a person or a probe sees of it: metrics, health, status, and what it costs while idle.

mod backlog;
mod client;
mod kit;
mod labels;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use testkit::*;

#[tokio::test]
async fn every_metric_is_there_and_explained() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world
        .execute("SELECT outbox.idempotency_claim('acme', 'ship', 'one', outbox.request_hash('1'))")
        .await;
    let relay = world.relay().start_ready().await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', '1'); SELECT outbox.enqueue('{topic}', NULL, '2');"
        ))
        .await;
    world.drained(SOON).await;
    eventually(SOON, "both marks and the first sample", async || {
        let scrape = relay.get("/metrics")?;
        let marked = Relay::metric_in(&scrape, "outboxd_rows_marked_total")?;
        let sampled = ["outboxd_backlog_rows", "outboxd_commands", "outboxd_inbox_poison_rows"];
        let is_sampled = sampled.iter().all(|name| Relay::metric_in(&scrape, name).is_some());
        (marked == 2.0 && is_sampled).then_some(())
    })
    .await;
    let scrape = relay.get("/metrics").expect("a scrape");
    for name in outboxd::metrics::names() {
        assert!(
            scrape.contains(&format!("# HELP {name} ")),
            "{name} has no help in\n{scrape}"
        );
        let sampled = scrape.lines().filter_map(|line| line.strip_prefix(name));
        let sampled = sampled.filter(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_bucket{"));
        assert!(sampled.count() > 0, "{name} has no sample in\n{scrape}");
    }
    let end_to_end = format!("outboxd_end_to_end_seconds_count{{topic=\"{topic}\"}} 2");
    assert!(scrape.contains(&end_to_end), "{end_to_end} in\n{scrape}");
    let foreign: Vec<&str> = scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .filter(|name| !outboxd::metrics::names().any(|known| known == *name))
        .collect();
    assert!(foreign.is_empty(), "recorded but not declared: {foreign:?}");
}

/// The sampled gauges that this worker shows, and whether it says that it samples.
fn sampled(relay: &Relay) -> Option<(Vec<&'static str>, bool)> {
    let scrape = relay.get("/metrics")?;
    let shown = outboxd::metrics::sampled()
        .filter(|name| scrape.contains(&format!("{name} ")) || scrape.contains(&format!("{name}{{")));
    Some((
        shown.collect(),
        Relay::metric_in(&scrape, "outboxd_backlog_sampled")? == 1.0,
    ))
}

async fn samples(relay: &Relay) {
    eventually(SOON, "the gauges to be sampled here", async || {
        sampled(relay).filter(|(shown, here)| *here && shown.contains(&"outboxd_inbox_poison_rows"))
    })
    .await;
}

#[tokio::test]
async fn what_is_sampled_is_shown_only_by_the_worker_that_samples_it() {
    let world = World::new().await;
    let one = world.relay().failpoint("before_renew").start_ready().await;
    one.at_failpoint("before_renew").await;
    assert_eq!(sampled(&one), Some((vec![], false)), "nothing is sampled yet");
    one.continue_from("before_renew");
    samples(&one).await;
    one.signal("STOP");
    let other = world.relay().start_ready().await;
    samples(&other).await;
    // They share the lanes then, and the one without lane 0 has sampled before.
    one.signal("CONT");
    eventually(SOON, "one to show the gauges and the other none", async || {
        let shown = [sampled(&one)?, sampled(&other)?].map(|(shown, here)| (here, shown.is_empty()));
        (shown.contains(&(true, false)) && shown.contains(&(false, true))).then_some(())
    })
    .await;
}

/// Runs `outboxd healthcheck` against an address.
fn healthcheck(address: &str) -> std::process::Output {
    outboxd()
        .args(["healthcheck", "--http-listen", address])
        .output()
        .expect("outboxd runs")
}

#[tokio::test]
async fn the_health_check_tells_a_living_daemon_from_a_dead_one() {
    let world = World::new().await;
    let mut relay = world.relay().start_ready().await;
    let address = relay.address().expect("it listens");
    assert!(relay.get("/livez").expect("an answer").contains(" 200 "));
    assert_eq!(healthcheck(&address).status.code(), Some(0));
    let everywhere = address.replace("127.0.0.1", "0.0.0.0");
    assert_eq!(healthcheck(&everywhere).status.code(), Some(0), "through loopback");
    relay.kill();
    let gone = healthcheck(&address);
    assert_eq!(gone.status.code(), Some(69));
    assert!(stderr_of(&gone).contains(&address), "{}", stderr_of(&gone));
}

#[test]
fn the_health_check_believes_a_server_that_says_no() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
    });
    let output = healthcheck(&address);
    server.join().expect("answered");
    assert_eq!(output.status.code(), Some(69));
    assert!(stderr_of(&output).contains("503"), "{}", stderr_of(&output));
}

#[test]
fn the_health_check_does_not_wait_for_a_server_that_says_nothing() {
    // The kernel accepts for it.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let output = healthcheck(&address);
    assert_eq!(output.status.code(), Some(69));
    let said = format!("{address} does not answer");
    assert!(stderr_of(&output).contains(&said), "{}", stderr_of(&output));
}

fn status_text(world: &World) -> String {
    let output = world.outboxd("status", &[]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn status_json(world: &World) -> serde_json::Value {
    let output = world.outboxd("status", &["--json"]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A world with one of everything: a dead letter, a held key, a parked topic, a delayed row, a backlog.
async fn troubled_world() -> (World, Relay, String) {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    let relay = world
        .relay()
        .args(&["--max-attempts", "2", "--worker-name", "relay-7"])
        .args(&["--retry-backoff-min", "10m", "--retry-backoff-max", "10m"])
        .start_ready()
        .await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'dead', payload_bytes => {TOO_LARGE})"
        ))
        .await;
    world
        .until("SELECT attempts = 1 FROM outbox.message WHERE id = 1")
        .await;
    world.execute("UPDATE outbox.hold SET retry_at = now()").await;
    world
        .until("SELECT dead_at IS NOT NULL FROM outbox.message WHERE id = 1")
        .await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'held', payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', 'held', '3');
             SELECT outbox.enqueue('{topic}.missing', 'parked', '4');
             SELECT outbox.enqueue('{topic}', 'later', '5', available_at => now() + interval '1 day');
             UPDATE outbox.message SET created_at = now() - interval '2 hours' WHERE id = 3;"
        ))
        .await;
    world.until("SELECT count(*) = 2 FROM outbox.hold").await;
    (world, relay, topic)
}

#[tokio::test]
async fn status_shows_everything_that_is_wrong_and_what_to_do_about_it() {
    let (world, mut relay, topic) = troubled_world().await;
    let text = status_text(&world);
    for words in [
        "Backlog   3 pending, oldest 2h".to_owned(),
        "Delayed   1".to_owned(),
        "Dead      1".to_owned(),
        "Held      1 key(s), 1 topic(s) parked".to_owned(),
        "relay-7".to_owned(),
        "64 lanes".to_owned(),
        format!("{topic} key \"held\": Kafka refused"),
        format!("{topic}.missing (whole topic"),
        format!("id 1 {topic} key dead: Kafka refused"),
        format!("Topic {topic}.missing takes nothing"),
        "A key is held behind a row Kafka refuses".to_owned(),
        "Dead letters: once the cause is fixed".to_owned(),
    ] {
        assert!(text.contains(&words), "{words:?} is missing in\n{text}");
    }
    let json = status_json(&world);
    assert_eq!(json["backlog"]["pending"], 3, "{json:#}");
    assert!(json["backlog"]["oldest_seconds"].as_f64().expect("a number") >= 7200.0);
    assert_eq!(json["backlog"]["held_keys"], 1);
    assert_eq!(json["backlog"]["parked_topics"], 1);
    assert_eq!(json["workers"][0]["name"], "relay-7");
    assert_eq!(json["workers"][0]["lanes"].as_array().map(Vec::len), Some(64));
    assert_eq!(json["free_lanes"], 0);
    assert_eq!(json["dead"][0]["id"], 1);
    assert_eq!(json["dead"][0]["attempts"], 2);
    let units: Vec<_> = json["holds"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|hold| &hold["unit"])
        .collect();
    assert!(
        units.contains(&&"k:held".into()) && units.contains(&&"".into()),
        "{units:?}"
    );

    relay.stop();
    let text = status_text(&world);
    assert!(text.contains("64 lanes have no live owner"), "{text}");
    assert!(text.contains("No relay is running"), "{text}");
}

#[tokio::test]
async fn what_a_hold_keeps_back_is_backlog_wherever_the_floors_are() {
    let world = World::new().await;
    world
        .execute(
            "SELECT outbox.enqueue('t', 'k', '1'); SELECT outbox.enqueue('t', 'k', '2');
             UPDATE outbox.message SET created_at = now() - interval '2 hours' WHERE id = 1;
             INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, retry_at)
             SELECT lane, topic, 'k:k', id, 0, 'refused', 'infinity' FROM outbox.message WHERE id = 1;
             UPDATE outbox.lane SET floor = 2;
             SELECT outbox.enqueue('t', 'other', '3');",
        )
        .await;
    let text = status_text(&world);
    assert!(text.contains("Backlog   3 pending, oldest 2h"), "{text}");
    assert!(text.contains("waits for you"), "{text}");
    assert!(text.contains("outboxd hold release --topic t --key k"), "{text}");
}

#[tokio::test]
async fn status_of_a_quiet_world_says_that_all_is_well() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    eventually(SOON, "all lanes to be taken", async || {
        relay.metric("outboxd_lanes_owned").filter(|owned| *owned == 64.0)
    })
    .await;
    let text = status_text(&world);
    assert!(text.contains("Nothing: all is well."), "{text}");
}

#[tokio::test]
async fn status_without_the_schema_says_how_to_make_it() {
    let world = World::empty().await;
    let output = world.outboxd("status", &[]);
    assert_eq!(output.status.code(), Some(78), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("Run `outboxd migrate`"),
        "{}",
        stderr_of(&output)
    );
}

#[test]
fn status_of_an_unreachable_database_ends_with_a_sentence() {
    let output = outboxd()
        .args(["status", "--database-url", "postgres://u:hunter2@127.0.0.1:1/db"])
        .output()
        .expect("outboxd runs");
    assert_eq!(output.status.code(), Some(69));
    let said = stderr_of(&output);
    assert!(said.contains("refused") && !said.contains("hunter2"), "{said}");
}

const IDLE_MEGABYTES_MAX: u64 = 30;
const IDLE_WINDOW: Duration = Duration::from_secs(20);
const IDLE_STATEMENTS_A_SECOND_MAX: f64 = 1.2;

#[tokio::test]
async fn an_idle_daemon_with_default_settings_costs_next_to_nothing() {
    let world = World::new().await;
    let relay = RelayBuilder::with_defaults(&world.database_url, &world.kafka)
        .start_ready()
        .await;
    // Asked from another database, so that asking does not count.
    let observer = connect(&Stack::get().database_url).await;
    let transactions = format!(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{}'",
        world.name
    );
    let mut samples: Vec<(Instant, i64)> = Vec::new();
    // It becomes idle by and by, and a visit of autovacuum counts as well: some window must be quiet enough.
    let rate = eventually(IDLE_WINDOW * 3, "a quiet daemon", async || {
        let row = observer.query_one(&transactions, &[]).await.expect("statistics");
        let now = (Instant::now(), row.get::<_, i64>(0));
        samples.push(now);
        let then = samples.iter().rev().find(|(at, _)| now.0 - *at >= IDLE_WINDOW)?;
        let rate = (now.1 - then.1) as f64 / (now.0 - then.0).as_secs_f64();
        (rate <= IDLE_STATEMENTS_A_SECOND_MAX).then_some(rate)
    })
    .await;
    assert!(rate > 0.0, "it still polls");
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid())).expect("it lives");
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a size");
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    println!(
        "idle: {rate:.2} transactions a second, {} MB resident",
        kilobytes / 1024
    );
    assert!(kilobytes / 1024 <= IDLE_MEGABYTES_MAX, "{kilobytes} kB resident");
}

#[tokio::test]
async fn a_poll_that_finds_nothing_is_not_counted_as_a_mark() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    eventually(SOON, "lanes and unordered rows to be polled", async || {
        (relay.metric("outboxd_claim_seconds_count")? >= 2.0).then_some(())
    })
    .await;
    world.lease_is_renewed_twice().await;
    assert_eq!(relay.metric("outboxd_mark_seconds_count").unwrap_or(0.0), 0.0);
}

/// A connection to this relay that has sent this much of a request.
fn half_a_request(relay: &Relay, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(relay.address().expect("it listens")).expect("a connection");
    stream.write_all(sent).expect("sent");
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a timeout");
    stream
}

/// Was it closed without an answer? One that is reset was closed, too.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1024]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn who_sends_no_request_is_hung_up_on() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    let mut silent = half_a_request(&relay, b"");
    let mut trickling = half_a_request(&relay, b"GET /livez HTTP/1.1\r\nX: ");
    eventually(SOON, "both to be closed", async || {
        let _ = trickling.write_all(b"x");
        (is_closed(&mut silent) && is_closed(&mut trickling)).then_some(())
    })
    .await;
    relay.assert_alive();
}

#[tokio::test]
async fn who_opens_many_connections_keeps_no_probe_out() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    let mut silent: Vec<TcpStream> = (0..200).map(|_| half_a_request(&relay, b"")).collect();
    relay.assert_alive();
    let youngest = silent.last().expect("a connection");
    assert!(youngest.peek(&mut [0]).is_err(), "it is open, and nothing comes");
    let closed = silent
        .iter_mut()
        .take(136)
        .filter_map(|stream| is_closed(stream).then_some(()))
        .count();
    assert_eq!(closed, 136, "the oldest are closed");
}
