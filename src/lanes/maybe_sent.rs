//! Rows that may have been sent and are not published, and rows that Kafka has and that are not marked.

use uuid::Uuid;

use super::Lanes;
use crate::domain::row::UNORDERED_LANE;

/// A row that Kafka has and that could not be marked yet, with its lane and the lane's epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acknowledged {
    pub lane: i16,
    pub epoch: i64,
    pub id: i64,
}

pub struct MaybeSentRows<'a>(pub(super) &'a Lanes);

impl MaybeSentRows<'_> {
    pub fn contains(&self, lane: i16, id: i64) -> bool {
        let state = self.0.lock();
        if lane == UNORDERED_LANE {
            return id <= state.unordered.stored.maybe_sent_until;
        }
        state.lanes.get(&lane).is_some_and(|lane| lane.maybe_sent.contains(id))
    }

    /// The ranges to store for the lanes of these rows, these rows included. Lanes whose stored ranges are up to date are left
    /// out.
    pub fn to_store(&self, rows: &[(i16, i64)]) -> Vec<(i16, Vec<i64>)> {
        let mut lanes: Vec<i16> = rows.iter().map(|(lane, _)| *lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let of_lane = |lane| rows.iter().filter(move |(of, _)| *of == lane).map(|(_, id)| *id);
        lanes
            .into_iter()
            .filter_map(|lane| self.changed_ranges(lane, of_lane(lane)))
            .collect()
    }

    /// As [`MaybeSentRows::to_store`], for one lane and without further rows.
    pub fn of_lane_to_store(&self, lane: i16) -> Vec<(i16, Vec<i64>)> {
        self.changed_ranges(lane, std::iter::empty()).into_iter().collect()
    }

    fn changed_ranges(&self, number: i16, more: impl Iterator<Item = i64>) -> Option<(i16, Vec<i64>)> {
        let state = self.0.lock();
        let lane = state.lanes.get(&number)?;
        let ranges = lane.maybe_sent.to_stored(more);
        (ranges != lane.stored.maybe_sent).then_some((number, ranges))
    }

    /// Notes that these ranges are stored.
    pub fn stored(&self, worker: Uuid, stored: Vec<(i16, Vec<i64>)>) {
        let Some(mut state) = self.0.of_term(worker) else {
            return;
        };
        for (lane, ranges) in stored {
            if let Some(lane) = state.lanes.get_mut(&lane) {
                lane.stored.maybe_sent = ranges;
            }
        }
    }

    /// Notes that the row may have been sent.
    pub fn remember(&self, lane: i16, id: i64) {
        if let Some(lane) = self.0.lock().lanes.get_mut(&lane) {
            lane.maybe_sent.ids.insert(id);
        }
    }

    /// Notes that the row is published, or has certainly not been sent.
    pub fn forget(&self, lane: i16, id: i64) {
        if let Some(lane) = self.0.lock().lanes.get_mut(&lane) {
            lane.forget(id);
        }
    }

    /// Notes that Kafka has this row, but another session has locked it. It is marked later and not sent again.
    pub fn remember_acknowledged(&self, worker: Uuid, lane: i16, id: i64) {
        if let Some(mut state) = self.0.of_term(worker)
            && let Some(lane) = state.lanes.get_mut(&lane)
        {
            lane.acknowledged.insert(id);
        }
    }

    /// All rows that wait for their mark.
    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        let state = self.0.lock();
        let mut rows = Vec::new();
        for (number, lane) in &state.lanes {
            let (number, epoch) = (*number, lane.epoch);
            rows.extend(lane.acknowledged.iter().map(|id| Acknowledged {
                lane: number,
                epoch,
                id: *id,
            }));
        }
        rows
    }

    /// The rows of one lane that wait for their mark.
    pub fn acknowledged_of(&self, lane: i16) -> Vec<i64> {
        let state = self.0.lock();
        let rows = state.lanes.get(&lane).map(|lane| lane.acknowledged.iter().copied());
        rows.into_iter().flatten().collect()
    }
}
