//! Numbers, sizes and times in a form for reading.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 1234567 as 1,234,567.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits are text"))
        .collect();
    groups.join(",")
}

/// A count with its noun in singular or plural: 1 task, 2,000 tasks.
pub(crate) fn many(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", number(n), if n == 1 { "" } else { "s" })
}

/// A number of bytes with its unit, to three digits: 1.5 KB, 200 MB.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_240 && unit + 1 < units.len() {
        tenths /= 1024;
        unit += 1;
    }
    let (whole, tenth, name) = (tenths / 10, tenths % 10, units[unit]);
    if unit > 0 && whole < 100 { format!("{whole}.{tenth} {name}") } else { format!("{whole} {name}") }
}

/// A time by its two largest units: 3 h 20 min, 5 s, 12 ms.
pub(crate) fn duration(time: Duration) -> String {
    let ms = time.as_millis() as u64;
    let units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)];
    let first = units.iter().position(|&(_, length)| ms >= length).unwrap_or(units.len() - 1);
    let (unit, length) = units[first];
    let whole = format!("{} {unit}", ms / length);
    match units.get(first + 1) {
        // Milliseconds beside seconds are of no interest once there are many.
        Some(&(smaller, part)) if ms % length >= part && !(unit == "s" && ms >= 10_000) => {
            format!("{whole} {} {smaller}", ms % length / part)
        }
        _ => whole,
    }
}

/// How long ago, or in how long, a point in unix milliseconds is.
pub(crate) fn relative(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    if unix_ms <= now {
        format!("{} ago", duration(Duration::from_millis(now - unix_ms)))
    } else {
        format!("in {}", duration(Duration::from_millis(unix_ms - now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_groups_of_three() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(n), text);
        }
        assert_eq!(many(1, "task"), "1 task");
        assert_eq!(many(2_000, "task"), "2,000 tasks");
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (200 << 20, "200 MB"), (5 << 40, "5.0 TB")]
        {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn times_have_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (12, "12 ms"),
            (1_000, "1 s"),
            (1_250, "1 s 250 ms"),
            (12_340, "12 s"),
            (60_000, "1 min"),
            (12_000_000, "3 h 20 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
    }
}
