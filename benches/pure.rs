//! The parts of the hot path that do no I/O, a batch of the usual size at a time: `make bench-pure`.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use outboxd::boottime::BootInstant;
use outboxd::domain::batch_outcome::BatchOutcome;
use outboxd::domain::delivery::Outcome;
use outboxd::domain::floor::Sight;
use outboxd::domain::id_ranges::Ranges;
use outboxd::domain::retry::{OnDead, RetryPolicy};
use outboxd::domain::row::{Body, KEYLESS, Row};
use outboxd::kafka::headers;
use outboxd::lanes::{Appetite, Checkout, Held, KeylessStored, Lanes, Seen, Taken, Term, Work};
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
        suspect: false,
        withheld: None,
    }
}

fn batch_outcome(criterion: &mut Criterion) {
    let rows: Vec<Row> = (1..=BATCH).map(row).collect();
    let acked = vec![Outcome::Acked; rows.len()];
    let mut refused = acked.clone();
    refused[rows.len() / 2] = Outcome::Refused {
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
        ends: BootInstant::now() + Duration::from_secs(3_600),
    };
    lanes.begin_term(term, KeylessStored::default());
    let taken = |lane| Taken {
        lane,
        epoch: 1,
        floor: 0,
        suspects: Ranges::default(),
        stored_suspects: Vec::new(),
        suspect_until: 0,
        last_owner: None,
        held_topics: BTreeSet::new(),
    };
    lanes.add(term.worker, &(0..LANES).map(taken).collect::<Vec<_>>());
    lanes
}

/// Every lane had more than it was asked for, and all of that was published. There are no rows without a lane.
fn seen(checkout: &Checkout) -> Vec<Seen> {
    let sight = Sight::of_everything(checkout.settled);
    let full = |held: &Held| Seen {
        lane: held.lane,
        rows: held.most,
        full: true,
        sight: Some(Sight {
            cut_at: Some(held.most as i64),
            ..sight
        }),
        highest_id: held.most as i64,
        published: (1..=held.most as i64).collect(),
        ..Seen::default()
    };
    match &checkout.work {
        Work::Lanes(held) => held.iter().map(full).collect(),
        Work::Keyless(_) => vec![Seen {
            lane: KEYLESS,
            sight: Some(sight),
            ..Seen::default()
        }],
    }
}

fn batch(criterion: &mut Criterion) {
    let lanes = all_lanes();
    let appetite = Appetite {
        rows: BATCH as usize,
        tasks: 3,
        lease_left: Duration::ZERO,
    };
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("cut among full lanes, and given back", |bencher| {
        bencher.iter(|| {
            let checkout = lanes.checkout(black_box(&appetite)).expect("all lanes are ready");
            lanes.checkin(&checkout.term, seen(&checkout));
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
                .filter_map(|row| black_box(row).place().partition(PARTITIONS))
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
                    .partition(row.place().partition(PARTITIONS).unwrap_or(0))
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
