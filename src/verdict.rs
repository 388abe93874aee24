//! Delivery reports become marks: what is published, what is tried again, what is held, what is dead. Pure.
//!
//! Invariant: `attempts` rises only for [`Outcome::Refused`]. Outages, sick topics and lost answers
//! cost time, never an attempt, never a dead letter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::domain::delivery::{Outcome, TopicFault};
use crate::domain::partition::Partition;
use crate::domain::row::{KEYLESS, Row};

/// What becomes of a key whose row was refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDead {
    /// The dead row steps aside and the key goes on.
    Continue,
    /// The key stays held until an operator decides.
    Hold,
}

/// A topic or a partition that takes nothing is tried at least this often.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(5);

/// How patient we are with a row that Kafka refuses.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub max_attempts: i16,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub on_dead: OnDead,
}

impl Policy {
    /// How long to wait after this many failures in a row: doubling, capped, and spread over the upper
    /// half so that what failed together does not come back together.
    pub fn backoff(&self, failures: u32) -> Duration {
        let doubled = self
            .backoff_min
            .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
        doubled.min(self.backoff_max).mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// How long to leave a topic or a partition alone that took nothing so many times in a row. Not long: it should flow again soon
    /// after it is fixed.
    pub fn probe_wait(&self, failures: u32) -> Duration {
        self.backoff(failures).min(PROBE_WAIT_MAX)
    }

    /// What a refusal means for the row: one more attempt counted, and whether it was the last.
    pub fn refusal(&self, row: &Row, reason: &str) -> Refusal {
        Refusal {
            id: row.id,
            attempts: row.attempts,
            suspect: row.suspect,
            reason: reason.to_owned(),
            // Without its line, or not readable, it will be refused for ever.
            dead: row.attempts.saturating_add(1) >= self.max_attempts
                || row.has_lost_its_line()
                || row.withheld.is_some(),
            wait: self.backoff(row.attempts as u32 + 1),
        }
    }
}

/// A row Kafka refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub id: i64,
    /// How often it had been refused before.
    pub attempts: i16,
    /// A copy of it may be there from an earlier try: the next one must say so.
    pub suspect: bool,
    pub reason: String,
    pub dead: bool,
    pub wait: Duration,
}

impl Refusal {
    /// It is tried again, and a copy may be there.
    pub fn stays_suspect(&self) -> bool {
        self.suspect && !self.dead
    }
}

/// What to keep back: see `outbox.hold`.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldOrder {
    pub lane: i16,
    pub topic: String,
    /// A key, an explicit partition or a paused one; empty: the whole topic.
    pub unit: String,
    pub head_id: Option<i64>,
    pub reason: String,
    /// Once for what was tried; not at all for what has not had its turn.
    pub failures: i32,
    /// `None` waits for an operator.
    pub wait: Option<Duration>,
}

/// What is to be written after a publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    pub published: Vec<i64>,
    pub refused: Vec<Refusal>,
    pub holds: Vec<HoldOrder>,
    /// Not published, certainly not sent.
    pub unsent: Vec<i64>,
    /// Not published as far as we know, but a copy may be there: the next one must say so.
    pub unknown: Vec<i64>,
    /// Of the unknown, those that Kafka has: somebody else has locked their rows. They are marked later, and not sent again.
    pub unmarked: Vec<i64>,
    /// Nothing got through to Kafka at all: wait for it, hold nobody.
    pub outage: Option<String>,
}

impl Verdict {
    /// Everything acknowledged: the common case, and one statement.
    pub fn is_clean(&self) -> bool {
        self.refused.is_empty() && self.holds.is_empty() && self.unsent.is_empty() && self.unknown.is_empty()
    }

    /// Kafka has these rows, and they are marked later.
    pub fn leave_unmarked(&mut self, ids: &[i64]) {
        self.unknown.extend(ids);
        self.unmarked.extend(ids);
    }

    /// Somebody else has locked these rows: nothing can be written of them.
    pub fn leave_locked(&mut self, locked: &[i64]) {
        let (unmarked, published): (Vec<i64>, Vec<i64>) = self.published.iter().partition(|id| locked.contains(id));
        self.published = published;
        self.leave_unmarked(&unmarked);
        let is_locked = |refusal: &mut Refusal| locked.contains(&refusal.id);
        for refusal in self.refused.extract_if(.., is_locked) {
            self.unsent.push(refusal.id);
            // It is not dead after all: nobody has to act before it is tried again.
            let of_row = self.holds.iter_mut().filter(|hold| hold.head_id == Some(refusal.id));
            of_row.for_each(|hold| hold.wait = Some(refusal.wait));
        }
        self.unsent.sort_unstable();
    }

    /// Was this row of the batch acknowledged?
    pub fn has_published(&self, id: i64) -> bool {
        self.is_clean() || self.published.binary_search(&id).is_ok()
    }

    /// Does a hold of this verdict keep the row back?
    pub fn holds_back(&self, row: &Row) -> bool {
        let Some(lane) = row.lane else { return false };
        self.holds.iter().any(|hold| {
            hold.lane == lane
                && hold.topic == row.topic
                && (hold.unit.is_empty()
                    || Some(&hold.unit) == row.unit().as_ref()
                    || Partition::of_unit(&hold.unit).is_some_and(|paused| paused.takes(row)))
        })
    }
}

/// `kafka_answers`: has anything been acknowledged by anyone in this process since the batch began?
/// Then a topic that times out is sick by itself; otherwise Kafka is away.
pub fn judge(rows: &[Row], outcomes: &[Outcome], kafka_answers: bool, policy: &Policy) -> Verdict {
    debug_assert_eq!(rows.len(), outcomes.len());
    let kafka_answers = kafka_answers || outcomes.contains(&Outcome::Acked);
    let mut verdict = Verdict::default();
    let mut sick = BTreeMap::new();
    let mut held_units = BTreeSet::new();
    for (row, outcome) in rows.iter().zip(outcomes) {
        match outcome {
            Outcome::Acked => verdict.published.push(row.id),
            Outcome::Unsent => verdict.unsent.push(row.id),
            Outcome::Unknown => verdict.unknown.push(row.id),
            Outcome::Refused { reason } => {
                refuse(row, reason, policy, &mut held_units, &mut verdict);
            }
            Outcome::PutOff { reason } => {
                verdict.unsent.push(row.id);
                let not_yet_tried = (0, Some(Duration::ZERO));
                hold_key(row, reason, not_yet_tried, &mut held_units, &mut verdict);
            }
            Outcome::Sick {
                fault,
                partition,
                reason,
                maybe_landed,
            } => {
                if *maybe_landed {
                    verdict.unknown.push(row.id);
                } else {
                    verdict.unsent.push(row.id);
                }
                if *fault == TopicFault::Transient && !kafka_answers {
                    verdict.outage = Some(reason.clone());
                } else {
                    let unit = partition.map_or_else(String::new, Partition::unit);
                    sick.entry((row.lane.unwrap_or(KEYLESS), row.topic.clone(), unit))
                        .or_insert_with(|| reason.clone());
                }
            }
        }
    }
    // In the order of their units: whoever locks several holds of a topic does so in this order.
    for ((lane, topic, unit), reason) in sick {
        verdict.holds.push(HoldOrder {
            lane,
            topic,
            unit,
            head_id: None,
            reason,
            failures: 1,
            wait: Some(policy.probe_wait(1)),
        });
    }
    verdict
}

fn refuse(
    row: &Row,
    reason: &str,
    policy: &Policy,
    held_units: &mut BTreeSet<(String, String)>,
    verdict: &mut Verdict,
) {
    let refusal = policy.refusal(row, reason);
    let (dead, wait) = (refusal.dead, refusal.wait);
    verdict.refused.push(refusal);
    if dead && policy.on_dead == OnDead::Continue {
        return;
    }
    hold_key(row, reason, (1, (!dead).then_some(wait)), held_units, verdict);
}

/// The first row of a unit that stays is its head; one behind it waits with the rest.
fn hold_key(
    row: &Row,
    reason: &str,
    (failures, wait): (i32, Option<Duration>),
    held_units: &mut BTreeSet<(String, String)>,
    verdict: &mut Verdict,
) {
    let (Some(lane), Some(unit)) = (row.lane, row.unit()) else {
        return;
    };
    if held_units.insert((row.topic.clone(), unit.clone())) {
        verdict.holds.push(HoldOrder {
            lane,
            topic: row.topic.clone(),
            unit,
            head_id: Some(row.id),
            reason: reason.to_owned(),
            failures,
            wait,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: Policy = Policy {
        max_attempts: 3,
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(60),
        on_dead: OnDead::Continue,
    };

    fn row(id: i64, lane: Option<i16>, topic: &str, key: Option<&str>, attempts: i16) -> Row {
        Row {
            lane,
            topic: topic.into(),
            key: key.map(Into::into),
            attempts,
            ..crate::domain::row::tests::row(id)
        }
    }

    fn refused() -> Outcome {
        Outcome::Refused {
            reason: "too large".into(),
        }
    }

    #[test]
    fn nothing_is_written_of_locked_rows_and_those_that_kafka_has_are_remembered() {
        let mut verdict = Verdict {
            published: vec![1, 2, 5],
            refused: vec![POLICY.refusal(&row(3, Some(0), "t", Some("k"), 0), "too large")],
            ..Verdict::default()
        };
        verdict.holds = vec![HoldOrder {
            lane: 0,
            topic: "t".to_owned(),
            unit: "k:k".to_owned(),
            head_id: Some(3),
            reason: "too large".to_owned(),
            failures: 1,
            wait: None,
        }];
        verdict.leave_locked(&[2, 3]);
        assert!(verdict.holds[0].wait.is_some(), "it is not dead, so it is tried again");
        assert_eq!(verdict.published, [1, 5]);
        assert_eq!(
            (verdict.unmarked.as_slice(), verdict.unknown.as_slice()),
            (&[2][..], &[2][..])
        );
        assert_eq!((verdict.refused.len(), verdict.unsent.as_slice()), (0, &[3][..]));
        assert!(!verdict.is_clean() && !verdict.has_published(2) && verdict.has_published(5));
    }

    fn put_off() -> Outcome {
        Outcome::PutOff {
            reason: "another was refused".into(),
        }
    }

    fn slow() -> Outcome {
        Outcome::Sick {
            fault: TopicFault::Transient,
            partition: None,
            reason: "no answer".into(),
            maybe_landed: true,
        }
    }

    /// The partition of a topic of four that the row belongs to.
    fn partition_of(row: &Row) -> Partition {
        let number = row.place().partition(4).expect("a partition");
        Partition { number, of: 4 }
    }

    /// The row's partition is sick, not the topic.
    fn partition_sick(row: &Row, fault: TopicFault) -> Outcome {
        Outcome::Sick {
            fault,
            partition: Some(partition_of(row)),
            reason: "no leader".into(),
            maybe_landed: fault == TopicFault::Transient,
        }
    }

    #[test]
    fn a_clean_batch_is_published_and_nothing_else() {
        let rows = [row(1, Some(0), "t", Some("a"), 0)];
        let verdict = judge(&rows, &[Outcome::Acked], false, &POLICY);
        assert!(verdict.is_clean());
        assert_eq!(verdict.published, [1]);
        for outcome in [refused(), put_off(), Outcome::Unsent, Outcome::Unknown, slow()] {
            assert!(!judge(&rows, &[outcome], true, &POLICY).is_clean());
        }
    }

    #[test]
    fn a_row_put_off_holds_its_key_untried_and_may_be_sent_at_once() {
        let rows = [
            row(1, Some(0), "t", Some("a"), 0),
            row(2, Some(0), "t", Some("a"), 0),
            row(3, None, "t", None, 0),
        ];
        let verdict = judge(&rows, &[put_off(), Outcome::Unsent, put_off()], true, &POLICY);
        assert_eq!(verdict.unsent, [1, 2, 3]);
        assert!(verdict.refused.is_empty(), "it costs no attempt");
        let [hold] = verdict.holds.as_slice() else {
            panic!("{:?}", verdict.holds)
        };
        assert_eq!((hold.unit.as_str(), hold.head_id), ("k:a", Some(1)));
        assert_eq!((hold.failures, hold.wait), (0, Some(Duration::ZERO)));
        assert!(verdict.holds_back(&rows[1]));
    }

    #[test]
    fn a_refused_row_holds_its_key_and_only_its_key() {
        let rows = [
            row(1, Some(0), "t", Some("a"), 0),
            row(2, Some(0), "t", Some("a"), 0),
            row(3, Some(0), "t", Some("b"), 0),
        ];
        let outcomes = [refused(), Outcome::Unsent, Outcome::Acked];
        let verdict = judge(&rows, &outcomes, false, &POLICY);
        assert_eq!(verdict.published, [3]);
        assert_eq!(verdict.holds.len(), 1);
        assert_eq!(verdict.holds[0].head_id, Some(1));
        assert!(verdict.holds_back(&rows[1]));
        assert!(!verdict.holds_back(&rows[2]));
    }

    #[test]
    fn the_last_attempt_is_a_dead_letter_and_by_default_lets_the_key_go_on() {
        let rows = [row(1, Some(0), "t", Some("a"), 2)];
        let verdict = judge(&rows, &[refused()], true, &POLICY);
        assert!(verdict.refused[0].dead);
        assert!(verdict.holds.is_empty());
        let hold = Policy {
            on_dead: OnDead::Hold,
            ..POLICY
        };
        let verdict = judge(&rows, &[refused()], true, &hold);
        assert_eq!(verdict.holds[0].wait, None, "waits for an operator");
    }

    #[test]
    fn each_refusal_waits_longer_and_keeps_the_rows_doubt() {
        let refusal = |attempts, suspect| {
            let row = Row {
                suspect,
                ..row(1, None, "t", None, attempts)
            };
            POLICY.refusal(&row, "too large")
        };
        let (first, second) = (refusal(0, false), refusal(1, true));
        assert_eq!((first.attempts, first.suspect, first.dead), (0, false, false));
        assert_eq!((second.attempts, second.suspect, second.dead), (1, true, false));
        assert!(first.wait <= POLICY.backoff_min, "{:?}", first.wait);
        assert!(second.wait >= POLICY.backoff_min, "{:?}", second.wait);
        assert!(refusal(i16::MAX, false).dead, "and no count overflows");
        let astray = row(1, None, "t", Some("k"), 0);
        assert!(
            POLICY.refusal(&astray, "no lane").dead,
            "another try would end in the same way"
        );
    }

    #[test]
    fn silence_from_all_of_kafka_is_an_outage_and_holds_nobody() {
        let rows = [row(1, Some(0), "t", Some("a"), 0), row(2, Some(1), "u", Some("b"), 0)];
        let verdict = judge(&rows, &[slow(), slow()], false, &POLICY);
        assert!(verdict.outage.is_some());
        assert!(verdict.holds.is_empty());
        assert_eq!(verdict.unknown, [1, 2]);
    }

    #[test]
    fn silence_from_one_topic_parks_that_topic() {
        let rows = [row(1, Some(0), "t", Some("a"), 0), row(2, Some(0), "u", Some("b"), 0)];
        let verdict = judge(&rows, &[slow(), Outcome::Acked], false, &POLICY);
        assert!(verdict.outage.is_none());
        assert_eq!(verdict.holds.len(), 1);
        assert_eq!(
            (verdict.holds[0].topic.as_str(), verdict.holds[0].unit.as_str()),
            ("t", "")
        );
    }

    #[test]
    fn silence_from_one_partition_pauses_that_partition_in_each_lane_that_met_it() {
        // By the known answers of murmur2: "21" belongs to partition 0 of four, "foobar" to 2 and "abc" to 3.
        let rows = [
            row(1, Some(0), "t", Some("21"), 0),
            row(2, Some(0), "t", Some("foobar"), 0),
            row(3, Some(1), "t", Some("21"), 0),
            row(4, None, "t", None, 0),
        ];
        let mut outcomes: Vec<_> = rows
            .iter()
            .map(|row| partition_sick(row, TopicFault::Transient))
            .collect();
        outcomes[1] = Outcome::Acked;
        let verdict = judge(&rows, &outcomes, false, &POLICY);
        let held: Vec<_> = verdict
            .holds
            .iter()
            .map(|hold| (hold.lane, hold.unit.clone()))
            .collect();
        let unordered = (KEYLESS, partition_of(&rows[3]).unit());
        assert_eq!(held, [unordered, (0, "s:0/4".to_owned()), (1, "s:0/4".to_owned())]);
        assert!(
            verdict
                .holds
                .iter()
                .all(|hold| hold.head_id.is_none() && hold.failures == 1)
        );
        let holds_back = |lane, key| verdict.holds_back(&row(9, Some(lane), "t", Some(key), 0));
        assert!(holds_back(0, "21") && holds_back(1, "21"));
        assert!(!holds_back(0, "foobar") && !holds_back(0, "abc") && !holds_back(2, "21"));
    }

    #[test]
    fn a_partition_known_to_be_paused_is_held_though_nothing_was_acknowledged() {
        let rows = [row(1, Some(0), "t", Some("21"), 0)];
        let paused = judge(&rows, &[partition_sick(&rows[0], TopicFault::Paused)], false, &POLICY);
        assert_eq!((paused.outage, paused.holds.len()), (None, 1));
        assert_eq!((paused.unsent, paused.unknown), (vec![1], vec![]));
        let silent = judge(
            &rows,
            &[partition_sick(&rows[0], TopicFault::Transient)],
            false,
            &POLICY,
        );
        assert!(silent.outage.is_some() && silent.holds.is_empty());
    }

    #[test]
    fn what_takes_nothing_is_tried_again_soon_however_patient_we_are_with_refused_rows() {
        let patient = Policy {
            backoff_min: Duration::from_secs(600),
            ..POLICY
        };
        assert_eq!(patient.probe_wait(1), PROBE_WAIT_MAX);
        assert!(POLICY.probe_wait(1) <= POLICY.backoff_min);
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            4 => Just(Outcome::Acked),
            2 => Just(Outcome::Unsent),
            1 => Just(Outcome::Unknown),
            1 => Just(refused()),
            1 => Just(put_off()),
            1 => (any::<bool>(), any::<bool>()).prop_map(|(gone, maybe_landed)| Outcome::Sick {
                fault: if gone { TopicFault::Unusable } else { TopicFault::Transient },
                partition: None,
                reason: "sick".into(),
                maybe_landed,
            }),
            // Of its row's own partition, once that is drawn.
            1 => Just(partition_sick(&row(0, None, "", None, 0), TopicFault::Transient)),
            1 => Just(partition_sick(&row(0, None, "", None, 0), TopicFault::Paused)),
        ]
    }

    fn any_batch() -> impl Strategy<Value = Vec<(Row, Outcome)>> {
        let one = (0..3u8, prop::option::of(0..4u8), 0..4i16, any_outcome());
        prop::collection::vec(one, 0..40).prop_map(|drawn| {
            drawn
                .into_iter()
                .enumerate()
                .map(|(id, (topic, key, attempts, outcome))| {
                    let key = key.map(|k| format!("k{k}"));
                    let lane = key.as_ref().map(|k| i16::from(k.as_bytes()[1] % 2));
                    let row = row(id as i64, lane, &format!("t{topic}"), key.as_deref(), attempts);
                    let outcome = match outcome {
                        Outcome::Sick {
                            fault,
                            partition: Some(_),
                            ..
                        } => partition_sick(&row, fault),
                        outcome => outcome,
                    };
                    (row, outcome)
                })
                .collect()
        })
    }

    proptest! {
        /// The plain model: each row alone, by the table in the design of verdicts.
        #[test]
        fn every_row_gets_the_verdict_of_the_plain_model(
            batch in any_batch(), answers: bool, hold_dead: bool,
        ) {
            let policy = Policy { on_dead: if hold_dead { OnDead::Hold } else { OnDead::Continue }, ..POLICY };
            let (rows, outcomes): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let verdict = judge(&rows, &outcomes, answers, &policy);
            let alive = answers || outcomes.contains(&Outcome::Acked);
            for (row, outcome) in rows.iter().zip(&outcomes) {
                let refusal = verdict.refused.iter().find(|r| r.id == row.id);
                let places = [
                    verdict.published.contains(&row.id),
                    verdict.unsent.contains(&row.id),
                    verdict.unknown.contains(&row.id),
                    refusal.is_some(),
                ];
                prop_assert_eq!(places.iter().filter(|p| **p).count(), 1, "exactly one fate each");
                match outcome {
                    Outcome::Acked => prop_assert!(places[0]),
                    Outcome::Unsent => prop_assert!(places[1]),
                    Outcome::Unknown => prop_assert!(places[2]),
                    Outcome::Refused { .. } => {
                        let refusal = refusal.expect("refused");
                        prop_assert_eq!(refusal.dead, row.attempts + 1 >= policy.max_attempts);
                        let kept = !refusal.dead || hold_dead;
                        if row.lane.is_some() && kept {
                            prop_assert!(verdict.holds_back(row), "a refused head holds its key");
                        }
                    }
                    Outcome::PutOff { .. } => {
                        prop_assert!(places[1]);
                        prop_assert!(row.lane.is_none() || verdict.holds_back(row), "its key waits for it");
                    }
                    Outcome::Sick { fault, maybe_landed, partition, .. } => {
                        let place = 1 + usize::from(*maybe_landed);
                        prop_assert!(places[place]);
                        let outage = *fault == TopicFault::Transient && !alive;
                        let lane = row.lane.unwrap_or(KEYLESS);
                        let unit = partition.map_or_else(String::new, Partition::unit);
                        let parked = verdict.holds.iter().any(|h| h.lane == lane && h.topic == row.topic && h.unit == unit);
                        if outage {
                            prop_assert!(verdict.outage.is_some());
                        } else {
                            prop_assert!(parked, "a sick topic is parked in its lane, or a partition of it");
                            prop_assert!(row.lane.is_none() || verdict.holds_back(row), "and keeps the row back");
                        }
                    }
                }
            }
            for hold in &verdict.holds {
                let cause = rows.iter().zip(&outcomes).any(|(row, outcome)| {
                    row.lane.unwrap_or(KEYLESS) == hold.lane && row.topic == hold.topic
                        && match outcome {
                            Outcome::Refused { .. } | Outcome::PutOff { .. } => hold.head_id == Some(row.id),
                            Outcome::Sick { partition, .. } => hold.unit == partition.map_or_else(String::new, Partition::unit),
                            _ => false,
                        }
                });
                prop_assert!(cause, "no hold without a cause: {:?}", hold);
            }
            if alive {
                prop_assert_eq!(verdict.outage, None);
            }
        }

        #[test]
        fn backoff_grows_and_stays_within_its_bounds(failures in 1u32..1000) {
            let wait = POLICY.backoff(failures);
            prop_assert!(wait >= POLICY.backoff_min / 2 && wait <= POLICY.backoff_max);
        }
    }
}
