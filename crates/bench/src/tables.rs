//! Medians, figures as text, and Markdown tables.

use std::fmt::Write as _;
use std::time::Duration;

/// The middle value; of an even number of values, the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// A ratio, or a dash if there is none.
pub(crate) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2} ×"))
}

/// A duration in microseconds.
pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Bytes in millions, with a useful number of digits.
pub(crate) fn megabytes(bytes: f64) -> String {
    let megabytes = bytes / 1e6;
    if megabytes < 100.0 { format!("{megabytes:.1}") } else { format!("{megabytes:.0}") }
}

/// A count as a float with fifteen digits, which no count here exceeds.
pub(crate) fn count(number: u64) -> f64 {
    // Two halves that both fit, since a cast could round.
    let (high, low) = ((number >> 32) as u32, number as u32);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// A count in short form: `10k`, `5M`.
pub(crate) fn short(number: u64) -> String {
    match number {
        0 => "0".to_owned(),
        n if n.is_multiple_of(1_000_000) => format!("{}M", n / 1_000_000),
        n if n.is_multiple_of(1_000) => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

/// Parses a count with a unit of a thousand: `10k`, `5M`.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    scaled(text, &[("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("", 1)])
}

/// Parses a size like sureq does: a number of bytes, or one with a unit of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    scaled(text, &[("KB", 1 << 10), ("MB", 1 << 20), ("GB", 1 << 30), ("", 1)])
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let wrong = || format!("invalid number {text:?}: write digits, with a unit or without");
    let (digits, scale) =
        units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale))).ok_or_else(wrong)?;
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(wrong)
}

/// A Markdown table whose columns are aligned in plain text too: words to the left, figures to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let _ = if column == 0 {
                write!(text, "| {cell:<width$} ")
            } else {
                write!(text, "| {cell:>width$} ")
            };
        }
        text.push_str("|\n");
    };
    line(&mut head.iter().copied());
    let rules: Vec<String> = widths.iter().enumerate().map(|(column, width)| rule(column, *width)).collect();
    line(&mut rules.iter().map(String::as_str));
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

fn rule(column: usize, width: usize) -> String {
    let dashes = "-".repeat(width - 1);
    if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn counts_and_sizes_have_units() {
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("5M"), Ok(5_000_000));
        assert_eq!(parse_count("7"), Ok(7));
        assert!(parse_count("7 M").is_err() && parse_count("").is_err());
        assert_eq!(parse_size("1MB"), Ok(1 << 20));
        assert_eq!(parse_size("12"), Ok(12));
        assert!(parse_size("99999999999GB").is_err());
        assert_eq!([short(0), short(10_000), short(5_000_000), short(1_234)], ["0", "10k", "5M", "1234"]);
    }

    #[test]
    fn a_table_lines_up() {
        let rows = [vec!["redis".to_owned(), "1.00 ×".to_owned()], vec!["q".to_owned(), "–".to_owned()]];
        let expected = "\
| server |  µs/task |
| ------ | -------: |
| redis  |   1.00 × |
| q      |        – |
";
        assert_eq!(table(&["server", " µs/task"], &rows), expected);
    }
}
