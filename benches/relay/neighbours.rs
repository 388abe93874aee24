//! Runs that are compared with each other are neighbours in time: the pace of a machine may change within half a minute by more than
//! they differ, and hardly within the few seconds that one of them takes.

/// Who runs when: whoever comes first in one round comes last in the next.
pub fn in_turn<T>(round: usize, runs: impl Into<Vec<T>>) -> Vec<T> {
    let mut runs = runs.into();
    if round.is_multiple_of(2) {
        runs.reverse();
    }
    runs
}
