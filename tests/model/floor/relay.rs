//! The owner of the lane. It does what `src/tasks/relay.rs` does with its claims and reports, `src/tasks/watermark.rs` with open
//! writers, and `src/tasks/retry_holds/` with a release.

use outboxd::domain::floor::{Floor, ScanResult};
use outboxd::domain::watermark::{Watermark, WatermarkTracker, Writers};

use super::writer::Writer;
use super::{Hold, State};
use crate::rules::{Rule, Rules};

/// As many rows as one claim takes.
const LIMIT: usize = 2;

/// What the owner remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Relay {
    floor: Floor,
    stored_floor: i64,
    epoch: u8,
    incarnation: u8,
    tracker: WatermarkTracker,
    /// The highest id when the last observation began.
    observed_up_to: i64,
    first_half: Option<FirstHalf>,
    batch: Option<Batch>,
    /// A hold that should have been written with its batch and was not.
    owed_hold: Option<Hold>,
    head_acked: bool,
    /// A hold was released down to here; our own floor follows.
    lower_to: Option<i64>,
    released: bool,
}

/// An observation of open writers takes two reads. This is the result of the first one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FirstHalf {
    HighestId(i64),
    Writers(Writers),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Batch {
    /// The watermark before the claim.
    watermark: Watermark,
    /// The claim started at a soft floor that bypasses these open writers. It counts only once they are proven to be open still.
    unproven: Option<Vec<i64>>,
    rows: Vec<(usize, i64)>,
    /// How many of the rows have been decided.
    next: usize,
    acked: Vec<usize>,
    refused: Option<usize>,
}

/// `store_floors` on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    pub floor: i64,
    pub epoch: u8,
    pub incarnation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    ReadFirstHalf,
    ReadSecondHalf,
    Observe,
    /// A writer has been open for too long.
    Soften,
    Claim,
    Prove,
    Deliver,
    Refuse,
    Fail,
    WriteOutcome,
    WriteOwedHold,
    StoreFloor,
    SendHead,
    Release,
    LowerFloor,
    /// Notices that the server is another one.
    Reset,
}

impl Step {
    pub const ALL: [Step; 16] = [
        Step::Claim,
        Step::Prove,
        Step::Soften,
        Step::Deliver,
        Step::WriteOutcome,
        Step::ReadFirstHalf,
        Step::ReadSecondHalf,
        Step::Observe,
        Step::SendHead,
        Step::Release,
        Step::LowerFloor,
        Step::WriteOwedHold,
        Step::StoreFloor,
        Step::Refuse,
        Step::Fail,
        Step::Reset,
    ];
}

impl Relay {
    pub fn starting_at(floor: i64, epoch: u8, incarnation: u8) -> Self {
        Self {
            floor: Floor::at(floor),
            stored_floor: floor,
            epoch,
            incarnation,
            ..Self::default()
        }
    }

    pub fn has_released(&self) -> bool {
        self.released
    }

    pub fn tracker(&self) -> &WatermarkTracker {
        &self.tracker
    }

    fn is_between_batches(&self) -> bool {
        self.batch.is_none() && self.lower_to.is_none()
    }
}

impl State {
    pub fn step(&mut self, rules: &Rules, step: Step) -> bool {
        let is_elsewhere = self.relay.incarnation != self.incarnation && rules.has(Rule::FloorsEndWithTheServer);
        if is_elsewhere != (step == Step::Reset) {
            return false;
        }
        match step {
            Step::ReadFirstHalf => self.read_first_half(rules),
            Step::ReadSecondHalf => self.read_second_half(rules),
            Step::Observe => self.observe(rules),
            Step::Soften => self.bypass_old_writers(),
            Step::Claim => self.claim(rules),
            Step::Prove => self.prove(rules),
            Step::Deliver => self.deliver(),
            Step::Refuse => self.spend() && self.refuse(rules),
            Step::Fail => self.spend() && self.fail(),
            Step::WriteOutcome => self.write_outcome(rules),
            Step::WriteOwedHold => self.write_owed_hold(),
            Step::StoreFloor => self.store_floor(),
            Step::SendHead => self.send_head(),
            Step::Release => self.release(rules),
            Step::LowerFloor => self.lower_floor(),
            Step::Reset => self.begin_term(),
        }
    }

    fn writing(&self, rules: &Rules) -> Writers {
        let visible = |(number, writer): (usize, &Writer)| match writer {
            Writer::Drawn { has_transaction_id, .. } => {
                let id = has_transaction_id.then_some(number as i64);
                let is_visible = id.is_some() || rules.has(Rule::WritersAreLockHolders);
                is_visible.then(|| (number.to_string(), id))
            }
            _ => None,
        };
        self.writers.iter().enumerate().filter_map(visible).collect()
    }

    fn read_first_half(&mut self, rules: &Rules) -> bool {
        let highest = self.next_id - 1;
        if self.relay.first_half.is_some() || highest <= self.relay.observed_up_to {
            return false;
        }
        self.relay.observed_up_to = highest;
        self.relay.first_half = Some(if rules.has(Rule::HighestIdFirst) {
            FirstHalf::HighestId(highest)
        } else {
            FirstHalf::Writers(self.writing(rules))
        });
        true
    }

    fn read_second_half(&mut self, rules: &Rules) -> bool {
        let Some(half) = self.relay.first_half.take() else {
            return false;
        };
        let (highest, writers) = match half {
            FirstHalf::HighestId(highest) => (highest, self.writing(rules)),
            FirstHalf::Writers(writers) => (self.next_id - 1, writers),
        };
        self.observe_writers(rules, highest, &writers);
        true
    }

    fn observe_writers(&mut self, rules: &Rules, highest: i64, writers: &Writers) {
        self.bypassed_end(rules, |tracker| tracker.observe(highest, writers));
    }

    /// A change of the tracker that may reveal the end of bypassed writers.
    fn bypassed_end(&mut self, rules: &Rules, change: impl FnOnce(&mut WatermarkTracker)) {
        let start = self.relay.floor.start(self.tracker());
        let before = self.tracker().watermark();
        change(&mut self.relay.tracker);
        let after = self.tracker().watermark();
        if after.generation > before.generation && !rules.has(Rule::SoftFloorsFall) {
            let unchanged = Watermark {
                hard: 0,
                soft: start,
                ..after
            };
            self.relay.floor.advance(ScanResult::of_everything(unchanged));
        }
    }

    fn observe(&mut self, rules: &Rules) -> bool {
        let writers = self.writing(rules);
        self.observe_writers(rules, self.next_id - 1, &writers);
        true
    }

    fn bypass_old_writers(&mut self) -> bool {
        self.relay.tracker.bypass_old_writers();
        true
    }

    fn is_held(&self, rules: &Rules) -> bool {
        self.hold.is_some() && rules.has(Rule::ClaimsLeaveOutTheHeld)
    }

    fn claim(&mut self, rules: &Rules) -> bool {
        let watermark = self.tracker().watermark();
        let is_held = self.is_held(rules);
        let start = self.relay.floor.start(self.tracker());
        let mut rows: Vec<_> = self.pending().filter(|(_, id)| *id > start && !is_held).collect();
        rows.sort_unstable_by_key(|(_, id)| *id);
        rows.truncate(LIMIT);
        let is_past = watermark.soft <= start && watermark.hard <= self.relay.floor.hard();
        if !self.relay.is_between_batches() || (rows.is_empty() && is_past) {
            return false;
        }
        self.relay.batch = Some(Batch {
            watermark,
            unproven: (start > self.relay.floor.hard() && rules.has(Rule::SoftClaimsAreProven))
                .then(|| self.tracker().bypassed_below(start)),
            rows,
            next: 0,
            acked: Vec::new(),
            refused: None,
        });
        true
    }

    /// None of the writers that the soft floor bypasses may have ended when the claim was made. One that is open now was open then.
    fn prove(&mut self, rules: &Rules) -> bool {
        let Some(batch) = &mut self.relay.batch else {
            return false;
        };
        let Some(bypassed) = batch.unproven.take() else {
            return false;
        };
        let is_open = |writer: &i64| self.writers[*writer as usize].drawn().is_some();
        let ended: Vec<i64> = bypassed.into_iter().filter(|writer| !is_open(writer)).collect();
        if !ended.is_empty() {
            self.relay.batch = None;
            self.bypassed_end(rules, |tracker| tracker.end(&ended));
        }
        true
    }

    fn land(&mut self, row: usize) {
        if !self.log.contains(&row) {
            self.log.push(row);
        }
    }

    fn deliver(&mut self) -> bool {
        let Some(batch) = self.relay.batch.as_mut().filter(|batch| batch.unproven.is_none()) else {
            return false;
        };
        let Some((row, _)) = batch.rows.get(batch.next).copied() else {
            return false;
        };
        batch.next += 1;
        batch.acked.push(row);
        self.land(row);
        true
    }

    fn refuse(&mut self, rules: &Rules) -> bool {
        let Some(batch) = self.relay.batch.as_mut().filter(|batch| batch.unproven.is_none()) else {
            return false;
        };
        let Some((row, _)) = batch.rows.get(batch.next) else {
            return false;
        };
        batch.refused = Some(*row);
        batch.next += 1;
        if rules.has(Rule::NothingOvertakesTheRefused) {
            batch.next = batch.rows.len();
        }
        true
    }

    /// Kafka does not answer: the remaining rows stay pending.
    fn fail(&mut self) -> bool {
        let Some(batch) = self.relay.batch.as_mut().filter(|batch| batch.unproven.is_none()) else {
            return false;
        };
        let is_under_way = batch.next < batch.rows.len();
        batch.next = batch.rows.len();
        is_under_way
    }

    /// Marks and holds are written, and the lane is checked in with a report of the scan.
    fn write_outcome(&mut self, rules: &Rules) -> bool {
        let done = self
            .relay
            .batch
            .take_if(|batch| batch.unproven.is_none() && batch.next == batch.rows.len());
        let Some(batch) = done else { return false };
        for row in &batch.acked {
            self.published[*row] = true;
        }
        let hold = batch.refused.map(|head| self.hold_for(rules, head, &batch));
        if rules.has(Rule::HoldComesBeforeTheFloor) {
            self.hold = hold.clone().or(self.hold.take());
        } else {
            self.relay.owed_hold = hold.clone();
        }
        let left = batch
            .rows
            .iter()
            .filter(|(row, _)| !batch.acked.contains(row) && hold.is_none());
        let highest_seen = batch.rows.last().map_or(0, |(_, id)| *id);
        let scan = ScanResult {
            watermark: match (
                rules.has(Rule::FloorWaitsForWriters),
                rules.has(Rule::WatermarkBeforeTheClaim),
            ) {
                (false, _) => Watermark {
                    hard: highest_seen,
                    soft: highest_seen,
                    ..batch.watermark
                },
                (_, false) => self.tracker().watermark(),
                _ => batch.watermark,
            },
            scanned_to: (batch.rows.len() == LIMIT).then_some(highest_seen),
            lowest_pending: left
                .map(|(_, id)| *id)
                .next()
                .filter(|_| rules.has(Rule::FloorStaysBelowTheLeft)),
        };
        self.relay.floor.advance(scan);
        true
    }

    fn hold_for(&self, rules: &Rules, head: usize, batch: &Batch) -> Hold {
        let head_id = batch.rows.iter().find(|(row, _)| *row == head).map_or(0, |(_, id)| *id);
        let remembers_floor = rules.has(Rule::HoldRemembersTheFloor);
        Hold {
            head,
            resume_floor: if remembers_floor {
                self.relay.floor.hard()
            } else {
                head_id - 1
            },
        }
    }

    fn write_owed_hold(&mut self) -> bool {
        self.hold = self.relay.owed_hold.take();
        self.hold.is_some()
    }

    fn store_floor(&mut self) -> bool {
        let relay = &mut self.relay;
        let floor = relay.floor.hard();
        if self.store.is_some() || floor <= relay.stored_floor {
            return false;
        }
        relay.stored_floor = floor;
        self.store = Some(Store {
            floor,
            epoch: relay.epoch,
            incarnation: relay.incarnation,
        });
        true
    }

    fn send_head(&mut self) -> bool {
        let Some(hold) = &self.hold else { return false };
        let head = hold.head;
        let is_first = !self.relay.head_acked;
        self.relay.head_acked = true;
        self.land(head);
        is_first
    }

    /// One transaction: the head is marked, the hold is gone, the stored floor is low enough again.
    fn release(&mut self, rules: &Rules) -> bool {
        if !self.relay.head_acked || !self.relay.is_between_batches() {
            return false;
        }
        let Some(hold) = self.hold.take() else { return false };
        self.published[hold.head] = true;
        if rules.has(Rule::ReleaseLowersTheStoredFloor) {
            self.stored_floor = self.stored_floor.min(hold.resume_floor);
        }
        if rules.has(Rule::ReleaseRaisesTheEpoch) {
            self.epoch += 1;
        }
        self.relay.lower_to = Some(hold.resume_floor);
        true
    }

    /// The owner has heard that the release is written.
    fn lower_floor(&mut self) -> bool {
        let Some(floor) = self.relay.lower_to.take() else {
            return false;
        };
        self.stored_floor = self.stored_floor.min(floor);
        self.relay.floor.lower(floor);
        self.relay.stored_floor = self.relay.stored_floor.min(floor);
        self.relay.epoch = self.epoch;
        self.relay.head_acked = false;
        self.relay.released = true;
        true
    }
}
