//! Progress bars, on a terminal only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use xtfs_scrub::Progress;

use crate::sizes::human;

/// The bar of a scrub.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar on stderr, when that is a terminal and a bar is `wanted`.
    pub fn on_terminal(wanted: bool) -> Option<Self> {
        if !wanted || !std::io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::new(0).with_style(style(
            "{bar:30} {pos}/{len} objects, {msg}{elapsed} passed, {eta} left",
        ));
        bar.enable_steady_tick(Duration::from_millis(200));
        Some(Self(bar))
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn expect(&self, objects: u64) {
        self.0.inc_length(objects);
    }

    fn verified(&self, objects: u64, bytes: u64) {
        self.0.inc(objects);
        let rate = bytes as f64 * self.0.per_sec() / (objects.max(1) as f64);
        self.0.set_message(format!("{}/s, ", human(rate as u64)));
    }

    fn comparing(&self) {
        self.0.set_message("comparing with files, ");
    }
}

/// The bar of a benchmark; nothing where there is no terminal.
pub struct Steps(Option<ProgressBar>);

impl Steps {
    /// A bar on stderr, when that is a terminal and a bar is `wanted`.
    pub fn on_terminal(wanted: bool, steps: u64) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(steps)
            .with_style(style("{bar:30} {pos}/{len}, {elapsed} passed, {eta} left"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some(bar))
    }

    /// One step is done.
    pub fn done_one(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
