//! The lag over time as an SVG, and below it a line for each kind of fault that shows when it lasted.

use std::fmt::Write as _;

use clap::ValueEnum as _;
use testkit::svg::{TOP, titled};

use crate::schedule::{Kind, Schedule};
use crate::verdict::Evidence;

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 210.0;
const RIGHT: f64 = 20.0;
/// Of the curve.
const HEIGHT: f64 = 220.0;
/// Of one kind's line.
const LINE: f64 = 18.0;

struct Scale {
    seconds: f64,
    lag: f64,
}

impl Scale {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds
    }

    fn y(&self, lag: f64) -> f64 {
        TOP + HEIGHT * (1.0 - lag / self.lag)
    }
}

pub fn lag(schedule: &Schedule, evidence: &Evidence) -> String {
    let last = evidence.samples.last().map_or(1.0, |sample| sample.at.as_secs_f64());
    let scale = Scale {
        seconds: last.max(1.0),
        lag: evidence.lag_max().max(1.0) * 1.1,
    };
    let height = TOP + HEIGHT + 40.0 + LINE * Kind::value_variants().len() as f64;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = grid(&mut out, &scale);
    let _ = faults(&mut out, &scale, evidence);
    let _ = curve(&mut out, &scale, evidence);
    let title = format!("Age of the oldest pending row, seed {}", schedule.seed);
    titled(&title, WIDTH, height, &out)
}

fn grid(out: &mut String, scale: &Scale) -> std::fmt::Result {
    for lag in steps(scale.lag, 5.0) {
        let (y, end) = (scale.y(lag), WIDTH - RIGHT);
        writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{end}\"/>")?;
        let x = LEFT - 8.0;
        writeln!(
            out,
            "<text x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{lag} s</text>",
            y + 4.0
        )?;
    }
    let y = TOP + HEIGHT + 18.0;
    for seconds in steps(scale.seconds, 10.0) {
        let (x, minutes, rest) = (scale.x(seconds), seconds as u64 / 60, seconds as u64 % 60);
        writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{minutes}:{rest:02}</text>"
        )?;
    }
    Ok(())
}

/// Round numbers from 0 to `most`, about so many.
fn steps(most: f64, about: f64) -> impl Iterator<Item = f64> {
    const ROUND: [f64; 12] = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];
    let step = ROUND.into_iter().find(|step| most / step <= about).unwrap_or(3600.0);
    (0..=(most / step) as usize).map(move |n| n as f64 * step)
}

fn faults(out: &mut String, scale: &Scale, evidence: &Evidence) -> std::fmt::Result {
    let base = TOP + HEIGHT + 34.0;
    for (line, &kind) in Kind::value_variants().iter().enumerate() {
        let (x, y) = (LEFT - 8.0, base + LINE * line as f64);
        writeln!(
            out,
            "<text x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            y + 10.0,
            kind.name()
        )?;
        for fault in evidence.faults.iter().filter(|fault| fault.event.kind == kind) {
            let (x, width) = (
                scale.x(fault.began.as_secs_f64()),
                (scale.x(fault.took.as_secs_f64()) - LEFT).max(2.0),
            );
            writeln!(
                out,
                "<rect class=\"shade\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{HEIGHT}\"/>"
            )?;
            writeln!(
                out,
                "<rect class=\"other\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"12\" rx=\"2\"/>"
            )?;
        }
    }
    Ok(())
}

/// Broken where the database did not answer: unknown is not zero.
fn curve(out: &mut String, scale: &Scale, evidence: &Evidence) -> std::fmt::Result {
    write!(out, "<path class=\"curve\" d=\"")?;
    let mut command = 'M';
    for sample in &evidence.samples {
        let Some(backlog) = sample.backlog else {
            command = 'M';
            continue;
        };
        let (x, y) = (scale.x(sample.at.as_secs_f64()), scale.y(backlog.lag_seconds));
        write!(out, "{command}{x:.1} {y:.1}")?;
        command = 'L';
    }
    writeln!(out, "\"/>")
}
