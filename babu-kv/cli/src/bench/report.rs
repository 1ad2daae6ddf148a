//! The rows, what they should be, and how they are printed.
//!
//! A target speaks of babu-kv. One that compares takes the better of the other engines of the same
//! run, so it is neither met nor missed when there are none.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// What a row should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At most so many times the best of the others; at least so many times when it is a rate.
    Times(f64),
    /// At most this value.
    AtMost(f64),
}

/// One measured number of each engine.
#[derive(Debug)]
pub struct Row {
    name: String,
    unit: &'static str,
    values: BTreeMap<&'static str, f64>,
    target: Option<Target>,
}

impl Row {
    /// A row without a target.
    pub fn new(
        name: String,
        unit: &'static str,
        values: impl Iterator<Item = (&'static str, f64)>,
    ) -> Row {
        Row {
            name,
            unit,
            values: values.collect(),
            target: None,
        }
    }

    /// The same with a target.
    pub fn target(self, target: Target) -> Row {
        Row {
            target: Some(target),
            ..self
        }
    }

    /// Whether more is better.
    fn is_rate(&self) -> bool {
        self.unit.ends_with("/s")
    }

    /// The value of the first engine divided by the best of the others.
    fn ratio(&self, engines: &[&'static str]) -> Option<f64> {
        let (first, others) = engines.split_first()?;
        let others = others.iter().filter_map(|engine| self.values.get(engine));
        let best = others.copied().reduce(|a, b| match self.is_rate() {
            true => a.max(b),
            false => a.min(b),
        })?;
        Some(self.values.get(first)? / best)
    }

    fn target_text(&self) -> Option<String> {
        Some(match self.target? {
            Target::Times(times) if self.is_rate() => format!(">= {times} x"),
            Target::Times(times) => format!("<= {times} x"),
            Target::AtMost(value) => format!("<= {value} {}", self.unit),
        })
    }

    /// Whether the target is met; nothing when there is none or too little was measured.
    fn is_met(&self, engines: &[&'static str]) -> Option<bool> {
        match self.target? {
            Target::Times(times) if self.is_rate() => Some(self.ratio(engines)? >= times),
            Target::Times(times) => Some(self.ratio(engines)? <= times),
            Target::AtMost(value) => Some(*self.values.get(engines.first()?)? <= value),
        }
    }
}

/// The rows so far.
#[derive(Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    /// Adds a row, unless no engine has a value for it.
    pub fn add(&mut self, row: Row) {
        if !row.values.is_empty() {
            self.0.push(row);
        }
    }

    /// Prints them with a column for each engine; targets are those of the first.
    pub fn print(&self, engines: &[&'static str]) -> Result<()> {
        let mut table = Table::new();
        let compared = engines.len() > 1;
        let mut header = vec!["what"];
        header.extend(engines);
        header.push("unit");
        if compared {
            header.extend(["ratio", "target", ""]);
        }
        table.load_style(presets::ASCII_MARKDOWN).set_header(header);
        for row in &self.0 {
            let mut cells = vec![row.name.clone()];
            let values = engines.iter().map(|engine| row.values.get(engine));
            cells.extend(values.map(|v| v.map_or(String::new(), |v| format!("{v:.2}"))));
            cells.push(row.unit.into());
            if compared {
                let ratio = row.ratio(engines);
                cells.push(ratio.map_or(String::new(), |r| format!("{r:.2}")));
                cells.push(row.target_text().unwrap_or_default());
                cells.push(match row.is_met(engines) {
                    Some(true) => "met".into(),
                    Some(false) => "MISSED".into(),
                    None => String::new(),
                });
            }
            table.add_row(cells);
        }
        for column in (1..=engines.len()).chain([engines.len() + 2]) {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(io::stdout(), "{table}")?;
        Ok(())
    }

    /// Each row as an object.
    pub fn json(&self, engines: &[&'static str]) -> Value {
        let rows = self.0.iter().map(|row| {
            let mut object = Map::new();
            object.insert("name".into(), json!(row.name));
            object.insert("unit".into(), json!(row.unit));
            object.insert("values".into(), json!(row.values));
            if let Some(ratio) = row.ratio(engines) {
                object.insert("ratio".into(), json!(ratio));
            }
            if let Some(target) = row.target_text() {
                object.insert("target".into(), json!(target));
            }
            if let Some(met) = row.is_met(engines) {
                object.insert("met".into(), json!(met));
            }
            Value::Object(object)
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: &'static str, values: &[(&'static str, f64)], target: Target) -> Row {
        Row::new("row".into(), unit, values.iter().copied()).target(target)
    }

    #[test]
    fn a_target_compares_with_the_better_of_the_others() {
        let engines = ["a", "b", "c"];
        let values = [("a", 6.0), ("b", 10.0), ("c", 8.0)];
        let time = row("us", &values, Target::Times(0.7));
        assert_eq!(time.ratio(&engines), Some(0.75));
        assert_eq!(time.is_met(&engines), Some(false));
        assert_eq!(
            row("us", &values, Target::Times(0.75)).is_met(&engines),
            Some(true)
        );

        let rate = row("commits/s", &values, Target::Times(0.6));
        assert_eq!(rate.ratio(&engines), Some(0.6));
        assert_eq!(rate.is_met(&engines), Some(true));
        assert_eq!(rate.target_text().unwrap(), ">= 0.6 x");
        assert_eq!(
            row("commits/s", &values, Target::Times(1.2)).is_met(&engines),
            Some(false)
        );
    }

    #[test]
    fn an_engine_that_cannot_do_it_is_left_out() {
        let values = [("a", 6.0), ("c", 12.0)];
        let time = row("us", &values, Target::Times(0.5));
        assert_eq!(time.is_met(&["a", "b", "c"]), Some(true));
        // Nothing to compare with.
        assert_eq!(time.is_met(&["a", "b"]), None);
        assert_eq!(time.is_met(&["b", "a"]), None);
    }

    #[test]
    fn a_target_without_comparison_needs_no_other_engine() {
        let time = row("ms", &[("a", 21.0)], Target::AtMost(20.0));
        assert_eq!(time.is_met(&["a"]), Some(false));
        assert_eq!(time.ratio(&["a"]), None);
        assert_eq!(time.target_text().unwrap(), "<= 20 ms");
    }
}
