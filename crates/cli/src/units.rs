//! Formatter of sizes and counts: `1.75M`, at most five characters, base 1024 (OpenZFS `zfs_nicenum`).

pub use weir_dsl::props::human_size as human_bytes;

/// A count: as [`human_bytes`], without the `B` behind plain numbers.
pub fn human(n: u64) -> String {
    human_bytes(n).trim_end_matches('B').to_owned()
}

/// A time as OpenZFS shows it: whole units, and `-` for none (`zfs_nicetime`).
pub fn human_time_ns(ns: u64) -> String {
    match ns {
        0 => "-".into(),
        ns if ns < 1000 => format!("{ns}ns"),
        ns if ns < 1_000_000 => format!("{}us", ns / 1000),
        ns if ns < 1_000_000_000 => format!("{}ms", ns / 1_000_000),
        ns => format!("{}s", ns / 1_000_000_000),
    }
}

/// `part` of `whole` in percent; 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// `a / b`; 1 if `b` is 0.
pub fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 1.0 } else { a as f64 / b as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_openzfs_prints_them() {
        for (n, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (8448, "8.25K"),
            (1753088, "1.67M"),
            (46592, "45.5K"),
            (1 << 40, "1T"),
            (u64::MAX, "16.0E"),
            (104857601, "100M"),
        ] {
            assert_eq!(human(n), text);
        }
        assert_eq!(human_bytes(12), "12B");
    }
}
