//! What becomes of a row that was sent, and when it is tried again. One match, [`RetryPolicy::decide`], covers rows of batches,
//! heads of held keys and probes, and each arm says what an operator has to do. All waits between two attempts are here, too.
//! Time and jitter are arguments.
//!
//! Invariant: `attempts` rises only for [`RowFate::Refused`], which only follows from [`Delivery::Refused`]. Outages, missing
//! answers, and topics and partitions that accept nothing cost time, but never an attempt, and never make a dead letter.

use std::time::Duration;

use super::decision::{Decision, HoldFate, KafkaFate, Refusal, RowFate};
use super::hold::{Hold, NewHold};
use crate::domain::delivery::{Delivery, Unavailability};
use crate::domain::partition::Partition;
use crate::domain::pause::{Paused, Scope};
use crate::domain::row::{Row, UNORDERED_LANE};

/// What becomes of a key whose row was refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDead {
    /// The rows behind the dead one are published.
    Continue,
    /// The key is held until an operator decides.
    Hold,
}

/// Longest wait between two probes of a topic or partition that accepts nothing.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Wait before the mark of a row that another transaction has locked is tried again.
pub const LOCKED_ROW_WAIT: Duration = Duration::from_millis(250);

const NO_ANSWER: &str = "no answer from Kafka";
const TOO_LATE: &str = "PostgreSQL answered too late";
const LOCKED: &str = "another transaction has locked its row";

/// Wait after an error of a server before the same work is tried again: 100 to 500 ms. Jitter is between 0 and 1.
pub fn short_backoff(jitter: f64) -> Duration {
    Duration::from_millis(100) + Duration::from_millis(400).mul_f64(jitter)
}

/// How a row was sent.
#[derive(Clone, Copy, Debug)]
pub enum Sent<'a> {
    InBatch,
    /// Alone, because its key waits behind it.
    AsHead(&'a Hold),
    /// Alone, for a topic or a partition that accepted nothing. The answer decides about all holds of the same topic and unit.
    AsProbe(&'a Hold),
}

impl<'a> Sent<'a> {
    /// How the row is sent that a hold waits for.
    pub fn of_hold(hold: &'a Hold) -> Self {
        match hold.head_id {
            Some(_) => Sent::AsHead(hold),
            None => Sent::AsProbe(hold),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    pub sent: Sent<'a>,
    /// Has Kafka acknowledged anything to this process since the attempt began, or just before? Then a timeout is a fault of the
    /// topic. Otherwise all of Kafka may be down.
    pub kafka_answers: bool,
}

/// What happened to the row.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    Delivered(&'a Row, &'a Delivery),
    /// It could not be sent before the lease of its claim ends, because the claim took too long.
    TooLate(&'a Row),
    /// An operator has paused its key, its topic, or everything. It was not sent.
    Paused(&'a Row, Paused<'a>),
    /// It was removed, redriven or discarded, or is published or dead already.
    RowGone,
    /// Kafka has it, from this attempt or an earlier one, but it cannot be marked yet, because another transaction has locked it.
    MarkLocked,
    /// Kafka refused it, but that cannot be written, because another transaction has locked it.
    RefusalLocked(&'a Refusal),
}

/// When a row that failed is tried again, and how often.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    pub max_attempts: i16,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub on_dead: OnDead,
}

impl RetryPolicy {
    /// How long to wait after this many consecutive failures. The wait doubles up to the maximum, and jitter spreads it over its
    /// upper half, so that rows that failed together are not retried together. Jitter is between 0 and 1.
    pub fn backoff(&self, failures: u32, jitter: f64) -> Duration {
        let doubled = self
            .backoff_min
            .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
        doubled.min(self.backoff_max).mul_f64(0.5 + 0.5 * jitter)
    }

    /// How long to wait before the next probe of a topic or partition that has failed this many times in a row. It is short, so
    /// that rows are published soon after the fault is fixed.
    fn probe_wait(&self, failures: u32, jitter: f64) -> Duration {
        self.backoff(failures, jitter).min(PROBE_WAIT_MAX)
    }

    /// How long to wait before the next attempt of a hold whose row failed once more.
    fn wait_of(&self, hold: &Hold, jitter: f64) -> Duration {
        self.probe_wait(hold.failures.unsigned_abs() + 1, jitter)
    }

    /// Decides what becomes of a row and its hold, and what this says about Kafka.
    pub fn decide(&self, attempt: Attempt<'_>, event: Event<'_>, jitter: f64) -> Decision {
        use Delivery::{Acked, Deferred, NotSent, Refused, Unavailable, Unknown};
        let sent = attempt.sent;
        match event {
            // Kafka has the row. Remedy: none is needed.
            Event::Delivered(_, Acked) => Decision::new(RowFate::Published, acked(sent)),
            // An operator has paused the row's key or topic. Remedy: `outboxd resume`.
            Event::Paused(row, paused) => Decision::new(pending(row, false), hold_of_pause(row, paused, sent)),
            // The row was removed, redriven, discarded or done. Remedy: none is needed.
            Event::RowGone => Decision::new(RowFate::Gone, row_gone(sent)),
            // Another transaction has locked the row. Remedy: end that transaction.
            Event::MarkLocked => Decision::new(RowFate::PublishedUnmarked, self.mark_locked(sent, jitter)),
            // Another transaction has locked the row. Remedy: end that transaction; the row is sent and refused again.
            Event::RefusalLocked(refusal) => {
                let maybe_sent = refusal.possible_duplicate;
                Decision::new(
                    RowFate::Pending { maybe_sent },
                    self.refusal_locked(refusal, sent, jitter),
                )
            }
            // Kafka did not answer, or the record was not sent. Remedy: none is needed, because the row is sent again.
            Event::Delivered(row, delivery @ (NotSent | Unknown)) => {
                let hold = self.not_answered(sent, NO_ANSWER, jitter);
                Decision::new(pending(row, *delivery == Unknown), hold)
            }
            // The claim took too long. Remedy: make PostgreSQL faster; the row is sent again.
            Event::TooLate(row) => Decision::new(pending(row, false), self.not_answered(sent, TOO_LATE, jitter)),
            // Another record of the topic was refused in the same batch. Remedy: fix that record or the topic's limit; this row
            // is sent next.
            Event::Delivered(row, Deferred { reason }) => {
                Decision::new(pending(row, false), self.deferred(row, reason, sent, jitter))
            }
            // Kafka refused the record. Remedy: raise the topic's limit or fix the record; if it is dead, redrive or discard it.
            Event::Delivered(row, Refused { reason }) => self.refused(row, reason, sent, jitter),
            // The topic or partition accepts nothing. Remedy: create the topic or grant write access to it, or repair Kafka or
            // the partition.
            Event::Delivered(
                row,
                Unavailable {
                    fault,
                    partition,
                    reason,
                    maybe_landed,
                },
            ) => {
                let is_outage = *fault == Unavailability::Transient && !attempt.kafka_answers;
                Decision {
                    row: pending(row, *maybe_landed),
                    hold: match sent {
                        // Nothing reached Kafka at all, so nothing is held.
                        Sent::InBatch if is_outage => HoldFate::Unchanged,
                        _ => self.unavailable(row, *partition, reason, sent, jitter),
                    },
                    kafka: kafka_unavailable(*fault, *partition, reason, sent, is_outage),
                }
            }
        }
    }

    /// The row is sent alone, as soon as its turn comes.
    fn deferred(&self, row: &Row, reason: &str, sent: Sent<'_>, jitter: f64) -> HoldFate {
        match sent {
            Sent::InBatch => hold_key(row, reason, 0, Some(Duration::ZERO)),
            Sent::AsHead(_) | Sent::AsProbe(_) => self.not_answered(sent, reason, jitter),
        }
    }

    /// The row is not sent again, and its mark is tried until the lock is released. A key that the row holds waits for the mark.
    fn mark_locked(&self, sent: Sent<'_>, jitter: f64) -> HoldFate {
        match sent {
            Sent::InBatch => HoldFate::Unchanged,
            Sent::AsHead(hold) => self.postpone(hold, LOCKED, jitter),
            // This change also stores that the row of a lane may have been sent. The hold is released with the others of its
            // topic and unit.
            Sent::AsProbe(hold) if hold.is_ordered() => self.postpone(hold, LOCKED, jitter),
            Sent::AsProbe(_) => HoldFate::ReleaseAll,
        }
    }

    /// The refusal is not counted, so the row is tried again even if this was its last attempt.
    fn refusal_locked(&self, refusal: &Refusal, sent: Sent<'_>, jitter: f64) -> HoldFate {
        match sent {
            // This is the hold that the refusal creates, if it creates one.
            Sent::InBatch => HoldFate::Postpone {
                wait: Some(refusal.wait),
                reason: LOCKED.to_owned(),
            },
            Sent::AsHead(hold) => self.postpone(hold, LOCKED, jitter),
            Sent::AsProbe(_) => HoldFate::ReleaseAll,
        }
    }

    /// The refusal counts as an attempt. The row is held or retried, or becomes a dead letter after its last attempt.
    fn refused(&self, row: &Row, reason: &str, sent: Sent<'_>, jitter: f64) -> Decision {
        let refusal = self.refusal(row, reason, jitter);
        let steps_aside = refusal.dead && self.on_dead == OnDead::Continue;
        let wait = (!refusal.dead).then_some(refusal.wait);
        let hold = match sent {
            Sent::InBatch if steps_aside => HoldFate::Unchanged,
            // An unordered row has no key to hold. Its wait is written to the row itself.
            Sent::InBatch => hold_key(row, reason, 1, wait),
            Sent::AsHead(_) if steps_aside => HoldFate::Release,
            Sent::AsHead(_) => HoldFate::Postpone {
                wait,
                reason: reason.to_owned(),
            },
            // The topic or partition accepts records again. The refusal of an ordered row is not counted here: its lane sends the
            // row next, is refused, too, and holds the key, so it would be counted twice.
            Sent::AsProbe(_) if row.lane.is_some() => return Decision::new(pending(row, false), HoldFate::ReleaseAll),
            Sent::AsProbe(_) => HoldFate::ReleaseAll,
        };
        Decision::new(RowFate::Refused(refusal), hold)
    }

    /// The topic or partition is held until a probe is accepted.
    fn unavailable(
        &self,
        row: &Row,
        partition: Option<Partition>,
        reason: &str,
        sent: Sent<'_>,
        jitter: f64,
    ) -> HoldFate {
        match sent {
            Sent::InBatch => self.hold_paused(row, partition, reason, jitter),
            // Only one of the topic's partitions accepts nothing, so the topic is not held as a whole any more.
            Sent::AsProbe(hold) if partition.is_some() && hold.unit.is_empty() => HoldFate::ReleaseAll,
            Sent::AsHead(_) | Sent::AsProbe(_) => self.not_answered(sent, reason, jitter),
        }
    }

    /// The refusal of a row: it counts one more attempt, and tells whether that was the last one.
    pub fn refusal(&self, row: &Row, reason: &str, jitter: f64) -> Refusal {
        Refusal {
            id: row.id,
            attempts: row.attempts,
            possible_duplicate: row.possible_duplicate,
            reason: reason.to_owned(),
            // A row that lacks its lane or cannot be read would be refused forever.
            dead: row.attempts.saturating_add(1) >= self.max_attempts
                || row.lacks_its_lane()
                || row.unreadable.is_some(),
            wait: self.backoff(row.attempts as u32 + 1, jitter),
        }
    }

    /// Rows of a batch are sent again with the next one. A hold is postponed, and with a probe all holds that it was sent for.
    fn not_answered(&self, sent: Sent<'_>, reason: &str, jitter: f64) -> HoldFate {
        match sent {
            Sent::InBatch => HoldFate::Unchanged,
            Sent::AsHead(hold) => self.postpone(hold, reason, jitter),
            Sent::AsProbe(hold) => HoldFate::PostponeAll {
                wait: self.wait_of(hold, jitter),
                reason: reason.to_owned(),
            },
        }
    }

    fn postpone(&self, hold: &Hold, reason: &str, jitter: f64) -> HoldFate {
        HoldFate::Postpone {
            wait: Some(self.wait_of(hold, jitter)),
            reason: reason.to_owned(),
        }
    }

    /// Holds the partition, or the whole topic if there is none, in the row's lane.
    fn hold_paused(&self, row: &Row, partition: Option<Partition>, reason: &str, jitter: f64) -> HoldFate {
        HoldFate::Create(NewHold {
            lane: row.lane.unwrap_or(UNORDERED_LANE),
            topic: row.topic.clone(),
            unit: partition.map_or_else(String::new, Partition::unit),
            head_id: None,
            reason: reason.to_owned(),
            failures: 1,
            wait: Some(self.probe_wait(1, jitter)),
        })
    }
}

/// Holds the key, or the explicit partition, of a row, with the row as its head. An unordered row has neither.
fn hold_key(row: &Row, reason: &str, failures: i32, wait: Option<Duration>) -> HoldFate {
    let (Some(lane), Some(unit)) = (row.lane, row.unit()) else {
        return HoldFate::Unchanged;
    };
    HoldFate::Create(NewHold {
        lane,
        topic: row.topic.clone(),
        unit,
        head_id: Some(row.id),
        reason: reason.to_owned(),
        failures,
        wait,
    })
}

/// Holds the key or the topic of a row that was not sent because of a pause. The hold is due at once, and is not tried before the
/// pause ends. So a resume need not know of the hold.
fn hold_of_pause(row: &Row, paused: Paused<'_>, sent: Sent<'_>) -> HoldFate {
    let reason = format!("paused: {}", paused.reason);
    match (sent, paused.scope) {
        // Its hold is due when the pause ends.
        (Sent::AsHead(_) | Sent::AsProbe(_), _) => HoldFate::Unchanged,
        // Nothing is claimed while everything is paused.
        (Sent::InBatch, Scope::Everything) => HoldFate::Unchanged,
        (Sent::InBatch, Scope::Topic) => HoldFate::Create(NewHold {
            lane: row.lane.unwrap_or(UNORDERED_LANE),
            topic: row.topic.clone(),
            unit: String::new(),
            head_id: None,
            reason,
            failures: 0,
            wait: Some(Duration::ZERO),
        }),
        (Sent::InBatch, Scope::Key) => hold_key(row, &reason, 0, Some(Duration::ZERO)),
    }
}

/// What an unavailable topic or partition says about Kafka. If all of Kafka may be down, all publishing pauses.
fn kafka_unavailable(
    fault: Unavailability,
    partition: Option<Partition>,
    reason: &str,
    sent: Sent<'_>,
    is_outage: bool,
) -> KafkaFate {
    use Unavailability::{Paused, Transient, Unusable};
    let reason = reason.to_owned();
    match (fault, sent, partition) {
        (Unusable | Paused, _, _) => KafkaFate::Unchanged,
        // A partition that still does not answer says nothing about Kafka as a whole, which has just answered about its topic.
        (Transient, Sent::AsProbe(_), Some(_)) => KafkaFate::Unchanged,
        (Transient, _, _) if is_outage => KafkaFate::PauseEverything { reason },
        (Transient, _, None) => KafkaFate::Unchanged,
        (Transient, _, Some(partition)) => KafkaFate::PausePartition { partition, reason },
    }
}

fn acked(sent: Sent<'_>) -> HoldFate {
    match sent {
        Sent::InBatch => HoldFate::Unchanged,
        Sent::AsHead(_) => HoldFate::Release,
        Sent::AsProbe(_) => HoldFate::ReleaseAll,
    }
}

/// Nothing was learned about the topic or partition, so a probe releases only its own hold.
fn row_gone(sent: Sent<'_>) -> HoldFate {
    match sent {
        Sent::InBatch => HoldFate::Unchanged,
        Sent::AsHead(_) | Sent::AsProbe(_) => HoldFate::Release,
    }
}

fn pending(row: &Row, maybe_landed: bool) -> RowFate {
    RowFate::Pending {
        maybe_sent: row.possible_duplicate || maybe_landed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::row;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(60),
        on_dead: OnDead::Continue,
    };
    const THIRD: Partition = Partition { number: 3, of: 12 };

    fn unordered(attempts: i16) -> Row {
        Row {
            lane: None,
            key: None,
            attempts,
            ..row::tests::row(1)
        }
    }

    fn hold(unit: &str, head_id: Option<i64>, is_ordered: bool) -> Hold {
        Hold {
            lane: if is_ordered { 0 } else { UNORDERED_LANE },
            topic: "orders".to_owned(),
            unit: unit.to_owned(),
            head_id,
            resume_floor: 0,
            failures: 1,
            wait: 0.0,
        }
    }

    fn unavailable(fault: Unavailability, partition: Option<Partition>) -> Delivery {
        Delivery::Unavailable {
            fault,
            partition,
            reason: "unavailable".to_owned(),
            maybe_landed: fault == Unavailability::Transient,
        }
    }

    fn describe(decision: &Decision) -> String {
        let wait = |wait: &Option<Duration>| wait.map_or("never".to_owned(), |wait| format!("in {wait:?}"));
        let row = match &decision.row {
            RowFate::Published => "published",
            RowFate::PublishedUnmarked => "unmarked",
            RowFate::Pending { maybe_sent: false } => "pending",
            RowFate::Pending { maybe_sent: true } => "maybe sent",
            RowFate::Refused(refusal) if refusal.dead => "dead",
            RowFate::Refused(_) => "refused",
            RowFate::Gone => "gone",
        };
        let hold = match &decision.hold {
            HoldFate::Unchanged => String::new(),
            HoldFate::Create(new) if new.unit.is_empty() => {
                format!(", hold topic {}x {}", new.failures, wait(&new.wait))
            }
            HoldFate::Create(new) => format!(", hold {} {}x {}", new.unit, new.failures, wait(&new.wait)),
            HoldFate::Postpone { wait: after, .. } => format!(", again {}", wait(after)),
            HoldFate::PostponeAll { wait: after, .. } => format!(", all again {}", wait(&Some(*after))),
            HoldFate::Release => ", release".to_owned(),
            HoldFate::ReleaseAll => ", release all".to_owned(),
        };
        let kafka = match &decision.kafka {
            KafkaFate::Unchanged => "",
            KafkaFate::PausePartition { .. } => ", pause partition",
            KafkaFate::PauseEverything { .. } => ", pause all",
        };
        format!("{row}{hold}{kafka}")
    }

    /// How the row was sent, and for which hold.
    const BATCH: &str = "batch";
    const HEAD: &str = "head";
    const TOPIC: &str = "probe of the topic";
    const PARTITION: &str = "probe of the partition";

    /// What happened, how the row was sent, whether Kafka answers (`None` for both), and the decisions about an ordered row and
    /// about an unordered one, which is never the head of a hold.
    type Line = (&'static str, &'static str, Option<bool>, &'static str, &'static str);

    #[rustfmt::skip]
    const TABLE: &[Line] = &[
        ("acked", BATCH, None, "published", "published"),
        ("acked", HEAD, None, "published, release", ""),
        ("acked", TOPIC, None, "published, release all", "published, release all"),
        ("acked", PARTITION, None, "published, release all", "published, release all"),
        ("gone", BATCH, None, "gone", "gone"),
        ("gone", HEAD, None, "gone, release", ""),
        ("gone", TOPIC, None, "gone, release", "gone, release"),
        ("gone", PARTITION, None, "gone, release", "gone, release"),
        ("topic paused", BATCH, None, "pending, hold topic 0x in 0ns", "pending, hold topic 0x in 0ns"),
        ("topic paused", HEAD, None, "pending", ""),
        ("topic paused", TOPIC, None, "pending", "pending"),
        ("topic paused", PARTITION, None, "pending", "pending"),
        ("key paused", BATCH, None, "pending, hold k:k 0x in 0ns", "pending"),
        ("key paused", HEAD, None, "pending", ""),
        ("key paused", TOPIC, None, "pending", "pending"),
        ("all paused", BATCH, None, "pending", "pending"),
        ("all paused", HEAD, None, "pending", ""),
        ("mark locked", BATCH, None, "unmarked", "unmarked"),
        ("mark locked", HEAD, None, "unmarked, again in 2s", ""),
        ("mark locked", TOPIC, None, "unmarked, again in 2s", "unmarked, release all"),
        ("mark locked", PARTITION, None, "unmarked, again in 2s", "unmarked, release all"),
        ("refusal locked", BATCH, None, "pending, again in 4s", "pending, again in 4s"),
        ("refusal locked", HEAD, None, "pending, again in 2s", ""),
        ("refusal locked", TOPIC, None, "pending, release all", "pending, release all"),
        ("refusal locked", PARTITION, None, "pending, release all", "pending, release all"),
        ("unsent", BATCH, None, "pending", "pending"),
        ("unsent", HEAD, None, "pending, again in 2s", ""),
        ("unsent", TOPIC, None, "pending, all again in 2s", "pending, all again in 2s"),
        ("unsent", PARTITION, None, "pending, all again in 2s", "pending, all again in 2s"),
        ("too late", BATCH, None, "pending", "pending"),
        ("too late", HEAD, None, "pending, again in 2s", ""),
        ("too late", TOPIC, None, "pending, all again in 2s", "pending, all again in 2s"),
        ("unknown", BATCH, None, "maybe sent", "maybe sent"),
        ("unknown", HEAD, None, "maybe sent, again in 2s", ""),
        ("unknown", TOPIC, None, "maybe sent, all again in 2s", "maybe sent, all again in 2s"),
        ("unknown", PARTITION, None, "maybe sent, all again in 2s", "maybe sent, all again in 2s"),
        ("deferred", BATCH, None, "pending, hold k:k 0x in 0ns", "pending"),
        ("deferred", HEAD, None, "pending, again in 2s", ""),
        ("deferred", TOPIC, None, "pending, all again in 2s", "pending, all again in 2s"),
        ("refused", BATCH, None, "refused, hold k:k 1x in 1s", "refused"),
        ("refused", HEAD, None, "refused, again in 1s", ""),
        ("refused", TOPIC, None, "pending, release all", "refused, release all"),
        ("refused", PARTITION, None, "pending, release all", "refused, release all"),
        ("dead", BATCH, None, "dead", "dead"),
        ("dead", HEAD, None, "dead, release", ""),
        ("dead", TOPIC, None, "pending, release all", "dead, release all"),
        ("dead, on-dead hold", BATCH, None, "dead, hold k:k 1x never", "dead"),
        ("dead, on-dead hold", HEAD, None, "dead, again never", ""),
        ("dead, on-dead hold", PARTITION, None, "pending, release all", "dead, release all"),
        ("topic unusable", BATCH, None, "pending, hold topic 1x in 1s", "pending, hold topic 1x in 1s"),
        ("topic unusable", HEAD, None, "pending, again in 2s", ""),
        ("topic unusable", TOPIC, None, "pending, all again in 2s", "pending, all again in 2s"),
        ("topic unusable", PARTITION, None, "pending, all again in 2s", "pending, all again in 2s"),
        ("topic silent", BATCH, Some(true), "maybe sent, hold topic 1x in 1s", "maybe sent, hold topic 1x in 1s"),
        ("topic silent", BATCH, Some(false), "maybe sent, pause all", "maybe sent, pause all"),
        ("topic silent", HEAD, Some(true), "maybe sent, again in 2s", ""),
        ("topic silent", HEAD, Some(false), "maybe sent, again in 2s, pause all", ""),
        ("topic silent", TOPIC, Some(true), "maybe sent, all again in 2s", "maybe sent, all again in 2s"),
        ("topic silent", TOPIC, Some(false), "maybe sent, all again in 2s, pause all", "maybe sent, all again in 2s, pause all"),
        ("topic silent", PARTITION, Some(false),
         "maybe sent, all again in 2s, pause all", "maybe sent, all again in 2s, pause all"),
        ("partition silent", BATCH, Some(true),
         "maybe sent, hold s:3/12 1x in 1s, pause partition", "maybe sent, hold s:3/12 1x in 1s, pause partition"),
        ("partition silent", BATCH, Some(false), "maybe sent, pause all", "maybe sent, pause all"),
        ("partition silent", HEAD, Some(true), "maybe sent, again in 2s, pause partition", ""),
        ("partition silent", HEAD, Some(false), "maybe sent, again in 2s, pause all", ""),
        ("partition silent", TOPIC, None, "maybe sent, release all", "maybe sent, release all"),
        ("partition silent", PARTITION, None, "maybe sent, all again in 2s", "maybe sent, all again in 2s"),
        ("partition paused", BATCH, None, "pending, hold s:3/12 1x in 1s", "pending, hold s:3/12 1x in 1s"),
        ("partition paused", HEAD, None, "pending, again in 2s", ""),
        ("partition paused", TOPIC, None, "pending, release all", "pending, release all"),
        ("partition paused", PARTITION, None, "pending, all again in 2s", "pending, all again in 2s"),
    ];

    fn decide(what: &str, how: &str, is_ordered: bool, kafka_answers: bool) -> Decision {
        let mut row = if is_ordered { row::tests::row(1) } else { unordered(0) };
        let mut policy = POLICY;
        if what.starts_with("dead") {
            row.attempts = 2;
        }
        if what.ends_with("hold") {
            policy.on_dead = OnDead::Hold;
        }
        let reason = "why".to_owned();
        let delivery = match what {
            "unsent" => Delivery::NotSent,
            "unknown" => Delivery::Unknown,
            "deferred" => Delivery::Deferred { reason },
            "refused" | "dead" | "dead, on-dead hold" => Delivery::Refused { reason },
            "topic unusable" => unavailable(Unavailability::Unusable, None),
            "topic silent" => unavailable(Unavailability::Transient, None),
            "partition silent" => unavailable(Unavailability::Transient, Some(THIRD)),
            "partition paused" => unavailable(Unavailability::Paused, Some(THIRD)),
            _ => Delivery::Acked,
        };
        let locked = Refusal {
            wait: Duration::from_secs(4),
            ..POLICY.refusal(&unordered(2), "too large", 1.0)
        };
        let paused = |scope| {
            let reason = "broken consumer";
            Event::Paused(&row, Paused { scope, reason })
        };
        let event = match what {
            "topic paused" => paused(Scope::Topic),
            "key paused" => paused(Scope::Key),
            "all paused" => paused(Scope::Everything),
            "gone" => Event::RowGone,
            "mark locked" => Event::MarkLocked,
            "refusal locked" => Event::RefusalLocked(&locked),
            "too late" => Event::TooLate(&row),
            _ => Event::Delivered(&row, &delivery),
        };
        let hold = match how {
            HEAD => hold("k:k", Some(1), is_ordered),
            TOPIC => hold("", None, is_ordered),
            _ => hold("s:3/12", None, is_ordered),
        };
        let sent = if how == BATCH {
            Sent::InBatch
        } else {
            Sent::of_hold(&hold)
        };
        policy.decide(Attempt { sent, kafka_answers }, event, 1.0)
    }

    #[test]
    fn each_event_has_its_decision_however_the_row_was_sent() {
        for (what, how, answers, ordered, unordered) in TABLE {
            let cases = answers.map_or(vec![true, false], |answers| vec![answers]);
            for kafka_answers in cases {
                let decision = |is_ordered| describe(&decide(what, how, is_ordered, kafka_answers));
                assert_eq!(
                    decision(true),
                    *ordered,
                    "{what}, {how}, Kafka answers: {kafka_answers}"
                );
                if *how != HEAD {
                    assert_eq!(
                        decision(false),
                        *unordered,
                        "{what}, {how}, unordered, Kafka answers: {kafka_answers}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_row_that_may_have_been_sent_before_stays_so_until_kafka_has_it() {
        let row = Row {
            possible_duplicate: true,
            ..row::tests::row(1)
        };
        let hold = hold("k:k", Some(1), true);
        for sent in [Sent::InBatch, Sent::of_hold(&hold)] {
            let attempt = Attempt {
                sent,
                kafka_answers: true,
            };
            let fate = |delivery| POLICY.decide(attempt, Event::Delivered(&row, &delivery), 0.5).row;
            for delivery in [Delivery::NotSent, unavailable(Unavailability::Unusable, None)] {
                let fate = fate(delivery);
                assert_eq!(fate, RowFate::Pending { maybe_sent: true });
                assert!(!fate.is_certainly_not_sent());
            }
            let paused = Paused {
                scope: Scope::Topic,
                reason: "broken consumer",
            };
            let kept_back = POLICY.decide(attempt, Event::Paused(&row, paused), 0.5);
            assert_eq!(kept_back.row, RowFate::Pending { maybe_sent: true });
            let refused = fate(Delivery::Refused {
                reason: "too large".to_owned(),
            });
            assert!(matches!(&refused, RowFate::Refused(refusal) if refusal.is_retried_flagged()));
            assert!(!refused.is_certainly_not_sent());
        }
    }

    #[test]
    fn a_fate_that_cannot_be_written_to_a_locked_row_is_decided_again() {
        let refusal = POLICY.refusal(&unordered(0), "too large", 0.5);
        assert!(matches!(RowFate::Published.when_locked(), Some(Event::MarkLocked)));
        assert!(matches!(
            RowFate::Refused(refusal).when_locked(),
            Some(Event::RefusalLocked(_))
        ));
        for fate in [
            RowFate::Gone,
            RowFate::PublishedUnmarked,
            RowFate::Pending { maybe_sent: true },
        ] {
            assert!(fate.when_locked().is_none(), "nothing is written: {fate:?}");
        }
    }

    #[test]
    fn each_refusal_waits_longer_and_keeps_the_flag_of_the_row() {
        let refusal = |attempts, flagged| {
            let row = Row {
                possible_duplicate: flagged,
                ..unordered(attempts)
            };
            POLICY.refusal(&row, "too large", 1.0)
        };
        let (first, second) = (refusal(0, false), refusal(1, true));
        assert_eq!(
            (first.attempts, first.possible_duplicate, first.dead),
            (0, false, false)
        );
        assert_eq!(
            (second.attempts, second.possible_duplicate, second.dead),
            (1, true, false)
        );
        assert!(first.wait <= POLICY.backoff_min, "{:?}", first.wait);
        assert!(second.wait >= POLICY.backoff_min, "{:?}", second.wait);
        assert!(refusal(i16::MAX, false).dead, "the count does not overflow");
        let without_lane = Row {
            lane: None,
            ..row::tests::row(1)
        };
        assert!(
            POLICY.refusal(&without_lane, "no lane", 0.5).dead,
            "another attempt would be refused, too"
        );
    }

    #[test]
    fn probes_are_frequent_even_if_refused_rows_wait_long() {
        let patient = RetryPolicy {
            backoff_min: Duration::from_secs(600),
            ..POLICY
        };
        assert_eq!(patient.probe_wait(1, 0.5), PROBE_WAIT_MAX);
        assert!(POLICY.probe_wait(1, 0.5) <= POLICY.backoff_min);
    }

    #[test]
    fn the_wait_after_an_error_is_100_to_500_milliseconds() {
        let millis = |jitter| short_backoff(jitter).as_millis();
        assert_eq!((millis(0.0), millis(0.5), millis(1.0)), (100, 300, 500));
    }

    proptest! {
        #[test]
        fn backoff_grows_and_stays_within_its_bounds(failures in 1u32..1000, jitter in 0.0..=1.0) {
            let wait = POLICY.backoff(failures, jitter);
            prop_assert!(wait >= POLICY.backoff_min / 2 && wait <= POLICY.backoff_max);
        }
    }
}
