//! Nobody tries again in step with the others. A leaf.

use std::time::Duration;

/// Between half of it and one and a half.
pub fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.5 + fastrand::f64())
}
