//! What a process does: its lease task asks for the lease and the lane, its relay claims, sends and marks.

use super::database::{Ran, Request, Unsettled};
use super::{LEASE, Lease, MARGIN, State};
use crate::rules::{Rule, Rules};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    leaving: bool,
    /// Gone once it is lost: under a new one it would be another process.
    term: Option<u8>,
    /// Of the lease, by our own clock.
    left: u8,
    /// The lane, as we hold it.
    epoch: Option<u8>,
    pub ask: Option<Ask>,
    pub batch: Option<Batch>,
}

/// The lease task waits for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    pub request: Request,
    /// Ticks of our clock since we asked.
    waited: u8,
    pub answer: Option<Option<u8>>,
}

/// A batch in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    pub term: u8,
    pub epoch: u8,
    rows: u8,
    acked: u8,
    /// Of these a copy may be there from before: they say so.
    pub maybe_sent: u8,
    /// It is written down: only now anything of it is sent.
    recorded: Option<u8>,
    /// Kafka gave no answer for these.
    unknown: u8,
    /// Nothing more of it is sent: only marked.
    over: bool,
    sending: Option<Sending>,
    mark: Option<Request>,
    /// The process was stopped between a reading of the clock and what follows from it.
    pub paused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sending {
    row: u8,
    landed: bool,
    age: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Renew,
    Take,
    GiveUp,
    Leave,
    /// The lease task's statement runs at the server, or its second half does.
    RunAsk,
    HearAnswer,
    /// The connection broke: the lease task gives up, the statement may still run.
    LoseAsk,
    Claim,
    Record,
    Send,
    Land,
    Ack,
    /// No answer from Kafka in time.
    Fail,
    Mark,
    RunMark,
    LoseMark,
    Pause,
    Crash,
}

impl Step {
    pub const ALL: [Step; 18] = [
        Step::Renew,
        Step::Take,
        Step::GiveUp,
        Step::Leave,
        Step::RunAsk,
        Step::HearAnswer,
        Step::LoseAsk,
        Step::Claim,
        Step::Record,
        Step::Send,
        Step::Land,
        Step::Ack,
        Step::Fail,
        Step::Mark,
        Step::RunMark,
        Step::LoseMark,
        Step::Pause,
        Step::Crash,
    ];
}

impl Process {
    pub fn new(number: usize) -> Self {
        Self {
            leaving: false,
            term: Some(number as u8),
            left: LEASE,
            epoch: (number == 0).then_some(0),
            ask: None,
            batch: None,
        }
    }

    /// Its send is due: no more time passes before it lands or fails.
    pub fn must_land_now(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| {
            !batch.paused && batch.sending.as_ref().is_some_and(|send| !send.landed && send.age > 0)
        })
    }

    pub fn tick(&mut self, own_clock_moves: bool) {
        if let Some(send) = self.batch.as_mut().and_then(|batch| batch.sending.as_mut()) {
            send.age = 1;
        }
        if !own_clock_moves {
            return;
        }
        self.left = self.left.saturating_sub(1);
        // Only a renewal's answer depends on it.
        if let Some(ask) = &mut self.ask
            && matches!(ask.request, Request::Renew { .. } | Request::RenewFound { .. })
        {
            ask.waited = (ask.waited + 1).min(LEASE);
        }
    }

    fn asks(&mut self, request: Request) -> bool {
        self.ask = Some(Ask {
            request,
            waited: 0,
            answer: None,
        });
        true
    }

    fn ask(&mut self, step: Step) -> bool {
        if self.ask.is_some() || self.leaving {
            return false;
        }
        match (step, self.term) {
            (Step::Renew, Some(term)) if self.left < LEASE => self.asks(Request::Renew { term }),
            (Step::Take, Some(term)) if self.epoch.is_none() => self.asks(Request::Take { term }),
            _ => false,
        }
    }

    fn lose_term(&mut self) {
        self.term = None;
        self.epoch = None;
        self.left = 0;
    }

    /// May the lane be returned now?
    fn may_free(&self, rules: &Rules) -> bool {
        match &self.batch {
            None => true,
            Some(batch) if batch.over => !rules.has(Rule::MarkComesBeforeLeaving),
            Some(_) => !rules.has(Rule::BusyLaneStays),
        }
    }

    fn hears(&mut self, rules: &Rules) -> bool {
        let Some(Ask {
            request,
            waited,
            answer: Some(answer),
        }) = self.ask
        else {
            return false;
        };
        self.ask = None;
        let left = if rules.has(Rule::LeaseCountsFromTheCall) {
            LEASE - waited
        } else {
            LEASE
        };
        match (request, answer) {
            (Request::Renew { term } | Request::RenewFound { term, .. }, answer) if self.term == Some(term) => {
                let too_late = self.left == 0 && rules.has(Rule::LateAnswerIsNoOwnership);
                match answer {
                    Some(_) if !too_late => self.left = left,
                    _ => self.lose_term(),
                }
            }
            (Request::Take { term } | Request::TakeFound { term, .. }, Some(epoch)) if self.term == Some(term) => {
                self.epoch = Some(epoch);
            }
            _ => {}
        }
        true
    }

    fn claim(&mut self, rows: u8, maybe_sent: u8) -> bool {
        let (Some(term), Some(epoch)) = (self.term, self.epoch) else {
            return false;
        };
        if self.batch.is_some() || self.leaving || self.left == 0 || rows == 0 {
            return false;
        }
        self.batch = Some(Batch {
            term,
            epoch,
            rows,
            acked: 0,
            maybe_sent,
            recorded: None,
            unknown: 0,
            over: false,
            sending: None,
            mark: None,
            paused: false,
        });
        true
    }

    fn send(&mut self, rules: &Rules) -> bool {
        let margin = if rules.has(Rule::SendsStopBeforeTheEnd) {
            MARGIN
        } else {
            0
        };
        let may_send = self.left > margin;
        let term = self.term;
        let Some(batch) = &mut self.batch else { return false };
        if batch.sending.is_some() || batch.over || batch.recorded.is_none() {
            return false;
        }
        let row = (batch.rows & !batch.acked).trailing_zeros() as u8;
        if !may_send || term != Some(batch.term) || batch.rows == batch.acked {
            batch.over = true;
            return true;
        }
        batch.sending = Some(Sending {
            row,
            landed: false,
            age: 0,
        });
        true
    }

    fn acknowledged(&mut self) -> bool {
        let Some(batch) = &mut self.batch else { return false };
        let Some(send) = batch.sending.take_if(|send| send.landed) else {
            return false;
        };
        batch.acked |= 1 << send.row;
        true
    }

    fn failed(&mut self) -> bool {
        let Some(batch) = &mut self.batch else { return false };
        batch.over = true;
        let failed = batch.sending.take();
        batch.unknown |= failed.as_ref().map_or(0, |send| 1 << send.row);
        failed.is_some()
    }

    fn mark(&mut self) -> bool {
        let Some(batch) = &mut self.batch else { return false };
        if !batch.over || batch.mark.is_some() {
            return false;
        }
        batch.mark = Some(Request::Mark {
            term: batch.term,
            epoch: batch.epoch,
            rows: batch.acked,
            unsettled: Unsettled {
                record: batch.recorded.unwrap_or_default(),
                unknown: batch.unknown,
            },
        });
        true
    }

    fn pause(&mut self) -> bool {
        let Some(batch) = &mut self.batch else { return false };
        batch.paused = true;
        batch.sending.is_some()
    }
}

impl State {
    pub fn step(&mut self, model: &Lease, number: usize, step: Step) -> bool {
        let rules = &model.rules;
        match step {
            Step::Renew | Step::Take => self.processes[number].ask(step),
            Step::GiveUp | Step::Leave => self.hand_over(rules, number, step),
            Step::RunAsk => self.run_ask(rules, number),
            Step::HearAnswer => self.processes[number].hears(rules),
            Step::LoseAsk => self.lose_ask(number),
            Step::Claim => {
                let pending = !self.marked & ((1 << model.rows) - 1);
                let maybe_sent = self.lane.maybe_sent;
                self.processes[number].claim(pending, maybe_sent)
            }
            Step::Record => self.record_batch(rules, number),
            Step::Send => self.processes[number].send(rules),
            Step::Land => self.land_send(number),
            Step::Ack => self.processes[number].acknowledged(),
            Step::Fail => self.spend_fault() && self.processes[number].failed(),
            Step::Mark => self.processes[number].mark(),
            Step::RunMark => self.run_mark(rules, number),
            Step::LoseMark => self.lose_mark(number),
            Step::Pause => self.spend_fault() && self.processes[number].pause(),
            Step::Crash => self.crash(number),
        }
    }

    fn hand_over(&mut self, rules: &Rules, number: usize, step: Step) -> bool {
        if !self.spend() {
            return false;
        }
        let process = &mut self.processes[number];
        let Some(term) = process.term else { return false };
        if process.ask.is_some() || process.leaving || !process.may_free(rules) {
            return false;
        }
        let epoch = process.epoch.take();
        match (step, epoch) {
            (Step::GiveUp, Some(epoch)) => process.asks(Request::GiveUp { term, epoch }),
            (Step::Leave, epoch) => {
                process.leaving = true;
                process.asks(Request::Leave { term, epoch })
            }
            _ => false,
        }
    }

    fn run_ask(&mut self, rules: &Rules, number: usize) -> bool {
        let Some(Ask {
            request, answer: None, ..
        }) = self.processes[number].ask
        else {
            return false;
        };
        match self.run(rules, request) {
            Ran::Answer(answer) => self.answer(number, answer),
            Ran::Next(next) => {
                if let Some(ask) = &mut self.processes[number].ask {
                    ask.request = next;
                }
            }
        }
        true
    }

    fn lose_ask(&mut self, number: usize) -> bool {
        if self.zombie.is_some() || !self.spend_fault() {
            return false;
        }
        self.zombie = self.processes[number]
            .ask
            .take()
            .filter(|ask| ask.answer.is_none())
            .map(|ask| ask.request);
        self.zombie.is_some()
    }

    fn record_batch(&mut self, rules: &Rules, number: usize) -> bool {
        let batch = self.processes[number].batch.as_ref();
        let Some(batch) = batch.filter(|batch| batch.recorded.is_none()) else {
            return false;
        };
        let (term, epoch, rows) = (batch.term, batch.epoch, batch.rows);
        let recorded = self.record(rules, term, epoch, rows);
        let process = &mut self.processes[number];
        if recorded.is_some() {
            process.batch.iter_mut().for_each(|batch| batch.recorded = recorded);
        } else {
            process.batch = None;
            process.lose_term();
        }
        true
    }

    fn land_send(&mut self, number: usize) -> bool {
        let batch = self.processes[number].batch.as_mut();
        let Some(send) = batch
            .and_then(|batch| batch.sending.as_mut())
            .filter(|send| !send.landed)
        else {
            return false;
        };
        send.landed = true;
        let row = send.row;
        self.land(number, row);
        true
    }

    fn run_mark(&mut self, rules: &Rules, number: usize) -> bool {
        let Some(request) = self.processes[number].batch.as_ref().and_then(|batch| batch.mark) else {
            return false;
        };
        match self.run(rules, request) {
            Ran::Next(next) => {
                if let Some(batch) = &mut self.processes[number].batch {
                    batch.mark = Some(next);
                }
            }
            Ran::Answer(answer) => {
                let process = &mut self.processes[number];
                let batch = process.batch.take();
                if answer.is_none() && process.term == batch.map(|batch| batch.term) {
                    process.lose_term();
                }
            }
        }
        true
    }

    fn lose_mark(&mut self, number: usize) -> bool {
        if self.zombie.is_some() || !self.spend_fault() {
            return false;
        }
        self.zombie = self.processes[number]
            .batch
            .as_mut()
            .and_then(|batch| batch.mark.take());
        self.zombie.is_some()
    }

    fn crash(&mut self, number: usize) -> bool {
        let process = &mut self.processes[number];
        process.lose_term();
        process.ask = None;
        process.batch = None;
        self.spend_fault()
    }

    /// Spends a fault after which a row may be sent twice.
    fn spend_fault(&mut self) -> bool {
        self.unlucky = true;
        self.spend()
    }
}
