//! Bars as an SVG, with the spread of the rounds as a whisker.

use std::fmt::Write as _;

use testkit::svg::{TOP, titled};

use crate::report::number;
use crate::rounds::Spread;

const WIDTH: f64 = 960.0;
/// Room for the labels.
const LEFT: f64 = 390.0;
/// Room for the number behind a bar.
const RIGHT: f64 = 110.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;

pub struct Chart {
    /// Of the file, without its end.
    pub name: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub places: usize,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub label: String,
    pub whose: Whose,
    pub value: Spread,
}

#[derive(Clone, Copy)]
pub enum Whose {
    Ours,
    /// What the hardware allows, or the same without a relay.
    Limit,
    Other,
}

impl Whose {
    fn class(self) -> &'static str {
        match self {
            Whose::Ours => "ours",
            Whose::Limit => "limit",
            Whose::Other => "other",
        }
    }
}

impl Chart {
    pub fn svg(&self) -> String {
        let most = self
            .bars
            .iter()
            .map(|bar| bar.value.max)
            .fold(f64::MIN_POSITIVE, f64::max);
        let height = TOP + LINE * self.bars.len() as f64 + 8.0;
        let mut out = String::new();
        for (line, bar) in self.bars.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = self.draw(&mut out, bar, TOP + LINE * line as f64, most);
        }
        titled(self.title, WIDTH, height, &out)
    }

    fn draw(&self, out: &mut String, bar: &Bar, y: f64, most: f64) -> std::fmt::Result {
        let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / most;
        let Spread { median, min, max } = bar.value;
        let (text, middle) = (y + BAR - 3.0, y + BAR / 2.0);
        writeln!(
            out,
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            bar.label
        )?;
        writeln!(
            out,
            "<rect class=\"{}\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>",
            bar.whose.class(),
            (x(median) - LEFT).max(1.0)
        )?;
        writeln!(
            out,
            "<path class=\"whisker\" d=\"M{:.1} {middle}H{:.1}\"/>",
            x(min),
            x(max)
        )?;
        let (label, unit) = (number(median, self.places), self.unit);
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{text}\">{label} {unit}</text>",
            x(max) + 6.0
        )
    }
}
