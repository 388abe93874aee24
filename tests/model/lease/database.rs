//! What the statements do: `renew`, `take`, `give_up`, `leave`, `record` and `mark` of `src/outbox/`.

use super::{LEASE, State};
use crate::rules::{Rule, Rules};

/// A row of `outbox.worker`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub left: u8,
    pub stopped: bool,
    /// Its process has left in order.
    pub departed: bool,
}

impl Default for Term {
    fn default() -> Self {
        Self {
            left: LEASE,
            stopped: false,
            departed: false,
        }
    }
}

/// The row of `outbox.lane`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    pub owner: Option<u8>,
    pub epoch: u8,
    /// Rows that may have been sent.
    pub maybe_sent: u8,
}

/// A statement on its way. Those that the rules make one step are one; the others read first and write later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Renew {
        term: u8,
    },
    /// The row was found alive; `changed` since then: it is read again under the lock.
    RenewFound {
        term: u8,
        changed: bool,
    },
    Take {
        term: u8,
    },
    /// Without the lock: the owner it found expired or gone.
    TakeFound {
        term: u8,
        owner: Option<u8>,
    },
    GiveUp {
        term: u8,
        epoch: u8,
    },
    Leave {
        term: u8,
        epoch: Option<u8>,
    },
    Mark {
        term: u8,
        epoch: u8,
        rows: u8,
        unsettled: Unsettled,
    },
    /// Without the lock: found to be ours.
    MarkFound {
        term: u8,
        epoch: u8,
        rows: u8,
        unsettled: Unsettled,
    },
}

/// What else a mark writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unsettled {
    /// Of the batch: it goes.
    pub record: u8,
    /// Rows of the batch that Kafka gave no answer for.
    pub unknown: u8,
}

/// The result of a statement.
pub enum Ran {
    /// Not yet: there is a second half.
    Next(Request),
    /// Done; `None`: it matched nothing.
    Answer(Option<u8>),
}

impl State {
    fn is_live(&self, term: u8) -> bool {
        let term = &self.terms[usize::from(term)];
        term.left > 0 && !term.stopped
    }

    fn stamp(&mut self, term: u8) {
        self.terms[usize::from(term)].stopped = true;
        for process in &mut self.processes {
            if let Some(ask) = &mut process.ask
                && let Request::RenewFound { term: found, changed } = &mut ask.request
                && *found == term
            {
                *changed = true;
            }
        }
    }

    /// Runs one half of a statement.
    pub fn run(&mut self, rules: &Rules, request: Request) -> Ran {
        match request {
            Request::Renew { term } if self.may_renew(rules, term) => {
                Ran::Next(Request::RenewFound { term, changed: false })
            }
            Request::RenewFound { term, changed } if !changed || self.may_renew(rules, term) => {
                self.terms[usize::from(term)].left = LEASE;
                Ran::Answer(Some(0))
            }
            Request::Renew { .. } | Request::RenewFound { .. } => Ran::Answer(None),
            Request::Take { term } => self.take(rules, term),
            Request::TakeFound { term, owner } => self.take_from(rules, term, owner),
            Request::GiveUp { term, epoch } => {
                self.free(term, epoch);
                Ran::Answer(Some(0))
            }
            Request::Leave { term, epoch } => self.leave(rules, term, epoch),
            Request::Mark { term, epoch, .. } => self.mark(rules, term, epoch, request),
            Request::MarkFound {
                term,
                epoch,
                rows,
                unsettled,
            } => self.write_marks(rules, (term, epoch), rows, unsettled),
        }
    }

    fn may_renew(&self, rules: &Rules, term: u8) -> bool {
        self.is_live(term) || !rules.has(Rule::RenewalRevivesNobody)
    }

    fn take(&mut self, rules: &Rules, term: u8) -> Ran {
        let owner = self.lane.owner;
        let is_free = owner.is_none_or(|owner| owner != term && !self.is_live(owner));
        if !is_free || !self.is_live(term) {
            return Ran::Answer(None);
        }
        if rules.has(Rule::TakeLocksTheWorker) {
            self.take_from(rules, term, owner)
        } else {
            Ran::Next(Request::TakeFound { term, owner })
        }
    }

    fn take_from(&mut self, rules: &Rules, term: u8, owner: Option<u8>) -> Ran {
        if self.lane.owner != owner || !self.is_live(term) {
            return Ran::Answer(None);
        }
        if let Some(owner) = owner
            && rules.has(Rule::TakeStampsTheWorker)
        {
            self.stamp(owner);
        }
        self.unlucky |= owner.is_some();
        if let Some(owner) = owner {
            self.lane.maybe_sent |= self.records[usize::from(owner)].1 & !self.marked;
        }
        self.lane.owner = Some(term);
        self.lane.epoch += 1;
        self.wrong.owns_after_leaving |= self.terms[usize::from(term)].departed;
        Ran::Answer(Some(self.lane.epoch))
    }

    fn free(&mut self, term: u8, epoch: u8) {
        if self.lane.owner == Some(term) && self.lane.epoch == epoch {
            self.lane.owner = None;
        }
    }

    fn leave(&mut self, rules: &Rules, term: u8, epoch: Option<u8>) -> Ran {
        if rules.has(Rule::LeavingStamps) {
            self.stamp(term);
        }
        self.terms[usize::from(term)].departed = true;
        if let Some(epoch) = epoch {
            self.free(term, epoch);
        }
        Ran::Answer(None)
    }

    /// Writes down what is about to be sent, and answers its number; `None`: the lane is not ours, or the lease is over.
    pub fn record(&mut self, rules: &Rules, term: u8, epoch: u8, rows: u8) -> Option<u8> {
        let is_ours = self.lane.owner == Some(term) && self.lane.epoch == epoch && self.is_live(term);
        // Any number but that of a mark that may still run.
        let number = match self.zombie {
            Some(Request::Mark { unsettled, .. } | Request::MarkFound { unsettled, .. }) => 1 - unsettled.record,
            _ => 0,
        };
        if is_ours && rules.has(Rule::SendsAreRecorded) {
            self.records[usize::from(term)] = (number, rows);
        }
        is_ours.then_some(number)
    }

    fn mark(&mut self, rules: &Rules, term: u8, epoch: u8, request: Request) -> Ran {
        let Request::Mark { rows, unsettled, .. } = request else {
            return Ran::Answer(None);
        };
        let is_ours =
            self.lane.owner == Some(term) && (self.lane.epoch == epoch || !rules.has(Rule::MarkChecksTheEpoch));
        if !is_ours {
            return Ran::Answer(None);
        }
        if rules.has(Rule::MarkLocksTheLane) {
            self.write_marks(rules, (term, epoch), rows, unsettled)
        } else {
            Ran::Next(Request::MarkFound {
                term,
                epoch,
                rows,
                unsettled,
            })
        }
    }

    fn write_marks(&mut self, rules: &Rules, (term, epoch): (u8, u8), rows: u8, unsettled: Unsettled) -> Ran {
        self.wrong.stale_mark |= self.lane.owner != Some(term) || self.lane.epoch != epoch;
        self.marked |= rows;
        let record = &mut self.records[usize::from(term)];
        if record.0 == unsettled.record {
            *record = (0, 0);
        }
        if rules.has(Rule::UnknownStaysMaybeSent) {
            self.lane.maybe_sent |= unsettled.unknown;
        }
        self.lane.maybe_sent &= !self.marked;
        Ran::Answer(Some(0))
    }
}
