//! What the client's error codes mean for a record: one match, here and nowhere else.

use rdkafka::types::RDKafkaErrorCode as Code;

use super::reports::Report;
use crate::domain::delivery::{Delivery, Unavailability};
use crate::domain::partition::Partition;

/// Did the broker, or the client itself, refuse the record because of what it contains?
pub fn is_refusal(report: Option<Report>) -> bool {
    report.is_some_and(|report| {
        matches!(
            report.code,
            Code::MessageSizeTooLarge
                | Code::InvalidMessage
                | Code::InvalidMessageSize
                | Code::MessageBatchTooLarge
                | Code::InvalidRecord
                | Code::PolicyViolation
                | Code::BadMessage
        )
    })
}

/// What a report means, or its absence. `overdue` says that our deadline passed and everything was purged, and `principal` who we
/// are to the brokers.
pub fn of_report(
    report: Option<Report>,
    topic: &str,
    partition: Partition,
    overdue: bool,
    principal: impl Fn() -> String,
) -> Delivery {
    let Some(Report { code, handed_over }) = report else {
        return late(topic, partition, true, overdue);
    };
    match code {
        Code::NoError => Delivery::Acked,
        _ if is_refusal(report) => Delivery::Refused {
            reason: format!("Kafka refused the record for topic {topic}: {code}"),
        },
        // A record that was purged from the queue may have been sent, too: the client puts it back there before a retry.
        Code::PurgeQueue | Code::PurgeInflight => late(topic, partition, handed_over, overdue),
        // The client reports these for a record that it can no longer send, the broker for the last attempt. The topic, its
        // settings or our clock are the cause. An earlier attempt may have been written.
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::InvalidTopic
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::TopicAuthorizationFailed => unusable(topic, code, handed_over, principal),
        Code::NotEnoughReplicas
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::KafkaStorageError
        | Code::QueueFull
        | Code::MessageTimedOut
        | Code::NotEnoughReplicasAfterAppend
        | Code::RequestTimedOut
        | Code::BrokerTransportFailure
        | Code::NetworkException => transient(topic, partition, &code.to_string(), handed_over),
        // The client did not take the record: its partition count differs from ours for a moment, or it has a fatal error.
        _ if !handed_over => Delivery::NotSent,
        // These are fatal errors, their consequences, and codes of newer brokers. The record may have been written. The caller
        // checks whether the producer has a fatal error.
        _ => Delivery::Unknown,
    }
}

/// The topic does not exist, or its settings or permissions forbid the record. A permission that is missing is named as an ACL; the
/// right to write includes that to look the topic up.
pub fn unusable(topic: &str, code: Code, maybe_landed: bool, principal: impl Fn() -> String) -> Delivery {
    let mut reason = format!("topic {topic}: {code}");
    if code == Code::TopicAuthorizationFailed {
        let principal = principal();
        reason.push_str(&format!("; {principal} needs the ACL ALLOW WRITE ON TOPIC {topic}"));
    }
    Delivery::unavailable(Unavailability::Unusable, None, reason, maybe_landed)
}

/// The partition cannot accept the record now. Leaders, replicas and answers belong to one partition, so the topic's others may
/// work.
pub fn transient(topic: &str, partition: Partition, what: &str, maybe_landed: bool) -> Delivery {
    let reason = format!("partition {} of topic {topic}: {what}", partition.number);
    Delivery::unavailable(Unavailability::Transient, Some(partition), reason, maybe_landed)
}

/// The record was purged, never answered, or not even taken. If our own deadline passed, the partition did not answer. Otherwise
/// another record was the cause.
fn late(topic: &str, partition: Partition, maybe_landed: bool, overdue: bool) -> Delivery {
    match (overdue, maybe_landed) {
        (true, true) => transient(topic, partition, "no answer before the deadline", maybe_landed),
        (false, true) => Delivery::Unknown,
        (_, false) => Delivery::NotSent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIRD: Partition = Partition { number: 3, of: 12 };

    fn of(code: Code, handed_over: bool) -> Delivery {
        of_report(Some(Report { code, handed_over }), "t", THIRD, false, || {
            "User:relay".to_owned()
        })
    }

    fn may_have_landed(outcome: &Delivery) -> bool {
        matches!(
            outcome,
            Delivery::Unknown | Delivery::Unavailable { maybe_landed: true, .. }
        )
    }

    #[test]
    fn only_a_refusal_of_the_record_itself_costs_an_attempt() {
        let refused = |code| matches!(of(code, true), Delivery::Refused { .. });
        assert!(refused(Code::MessageSizeTooLarge));
        for code in [
            Code::MessageTimedOut,
            Code::NotEnoughReplicas,
            Code::UnknownTopicOrPartition,
            Code::TopicAuthorizationFailed,
            Code::InvalidTimestamp,
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::Fatal,
            Code::OutOfOrderSequenceNumber,
            Code::BrokerTransportFailure,
        ] {
            assert!(!refused(code), "{code:?}");
        }
    }

    #[test]
    fn what_the_client_took_may_have_landed_unless_somebody_said_otherwise() {
        let unsure = [
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::UnknownPartition,
            Code::UnknownTopicOrPartition,
            // Written, and then the leader stepped down before it answered.
            Code::NotLeaderForPartition,
            Code::KafkaStorageError,
            Code::MessageTimedOut,
            Code::Fatal,
        ];
        for code in unsure {
            assert!(may_have_landed(&of(code, true)), "{code:?}");
            assert!(!may_have_landed(&of(code, false)), "{code:?}, not taken");
        }
        for code in [Code::NoError, Code::MessageSizeTooLarge] {
            assert!(!may_have_landed(&of(code, true)), "{code:?}");
        }
        assert_eq!(
            of_report(None, "t", THIRD, false, || "User:relay".to_owned()),
            Delivery::Unknown
        );
    }

    #[test]
    fn each_kind_of_failure_has_the_outcome_that_helps() {
        let unusable = |code: Code, maybe_landed| {
            let reason = format!("topic t: {code}");
            Delivery::unavailable(Unavailability::Unusable, None, reason, maybe_landed)
        };
        let transient = |code: Code, maybe_landed| {
            let reason = format!("partition 3 of topic t: {code}");
            Delivery::unavailable(Unavailability::Transient, Some(THIRD), reason, maybe_landed)
        };
        for handed_over in [false, true] {
            for code in [
                Code::UnknownTopic,
                Code::UnknownTopicOrPartition,
                Code::InvalidTopic,
                Code::InvalidTimestamp,
                Code::UnsupportedForMessageFormat,
            ] {
                assert_eq!(of(code, handed_over), unusable(code, handed_over));
            }
            let code = Code::TopicAuthorizationFailed;
            let reason = format!("topic t: {code}; User:relay needs the ACL ALLOW WRITE ON TOPIC t");
            let forbidden = Delivery::unavailable(Unavailability::Unusable, None, reason, handed_over);
            assert_eq!(of(code, handed_over), forbidden);
            for code in [Code::NotEnoughReplicas, Code::QueueFull, Code::MessageTimedOut] {
                assert_eq!(of(code, handed_over), transient(code, handed_over));
            }
        }
        assert_eq!(of(Code::NoError, true), Delivery::Acked);
        assert_eq!(of(Code::Fatal, true), Delivery::Unknown);
        // Another record was the cause.
        assert_eq!(of(Code::PurgeQueue, true), Delivery::Unknown);
        assert_eq!(of(Code::PurgeInflight, true), Delivery::Unknown);
    }

    #[test]
    fn what_our_own_deadline_ended_is_for_its_partition_to_answer_for() {
        let overdue = |report| of_report(report, "t", THIRD, true, || "User:relay".to_owned());
        let reason = "partition 3 of topic t: no answer before the deadline".to_owned();
        let late = Delivery::unavailable(Unavailability::Transient, Some(THIRD), reason, true);
        let purged = |handed_over| {
            let code = Code::PurgeInflight;
            overdue(Some(Report { code, handed_over }))
        };
        assert_eq!(purged(true), late);
        assert_eq!(overdue(None), late);
        assert_eq!(purged(false), Delivery::NotSent, "it was not even asked");
    }

    #[test]
    fn what_the_client_did_not_take_for_a_passing_reason_is_no_refusal() {
        assert_eq!(of(Code::PurgeQueue, false), Delivery::NotSent);
        assert_eq!(of(Code::UnknownPartition, false), Delivery::NotSent);
        assert_eq!(of(Code::Fatal, false), Delivery::NotSent);
    }
}
