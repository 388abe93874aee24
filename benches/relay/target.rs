//! What we want to reach, and whether it was.

use serde_json::{Value, json};

use crate::report::number;

pub struct Target {
    pub promise: String,
    bound: Bound,
    measured: Option<f64>,
    unit: &'static str,
    places: usize,
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
        }
    }

    pub fn shown(self, unit: &'static str, places: usize) -> Self {
        Target { unit, places, ..self }
    }

    fn is_reached(&self) -> Option<bool> {
        self.measured.map(|measured| match self.bound {
            Bound::AtLeast(bound) => measured >= bound,
            Bound::AtMost(bound) => measured <= bound,
        })
    }

    pub fn sign(&self) -> &'static str {
        match self.is_reached() {
            Some(true) => "✓",
            Some(false) => "✗",
            None => "not measured",
        }
    }

    pub fn measured(&self) -> String {
        self.measured
            .map_or("–".to_owned(), |measured| self.with_unit(measured))
    }

    pub fn allowed(&self) -> String {
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
        })
    }
}
