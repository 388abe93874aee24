//! The parts of the hot path that do no I/O, a batch of the usual size at a time: `make bench-pure`.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use outboxd::message::{Body, Outcome, Row};
use outboxd::verdict::{OnDead, Policy, judge};
use uuid::Uuid;

const BATCH: i64 = 2_000;
const PARTITIONS: i32 = 8;

const POLICY: Policy = Policy {
    max_attempts: 5,
    backoff_min: Duration::from_secs(1),
    backoff_max: Duration::from_secs(60),
    on_dead: OnDead::Continue,
};

fn row(id: i64) -> Row {
    Row {
        id,
        lane: Some((id % 64) as i16),
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
    }
}

fn verdict(criterion: &mut Criterion) {
    let rows: Vec<Row> = (1..=BATCH).map(row).collect();
    let acked = vec![Outcome::Acked; rows.len()];
    let mut refused = acked.clone();
    refused[rows.len() / 2] = Outcome::Refused {
        reason: "too large".to_owned(),
    };
    let mut group = criterion.benchmark_group("verdict");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("all acknowledged", |bencher| {
        bencher.iter(|| judge(black_box(&rows), black_box(&acked), true, &POLICY));
    });
    group.bench_function("one refused", |bencher| {
        bencher.iter(|| judge(black_box(&rows), black_box(&refused), true, &POLICY));
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
    group.finish();
}

criterion_group!(benches, verdict, record);
criterion_main!(benches);
