//! What the faults are injected into: an outbox with three relays, its brokers, and an outbox at rest beside it.

use std::time::Duration;

use tokio_postgres::Client;

use super::*;

/// One row a tenth of a second, over fifty keys.
const TRICKLE: &str = "INSERT INTO outbox.message (topic, key, payload)
    SELECT $1, 'k' || $2::bigint % 50, '{}' FROM pg_sleep(0.1)";

/// The name of a worker that is suspended.
const LATE: &str = "late";

/// Dropped from the top to the bottom.
pub struct Stage {
    _writes: BackgroundWrites,
    relays: Vec<Relay>,
    /// Sessions that have a transaction open.
    open: Vec<Client>,
    resting: Relay,
    pub prometheus: Prometheus,
    world: World,
    _world_at_rest: World,
    /// The one that controls the cluster comes last.
    brokers: [OwnKafka; 2],
    topics: Topics,
}

/// The topics of the outbox.
#[derive(Clone)]
struct Topics {
    /// What is written to all the time.
    orders: String,
    /// Another broker leads one of its partitions.
    split: String,
    /// It takes small rows only.
    small: String,
    /// All of its rows are late.
    slow: String,
}

impl Topics {
    async fn create(world: &World) -> Self {
        let [orders, split, small, slow] =
            ["orders", "split", "small", "slow"].map(|name| format!("{}.{name}", world.name));
        create_topic_on(&world.kafka, &orders, &[&[1], &[1], &[1], &[1]], &[]).await;
        create_topic_on(&world.kafka, &split, &[&[1], &[2]], &[]).await;
        create_topic_on(&world.kafka, &small, &[&[1]], &[SMALL]).await;
        create_topic_on(&world.kafka, &slow, &[&[1]], &[]).await;
        Topics {
            orders,
            split,
            small,
            slow,
        }
    }

    fn missing(&self) -> String {
        format!("{}.missing", self.orders)
    }
}

impl Stage {
    /// Starts everything, and waits until all is scraped and well.
    pub async fn set(rules: &str) -> Self {
        let prometheus = Prometheus::start(rules).await;
        let first = OwnKafka::start();
        let brokers = [first.joined_by(2), first];
        let world = World::on(&Stack::get().database_url, &brokers[1].address).await;
        let topics = Topics::create(&world).await;
        let world_at_rest = World::new().await;
        let mut stage = Stage {
            _writes: BackgroundWrites::writing(&world, &topics.orders, TRICKLE),
            relays: Vec::new(),
            open: Vec::new(),
            resting: world_at_rest.relay().start_ready().await,
            prometheus,
            world,
            _world_at_rest: world_at_rest,
            brokers,
            topics,
        };
        stage.start_relays(3).await;
        stage.is_well().await;
        stage
    }

    fn relay(&self) -> RelayBuilder {
        self.world
            .relay()
            .args(&[
                "--max-attempts",
                "1",
                "--on-dead",
                "hold",
                "--end-orphaned-commands-after",
                "1h",
            ])
            .args(&["--kafka-property", "statistics.interval.ms=1000"])
    }

    async fn start_relays(&mut self, count: usize) {
        for _ in 0..count {
            let relay = self.relay().start_ready().await;
            self.relays.push(relay);
        }
        self.scrape();
    }

    fn scrape(&self) {
        let outbox = |job, relays| Scraped {
            namespace: NAMESPACE,
            job,
            relays,
        };
        let orders = outbox(ORDERS, self.relays.iter().collect());
        self.prometheus.scrape(&[orders, outbox(QUIET, vec![&self.resting])]);
    }

    /// Waits until each relay was scraped, one of each outbox samples, and nothing fires.
    async fn is_well(&self) {
        let relays = self.relays.len() + 1;
        eventually(ENDS_WITHIN, "all to be scraped and well", async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let scraped = self.prometheus.query("outboxd_build_info").len();
            let sampled = self.prometheus.query("outboxd_inbox_unfinished_rows").len();
            let firing = self.prometheus.query("ALERTS").len();
            ((scraped, sampled, firing) == (relays, 2, 0)).then_some(())
        })
        .await;
    }

    pub async fn inject(&mut self, fault: What) {
        let topics = self.topics.clone();
        match fault {
            What::BrokersDown => self.brokers.iter().for_each(OwnKafka::kill),
            What::LateCommits => self.world.fill(&topics.slow, 1, 1).await,
            What::MissingTopic => self.world.fill(&topics.missing(), 10, 5).await,
            What::RefusedRows => self.refuse().await,
            What::Killed => {
                self.relays.remove(0).kill();
                self.start_relays(1).await;
            }
            What::Suspended => self.suspend().await,
            What::OpenWriter => {
                let written = format!("SELECT outbox.enqueue('{}', 'open', '1')", topics.orders);
                self.open("BEGIN", &written).await;
            }
            What::Paused => {
                self.succeeds(
                    "pause",
                    &["--topic", &topics.orders, "--reason", "maintenance", "--yes"],
                );
                let long_ago = "UPDATE outbox.pause SET at = at - interval '2 days'";
                self.world.execute(long_ago).await;
            }
            What::DatabaseAway => self.world.lock_out(true).await,
            What::NoRelay => {
                self.relays.drain(..).for_each(|mut relay| relay.stop());
                self.scrape();
            }
            What::PartitionWithoutLeader => {
                self.brokers[0].kill();
                self.world.fill(&topics.split, 200, 100).await;
            }
            What::Misuse => self.misuse().await,
            What::SequenceWithCache => {
                self.world
                    .execute("ALTER SEQUENCE outbox.message_id_seq CACHE 10")
                    .await
            }
            What::OldSnapshot => {
                self.open(
                    "BEGIN ISOLATION LEVEL REPEATABLE READ",
                    "SELECT count(*) FROM outbox.lane",
                )
                .await;
                self.world.execute("SET synchronous_commit = off").await;
                self.world.execute(MANY_TRANSACTIONS).await;
            }
            What::DyingWorkers => {}
        }
    }

    /// What has to happen again and again while a fault lasts.
    pub async fn repeat(&self, fault: What) {
        let Topics { orders, slow, .. } = &self.topics;
        let statement = match fault {
            // Written by a transaction that has taken its time.
            What::LateCommits => format!(
                "INSERT INTO outbox.message (topic, key, payload, created_at)
                 SELECT '{slow}', 'k' || n, '1', clock_timestamp() - interval '10 seconds' FROM generate_series(1, 5) n"
            ),
            // What a worker leaves that dies while it sends.
            What::DyingWorkers => format!(
                "WITH sent AS (INSERT INTO outbox.message (topic, payload) SELECT '{orders}', '1' FROM generate_series(1, 3) RETURNING id)
                 INSERT INTO outbox.claim (lease_until, ids) SELECT clock_timestamp(), array_agg(id) FROM sent"
            ),
            _ => return,
        };
        self.world.execute(&statement).await;
    }

    pub async fn repair(&mut self, fault: What) {
        match fault {
            What::BrokersDown => self.brokers.iter().rev().for_each(OwnKafka::restart),
            What::MissingTopic => create_topic(&self.world.kafka, &self.topics.missing(), 1, &[]).await,
            What::RefusedRows => self.succeeds("dead discard", &["--yes"]),
            What::Suspended => {
                self.relays.pop().expect("the late one").stop();
                self.scrape();
            }
            What::OpenWriter | What::OldSnapshot => self.open.clear(),
            What::Paused => self.succeeds("resume", &["--topic", &self.topics.orders, "--yes"]),
            What::DatabaseAway => self.world.lock_out(false).await,
            What::NoRelay => self.start_relays(3).await,
            What::PartitionWithoutLeader => self.brokers[0].restart(),
            What::Misuse => self.world.execute(AMENDS).await,
            What::SequenceWithCache => self.world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 1").await,
            What::LateCommits | What::Killed | What::DyingWorkers => {}
        }
    }

    /// Writes rows that the topic refuses, once every relay counts those of the topic: an increase shows from the second scrape on.
    async fn refuse(&self) {
        let small = &self.topics.small;
        self.world.fill(small, 64, 64).await;
        let counted = format!("outboxd_rows_dead_total{{topic=\"{small}\"}}");
        eventually(SOON, "the topic to be scraped", async || {
            (self.prometheus.query(&counted).len() == self.relays.len()).then_some(())
        })
        .await;
        let refused = format!(
            "INSERT INTO outbox.message (topic, key, payload_bytes)
             SELECT '{small}', 'k' || n, {TOO_LARGE} FROM generate_series(1, 12) n"
        );
        self.world.execute(&refused).await;
    }

    fn succeeds(&self, command: &str, args: &[&str]) {
        let output = self.world.outboxd(command, args);
        assert!(output.status.success(), "{command}: {}", stderr_of(&output));
    }

    /// A session that has done something in a transaction, and stays in it.
    async fn open(&mut self, begin: &str, statement: &str) {
        let session = self.world.session().await;
        session
            .batch_execute(&format!("{begin}; {statement}"))
            .await
            .expect(statement);
        self.open.push(session);
    }

    /// A fourth relay is suspended past its lease between an acknowledgement and the mark, and then twice more.
    async fn suspend(&mut self) {
        let relay = self
            .relay()
            .args(&["--worker-name", LATE, "--tasks", "1"])
            .failpoint("after_publish")
            .start_ready()
            .await;
        self.relays.push(relay);
        self.scrape();
        let relay = self.relays.last().expect("the late one");
        let counted = format!(
            "outboxd_rows_fenced_total{{instance=\"{}\"}}",
            relay.address().expect("it listens")
        );
        eventually(SOON, "it to be scraped", async || {
            (!self.prometheus.query(&counted).is_empty()).then_some(())
        })
        .await;
        relay.at_failpoint("after_publish").await;
        let owns_lanes = format!(
            "EXISTS (SELECT FROM outbox.lane l JOIN outbox.worker w ON w.id = l.owner WHERE w.name = '{LATE}')"
        );
        for lost in 1..=3 {
            relay.signal("STOP");
            // A mark that comes before the takeover still counts.
            self.world.until(&format!("NOT {owns_lanes}")).await;
            relay.continue_from("after_publish");
            relay.signal("CONT");
            eventually(SOON, "it to have lost its lease", async || {
                (relay.metric("outboxd_leases_lost_total")? >= f64::from(lost)).then_some(())
            })
            .await;
            // It is a worker again, and knows it.
            self.world.until(&owns_lanes).await;
        }
    }

    /// A client reuses a key, workers die while they execute commands, a sender reuses an id, and a consumer fails and stops.
    async fn misuse(&self) {
        self.world.execute(MISUSE).await;
        let refused = refusal_of(
            &self.world.db,
            "SELECT outbox.idempotency_claim('pay', 'done', outbox.request_hash('2'))",
        )
        .await;
        assert_eq!(refused.code().code(), "P4002");
        refusal_of(
            &self.world.db,
            "SELECT outbox.inbox_receive('billing', 's', 'waits', '{\"n\": 2}')",
        )
        .await;
    }
}

/// A quarter of a million, of which none writes anything.
const MANY_TRANSACTIONS: &str =
    "DO $$ BEGIN FOR n IN 1..260000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";

const MISUSE: &str = "
    SELECT outbox.idempotency_claim('pay', 'done', outbox.request_hash('1'));
    SELECT outbox.idempotency_succeed('pay', 'done', 1);
    SELECT outbox.idempotency_claim('pay', k, outbox.request_hash('1')) FROM (VALUES ('stale'), ('orphaned')) c (k);
    UPDATE outbox.idempotency_request SET locked_until = locked_until - age, claimed_at = claimed_at - age, created_at = created_at - age
    FROM (VALUES ('stale', interval '10 minutes'), ('orphaned', interval '3 hours')) c (k, age) WHERE key = k;
    SELECT outbox.inbox_receive('billing', 's', 'poison', '{}');
    SELECT outbox.inbox_fail(id, token, 'boom', retryable => false) FROM outbox.inbox_claim('billing', 1);
    SELECT outbox.inbox_receive('billing', 's', 'waits', '{}');";

const AMENDS: &str = "
    SELECT outbox.idempotency_claim('pay', 'stale', outbox.request_hash('1'), take_over => true);
    SELECT outbox.idempotency_succeed('pay', 'stale', 2);
    SELECT outbox.inbox_discard('billing', id, 'a test') FROM outbox.inbox_message WHERE poison_at IS NOT NULL;
    SELECT outbox.inbox_done(id, token) FROM outbox.inbox_claim('billing', 10);";
