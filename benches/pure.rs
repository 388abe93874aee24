//! The parts of the hot path that do no I/O, a batch of the usual size at a time: `make bench-pure`.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use outboxd::boottime;
use outboxd::domain::batch_outcome::BatchOutcome;
use outboxd::domain::checkout::CheckedOutLane;
use outboxd::domain::delivery::Delivery;
use outboxd::domain::floor::ScanResult;
use outboxd::domain::lease::{TakenLane, Term, UnorderedState};
use outboxd::domain::maybe_sent::MaybeSent;
use outboxd::domain::retry::{OnDead, RetryPolicy};
use outboxd::domain::row::{Body, Row, UNORDERED_LANE};
use outboxd::kafka::headers;
use outboxd::lanes::{Checkout, ClaimLimits, LaneReport, Lanes, SentRows, Work};
use rdkafka::producer::BaseRecord;
use uuid::Uuid;

const BATCH: i64 = 2_000;
const LANES: i16 = 64;
const PARTITIONS: i32 = 8;

const POLICY: RetryPolicy = RetryPolicy {
    max_attempts: 5,
    backoff_min: Duration::from_secs(1),
    backoff_max: Duration::from_secs(60),
    on_dead: OnDead::Continue,
};

fn row(id: i64) -> Row {
    Row {
        id,
        lane: Some((id % i64::from(LANES)) as i16),
        message_id: Uuid::from_u128(id as u128),
        topic: "orders".to_owned(),
        key: Some(format!("key-{}", id % 1000)),
        partition: None,
        body: Body::Json(vec![b'x'; 200]),
        headers: Some(br#"{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#.to_vec()),
        event_type: Some("order.created".to_owned()),
        aggregate_type: None,
        aggregate_id: None,
        aggregate_version: None,
        attempts: 0,
        created_at: SystemTime::UNIX_EPOCH,
        delayed: false,
        possible_duplicate: false,
        is_repeat: false,
        unreadable: None,
    }
}

fn batch_outcome(criterion: &mut Criterion) {
    let rows: Vec<Row> = (1..=BATCH).map(row).collect();
    let acked = vec![Delivery::Acked; rows.len()];
    let mut refused = acked.clone();
    refused[rows.len() / 2] = Delivery::Refused {
        reason: "too large".to_owned(),
    };
    let mut group = criterion.benchmark_group("batch outcome");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("all acknowledged", |bencher| {
        bencher.iter(|| BatchOutcome::of(black_box(&rows), black_box(&acked), true, &POLICY, fastrand::f64));
    });
    group.bench_function("one refused", |bencher| {
        bencher.iter(|| BatchOutcome::of(black_box(&rows), black_box(&refused), true, &POLICY, fastrand::f64));
    });
    group.finish();
}

/// One process that owns every lane.
fn all_lanes() -> Lanes {
    let lanes = Lanes::default();
    let term = Term {
        worker: Uuid::from_u128(1),
        incarnation: SystemTime::UNIX_EPOCH,
        ends: boottime::now() + Duration::from_secs(3_600),
    };
    lanes.ownership().begin_term(term, UnorderedState::default());
    let taken = |lane| TakenLane {
        lane,
        epoch: 1,
        floor: 0,
        maybe_sent: MaybeSent::default(),
        stored_maybe_sent: Vec::new(),
        last_owner: None,
        held_topics: BTreeSet::new(),
    };
    lanes
        .ownership()
        .add(term.worker, &(0..LANES).map(taken).collect::<Vec<_>>());
    lanes
}

/// Every lane had more than it was asked for, and all of that was published. There are no unordered rows.
fn reports(checkout: &Checkout) -> Vec<LaneReport> {
    let scan = ScanResult::of_everything(checkout.watermark);
    let hit_limit = |held: &CheckedOutLane| LaneReport {
        lane: held.lane,
        rows: held.most,
        hit_limit: true,
        scan: Some(ScanResult {
            scanned_to: Some(held.most as i64),
            ..scan
        }),
        highest_id: held.most as i64,
        sent: SentRows {
            published: (1..=held.most as i64).collect(),
            ..SentRows::default()
        },
        ..LaneReport::default()
    };
    match &checkout.work {
        Work::Lanes(held) => held.iter().map(hit_limit).collect(),
        Work::Unordered(_) => vec![LaneReport {
            lane: UNORDERED_LANE,
            scan: Some(scan),
            ..LaneReport::default()
        }],
    }
}

fn batch(criterion: &mut Criterion) {
    let lanes = all_lanes();
    let claim_limits = ClaimLimits {
        rows: BATCH as usize,
        tasks: 3,
        lease_left: Duration::ZERO,
    };
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("cut among full lanes, and returned", |bencher| {
        bencher.iter(|| {
            let checkout = lanes
                .checkouts()
                .next(black_box(&claim_limits))
                .expect("all lanes are ready");
            lanes.checkouts().checkin(&checkout.term, reports(&checkout));
        });
    });
    group.finish();
}

fn record(criterion: &mut Criterion) {
    let rows: Vec<Row> = (1..=BATCH).map(row).collect();
    let mut group = criterion.benchmark_group("row to record");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("partition", |bencher| {
        bencher.iter(|| {
            rows.iter()
                .filter_map(|row| black_box(row).partition_choice().partition(PARTITIONS))
                .sum::<i32>()
        });
    });
    group.bench_function("headers", |bencher| {
        bencher.iter(|| {
            for row in &rows {
                black_box(row).each_header(|name, value| {
                    black_box((name, value));
                });
            }
        });
    });
    group.bench_function("whole", |bencher| {
        bencher.iter(|| {
            for row in &rows {
                let key = row.record_key();
                let record = BaseRecord::<[u8], [u8]>::to(&row.topic)
                    .partition(row.partition_choice().partition(PARTITIONS).unwrap_or(0))
                    .key(key.as_bytes())
                    .headers(headers(row));
                black_box(row.body.as_bytes().map(|body| record.payload(body)));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, batch_outcome, batch, record);
criterion_main!(benches);
