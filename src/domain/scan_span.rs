//! How far one statement walks: a claim that would walk over millions of published rows runs into its timeout, and then into it again.
//! Pure.

use std::time::Duration;

use crate::domain::watermark::Watermark;

/// So many ids one statement walks, to begin with. Of all lanes together they are hardly more, since an id is of one lane: some 0.2 s where
/// all of them are published, and more rows than a batch takes where all are pending.
const SPAN: i64 = 100_000;
const SPAN_MIN: i64 = 1_000;
/// Who walked so far in less time may walk further.
const SWIFT: Duration = Duration::from_millis(100);

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
    /// Where a claim from here is cut short; `None`: it need not be. Only what is settled can be walked in parts: beyond that the floor could
    /// not follow, and the next claim would walk the same part again.
    pub fn scan_end(&self, start: i64, watermark: Watermark) -> Option<i64> {
        let scan_end = start.saturating_add(self.span);
        (scan_end < watermark.soft).then_some(scan_end)
    }

    /// It was cut short. If it found nothing in little time there may be nothing for long: ids that were never used. If the floor could not
    /// follow, only a longer walk comes to what is behind.
    pub fn cut(&mut self, found_nothing: bool, took: Duration, is_stuck: bool) {
        if is_stuck || (took < SWIFT && (found_nothing || self.span < SPAN)) {
            self.span = self.span.saturating_mul(2);
        } else {
            self.span = self.span.min(SPAN);
        }
    }

    /// It came to the end.
    pub fn ended(&mut self) {
        self.span = SPAN;
    }

    /// It was too much, or the server was away.
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
    fn a_walk_is_cut_short_only_where_more_than_that_is_settled() {
        let walk = ScanSpan::default();
        assert_eq!(walk.scan_end(7, watermark(7 + SPAN)), None, "it ends there anyway");
        assert_eq!(walk.scan_end(7, watermark(8 + SPAN)), Some(7 + SPAN));
        assert_eq!(walk.scan_end(i64::MAX - 1, watermark(i64::MAX)), None);
    }

    #[test]
    fn a_walk_gets_longer_over_nothing_and_where_it_is_stuck_and_shorter_when_it_fails() {
        let span_after = |span, change: &dyn Fn(&mut ScanSpan)| {
            let mut walk = ScanSpan { span };
            change(&mut walk);
            walk.span
        };
        let cut = |found_nothing, took, is_stuck| move |walk: &mut ScanSpan| walk.cut(found_nothing, took, is_stuck);
        assert_eq!(span_after(SPAN, &cut(true, Duration::ZERO, false)), 2 * SPAN);
        assert_eq!(span_after(4 * SPAN, &cut(true, SLOW, false)), SPAN);
        assert_eq!(span_after(4 * SPAN, &cut(false, Duration::ZERO, false)), SPAN);
        assert_eq!(span_after(4 * SPAN, &cut(false, SLOW, true)), 8 * SPAN);
        assert_eq!(span_after(SPAN / 4, &cut(false, Duration::ZERO, false)), SPAN / 2);
        assert_eq!(span_after(SPAN / 4, &cut(true, SLOW, false)), SPAN / 4);
        assert_eq!(span_after(SPAN, &ScanSpan::failed), SPAN / 2);
        assert_eq!(span_after(SPAN_MIN, &ScanSpan::failed), SPAN_MIN);
        assert_eq!(span_after(8 * SPAN, &ScanSpan::ended), SPAN);
        assert_eq!(span_after(i64::MAX, &cut(true, Duration::ZERO, false)), i64::MAX);
    }
}
