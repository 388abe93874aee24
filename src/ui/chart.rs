//! Draws rates over time as an SVG image. Colours and line widths are in the style sheet, and every text is HTML beside the image, so
//! that neither is stretched.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::html::rate;
use super::rates::COLUMNS;

/// The height of the image in its own units. It is as wide as it has columns.
const HEIGHT: f64 = 100.0;

/// One line of the chart.
pub struct Line<'a> {
    pub name: &'a str,
    /// Its class in the style sheet.
    pub class: &'static str,
    pub rates: &'a [Option<f64>],
    /// The rate of late.
    pub current: Option<f64>,
}

/// The first line is filled.
pub fn chart(title: &str, lines: &[Line<'_>]) -> Markup {
    let highest = lines
        .iter()
        .flat_map(|line| line.rates)
        .flatten()
        .copied()
        .fold(0.0, f64::max);
    let top = round_up(highest);
    html! {
        figure.chart {
            figcaption { (title) }
            div.plot {
                div.scale aria-hidden="true" { span { (rate(top)) } span { (rate(top / 2.0)) } span { "0" } }
                svg viewBox={ "0 0 " (COLUMNS) " " (HEIGHT as u32) } preserveAspectRatio="none" role="img"
                    aria-label=(described(title, lines, highest)) {
                    path.grid d={ "M0 0H" (COLUMNS) "M0 50H" (COLUMNS) "M0 100H" (COLUMNS) } {}
                    @if let Some(first) = lines.first() {
                        path class={ "area " (first.class) } d=(area(first.rates, top)) {}
                    }
                    @for line in lines {
                        path class={ "line " (line.class) } d=(stroke(line.rates, top)) {}
                    }
                }
            }
            div.times aria-hidden="true" { span { "10 min ago" } span { "5 min" } span { "now" } }
            ul.legend {
                @for line in lines {
                    li class=(line.class) { (line.name) " " strong { (current(line)) } }
                }
            }
        }
    }
}

fn current(line: &Line<'_>) -> String {
    line.current
        .map_or("…".to_owned(), |current| format!("{} /s", rate(current)))
}

/// The chart in words.
fn described(title: &str, lines: &[Line<'_>], highest: f64) -> String {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| format!("{}: {} now", line.name, current(line)))
        .collect();
    format!("{title}. {}. Highest: {} a second.", lines.join("; "), rate(highest))
}

/// A round number that is not below this one, for the top of the scale.
fn round_up(highest: f64) -> f64 {
    let power = 10f64.powf(highest.max(1.0).log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= highest).unwrap_or(highest)
}

/// The stretches of time in which the rate is known, as points of the image.
fn stretches(rates: &[Option<f64>], top: f64) -> Vec<Vec<(f64, f64)>> {
    let points = rates.iter().enumerate().map(|(column, rate)| {
        let height = (*rate)? / top * HEIGHT;
        Some((column as f64 + 0.5, HEIGHT - height.min(HEIGHT)))
    });
    let points: Vec<Option<(f64, f64)>> = points.collect();
    let stretches = points.split(Option::is_none).filter(|stretch| !stretch.is_empty());
    stretches
        .map(|stretch| stretch.iter().flatten().copied().collect())
        .collect()
}

fn stroke(rates: &[Option<f64>], top: f64) -> String {
    let mut path = String::new();
    for stretch in stretches(rates, top) {
        for (at, (x, y)) in stretch.iter().enumerate() {
            let command = if at == 0 { 'M' } else { 'L' };
            // Writing to a String cannot fail.
            let _ = write!(path, "{command}{x} {y:.1}");
        }
    }
    path
}

fn area(rates: &[Option<f64>], top: f64) -> String {
    let mut path = String::new();
    for stretch in stretches(rates, top) {
        let (Some((first, _)), Some((last, _))) = (stretch.first(), stretch.last()) else {
            continue;
        };
        let _ = write!(path, "M{first} {HEIGHT}");
        for (x, y) in &stretch {
            let _ = write!(path, "L{x} {y:.1}");
        }
        let _ = write!(path, "L{last} {HEIGHT}Z");
    }
    path
}

/// Which lanes of 64 are meant, as a strip.
pub fn lanes(lanes: &[i16]) -> Markup {
    let mut path = String::new();
    for lane in lanes {
        let _ = write!(path, "M{lane} 0h1v1h-1z");
    }
    html! {
        svg.lanes viewBox="0 0 64 1" preserveAspectRatio="none" aria-hidden="true" { path d=(path) {} }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_at_a_round_number() {
        let tops = [0.0, 0.3, 1.0, 3.0, 4.5, 11.0, 999.0, 1_234.0].map(round_up);
        assert_eq!(tops, [1.0, 1.0, 1.0, 4.0, 5.0, 20.0, 1_000.0, 2_000.0]);
    }

    #[test]
    fn what_is_not_known_is_a_gap() {
        let rates = [Some(0.0), Some(10.0), None, None, Some(5.0)];
        assert_eq!(stroke(&rates, 10.0), "M0.5 100.0L1.5 0.0M4.5 50.0");
        assert_eq!(
            area(&rates, 10.0),
            "M0.5 100L0.5 100.0L1.5 0.0L1.5 100ZM4.5 100L4.5 50.0L4.5 100Z"
        );
        assert_eq!(stroke(&[None, None], 10.0), "");
    }

    #[test]
    fn a_chart_says_in_words_what_it_shows() {
        let line = Line {
            name: "relay <1>",
            class: "own",
            rates: &[Some(1_500.0)],
            current: Some(1_400.0),
        };
        let shown = chart("Published", &[line]).into_string();
        let label = "aria-label=\"Published. relay &lt;1&gt;: 1,400 /s now. Highest: 1,500 a second.\"";
        assert!(shown.contains(label), "{shown}");
    }
}
