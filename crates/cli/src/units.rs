//! Numbers as people read them: `1.75M`, at most five characters, base 1024 (OpenZFS `zfs_nicenum`).

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// `512`, `8.25K`, `1.75M`.
pub fn human(n: u64) -> String {
    let mut index = 0;
    let mut whole = n;
    while whole >= 1024 && index + 1 < UNITS.len() {
        whole /= 1024;
        index += 1;
    }
    let unit = UNITS.get(index).copied().unwrap_or("");
    let scale = 1u64 << (10 * index);
    if index == 0 || n.is_multiple_of(scale) {
        return format!("{whole}{unit}");
    }
    let value = n as f64 / scale as f64;
    let shown = [2usize, 1, 0].map(|digits| format!("{value:.digits$}{unit}"));
    let [two, one, zero] = shown;
    [two, one].into_iter().find(|s| s.len() <= 5).unwrap_or(zero)
}

/// Like [`human`], with `B` behind plain bytes.
pub fn human_bytes(n: u64) -> String {
    if n < 1024 { format!("{n}B") } else { human(n) }
}

/// `part` of `whole` in percent; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// `a / b`; 1 when there is nothing to divide.
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
