//! Jitter, so that processes do not retry in step.

use std::time::Duration;

/// A random duration between 0.5 and 1.5 times this one.
pub fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.5 + fastrand::f64())
}
