//! The same thing measured several times.

/// The median, and how far the others were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` where nothing was measured: unknown is not zero.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: percentile(&sorted, 0.5)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// The value below which so large a share of the sorted values lies.
pub fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
