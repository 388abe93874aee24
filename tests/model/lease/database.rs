//! What the statements do: `renew`, `take`, `give_up`, `leave` and `mark` of `src/outbox/`.

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
}

/// A statement on its way. Those that the rules make one step are one; the others look first and write later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Renew {
        term: u8,
    },
    /// The row was found alive; `changed` since then: it is looked at again under the lock.
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
    },
    /// Without the lock: found to be ours.
    MarkFound {
        term: u8,
        epoch: u8,
        rows: u8,
    },
}

/// What a statement came to.
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
            Request::Mark { term, epoch, rows } => self.mark(rules, term, epoch, rows),
            Request::MarkFound { term, epoch, rows } => self.write_marks(term, epoch, rows),
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

    fn mark(&mut self, rules: &Rules, term: u8, epoch: u8, rows: u8) -> Ran {
        let is_ours =
            self.lane.owner == Some(term) && (self.lane.epoch == epoch || !rules.has(Rule::MarkChecksTheEpoch));
        if !is_ours {
            return Ran::Answer(None);
        }
        if rules.has(Rule::MarkLocksTheLane) {
            self.write_marks(term, epoch, rows)
        } else {
            Ran::Next(Request::MarkFound { term, epoch, rows })
        }
    }

    fn write_marks(&mut self, term: u8, epoch: u8, rows: u8) -> Ran {
        self.wrong.stale_mark |= self.lane.owner != Some(term) || self.lane.epoch != epoch;
        self.marked |= rows;
        Ran::Answer(Some(0))
    }
}
