//! Delivery reports: the client's answer for each record, and how tasks wait for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr as NativeCode};
use tokio::sync::Notify;

/// No report yet. The client's codes are small numbers.
const UNREPORTED: i32 = i32::MAX;

/// The delivery report of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub code: Code,
    /// The client had taken the record, and may have sent it. It cannot tell whether the record was written: it assumes that a
    /// broker which no longer leads the partition has written nothing, but that broker may have written the record before it
    /// stepped down.
    pub handed_over: bool,
}

impl Report {
    /// The report as one integer, because one thread writes it and another reads it.
    fn packed(self) -> i32 {
        self.code as i32 * 2 + i32::from(self.handed_over)
    }

    fn unpacked(packed: i32) -> Self {
        Report {
            code: Code::from(to_native(packed >> 1)),
            handed_over: packed & 1 == 1,
        }
    }
}

/// The reports of records that were sent together. The waiting task is woken once for all of them.
#[derive(Debug)]
pub struct SentRecords {
    reports: Vec<AtomicI32>,
    /// How many have no report yet.
    left: AtomicUsize,
    changed: Notify,
}

impl SentRecords {
    fn new(size: usize) -> Self {
        SentRecords {
            reports: (0..size).map(|_| AtomicI32::new(UNREPORTED)).collect(),
            left: AtomicUsize::new(size),
            changed: Notify::new(),
        }
    }

    /// Returns whether this was the last report.
    fn report(&self, slot: usize, report: Report) -> bool {
        self.reports[slot].store(report.packed(), Ordering::Relaxed);
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last || report.code != Code::NoError {
            self.changed.notify_one();
        }
        last
    }

    /// Waits for all reports. False if the deadline passed, or if a failure was reported and `is_fatal` says that the other
    /// reports will not come without a purge.
    pub async fn all_reported_by(&self, deadline: Instant, is_fatal: impl Fn() -> bool) -> bool {
        loop {
            if self.left.load(Ordering::Acquire) == 0 {
                return true;
            }
            if is_fatal() {
                return false;
            }
            if tokio::time::timeout_at(deadline.into(), self.changed.notified())
                .await
                .is_err()
            {
                return self.left.load(Ordering::Acquire) == 0;
            }
        }
    }

    /// The report of the record in this slot, once there is one.
    pub fn reported(&self, slot: usize) -> Option<Report> {
        let packed = self.reports[slot].load(Ordering::Relaxed);
        (packed != UNREPORTED).then(|| Report::unpacked(packed))
    }
}

/// The binding returns codes as its own enum and converts them only from the native one.
fn to_native(code: i32) -> NativeCode {
    NativeCode::try_from(code).unwrap_or(NativeCode::RD_KAFKA_RESP_ERR_UNKNOWN)
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
        let records = Arc::new(SentRecords::new(size));
        self.sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, records.clone());
        (number, records)
    }

    pub fn report(&self, number: u32, slot: usize, report: Report) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(records) = sent.get(&number)
            && records.report(slot, report)
        {
            sent.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_packing() {
        for code in [
            Code::NoError,
            Code::PurgeInflight,
            Code::NotLeaderForPartition,
            Code::Fatal,
        ] {
            for handed_over in [false, true] {
                let report = Report { code, handed_over };
                assert_eq!(Report::unpacked(report.packed()), report);
            }
        }
    }
}
