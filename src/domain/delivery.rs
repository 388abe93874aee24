//! What became of the record of a row when it was published.

use super::partition::Partition;

/// What became of one record of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Kafka has it, on all in-sync replicas.
    Acked,
    /// It was never sent, or was sent in a batch that was refused as a whole: try again.
    NotSent,
    /// There was no answer, and it may have been written: try again, as a possible duplicate.
    Unknown,
    /// Kafka refused this record when it was sent alone; or it cannot be sent: its partition does not exist, or it has no lane.
    Refused { reason: String },
    /// Not sent: its topic has just refused another record, and this one would have to be sent alone, too. The batch does not wait for it.
    Deferred { reason: String },
    /// The record is fine, but its topic cannot accept it now, or the one partition that it belongs to.
    Unavailable {
        fault: Unavailability,
        /// `None`: the whole topic.
        partition: Option<Partition>,
        reason: String,
        maybe_landed: bool,
    },
}

/// Why a topic or partition accepts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailability {
    /// It does not exist, or we may not write to it: an operator has to act.
    Unusable,
    /// It is too slow, has no leader, or too few replicas: this should pass.
    Transient,
    /// The same recently, while other partitions answered: this record was not even sent.
    Paused,
}
