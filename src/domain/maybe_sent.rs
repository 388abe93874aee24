//! Rows of a lane that may have been sent already. Whatever is sent of them again is flagged as a possible duplicate.

use std::collections::HashSet;

use super::id_ranges::IdRanges;

#[derive(Clone, Debug, Default)]
pub struct MaybeSent {
    /// Sent, perhaps, by an earlier owner of the lane that could not say which of them it sent.
    pub ranges: IdRanges,
    /// Any row up to this id may have been sent before a failover lost its mark.
    pub until: i64,
    /// Known by id: sent, perhaps, by this process or by the last owner.
    pub ids: HashSet<i64>,
}

impl MaybeSent {
    pub fn contains(&self, id: i64) -> bool {
        id <= self.until || self.ids.contains(&id) || self.ranges.contains(id)
    }

    /// The ranges to store for these rows and `more` of them. `until` is stored elsewhere, for all lanes.
    pub fn to_stored(&self, more: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut ranges = IdRanges::of_ids(self.ids.iter().copied().chain(more));
        ranges.extend(&self.ranges);
        ranges.to_stored()
    }

    /// Is no row known that would have to be stored?
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.ids.is_empty()
    }
}
