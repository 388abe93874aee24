//! Checks of single settings. They collect problems instead of stopping at the first.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use super::Problems;
use crate::domain::retention::RETENTION_MIN;

/// Longer than any setting needs, and short enough that sums of durations do not overflow.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

/// The problems found so far.
#[derive(Default)]
pub struct Check(Vec<String>);

impl Check {
    /// Runs `checks`, and returns their result or every problem they found. The result may be missing only if there was a problem.
    pub fn run<T>(checks: impl FnOnce(&mut Check) -> Option<T>) -> Result<T, Problems> {
        let mut check = Check::default();
        match checks(&mut check) {
            Some(value) if check.0.is_empty() => Ok(value),
            _ => Err(Problems(check.0)),
        }
    }

    pub fn duration(&mut self, flag: &str, value: &str) -> Duration {
        let duration = humantime::parse_duration(value)
            .map_err(|error| format!("{flag} {value:?} is not a duration ({error}); write e.g. 500ms, 15s, 7days"));
        let duration = self.ok(duration).unwrap_or_default();
        self.ensure(
            duration <= DURATION_MAX,
            format!("{flag} {value:?} is longer than ten years"),
        );
        duration.min(DURATION_MAX)
    }

    /// The age at which maintenance removes something.
    pub fn age(&mut self, flag: &str, value: &str) -> Duration {
        let age = self.duration(flag, value);
        self.ensure(age >= RETENTION_MIN, format!("{flag} must be at least 1h"));
        age
    }

    /// A time, or how long ago it was.
    pub fn moment(&mut self, flag: &str, value: &str) -> Option<SystemTime> {
        let neither =
            || format!("{flag} {value:?} is neither a duration (2h, 7days) nor a time (2026-01-31T12:00:00Z)");
        if humantime::parse_duration(value).is_ok() {
            return SystemTime::now().checked_sub(self.duration(flag, value));
        }
        self.ok(humantime::parse_rfc3339_weak(value).map_err(|_| neither()))
    }

    pub fn number(&mut self, flag: &str, value: &str, least: usize, most: usize) -> usize {
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        let problem = || format!("{flag} {value:?} is not a whole number from {least} to {most}");
        self.ok(number.ok_or_else(problem)).unwrap_or(least)
    }

    pub fn bytes(&mut self, flag: &str, value: &str) -> usize {
        let bytes = parse_bytes(value).filter(|bytes| (1 << 20..=1 << 40).contains(bytes));
        let problem = || format!("{flag} {value:?} is not a size from 1MiB to 1024GiB; write e.g. 6MiB");
        self.ok(bytes.ok_or_else(problem)).unwrap_or(1 << 20)
    }

    pub fn address(&mut self, flag: &str, value: &str) -> SocketAddr {
        let address = value.parse();
        let problem = |_| format!("{flag} {value:?} is not an address; write e.g. 0.0.0.0:9090");
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        self.ok(address.map_err(problem)).unwrap_or(unspecified)
    }

    pub fn ensure(&mut self, holds: bool, problem: impl Into<String>) {
        if !holds {
            self.0.push(problem.into());
        }
    }

    /// The value, or `None` if it is a problem.
    pub fn ok<T>(&mut self, value: Result<T, String>) -> Option<T> {
        value.map_err(|problem| self.0.push(problem)).ok()
    }

    pub fn problems(&mut self, problems: impl IntoIterator<Item = String>) {
        self.0.extend(problems);
    }
}

pub fn parse_bytes(value: &str) -> Option<usize> {
    let split = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(split);
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("16MiB"), Some(16 << 20));
        assert_eq!(parse_bytes("100"), Some(100));
        assert_eq!(parse_bytes("1 parsec"), None);
    }
}
