//! From rates to a table: medians, ratios against a base, text and JSON.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::measures::{Measure, Unit};
use super::{Sizes, Subject};

/// The middle of the values; of an even number, the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(middle.checked_sub(1)?)?;
    Some(f64::midpoint(lower, upper))
}

/// The medians of one measure, by directory.
struct Row {
    medians: Vec<Option<f64>>,
}

impl Row {
    fn new(measure: Measure, subjects: &[Subject]) -> Self {
        let medians = subjects
            .iter()
            .map(|subject| subject.rates.get(&measure).and_then(|rates| median(rates)))
            .collect();
        Self { medians }
    }

    fn ratio(&self, index: usize, base: usize) -> Option<f64> {
        let base = (*self.medians.get(base)?)?;
        let value = (*self.medians.get(index)?)?;
        (base > 0.0).then(|| value / base)
    }
}

/// The table for people. `base` is the place of the directory that the others are compared with.
pub fn table(subjects: &[Subject], base: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut head = vec![Cell::new(""), Cell::new("unit")];
    for (index, subject) in subjects.iter().enumerate() {
        head.push(Cell::new(&subject.label));
        if index != base {
            head.push(Cell::new("ratio"));
        }
    }
    table.set_header(head);
    for &measure in Measure::ALL {
        let row = Row::new(measure, subjects);
        let mut cells = vec![Cell::new(measure.title()), Cell::new(measure.unit().text())];
        for index in 0..subjects.len() {
            let rate = row.medians.get(index).copied().flatten();
            cells.push(right(rate.map(|rate| rate_text(measure.unit(), rate))));
            if index != base {
                cells.push(right(row.ratio(index, base).map(|r| format!("{r:.2}"))));
            }
        }
        table.add_row(cells);
    }
    table
}

/// The same for programs.
pub fn json(subjects: &[Subject], base: usize, sizes: &Sizes) -> Value {
    let directory = |(index, subject): (usize, &Subject)| {
        let row = |&measure: &Measure| {
            let row = Row::new(measure, subjects);
            let value = json!({
                "unit": measure.unit(),
                "median": row.medians.get(index).copied().flatten(),
                "ratio": row.ratio(index, base),
                "rounds": subject.rates.get(&measure),
            });
            (measure.key().to_owned(), value)
        };
        json!({
            "label": subject.label,
            "directory": subject.dir,
            "measures": Measure::ALL.iter().map(row).collect::<serde_json::Map<_, _>>(),
        })
    };
    json!({
        "sizes": sizes,
        "base": subjects.get(base).map(|subject| &subject.label),
        "directories": subjects.iter().enumerate().map(directory).collect::<Vec<_>>(),
    })
}

fn right(text: Option<String>) -> Cell {
    Cell::new(text.unwrap_or_else(|| "-".to_owned())).set_alignment(CellAlignment::Right)
}

fn rate_text(unit: Unit, rate: f64) -> String {
    match unit {
        Unit::Mebibytes if rate < 10.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(label: &str, rates: &[f64]) -> Subject {
        let mut subject = Subject::new(label.to_owned(), label.into());
        subject.rates.insert(Measure::Stat, rates.to_vec());
        subject
    }

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 100.0, 3.0, 5.0]), Some(4.0));
    }

    #[test]
    fn ratios_are_against_the_base_wherever_it_stands() {
        let subjects = [
            subject("mount", &[50.0]),
            subject("bound", &[100.0, 200.0, 300.0]),
        ];
        let row = Row::new(Measure::Stat, &subjects);
        assert_eq!(row.ratio(0, 1), Some(0.25));
        assert_eq!(row.ratio(1, 0), Some(4.0));
        assert_eq!(Row::new(Measure::Open, &subjects).ratio(0, 1), None);
    }

    #[test]
    fn the_table_names_directories_and_the_json_carries_every_round() {
        let subjects = [subject("mount", &[50.0, 70.0]), subject("ext4", &[120.0])];
        let text = table(&subjects, 1).to_string();
        assert!(text.contains("mount") && text.contains("0.50"), "{text}");
        let sizes = Sizes {
            file_bytes: 1,
            random_ops: 1,
            files: 1,
            small_bytes: 1,
            fsyncs: 1,
            rounds: 2,
        };
        let json = json(&subjects, 1, &sizes);
        let stat = &json["directories"][0]["measures"]["stat"];
        assert_eq!(stat["median"], 60.0);
        assert_eq!(stat["ratio"], 0.5);
        assert_eq!(stat["rounds"], json!([50.0, 70.0]));
        assert_eq!(stat["unit"], "op/s");
    }
}
