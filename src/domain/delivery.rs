//! What became of the record of a row that was to be published.

use super::partition::Partition;

/// What became of one record. [`super::retry`] decides what this means for its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// All in-sync replicas have it.
    Acked,
    /// It was not sent, or it was in a produce batch that was refused as a whole. Kafka has no copy.
    NotSent,
    /// There was no answer, and it may have been written. It is sent again as a possible duplicate.
    Unknown,
    /// Kafka refused it although it was sent alone, or it cannot be sent: its partition does not exist, or its row has no lane or
    /// cannot be read.
    Refused { reason: String },
    /// It was not sent. Its topic has just refused another record, and this one would have to be sent alone, too, which would
    /// keep the batch waiting.
    Deferred { reason: String },
    /// The record is fine, but its topic, or the one partition that it belongs to, cannot accept it now.
    Unavailable {
        fault: Unavailability,
        /// The partition, or `None` for the whole topic.
        partition: Option<Partition>,
        reason: String,
        maybe_landed: bool,
    },
}

impl Delivery {
    pub fn unavailable(
        fault: Unavailability,
        partition: Option<Partition>,
        reason: String,
        maybe_landed: bool,
    ) -> Self {
        Delivery::Unavailable {
            fault,
            partition,
            reason,
            maybe_landed,
        }
    }
}

/// Why a topic or partition accepts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailability {
    /// It does not exist, or we may not write to it. An operator has to act.
    Unusable,
    /// It is too slow, has no leader, or too few replicas. This should pass.
    Transient,
    /// It was unavailable recently while other partitions answered. The record was not even sent.
    Paused,
}
