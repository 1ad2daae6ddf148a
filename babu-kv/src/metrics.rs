//! Numbers with a name, a kind and an explanation, from one definition: the fields of
//! [`Stats`](crate::Stats) are also the metrics of its Prometheus text.

use crate::stats::{LevelStats, Stats};
use std::fmt::Write;

const PREFIX: &str = "babu_kv_";

/// How a number moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only up, from 0 when the database was opened.
    Counter,
    /// Up and down.
    Gauge,
}

/// One number of an `S`.
pub(crate) struct Metric<S> {
    pub field: &'static str,
    pub kind: Kind,
    /// The comment of the field, in pieces as it was written.
    pub help: &'static str,
    pub value: fn(&S) -> u64,
}

/// Defines a struct whose first fields are metrics, each with its kind before it.
macro_rules! metrics {
    (
        $(#[$meta:meta])* pub struct $name:ident {
            $($(#[doc = $doc:literal])+ $kind:ident $field:ident: $type:ty,)*
            $(; $($(#[$other_meta:meta])+ $other:ident: $other_type:ty,)*)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)*
            $($($(#[$other_meta])+ pub $other: $other_type,)*)?
        }

        impl $name {
            pub(crate) const METRICS: &'static [$crate::metrics::Metric<$name>] = &[
                $($crate::metrics::Metric {
                    field: stringify!($field),
                    kind: $crate::metrics::Kind::$kind,
                    help: concat!($($doc),+),
                    value: |all| all.$field as u64,
                },)*
            ];
        }
    };
}
pub(crate) use metrics;

impl<S> Metric<S> {
    /// Writes the two lines before the samples; gives the name.
    fn head(&self, out: &mut String, prefix: &str) -> String {
        let (kind, suffix) = match self.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let name = format!("{PREFIX}{prefix}{}{suffix}", self.field);
        let help = self.help.trim().replace('\\', r"\\");
        // Writing to a string does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name
    }
}

/// The numbers in Prometheus' text format, version 0.0.4.
pub(crate) fn prometheus(stats: &Stats) -> String {
    let mut out = String::new();
    for metric in Stats::METRICS {
        let name = metric.head(&mut out, "");
        let _ = writeln!(out, "{name} {}", (metric.value)(stats));
    }
    for metric in LevelStats::METRICS {
        let name = metric.head(&mut out, "level_");
        for (number, level) in stats.levels.iter().enumerate() {
            let value = (metric.value)(level);
            let _ = writeln!(out, "{name}{{level=\"{number}\"}} {value}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn is_name(name: &str) -> bool {
        let mut chars = name.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }

    /// Samples by name and labels, read as the format's rules say.
    fn parse(text: &str) -> BTreeMap<String, u64> {
        let mut samples = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let (mut name, mut kind) = ("", "");
        assert!(text.ends_with('\n'));
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let help;
                (name, help) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && seen.insert(name), "{name}");
                assert!(help.ends_with('.') && !help.contains("  "), "{help}");
                let rest = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
                let typed;
                (typed, kind) = rest.split_once(' ').unwrap();
                assert_eq!(typed, name);
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                continue;
            }
            let (key, value) = line.split_once(' ').unwrap();
            let (base, labels) = key.split_once('{').unwrap_or((key, "}"));
            assert_eq!(base, name);
            assert!(["counter", "gauge"].contains(&kind));
            if let Some(level) = labels.strip_prefix("level=\"") {
                level.strip_suffix("\"}").unwrap().parse::<u8>().unwrap();
            }
            assert_eq!(
                samples.insert(key.to_string(), value.parse().unwrap()),
                None
            );
        }
        samples
    }

    #[test]
    fn the_text_reads_back_as_the_numbers() {
        let mut stats = Stats {
            commits: 7,
            flushed_bytes: u64::MAX,
            cache_bytes: 9,
            ..Stats::default()
        };
        for n in 0..7 {
            stats.levels.push(LevelStats {
                bytes: 100 + n,
                ..LevelStats::default()
            });
        }
        let samples = parse(&stats.to_prometheus());
        assert_eq!(samples["babu_kv_commits_total"], 7);
        assert_eq!(samples["babu_kv_flushed_bytes_total"], u64::MAX);
        assert_eq!(samples["babu_kv_cache_bytes"], 9);
        assert_eq!(samples["babu_kv_level_bytes{level=\"6\"}"], 106);
        let count = Stats::METRICS.len() + 7 * LevelStats::METRICS.len();
        assert_eq!(samples.len(), count);
    }
}
