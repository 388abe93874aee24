//! Delivery reports: the client's answer for each record, and how tasks wait for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::Notify;

use super::lock;

/// The delivery report of one record.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub code: Code,
    /// The client had taken the record, and may have sent it. It cannot tell whether the record was written: it assumes that a
    /// broker which no longer leads the partition has written nothing, but that broker may have written the record before it
    /// stepped down.
    pub handed_over: bool,
}

/// The reports of records that were sent together. The waiting task is woken once for all of them.
#[derive(Debug)]
pub struct SentRecords {
    reports: Mutex<Vec<Option<Report>>>,
    /// How many have no report yet.
    missing: AtomicUsize,
    changed: Notify,
}

impl SentRecords {
    /// Returns whether this was the last report.
    fn report(&self, slot: usize, report: Report) -> bool {
        lock(&self.reports)[slot] = Some(report);
        let last = self.missing.fetch_sub(1, Ordering::AcqRel) == 1;
        if last || report.code != Code::NoError {
            self.changed.notify_one();
        }
        last
    }

    /// Waits for all reports. False if the deadline passed, or if a failure was reported and `is_fatal` says that the other
    /// reports will not come without a purge.
    pub async fn all_reported_by(&self, deadline: Instant, is_fatal: impl Fn() -> bool) -> bool {
        let mut in_time = true;
        while self.missing.load(Ordering::Acquire) > 0 {
            if !in_time || is_fatal() {
                return false;
            }
            let changed = self.changed.notified();
            in_time = tokio::time::timeout_at(deadline.into(), changed).await.is_ok();
        }
        true
    }

    /// The reports that have arrived, in the order in which the records were sent.
    pub fn reports(&self) -> Vec<Option<Report>> {
        lock(&self.reports).clone()
    }
}

/// Passes the reports of one producer to the records that were sent together, which it finds by a number.
#[derive(Debug, Default)]
pub struct Reports {
    sent: Mutex<HashMap<u32, Arc<SentRecords>>>,
    next: AtomicU32,
}

impl Reports {
    pub fn open(&self, size: usize) -> (u32, Arc<SentRecords>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let records = Arc::new(SentRecords {
            reports: Mutex::new(vec![None; size]),
            missing: AtomicUsize::new(size),
            changed: Notify::new(),
        });
        lock(&self.sent).insert(number, records.clone());
        (number, records)
    }

    pub fn report(&self, number: u32, slot: usize, report: Report) {
        let mut sent = lock(&self.sent);
        if let Some(records) = sent.get(&number)
            && records.report(slot, report)
        {
            sent.remove(&number);
        }
    }
}
