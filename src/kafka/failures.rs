//! Why connections fail, as the clients of this process report it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::Notify;

use super::{certificate, lock};

/// Failures less than this apart belong to one outage. The client repeats the same error every 30 seconds.
const OUTAGE_ENDS_AFTER: Duration = Duration::from_secs(120);

/// Why a connection failed.
#[derive(Clone, Debug)]
pub struct Failure {
    at: Instant,
    pub code: Option<Code>,
    /// In the client library's own words.
    pub reason: String,
}

impl Failure {
    /// Is this certain to be about TLS or SASL? Other failures may be, too: a broker may only close the connection.
    pub fn is_security(&self) -> bool {
        matches!(self.code, Some(Code::SSL | Code::Authentication))
    }

    /// May it be about TLS or SASL?
    pub fn may_be_security(&self) -> bool {
        let is_refusal = || certificate::refusal_of_ours(&self.reason).is_some();
        self.is_security() || self.broker_at_fault().is_some() || is_refusal()
    }

    pub fn is_login(&self) -> bool {
        self.code == Some(Code::Authentication)
    }

    /// The broker with which no TLS connection could be made.
    pub fn broker_at_fault(&self) -> Option<&str> {
        // If a broker hangs up, only the client library's name for the state of the connection tells that it was in a handshake.
        let in_handshake = self.code == Some(Code::SSL) || self.reason.contains("SSL_HANDSHAKE");
        certificate::broker_in(&self.reason).filter(|_| in_handshake)
    }
}

#[derive(Debug, Default)]
pub struct Failures {
    state: Mutex<State>,
    noted: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Failure>,
    /// One that nobody has looked into yet.
    unexplained: Option<Failure>,
    /// When a failure of TLS or SASL was last explained.
    explained: Option<Instant>,
    /// Clients of an earlier generation fail for reasons that are past.
    generation: u64,
}

impl Failures {
    /// Notes what a client of this generation reports.
    pub fn note(&self, generation: u64, code: Option<Code>, reason: &str) {
        let mut state = lock(&self.state);
        // "All brokers are down" follows from the other errors and does not say why.
        if code == Some(Code::AllBrokersDown) || generation < state.generation {
            return;
        }
        let failure = Failure {
            at: Instant::now(),
            code,
            reason: reason.to_owned(),
        };
        state.last = Some(failure.clone());
        if failure.is_security() || !state.unexplained.as_ref().is_some_and(Failure::is_security) {
            state.unexplained = Some(failure);
        }
        drop(state);
        self.noted.notify_one();
    }

    /// Why a connection failed last, if that was recent. The errors of requests say only that a connection failed.
    pub fn last(&self) -> Option<Failure> {
        let last = lock(&self.state).last.clone();
        last.filter(|failure| failure.at.elapsed() < OUTAGE_ENDS_AFTER)
    }

    /// Forgets what clients of earlier generations have reported, and listens to them no more.
    pub fn begin(&self, generation: u64) {
        *lock(&self.state) = State {
            generation,
            ..State::default()
        };
    }

    /// Waits for a failure that nobody has waited for.
    pub async fn next(&self) {
        self.noted.notified().await;
    }

    /// The failure to look into: one of TLS or SASL rather than another.
    pub fn take(&self) -> Option<Failure> {
        lock(&self.state).unexplained.take()
    }

    /// Has a failure of TLS or SASL been explained in this outage, which this one belongs to? Every client reports one for every
    /// broker, again and again.
    pub fn is_explained(&self, now: Instant) -> bool {
        let explained = &mut lock(&self.state).explained;
        let is_explained = explained.is_some_and(|last| now - last <= OUTAGE_ENDS_AFTER);
        if is_explained {
            *explained = Some(now);
        }
        is_explained
    }

    /// A failure is being explained now.
    pub fn explained(&self, now: Instant) {
        lock(&self.state).explained = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_security_is_told_once_for_each_outage() {
        let (failures, now) = (Failures::default(), Instant::now());
        assert!(!failures.is_explained(now));
        failures.explained(now);
        assert!(failures.is_explained(now + OUTAGE_ENDS_AFTER));
        assert!(failures.is_explained(now + 2 * OUTAGE_ENDS_AFTER), "it continues");
        let next = now + 3 * OUTAGE_ENDS_AFTER + Duration::from_millis(1);
        assert!(!failures.is_explained(next));
    }

    #[test]
    fn a_failure_of_security_is_looked_into_before_its_consequences() {
        let failures = Failures::default();
        failures.note(0, Some(Code::SSL), "bad certificate");
        failures.note(0, Some(Code::BrokerTransportFailure), "disconnected");
        failures.note(0, Some(Code::AllBrokersDown), "all down");
        assert_eq!(failures.last().expect("recent").reason, "disconnected");
        assert_eq!(failures.take().expect("one").reason, "bad certificate");
        assert!(failures.take().is_none());
    }

    #[test]
    fn what_clients_of_old_settings_report_is_past() {
        let (failures, now) = (Failures::default(), Instant::now());
        failures.note(0, Some(Code::Authentication), "old password");
        failures.explained(now);
        failures.begin(1);
        failures.note(0, Some(Code::Authentication), "old password");
        assert!(failures.last().is_none() && failures.take().is_none());
        failures.note(1, Some(Code::Authentication), "new password");
        assert_eq!(failures.take().expect("one").reason, "new password");
        assert!(!failures.is_explained(now), "the new settings fail as well");
    }
}
