//! Log lines: one for each event that an operator acts on, none for each message.

use tracing::{debug, error, warn};

use crate::domain::decision::Refusal;
use crate::domain::hold::NewHold;
use crate::domain::partition::Partition;
use crate::metrics;

/// An attempt is counted, unless another transaction has locked the row. The last one is an event an operator acts on. Where
/// the answer to that is lost, it may be written: so it is reported.
pub fn report_refusal(refusal: &Refusal) {
    metrics::rows_refused(usize::from(refusal.dead), usize::from(!refusal.dead));
    if refusal.dead {
        error!(
            id = refusal.id,
            reason = refusal.reason,
            "dead letter: the row was refused for good"
        );
    }
}

pub fn report_hold(hold: &NewHold) {
    if hold.unit.is_empty() {
        warn!(
            topic = hold.topic,
            reason = hold.reason,
            "topic parked: it is tried again by itself; other topics go on"
        );
    } else if let Some(paused) = Partition::of_unit(&hold.unit) {
        // The publisher has said so, once for all lanes.
        debug!(
            topic = hold.topic,
            partition = paused.number,
            lane = hold.lane,
            "rows of a paused partition are kept back"
        );
    } else if hold.failures == 0 {
        // Perhaps thousands, each for a moment: nobody has to act.
        debug!(
            topic = hold.topic,
            unit = hold.unit,
            id = hold.head_id,
            reason = hold.reason,
            "key held until its row has been sent alone; other keys go on"
        );
    } else {
        report_held_key(&hold.topic, &hold.unit, hold.head_id, &hold.reason);
    }
}

pub fn report_held_key(topic: &str, unit: &str, id: Option<i64>, reason: &str) {
    warn!(
        topic,
        unit, id, reason, "key held behind a refused row; other keys go on"
    );
}
