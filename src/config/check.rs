//! Checks of single settings. They collect problems instead of stopping at the first.

use std::net::SocketAddr;
use std::time::Duration;

use super::Problems;
use crate::domain::retention::RETENTION_MIN;

/// Longer than any setting needs, and short enough that sums of durations do not overflow.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Collects problems instead of stopping at the first.
#[derive(Default)]
pub struct Check(Vec<String>);

impl Check {
    pub fn duration(&mut self, flag: &str, value: &str) -> Duration {
        let duration = humantime::parse_duration(value).unwrap_or_else(|error| {
            self.0.push(format!(
                "{flag} {value:?} is not a duration ({error}); write e.g. 500ms, 15s, 7days"
            ));
            Duration::ZERO
        });
        self.ensure(duration <= DURATION_MAX, || {
            format!("{flag} {value:?} is longer than ten years")
        });
        duration.min(DURATION_MAX)
    }

    /// The age at which maintenance removes something.
    pub fn age(&mut self, flag: &str, value: &str) -> Duration {
        let age = self.duration(flag, value);
        self.ensure(age >= RETENTION_MIN, || format!("{flag} must be at least 1h"));
        age
    }

    pub fn number(&mut self, flag: &str, value: &str, least: usize, most: usize) -> usize {
        match value.parse() {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                self.0
                    .push(format!("{flag} {value:?} is not a whole number from {least} to {most}"));
                least
            }
        }
    }

    pub fn bytes(&mut self, flag: &str, value: &str) -> usize {
        let sane = |bytes: &usize| (1 << 20..=1 << 40).contains(bytes);
        parse_bytes(value).filter(sane).unwrap_or_else(|| {
            self.0.push(format!(
                "{flag} {value:?} is not a size from 1MiB to 1024GiB; write e.g. 6MiB"
            ));
            1 << 20
        })
    }

    pub fn address(&mut self, flag: &str, value: &str) -> SocketAddr {
        value.parse().unwrap_or_else(|_| {
            self.0
                .push(format!("{flag} {value:?} is not an address; write e.g. 0.0.0.0:9090"));
            SocketAddr::from(([0, 0, 0, 0], 0))
        })
    }

    pub fn ensure(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.0.push(problem());
        }
    }

    pub fn problem(&mut self, problem: String) {
        self.0.push(problem);
    }

    pub fn problems(&mut self, problems: impl IntoIterator<Item = String>) {
        self.0.extend(problems);
    }

    /// The value, unless there was a problem. If there is no value, there was one.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Problems> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(Problems(self.0)),
        }
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
