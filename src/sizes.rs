//! Sizes as people type and read them: `4K`, `1M`, `2G`, in powers of 1024.

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Reads a size in bytes: a whole number with an optional `K`, `M`, `G` or `T` (also `KiB`, ...).
pub fn parse(text: &str) -> Result<u64, String> {
    let refused = || format!("{text:?} is not a size such as 4096, 4K, 1M or 2G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| refused())?;
    let unit = text[digits.len()..].to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").unwrap_or(&unit);
    let shift = match unit {
        "" | "B" => 0,
        _ => UNITS
            .iter()
            .find(|(letter, _)| unit.len() == 1 && unit.starts_with(*letter))
            .map(|(_, shift)| *shift)
            .ok_or_else(refused)?,
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text:?} is larger than any file"))
}

/// Writes a size for people, with at most one digit behind the point.
pub fn human(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        None => format!("{bytes} B"),
        Some((letter, shift)) => {
            let whole = bytes >> shift;
            let tenth = ((bytes - (whole << shift)) >> (shift - 10)) * 10 / 1024;
            if tenth == 0 || whole >= 100 {
                format!("{whole} {letter}iB")
            } else {
                format!("{whole}.{tenth} {letter}iB")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4K"), Ok(4096));
        assert_eq!(parse("4KiB"), Ok(4096));
        assert_eq!(parse("1m"), Ok(1 << 20));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("1T"), Ok(1 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        for text in [
            "",
            "K",
            "-1",
            "1.5G",
            "4Q",
            "4KB",
            "1MM",
            "99999999999T",
            "٣K",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        let written = [0, 1023, 1024, 1536, 200 << 20, (1 << 30) + (1 << 29)].map(human);
        let expected = ["0 B", "1023 B", "1 KiB", "1.5 KiB", "200 MiB", "1.5 GiB"];
        assert_eq!(written, expected);
        assert_eq!(human(u64::MAX), "16777215 TiB");
    }
}
