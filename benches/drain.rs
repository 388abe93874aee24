//! How fast a backlog drains and what it costs, and whether anything is missing after a minute of steady commits.
//!
//! `cargo bench --bench drain -- [--rows 200000] [--rounds 3] [--on-published delete] [--keyless] [--relays 1]`
//! `cargo bench --bench drain -- --steady 60 [--rate 1000] [--sessions 8]`
//!
//! Uses the running dev stack (`make up`): durable PostgreSQL, real Kafka, acks=all.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio_postgres::{Client, NoTls};

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Args {
    /// Rows in the backlog
    #[arg(long, default_value_t = 200_000)]
    rows: i64,
    /// How often; the median is reported
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value = "delete")]
    on_published: String,
    /// Rows without a key
    #[arg(long)]
    keyless: bool,
    /// Relay processes
    #[arg(long, default_value_t = 1)]
    relays: usize,
    /// Instead: commit single rows for so many seconds and count what arrives
    #[arg(long)]
    steady: Option<u64>,
    /// Commits a second
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    #[arg(long, default_value_t = 8)]
    sessions: u64,
    /// More flags for `outboxd run`
    #[arg(long, value_delimiter = ' ', allow_hyphen_values = true)]
    flags: Vec<String>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let args = Args::parse();
    let stack = Stack::running()?;
    match args.steady {
        Some(seconds) => steady(&stack, &args, seconds).await,
        None => drain(&stack, &args).await,
    }
}

async fn drain(stack: &Stack, args: &Args) -> Outcome<()> {
    let mut rates = Vec::new();
    println!(
        "{:>5} {:>10} {:>12} {:>12} {:>14} {:>14}",
        "round", "msg/s", "WAL B/row", "relay CPU µs", "peak RSS MiB", "seconds"
    );
    for round in 1..=args.rounds {
        let bench = Bench::new(stack).await?;
        bench.fill(args).await?;
        let wal = bench.wal().await?;
        let started = Instant::now();
        let relays: Vec<Relay> = (0..args.relays).map(|_| bench.relay(args)).collect::<Outcome<_>>()?;
        let took = bench.marked(&relays, args.rows, started).await?;
        let rate = args.rows as f64 / took.as_secs_f64();
        let cost = (bench.wal().await? - wal) as f64 / args.rows as f64;
        let cpu = relays.iter().map(Relay::cpu_seconds).sum::<f64>() * 1e6 / args.rows as f64;
        let peak = relays.iter().map(Relay::peak_mib).fold(0.0, f64::max);
        println!(
            "{round:>5} {rate:>10.0} {cost:>12.0} {cpu:>12.1} {peak:>14.1} {:>14.2}",
            took.as_secs_f64()
        );
        rates.push(rate);
        bench.expect_delivered(args.rows)?;
        drop(relays);
        bench.remove().await?;
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "median {:.0} msg/s of {} rounds ({:.0}–{:.0})",
        rates[rates.len() / 2],
        rates.len(),
        rates[0],
        rates[rates.len() - 1]
    );
    Ok(())
}

async fn steady(stack: &Stack, args: &Args, seconds: u64) -> Outcome<()> {
    let bench = Bench::new(stack).await?;
    let relays: Vec<Relay> = (0..args.relays).map(|_| bench.relay(args)).collect::<Outcome<_>>()?;
    let mut writers = Vec::new();
    for session in 0..args.sessions {
        let client = connect(&bench.url).await?;
        let (topic, pace) = (
            bench.topic.clone(),
            Duration::from_secs_f64(args.sessions as f64 / args.rate as f64),
        );
        writers.push(tokio::spawn(async move {
            write_for(client, topic, session, pace, seconds).await
        }));
    }
    let mut committed = 0;
    for writer in writers {
        committed += writer.await?.map_err(|error| error.to_string())?;
    }
    println!(
        "committed {committed} rows in {seconds} s from {} sessions",
        args.sessions
    );
    bench.marked(&relays, committed, Instant::now()).await?;
    bench.expect_delivered(committed)?;
    println!("delivered {committed}, missing 0");
    drop(relays);
    bench.remove().await
}

async fn write_for(
    client: Client,
    topic: String,
    session: u64,
    pace: Duration,
    seconds: u64,
) -> Result<i64, tokio_postgres::Error> {
    let insert = client
        .prepare("INSERT INTO outbox.message (topic, key, payload) VALUES ($1, $2, jsonb_build_object('n', $3::bigint, 'fill', repeat('x', 160)))")
        .await?;
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut written = 0;
    while Instant::now() < end {
        ticks.tick().await;
        let key = format!("{session}-{}", written % 100);
        client.execute(&insert, &[&topic, &key, &written]).await?;
        written += 1;
    }
    Ok(written)
}

struct Stack {
    database_url: String,
    kafka: String,
}

impl Stack {
    fn running() -> Outcome<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/dev/stack");
        let output = Command::new(script).arg("env").output()?;
        let text = String::from_utf8(output.stdout)?;
        let value = |name: &str| {
            let line = text.lines().find(|line| line.contains(name))?;
            Some(line.split_once('=')?.1.trim_matches(['"', '\'']).to_owned())
        };
        let found = value("OUTBOXD_TEST_DATABASE_URL").zip(value("OUTBOXD_TEST_KAFKA"));
        let (database_url, kafka) = found.ok_or("no dev stack: run `make up` first")?;
        Ok(Stack { database_url, kafka })
    }
}

/// A database and a topic of this run's own.
struct Bench {
    server_url: String,
    kafka: String,
    url: String,
    name: String,
    topic: String,
    db: Client,
}

impl Bench {
    async fn new(stack: &Stack) -> Outcome<Self> {
        let name = format!("bench_{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let server = connect(&stack.database_url).await?;
        server.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        let url = format!(
            "{}/{name}",
            stack.database_url.rsplit_once('/').ok_or("a database in the URL")?.0
        );
        let migrated = Command::new(env!("CARGO_BIN_EXE_outboxd"))
            .args(["migrate", "--database-url", &url])
            .stdout(Stdio::null())
            .status()?;
        if !migrated.success() {
            return Err("outboxd migrate failed".into());
        }
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &stack.kafka).create()?;
        let topic = NewTopic::new(&name, 8, TopicReplication::Fixed(1));
        admin.create_topics([&topic], &AdminOptions::new()).await?;
        let db = connect(&url).await?;
        Ok(Bench {
            server_url: stack.database_url.clone(),
            kafka: stack.kafka.clone(),
            url,
            topic: name.clone(),
            name,
            db,
        })
    }

    /// About 200 bytes of payload, 1,000 keys.
    async fn fill(&self, args: &Args) -> Outcome<()> {
        let key = if args.keyless { "NULL" } else { "'key-' || i % 1000" };
        let fill = format!(
            "INSERT INTO outbox.message (topic, key, payload)
             SELECT '{}', {key}, jsonb_build_object('n', i, 'fill', repeat('x', 160)) FROM generate_series(1, {}) i",
            self.topic, args.rows
        );
        self.db.batch_execute(&fill).await?;
        self.db.batch_execute("VACUUM ANALYZE outbox.message").await?;
        Ok(())
    }

    fn relay(&self, args: &Args) -> Outcome<Relay> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let http = format!("127.0.0.1:{port}");
        let child = Command::new(env!("CARGO_BIN_EXE_outboxd"))
            .args(["run", "--database-url", &self.url, "--kafka-brokers", &self.kafka])
            .args([
                "--http-listen",
                &http,
                "--log-level",
                "warn",
                "--on-published",
                &args.on_published,
            ])
            .args(&args.flags)
            .spawn()?;
        Ok(Relay { child, http })
    }

    /// Waits until the relays have marked so many rows.
    async fn marked(&self, relays: &[Relay], rows: i64, since: Instant) -> Outcome<Duration> {
        loop {
            let marked: i64 = relays.iter().filter_map(Relay::marked).sum();
            if marked >= rows {
                return Ok(since.elapsed());
            }
            if since.elapsed() > Duration::from_secs(300) {
                return Err(format!("only {marked} of {rows} rows marked after five minutes").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Every record there, none twice.
    fn expect_delivered(&self, rows: i64) -> Outcome<()> {
        let consumer: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &self.kafka).create()?;
        let mut delivered = 0;
        for partition in 0..8 {
            let (low, high) = consumer.fetch_watermarks(&self.topic, partition, Duration::from_secs(10))?;
            delivered += high - low;
        }
        if delivered != rows {
            return Err(format!("{rows} rows, {delivered} records").into());
        }
        Ok(())
    }

    async fn wal(&self) -> Outcome<i64> {
        let row = self
            .db
            .query_one("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", &[])
            .await?;
        Ok(row.get(0))
    }

    async fn remove(self) -> Outcome<()> {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.kafka).create()?;
        admin.delete_topics(&[&self.topic], &AdminOptions::new()).await?;
        drop(self.db);
        let server = connect(&self.server_url).await?;
        server
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))
            .await?;
        Ok(())
    }
}

struct Relay {
    child: Child,
    http: String,
}

impl Relay {
    fn marked(&self) -> Option<i64> {
        let mut stream = TcpStream::connect(&self.http).ok()?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let line = answer
            .lines()
            .find(|line| line.starts_with("outboxd_rows_marked_total "))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
    }

    fn peak_mib(&self) -> f64 {
        let status = self.proc("status");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .unwrap_or_default();
        line.split_whitespace()
            .nth(1)
            .and_then(|kib| kib.parse::<f64>().ok())
            .unwrap_or(0.0)
            / 1024.0
    }

    fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = [11, 12]
            .iter()
            .filter_map(|field| fields.get(*field)?.parse::<f64>().ok())
            .sum();
        ticks / 100.0
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
