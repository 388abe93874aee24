//! What must be written after a batch was published: the decisions about its rows, combined.

use std::collections::{BTreeMap, BTreeSet};

use super::decision::{Decision, HoldFate, KafkaFate, Refusal, RowFate};
use super::hold::NewHold;
use super::retry::{Attempt, Event, RetryPolicy, Sent};
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::pause::Pauses;
use crate::domain::row::Row;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchOutcome {
    pub published: Vec<i64>,
    pub refused: Vec<Refusal>,
    pub holds: Vec<NewHold>,
    /// Rows that were certainly not sent.
    pub unsent: Vec<i64>,
    /// Rows that are not known to be published, but may have been sent. The next copy must be flagged.
    pub maybe_sent: Vec<i64>,
    /// Those of `maybe_sent` that Kafka has, but that another transaction has locked. They are marked later, and not sent again.
    pub unmarked: Vec<i64>,
    /// The partitions that accepted nothing while others answered, by topic, and why.
    pub paused: BTreeMap<(String, Partition), String>,
    /// Why nothing reached Kafka at all, if so. Everything waits for it, and nothing is held.
    pub outage: Option<String>,
}

impl BatchOutcome {
    /// Decides about each row. `kafka_answers` says whether Kafka has acknowledged anything to this process since the batch
    /// began, and `jitter` is drawn for each row.
    pub fn of(
        rows: &[Row],
        deliveries: &[Delivery],
        kafka_answers: bool,
        policy: &RetryPolicy,
        mut jitter: impl FnMut() -> f64,
    ) -> Self {
        debug_assert_eq!(rows.len(), deliveries.len());
        let attempt = Attempt {
            sent: Sent::InBatch,
            kafka_answers: kafka_answers || deliveries.contains(&Delivery::Acked),
        };
        let mut outcome = BatchOutcome::default();
        let mut held_units = BTreeSet::new();
        // Sorted by unit, because every statement that locks several holds of a topic does so in this order.
        let mut paused_units = BTreeMap::new();
        for (row, delivery) in rows.iter().zip(deliveries) {
            let Decision { row: fate, hold, kafka } = policy.decide(attempt, Event::Delivered(row, delivery), jitter());
            outcome.add(row.id, fate);
            match hold {
                HoldFate::Create(hold) if hold.head_id.is_none() => {
                    let unit = (hold.lane, hold.topic.clone(), hold.unit.clone());
                    paused_units.entry(unit).or_insert(hold);
                }
                // The first row of a key that remains is its head. Rows behind it wait with the others of the key.
                HoldFate::Create(hold) => {
                    if held_units.insert((hold.topic.clone(), hold.unit.clone())) {
                        outcome.holds.push(hold);
                    }
                }
                HoldFate::Unchanged
                | HoldFate::Postpone { .. }
                | HoldFate::PostponeAll { .. }
                | HoldFate::Release
                | HoldFate::ReleaseAll => {}
            }
            match kafka {
                KafkaFate::Unchanged => {}
                KafkaFate::PausePartition { partition, reason } => {
                    outcome.paused.entry((row.topic.clone(), partition)).or_insert(reason);
                }
                KafkaFate::PauseEverything { reason } => outcome.outage = Some(reason),
            }
        }
        outcome.holds.extend(paused_units.into_values());
        outcome
    }

    fn add(&mut self, id: i64, fate: RowFate) {
        match fate {
            RowFate::Published => self.published.push(id),
            RowFate::PublishedUnmarked => {
                self.maybe_sent.push(id);
                self.unmarked.push(id);
            }
            RowFate::Pending { maybe_sent: true } => self.maybe_sent.push(id),
            RowFate::Pending { maybe_sent: false } => self.unsent.push(id),
            RowFate::Refused(refusal) => self.refused.push(refusal),
            RowFate::Gone => {}
        }
    }

    /// Was every row acknowledged? This is the common case, which takes one statement.
    pub fn is_clean(&self) -> bool {
        self.refused.is_empty() && self.holds.is_empty() && self.unsent.is_empty() && self.maybe_sent.is_empty()
    }

    /// Adds rows of the batch that were not sent because they are paused: they are held.
    pub fn keep_back(&mut self, paused: &[Row], pauses: &Pauses, policy: &RetryPolicy) {
        let attempt = Attempt {
            sent: Sent::InBatch,
            kafka_answers: true,
        };
        let mut held_units = BTreeSet::new();
        for row in paused {
            let Some(pause) = pauses.covering(row) else { continue };
            let decision = policy.decide(attempt, Event::Paused(row, pause), 0.0);
            self.add(row.id, decision.row);
            if let HoldFate::Create(hold) = decision.hold
                && held_units.insert((hold.lane, hold.topic.clone(), hold.unit.clone()))
            {
                self.holds.push(hold);
            }
        }
        // Holds of unordered rows are shared by all workers, which insert several of them in one order.
        self.holds
            .sort_by(|one, other| (one.lane, &one.topic, &one.unit).cmp(&(other.lane, &other.topic, &other.unit)));
    }

    /// Notes rows that Kafka has since an earlier batch, and that are marked later.
    pub fn leave_unmarked(&mut self, ids: &[i64]) {
        ids.iter().for_each(|id| self.add(*id, RowFate::PublishedUnmarked));
    }

    /// Takes out rows that another transaction has locked, because nothing can be written about them.
    pub fn leave_locked(&mut self, locked: &[i64], policy: &RetryPolicy) {
        let attempt = Attempt {
            sent: Sent::InBatch,
            kafka_answers: true,
        };
        let published: Vec<i64> = self.published.extract_if(.., |id| locked.contains(id)).collect();
        for id in published {
            self.add(id, policy.decide(attempt, Event::MarkLocked, 0.0).row);
        }
        let is_locked = |refusal: &mut Refusal| locked.contains(&refusal.id);
        let refused: Vec<Refusal> = self.refused.extract_if(.., is_locked).collect();
        for refusal in refused {
            // Its wait was drawn when it was refused.
            let decision = policy.decide(attempt, Event::RefusalLocked(&refusal), 0.0);
            self.add(refusal.id, decision.row);
            if let HoldFate::Postpone { wait, .. } = decision.hold {
                let of_row = self.holds.iter_mut().filter(|hold| hold.head_id == Some(refusal.id));
                of_row.for_each(|hold| hold.wait = wait);
            }
        }
    }

    /// Was this row of the batch acknowledged?
    pub fn has_published(&self, id: i64) -> bool {
        self.is_clean() || self.published.binary_search(&id).is_ok()
    }

    /// Rows that are returned unpublished although this attempt or an earlier one may have left a copy.
    pub fn returned_maybe_sent(&self) -> impl Iterator<Item = i64> {
        let refused = self.refused.iter().filter(|refusal| refusal.is_retried_flagged());
        let pending = self.maybe_sent.iter().filter(|id| !self.unmarked.contains(id));
        refused.map(|refusal| refusal.id).chain(pending.copied())
    }

    /// Does a hold of this batch keep the row back?
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::delivery::Unavailability;
    use crate::domain::pause::Pause;
    use crate::domain::retry::OnDead;
    use crate::domain::row::{self, UNORDERED_LANE};

    const POLICY: RetryPolicy = RetryPolicy {
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
            ..row::tests::row(id)
        }
    }

    fn outcome_of(rows: &[Row], deliveries: &[Delivery], kafka_answers: bool, policy: &RetryPolicy) -> BatchOutcome {
        BatchOutcome::of(rows, deliveries, kafka_answers, policy, || 0.5)
    }

    fn refused() -> Delivery {
        Delivery::Refused {
            reason: "too large".into(),
        }
    }

    #[test]
    fn nothing_is_written_about_locked_rows_and_published_ones_stay_unmarked() {
        let mut outcome = BatchOutcome {
            published: vec![1, 2, 5],
            refused: vec![POLICY.refusal(&row(3, Some(0), "t", Some("k"), 0), "too large", 0.5)],
            ..BatchOutcome::default()
        };
        outcome.holds = vec![NewHold {
            lane: 0,
            topic: "t".to_owned(),
            unit: "k:k".to_owned(),
            head_id: Some(3),
            reason: "too large".to_owned(),
            failures: 1,
            wait: None,
        }];
        outcome.leave_locked(&[2, 3], &POLICY);
        assert!(outcome.holds[0].wait.is_some(), "it is not dead, so it is tried again");
        assert_eq!(outcome.published, [1, 5]);
        assert_eq!(
            (outcome.unmarked.as_slice(), outcome.maybe_sent.as_slice()),
            (&[2][..], &[2][..])
        );
        assert_eq!((outcome.refused.len(), outcome.unsent.as_slice()), (0, &[3][..]));
        assert!(!outcome.is_clean() && !outcome.has_published(2) && outcome.has_published(5));
    }

    fn deferred() -> Delivery {
        Delivery::Deferred {
            reason: "another was refused".into(),
        }
    }

    fn slow() -> Delivery {
        Delivery::Unavailable {
            fault: Unavailability::Transient,
            partition: None,
            reason: "no answer".into(),
            maybe_landed: true,
        }
    }

    /// The partition of a topic of four that the row belongs to.
    fn partition_of(row: &Row) -> Partition {
        let number = row.partition_choice().partition(4).expect("a partition");
        Partition { number, of: 4 }
    }

    /// The row's partition is unavailable, not the topic.
    fn partition_unavailable(row: &Row, fault: Unavailability) -> Delivery {
        Delivery::Unavailable {
            fault,
            partition: Some(partition_of(row)),
            reason: "no leader".into(),
            maybe_landed: fault == Unavailability::Transient,
        }
    }

    #[test]
    fn a_clean_batch_is_published_and_nothing_else() {
        let rows = [row(1, Some(0), "t", Some("a"), 0)];
        let outcome = outcome_of(&rows, &[Delivery::Acked], false, &POLICY);
        assert!(outcome.is_clean());
        assert_eq!(outcome.published, [1]);
        for delivery in [refused(), deferred(), Delivery::NotSent, Delivery::Unknown, slow()] {
            assert!(!outcome_of(&rows, &[delivery], true, &POLICY).is_clean());
        }
    }

    #[test]
    fn a_deferred_row_holds_its_key_without_a_failure_and_may_be_sent_at_once() {
        let rows = [
            row(1, Some(0), "t", Some("a"), 0),
            row(2, Some(0), "t", Some("a"), 0),
            row(3, None, "t", None, 0),
        ];
        let outcome = outcome_of(&rows, &[deferred(), Delivery::NotSent, deferred()], true, &POLICY);
        assert_eq!(outcome.unsent, [1, 2, 3]);
        assert!(outcome.refused.is_empty(), "it costs no attempt");
        let [hold] = outcome.holds.as_slice() else {
            panic!("{:?}", outcome.holds)
        };
        assert_eq!((hold.unit.as_str(), hold.head_id), ("k:a", Some(1)));
        assert_eq!((hold.failures, hold.wait), (0, Some(Duration::ZERO)));
        assert!(outcome.holds_back(&rows[1]));
    }

    #[test]
    fn a_refused_row_holds_its_key_and_only_its_key() {
        let rows = [
            row(1, Some(0), "t", Some("a"), 0),
            row(2, Some(0), "t", Some("a"), 0),
            row(3, Some(0), "t", Some("b"), 0),
        ];
        let deliveries = [refused(), Delivery::NotSent, Delivery::Acked];
        let outcome = outcome_of(&rows, &deliveries, false, &POLICY);
        assert_eq!(outcome.published, [3]);
        assert_eq!(outcome.holds.len(), 1);
        assert_eq!(outcome.holds[0].head_id, Some(1));
        assert!(outcome.holds_back(&rows[1]));
        assert!(!outcome.holds_back(&rows[2]));
    }

    #[test]
    fn the_last_attempt_is_a_dead_letter_and_by_default_the_key_continues() {
        let rows = [row(1, Some(0), "t", Some("a"), 2)];
        let outcome = outcome_of(&rows, &[refused()], true, &POLICY);
        assert!(outcome.refused[0].dead);
        assert!(outcome.holds.is_empty());
        let hold = RetryPolicy {
            on_dead: OnDead::Hold,
            ..POLICY
        };
        let outcome = outcome_of(&rows, &[refused()], true, &hold);
        assert_eq!(outcome.holds[0].wait, None, "waits for an operator");
    }

    #[test]
    fn a_timeout_of_all_of_kafka_is_an_outage_and_holds_nothing() {
        let rows = [row(1, Some(0), "t", Some("a"), 0), row(2, Some(1), "u", Some("b"), 0)];
        let outcome = outcome_of(&rows, &[slow(), slow()], false, &POLICY);
        assert!(outcome.outage.is_some());
        assert!(outcome.holds.is_empty());
        assert_eq!(outcome.maybe_sent, [1, 2]);
    }

    #[test]
    fn a_timeout_of_one_topic_parks_that_topic() {
        let rows = [row(1, Some(0), "t", Some("a"), 0), row(2, Some(0), "u", Some("b"), 0)];
        let outcome = outcome_of(&rows, &[slow(), Delivery::Acked], false, &POLICY);
        assert!(outcome.outage.is_none());
        assert_eq!(outcome.holds.len(), 1);
        assert_eq!(
            (outcome.holds[0].topic.as_str(), outcome.holds[0].unit.as_str()),
            ("t", "")
        );
    }

    #[test]
    fn a_timeout_of_one_partition_pauses_that_partition_in_each_lane_with_rows_for_it() {
        // By the expected values of murmur2: "21" belongs to partition 0 of four, "foobar" to 2 and "abc" to 3.
        let rows = [
            row(1, Some(0), "t", Some("21"), 0),
            row(2, Some(0), "t", Some("foobar"), 0),
            row(3, Some(1), "t", Some("21"), 0),
            row(4, None, "t", None, 0),
        ];
        let mut deliveries: Vec<_> = rows
            .iter()
            .map(|row| partition_unavailable(row, Unavailability::Transient))
            .collect();
        deliveries[1] = Delivery::Acked;
        let outcome = outcome_of(&rows, &deliveries, false, &POLICY);
        let held: Vec<_> = outcome
            .holds
            .iter()
            .map(|hold| (hold.lane, hold.unit.clone()))
            .collect();
        let unordered = (UNORDERED_LANE, partition_of(&rows[3]).unit());
        assert_eq!(held, [unordered, (0, "s:0/4".to_owned()), (1, "s:0/4".to_owned())]);
        assert!(
            outcome
                .holds
                .iter()
                .all(|hold| hold.head_id.is_none() && hold.failures == 1)
        );
        let holds_back = |lane, key| outcome.holds_back(&row(9, Some(lane), "t", Some(key), 0));
        assert!(holds_back(0, "21") && holds_back(1, "21"));
        assert!(!holds_back(0, "foobar") && !holds_back(0, "abc") && !holds_back(2, "21"));
    }

    #[test]
    fn a_partition_known_to_be_paused_is_held_though_nothing_was_acknowledged() {
        let rows = [row(1, Some(0), "t", Some("21"), 0)];
        let paused = outcome_of(
            &rows,
            &[partition_unavailable(&rows[0], Unavailability::Paused)],
            false,
            &POLICY,
        );
        assert_eq!((paused.outage, paused.holds.len()), (None, 1));
        assert_eq!((paused.unsent, paused.maybe_sent), (vec![1], vec![]));
        let silent = outcome_of(
            &rows,
            &[partition_unavailable(&rows[0], Unavailability::Transient)],
            false,
            &POLICY,
        );
        assert!(silent.outage.is_some() && silent.holds.is_empty());
    }

    fn paused(topic: &str, key: Option<&str>) -> Pause {
        Pause {
            topic: Some(topic.to_owned()),
            key: key.map(str::to_owned),
            reason: "broken consumer".to_owned(),
        }
    }

    #[test]
    fn paused_rows_are_held_by_topic_or_key_and_the_others_are_as_they_were() {
        let sent = [row(1, Some(0), "t", Some("a"), 2), row(2, Some(0), "t", Some("b"), 0)];
        let kept_back = [
            row(3, Some(0), "t", Some("k"), 2),
            row(4, Some(0), "t", Some("k"), 2),
            row(5, Some(0), "u", Some("k"), 0),
            row(6, Some(1), "u", Some("l"), 0),
            row(7, None, "u", None, 0),
            row(8, Some(0), "u", Some("m"), 0),
        ];
        let pauses = Pauses::new(1, [paused("t", Some("k")), paused("u", None)]);
        let mut outcome = outcome_of(&sent, &[Delivery::Acked, refused()], true, &POLICY);
        outcome.keep_back(&kept_back, &pauses, &POLICY);
        assert_eq!((outcome.published.as_slice(), outcome.refused.len()), (&[1][..], 1));
        assert_eq!(outcome.unsent, [3, 4, 5, 6, 7, 8]);
        let held = outcome.holds.iter();
        let held: Vec<_> = held
            .map(|hold| (hold.lane, hold.topic.as_str(), hold.unit.as_str(), hold.head_id))
            .collect();
        let expected = [
            (UNORDERED_LANE, "u", "", None),
            (0, "t", "k:b", Some(2)),
            (0, "t", "k:k", Some(3)),
            (0, "u", "", None),
            (1, "u", "", None),
        ];
        assert_eq!(held, expected);
        assert!(
            kept_back
                .iter()
                .all(|row| row.lane.is_none() || outcome.holds_back(row))
        );
        assert!(!outcome.holds_back(&row(9, Some(0), "t", Some("a"), 0)));
        let of_pauses = outcome.holds.iter().filter(|hold| hold.head_id != Some(2));
        for hold in of_pauses {
            assert_eq!((hold.failures, hold.wait), (0, Some(Duration::ZERO)), "due at once");
            assert_eq!(hold.reason, "paused: broken consumer");
        }
    }

    #[test]
    fn a_paused_row_that_may_have_been_sent_stays_flagged() {
        let flagged = Row {
            possible_duplicate: true,
            ..row(1, Some(0), "t", Some("k"), 0)
        };
        let mut outcome = BatchOutcome::default();
        outcome.keep_back(&[flagged], &Pauses::new(1, [paused("t", None)]), &POLICY);
        assert_eq!((outcome.maybe_sent.as_slice(), outcome.unsent.len()), (&[1][..], 0));
        assert!(!outcome.is_clean());
    }

    fn any_outcome() -> impl Strategy<Value = Delivery> {
        prop_oneof![
            4 => Just(Delivery::Acked),
            2 => Just(Delivery::NotSent),
            1 => Just(Delivery::Unknown),
            1 => Just(refused()),
            1 => Just(deferred()),
            1 => (any::<bool>(), any::<bool>()).prop_map(|(gone, maybe_landed)| Delivery::Unavailable {
                fault: if gone { Unavailability::Unusable } else { Unavailability::Transient },
                partition: None,
                reason: "unavailable".into(),
                maybe_landed,
            }),
            // The partition is replaced by that of the row.
            1 => Just(partition_unavailable(&row(0, None, "", None, 0), Unavailability::Transient)),
            1 => Just(partition_unavailable(&row(0, None, "", None, 0), Unavailability::Paused)),
        ]
    }

    fn any_batch() -> impl Strategy<Value = Vec<(Row, Delivery)>> {
        let one = (0..3u8, prop::option::of(0..4u8), 0..4i16, any_outcome());
        prop::collection::vec(one, 0..40).prop_map(|drawn| {
            drawn
                .into_iter()
                .enumerate()
                .map(|(id, (topic, key, attempts, delivery))| {
                    let key = key.map(|k| format!("k{k}"));
                    let lane = key.as_ref().map(|k| i16::from(k.as_bytes()[1] % 2));
                    let row = row(id as i64, lane, &format!("t{topic}"), key.as_deref(), attempts);
                    let delivery = match delivery {
                        Delivery::Unavailable {
                            fault,
                            partition: Some(_),
                            ..
                        } => partition_unavailable(&row, fault),
                        delivery => delivery,
                    };
                    (row, delivery)
                })
                .collect()
        })
    }

    proptest! {
        /// Compares the outcome with a plain model, which looks at each row alone.
        #[test]
        fn every_row_has_the_fate_of_the_plain_model(
            batch in any_batch(), answers: bool, hold_dead: bool,
        ) {
            let policy = RetryPolicy { on_dead: if hold_dead { OnDead::Hold } else { OnDead::Continue }, ..POLICY };
            let (rows, deliveries): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let outcome = outcome_of(&rows, &deliveries, answers, &policy);
            let kafka_answers = answers || deliveries.contains(&Delivery::Acked);
            for (row, delivery) in rows.iter().zip(&deliveries) {
                let refusal = outcome.refused.iter().find(|r| r.id == row.id);
                let fates = [
                    outcome.published.contains(&row.id),
                    outcome.unsent.contains(&row.id),
                    outcome.maybe_sent.contains(&row.id),
                    refusal.is_some(),
                ];
                prop_assert_eq!(fates.iter().filter(|p| **p).count(), 1, "exactly one fate each");
                match delivery {
                    Delivery::Acked => prop_assert!(fates[0]),
                    Delivery::NotSent => prop_assert!(fates[1]),
                    Delivery::Unknown => prop_assert!(fates[2]),
                    Delivery::Refused { .. } => {
                        let refusal = refusal.expect("refused");
                        prop_assert_eq!(refusal.dead, row.attempts + 1 >= policy.max_attempts);
                        let kept = !refusal.dead || hold_dead;
                        if row.lane.is_some() && kept {
                            prop_assert!(outcome.holds_back(row), "a refused head holds its key");
                        }
                    }
                    Delivery::Deferred { .. } => {
                        prop_assert!(fates[1]);
                        prop_assert!(row.lane.is_none() || outcome.holds_back(row), "its key waits for it");
                    }
                    Delivery::Unavailable { fault, maybe_landed, partition, .. } => {
                        let fate = 1 + usize::from(*maybe_landed);
                        prop_assert!(fates[fate]);
                        let outage = *fault == Unavailability::Transient && !kafka_answers;
                        let lane = row.lane.unwrap_or(UNORDERED_LANE);
                        let unit = partition.map_or_else(String::new, Partition::unit);
                        let parked = outcome.holds.iter().any(|h| h.lane == lane && h.topic == row.topic && h.unit == unit);
                        if outage {
                            prop_assert!(outcome.outage.is_some());
                        } else {
                            prop_assert!(parked, "an unavailable topic is parked in its lane, or a partition of it");
                            prop_assert!(row.lane.is_none() || outcome.holds_back(row), "and keeps the row back");
                        }
                    }
                }
            }
            for hold in &outcome.holds {
                let cause = rows.iter().zip(&deliveries).any(|(row, delivery)| {
                    row.lane.unwrap_or(UNORDERED_LANE) == hold.lane && row.topic == hold.topic
                        && match delivery {
                            Delivery::Refused { .. } | Delivery::Deferred { .. } => hold.head_id == Some(row.id),
                            Delivery::Unavailable { partition, .. } => {
                                hold.unit == partition.map_or_else(String::new, Partition::unit)
                            }
                            _ => false,
                        }
                });
                prop_assert!(cause, "no hold without a cause: {:?}", hold);
            }
            if kafka_answers {
                prop_assert_eq!(outcome.outage, None);
            }
        }
    }
}
