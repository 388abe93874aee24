//! The client's error codes become outcomes: one match, here and nowhere else.

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::message::{Outcome, TopicFault};

/// Did the broker, or the client itself, refuse the record for what it is?
pub fn is_refusal(code: Option<Code>) -> bool {
    matches!(
        code,
        Some(
            Code::MessageSizeTooLarge
                | Code::InvalidMessage
                | Code::InvalidMessageSize
                | Code::MessageBatchTooLarge
                | Code::InvalidRecord
                | Code::PolicyViolation
                | Code::BadMessage
        )
    )
}

/// What a report's code means. `None`: there was no report. `overdue`: our deadline passed and everything was purged.
pub fn of_code(code: Option<Code>, topic: &str, overdue: bool) -> Outcome {
    let Some(code) = code else {
        return late(topic, true, overdue);
    };
    match code {
        Code::NoError => Outcome::Acked,
        _ if is_refusal(Some(code)) => Outcome::Refused {
            reason: format!("Kafka refused the record for topic {topic}: {code}"),
        },
        // The client counts the topic's partitions otherwise than we do, for a moment: it did not take the record.
        Code::UnknownPartition => Outcome::Unsent,
        Code::PurgeQueue => late(topic, false, overdue),
        Code::PurgeInflight => late(topic, true, overdue),
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::InvalidTopic
        // About our clock and the topic's settings, not about the row.
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::TopicAuthorizationFailed => Outcome::Sick {
            fault: TopicFault::Unusable,
            reason: format!("topic {topic}: {code}"),
            maybe_landed: false,
        },
        Code::NotEnoughReplicas
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::KafkaStorageError
        | Code::QueueFull => transient(topic, &code, false),
        Code::MessageTimedOut
        | Code::NotEnoughReplicasAfterAppend
        | Code::RequestTimedOut
        | Code::BrokerTransportFailure
        | Code::NetworkException => transient(topic, &code, true),
        // Fatal errors and their collateral, and whatever a newer broker may say: the producer is looked at by the
        // caller, and the record may be there.
        _ => Outcome::Unknown,
    }
}

fn transient(topic: &str, code: &Code, maybe_landed: bool) -> Outcome {
    Outcome::Sick {
        fault: TopicFault::Transient,
        reason: format!("topic {topic}: {code}"),
        maybe_landed,
    }
}

/// Purged or never answered. By our own deadline, its topic is to blame; otherwise it is somebody else's collateral.
fn late(topic: &str, maybe_landed: bool, overdue: bool) -> Outcome {
    match (overdue, maybe_landed) {
        (true, _) => Outcome::Sick {
            fault: TopicFault::Transient,
            reason: format!("topic {topic}: no answer before the batch deadline"),
            maybe_landed,
        },
        (false, true) => Outcome::Unknown,
        (false, false) => Outcome::Unsent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_the_record_itself_costs_an_attempt() {
        let refused = |code| matches!(of_code(Some(code), "t", false), Outcome::Refused { .. });
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
    fn purged_from_the_queue_was_not_sent_purged_in_flight_may_have_landed() {
        assert_eq!(of_code(Some(Code::PurgeQueue), "t", false), Outcome::Unsent);
        assert_eq!(of_code(Some(Code::PurgeInflight), "t", false), Outcome::Unknown);
        assert_eq!(of_code(None, "t", false), Outcome::Unknown);
    }

    #[test]
    fn a_topic_counted_differently_for_a_moment_is_not_sick() {
        assert_eq!(of_code(Some(Code::UnknownPartition), "t", false), Outcome::Unsent);
    }
}
