//! What we want to reach, and whether it was.

use serde_json::{Value, json};

use crate::report::{Cell, number};

pub struct Target {
    pub promise: String,
    bound: Bound,
    measured: Option<f64>,
    unit: &'static str,
    places: usize,
    others: Option<Others>,
}

/// The same figure of the other contestants, of those that have one.
#[derive(Clone, Copy, Default)]
pub struct Others {
    pub postgres_alone: Option<f64>,
    pub producer_alone: Option<f64>,
    pub textbook: Option<f64>,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    pub fn at_least(promise: impl Into<String>, bound: f64, measured: Option<f64>) -> Self {
        Target::new(promise.into(), Bound::AtLeast(bound), measured)
    }

    pub fn at_most(promise: impl Into<String>, bound: f64, measured: Option<f64>) -> Self {
        Target::new(promise.into(), Bound::AtMost(bound), measured)
    }

    fn new(promise: String, bound: Bound, measured: Option<f64>) -> Self {
        Target {
            promise,
            bound,
            measured,
            unit: "",
            places: 2,
            others: None,
        }
    }

    pub fn shown(self, unit: &'static str, places: usize) -> Self {
        Target { unit, places, ..self }
    }

    /// One that the report begins with, beside the same of the others.
    pub fn in_summary(self, others: Others) -> Self {
        Target {
            others: Some(others),
            ..self
        }
    }

    pub fn is_reached(&self) -> Option<bool> {
        self.measured.map(|measured| match self.bound {
            Bound::AtLeast(bound) => measured >= bound,
            Bound::AtMost(bound) => measured <= bound,
        })
    }

    fn sign(&self) -> &'static str {
        match self.is_reached() {
            Some(true) => "✓",
            Some(false) => "**✗ missed**",
            None => "not measured",
        }
    }

    /// Its line in the table of all targets.
    pub fn row(&self) -> Vec<Cell> {
        vec![
            Cell::text(&self.promise),
            self.figure(self.measured),
            Cell::text(self.allowed()),
            Cell::text(self.sign()),
        ]
    }

    /// Its line in the table that the report begins with, if it stands there.
    pub fn summary_row(&self) -> Option<Vec<Cell>> {
        let others = self.others?;
        let mut row = self.row();
        let figures = [others.postgres_alone, others.producer_alone, others.textbook];
        row.splice(2..2, figures.map(|other| self.figure(other)));
        Some(row)
    }

    fn figure(&self, value: Option<f64>) -> Cell {
        Cell::text(value.map_or("–".to_owned(), |value| self.with_unit(value)))
    }

    fn allowed(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("≥ {}", self.with_unit(bound)),
            Bound::AtMost(bound) => format!("≤ {}", self.with_unit(bound)),
        }
    }

    fn with_unit(&self, value: f64) -> String {
        let number = number(value, self.places);
        if self.unit.is_empty() {
            number
        } else {
            format!("{number} {}", self.unit)
        }
    }

    pub fn json(&self) -> Value {
        let (at_least, at_most) = match self.bound {
            Bound::AtLeast(bound) => (Some(bound), None),
            Bound::AtMost(bound) => (None, Some(bound)),
        };
        json!({
            "target": self.promise, "measured": self.measured, "unit": self.unit,
            "at_least": at_least, "at_most": at_most, "reached": self.is_reached(),
            "postgres_alone": self.others.and_then(|others| others.postgres_alone),
            "producer_alone": self.others.and_then(|others| others.producer_alone),
            "textbook": self.others.and_then(|others| others.textbook),
        })
    }
}
