//! How many ids one statement scans. A claim that scans millions of published rows runs into its timeout, and so does the next
//! one.

use std::time::Duration;

use crate::domain::watermark::Watermark;

/// How many ids one statement scans at first. Each id is of one lane, so a claim of all lanes together scans hardly more. If all
/// of the rows are published this takes about 0.2 s, and if all are pending it is more than a batch takes.
const SPAN: i64 = 100_000;
const SPAN_MIN: i64 = 1_000;
/// After a scan that was faster than this, the next one may be longer.
const FAST: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub struct ScanSpan {
    span: i64,
}

impl Default for ScanSpan {
    fn default() -> Self {
        ScanSpan { span: SPAN }
    }
}

impl ScanSpan {
    /// The id at which a claim from `start` ends, or `None` if it need not end early. A claim ends early only below the
    /// watermark. Above it the floor could not follow, and the next claim would scan the same ids again.
    pub fn scan_end(&self, start: i64, watermark: Watermark) -> Option<i64> {
        let scan_end = start.saturating_add(self.span);
        (scan_end < watermark.soft).then_some(scan_end)
    }

    /// Notes a scan that ended early. If it found nothing and was fast, many more ids may be unused, so the next one is longer.
    /// If the floor is stuck at a pending row, only a longer scan reaches the rows behind that.
    pub fn ended_early(&mut self, found_nothing: bool, took: Duration, is_stuck: bool) {
        if is_stuck || (took < FAST && (found_nothing || self.span < SPAN)) {
            self.span = self.span.saturating_mul(2);
        } else {
            self.span = self.span.min(SPAN);
        }
    }

    /// Notes a scan that did not end early.
    pub fn completed(&mut self) {
        self.span = SPAN;
    }

    /// Notes a scan that failed. It may have been too long, or the server was unavailable.
    pub fn failed(&mut self) {
        self.span = (self.span / 2).max(SPAN_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(1);

    fn watermark(soft: i64) -> Watermark {
        Watermark {
            hard: 0,
            soft,
            generation: 0,
        }
    }

    #[test]
    fn a_scan_ends_early_only_below_the_watermark() {
        let span = ScanSpan::default();
        assert_eq!(
            span.scan_end(7, watermark(7 + SPAN)),
            None,
            "the watermark is no higher"
        );
        assert_eq!(span.scan_end(7, watermark(8 + SPAN)), Some(7 + SPAN));
        assert_eq!(span.scan_end(i64::MAX - 1, watermark(i64::MAX)), None);
    }

    #[test]
    fn the_span_grows_over_unused_ids_and_if_the_floor_is_stuck_and_shrinks_after_a_failure() {
        let span_after = |span, change: &dyn Fn(&mut ScanSpan)| {
            let mut scan_span = ScanSpan { span };
            change(&mut scan_span);
            scan_span.span
        };
        let ended_early =
            |found_nothing, took, is_stuck| move |span: &mut ScanSpan| span.ended_early(found_nothing, took, is_stuck);
        assert_eq!(span_after(SPAN, &ended_early(true, Duration::ZERO, false)), 2 * SPAN);
        assert_eq!(span_after(4 * SPAN, &ended_early(true, SLOW, false)), SPAN);
        assert_eq!(span_after(4 * SPAN, &ended_early(false, Duration::ZERO, false)), SPAN);
        assert_eq!(span_after(4 * SPAN, &ended_early(false, SLOW, true)), 8 * SPAN);
        assert_eq!(
            span_after(SPAN / 4, &ended_early(false, Duration::ZERO, false)),
            SPAN / 2
        );
        assert_eq!(span_after(SPAN / 4, &ended_early(true, SLOW, false)), SPAN / 4);
        assert_eq!(span_after(SPAN, &ScanSpan::failed), SPAN / 2);
        assert_eq!(span_after(SPAN_MIN, &ScanSpan::failed), SPAN_MIN);
        assert_eq!(span_after(8 * SPAN, &ScanSpan::completed), SPAN);
        assert_eq!(
            span_after(i64::MAX, &ended_early(true, Duration::ZERO, false)),
            i64::MAX
        );
    }
}
