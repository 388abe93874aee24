//! `report.md`, `report.json` and the charts. What a table shows is what the JSON holds: both are made from the same cells.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value, json};

use crate::chart::Chart;
use crate::machine::Fact;
use crate::rounds::Spread;
use crate::target::Target;

pub struct Report {
    pub title: &'static str,
    pub rounds: usize,
    pub compared_rounds: usize,
    pub machine: Vec<Fact>,
    pub sections: Vec<Section>,
}

/// What one scenario found.
pub struct Section {
    pub name: &'static str,
    pub title: &'static str,
    /// What was done, and how to read it.
    pub note: String,
    pub tables: Vec<Table>,
    pub charts: Vec<Chart>,
    pub targets: Vec<Target>,
}

pub struct Table {
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
}

pub enum Cell {
    Text(String),
    /// Rounded to so many places.
    Number(Option<f64>, usize),
    Spread(Option<Spread>, usize),
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Cell::Text(text.into())
    }

    /// The median with its spread.
    pub fn spread(values: impl IntoIterator<Item = f64>, places: usize) -> Self {
        Cell::Spread(Spread::of(values), places)
    }

    fn markdown(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(None, _) | Cell::Spread(None, _) => "–".to_owned(),
            Cell::Number(Some(value), places) => number(*value, *places),
            Cell::Spread(Some(spread), places) => {
                let [median, min, max] = [spread.median, spread.min, spread.max].map(|value| number(value, *places));
                if min == max {
                    median
                } else {
                    format!("{median} ({min}–{max})")
                }
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Number(value, _) => json!(value),
            Cell::Spread(spread, _) => json!(spread.map(|spread| json!({
                "median": spread.median, "min": spread.min, "max": spread.max,
            }))),
        }
    }
}

/// With commas between thousands.
pub fn number(value: f64, places: usize) -> String {
    let text = format!("{:.places$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{grouped}{rest}")
}

impl Report {
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join("report.md"), self.markdown())?;
        fs::write(folder.join("report.json"), format!("{:#}", self.json()))?;
        for chart in self.sections.iter().flat_map(|section| &section.charts) {
            fs::write(folder.join(format!("{}.svg", chart.name)), chart.svg())?;
        }
        Ok(())
    }

    fn targets(&self) -> impl Iterator<Item = &Target> {
        self.sections.iter().flat_map(|section| &section.targets)
    }

    /// The figures that matter most, beside those of the other contestants; and whatever missed its target.
    pub fn summary(&self) -> String {
        let table = Table {
            columns: vec![
                "",
                "outboxd",
                "postgres alone",
                "producer alone",
                "textbook",
                "target",
                "",
            ],
            rows: self.targets().filter_map(Target::summary_row).collect(),
        };
        let missed = self.targets().filter(|target| target.is_reached() == Some(false));
        let missed: Vec<&str> = missed.map(|target| target.promise.as_str()).collect();
        let said = match missed.len() {
            0 => "No target is missed.".to_owned(),
            count => format!(
                "Missed: {count} of {} targets: {}.",
                self.targets().count(),
                missed.join("; ")
            ),
        };
        format!("{}\n{said}\n", table.markdown())
    }

    /// Every target, what was measured, and whether that is enough.
    fn all_targets(&self) -> Table {
        Table {
            columns: vec!["target", "measured", "allowed", ""],
            rows: self.targets().map(Target::row).collect(),
        }
    }

    /// What it all ran on.
    fn environment(&self) -> Table {
        let fact = |fact: &Fact| vec![Cell::text(&fact.name), Cell::text(&fact.value)];
        Table {
            columns: vec!["", ""],
            rows: self.machine.iter().map(fact).collect(),
        }
    }

    fn markdown(&self) -> String {
        let mut out = format!(
            "# {}\n\n{}\nMedians of interleaved rounds, {} of each, {} of what is compared in pairs; below, in brackets, the \
             lowest and the highest.\n\n\
             ## Machine\n\n{}\n## Targets\n\n{}",
            self.title,
            self.summary(),
            self.rounds,
            self.compared_rounds,
            self.environment().markdown(),
            self.all_targets().markdown()
        );
        for section in &self.sections {
            out += &section.markdown();
        }
        out
    }

    fn json(&self) -> Value {
        let facts: Map<String, Value> = self
            .machine
            .iter()
            .map(|fact| (fact.name.clone(), json!(fact.value)))
            .collect();
        let sections: Map<String, Value> = self
            .sections
            .iter()
            .map(|section| (section.name.to_owned(), section.json()))
            .collect();
        json!({
            "title": self.title,
            "rounds": self.rounds,
            "compared_rounds": self.compared_rounds,
            "machine": facts,
            "targets": self.targets().map(Target::json).collect::<Vec<_>>(),
            "scenarios": sections,
        })
    }
}

impl Section {
    fn markdown(&self) -> String {
        let mut out = format!("\n## {}\n\n{}\n\n", self.title, self.note);
        for table in &self.tables {
            out += &table.markdown();
            out.push('\n');
        }
        for chart in &self.charts {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "![{}]({}.svg)\n", chart.title, chart.name);
        }
        out
    }

    fn json(&self) -> Value {
        json!({ "title": self.title, "tables": self.tables.iter().map(Table::json).collect::<Vec<_>>() })
    }
}

impl Table {
    fn markdown(&self) -> String {
        let mut out = format!(
            "| {} |\n|{}\n",
            self.columns.join(" | "),
            "---|".repeat(self.columns.len())
        );
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::markdown).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }

    fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| -> Map<String, Value> {
            let named = self.columns.iter().zip(cells);
            named
                .map(|(column, cell)| ((*column).to_owned(), cell.json()))
                .collect()
        };
        json!(self.rows.iter().map(row).collect::<Vec<_>>())
    }
}
