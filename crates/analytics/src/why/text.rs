//! Numbers in the sentences of a diagnosis.

/// A time in seconds.
pub(super) fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// A time in nanoseconds, with three digits at most before the unit.
pub(super) fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A share of 0 to 1 in percent. A share that is not 0 is never shown as 0.
pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        percent if percent > 0.0 && percent < 1.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Bytes: `1.75M`, base 1024, as in `zpool list`.
pub(super) fn bytes(bytes: u64) -> String {
    weir_dsl::props::human_size(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!([0.5, 9.94, 300.2].map(seconds), ["0.5 s", "9.9 s", "300 s"]);
        assert_eq!([1.0, 1500.0, 25e6, 2e9].map(time), ["1.0 ns", "1.5 µs", "25 ms", "2.0 s"]);
        assert_eq!([0.0, 0.004, 0.82, 1.0].map(percent), ["0 %", "0.4 %", "82 %", "100 %"]);
        assert_eq!(bytes(131_072), "128K");
    }
}
