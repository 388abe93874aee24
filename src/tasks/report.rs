//! Logs one line for each event that an operator acts on, and none for each message.

use tracing::{debug, error, warn};

use crate::domain::decision::Refusal;
use crate::domain::hold::NewHold;
use crate::domain::partition::Partition;
use crate::metrics;

/// Counts a refusal, and logs it if the row is dead. It is called unless the refusal was certainly not written, because another
/// transaction had locked the row. So it also reports a write whose answer was lost.
pub fn report_refusal(topic: &str, refusal: &Refusal) {
    metrics::row_refused(topic, refusal.dead);
    if refusal.dead {
        error!(
            id = refusal.id,
            topic,
            reason = refusal.reason,
            "dead letter: the row was refused for good"
        );
    }
}

/// Reports refusals after [`FencedWriter::unless_locked`](super::fenced::FencedWriter::unless_locked), unless that wrote nothing.
pub fn report_unless_locked<'a, T>(
    written: &Option<Option<T>>,
    refusals: impl Iterator<Item = (&'a str, &'a Refusal)>,
) {
    if !matches!(written, Some(None)) {
        refusals.for_each(|(topic, refusal)| report_refusal(topic, refusal));
    }
}

pub fn report_hold(hold: &NewHold) {
    if hold.unit.is_empty() {
        warn!(
            topic = hold.topic,
            reason = hold.reason,
            "topic parked: it is tried again by itself; other topics continue"
        );
    } else if let Some(paused) = Partition::of_unit(&hold.unit) {
        // The publisher has logged the pause once for all lanes.
        debug!(
            topic = hold.topic,
            partition = paused.number,
            lane = hold.lane,
            "rows of a paused partition are kept back"
        );
    } else if hold.failures == 0 {
        // There may be thousands of these, each for a moment, and nobody has to act.
        debug!(
            topic = hold.topic,
            unit = hold.unit,
            id = hold.head_id,
            reason = hold.reason,
            "key held until its row has been sent alone; other keys continue"
        );
    } else {
        report_held_key(&hold.topic, &hold.unit, hold.head_id, &hold.reason);
    }
}

pub fn report_held_key(topic: &str, unit: &str, id: Option<i64>, reason: &str) {
    warn!(
        topic,
        unit, id, reason, "key held behind a refused row; other keys continue"
    );
}
