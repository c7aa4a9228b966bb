//! Figures as text for people: decimal units, three significant digits.

/// Bytes a second, such as `812 MB/s`.
#[must_use]
pub fn rate(bytes_per_s: f64) -> String {
    format!("{}B/s", scaled(bytes_per_s))
}

/// Operations a second, such as `61.2 k/s`.
#[must_use]
pub fn operations(per_s: f64) -> String {
    match per_s {
        low if low < 1000.0 => format!("{}/s", significant(low)),
        high => format!("{}/s", scaled(high)),
    }
}

/// An amount of bytes, such as `1.07 GB`.
#[must_use]
pub fn bytes(amount: f64) -> String {
    format!("{}B", scaled(amount))
}

/// A time in nanoseconds, such as `240 µs`.
#[must_use]
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{} ns", significant(ns)),
        ns if ns < 1e6 => format!("{} µs", significant(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", significant(ns / 1e6)),
        ns => format!("{} s", significant(ns / 1e9)),
    }
}

/// A share as whole percent.
#[must_use]
pub fn percent(share: f64) -> String {
    // An empty sum of floats is −0.
    format!("{:.0} %", share.max(0.0) * 100.0)
}

/// A block size in binary units, such as `128K`.
#[must_use]
pub fn block(bytes: u64) -> String {
    for (unit, letter) in [(1_u64 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

fn scaled(value: f64) -> String {
    let (value, prefix) = match value {
        value if value < 1e3 => (value, ""),
        value if value < 1e6 => (value / 1e3, "k"),
        value if value < 1e9 => (value / 1e6, "M"),
        value if value < 1e12 => (value / 1e9, "G"),
        value => (value / 1e12, "T"),
    };
    format!("{} {prefix}", significant(value))
}

/// Three significant digits, but all digits before the point.
fn significant(value: f64) -> String {
    match value.abs() {
        high if high >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        low if low > 0.0 => format!("{value:.2}"),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(rate(812_345_678.0), "812 MB/s");
        assert_eq!(rate(1_234.0), "1.23 kB/s");
        assert_eq!(operations(61_234.0), "61.2 k/s");
        assert_eq!(operations(3.13), "3.13/s");
        assert_eq!(time(240_400.0), "240 µs");
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!((percent(0.824), percent(-0.0)), ("82 %".to_owned(), "0 %".to_owned()));
        assert_eq!(
            (block(131_072).as_str(), block(512).as_str(), block(1_048_577).as_str()),
            ("128K", "512", "1048577")
        );
    }
}
