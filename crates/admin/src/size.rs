//! Parser of sizes: `10G`, `1.5T`, `128k`, base 1024 (OpenZFS `zfs_nicestrtonum`).

/// Parses a size in bytes, or a plain count; `None` if it is malformed or too large for 64 bits.
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let shift = shift(unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let bytes = whole.checked_mul(1u64.checked_shl(shift)?)?;
    if fraction.is_empty() {
        return Some(bytes);
    }
    // Fractions of a byte are invalid.
    if shift == 0 || fraction.len() > 15 {
        return None;
    }
    let part = u128::from(fraction.parse::<u64>().ok()?) << shift;
    let part = part / 10u128.checked_pow(fraction.len() as u32)?;
    bytes.checked_add(u64::try_from(part).ok()?)
}

/// Whether the text is a size that does not fit into 64 bits.
pub fn is_too_large(text: &str) -> bool {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let Some((number, unit)) = text.split_at_checked(digits).filter(|(number, _)| !number.is_empty()) else {
        return false;
    };
    let is_unit = matches!(unit.to_ascii_uppercase().as_str(), "Z" | "ZB" | "ZIB") || shift(unit).is_some();
    is_unit && number.bytes().any(|digit| digit != b'0') && parse(text).is_none()
}

/// The power of two of a unit: `K`, `KB` and `KiB` are the same.
fn shift(unit: &str) -> Option<u32> {
    const UNITS: &str = "BKMGTPEZ";
    let mut letters = unit.chars().map(|c| c.to_ascii_uppercase());
    let Some(letter) = letters.next() else { return Some(0) };
    let rest: String = letters.collect();
    let power = UNITS.find(letter)? as u32;
    let fits = match rest.as_str() {
        "" => true,
        "B" | "IB" => power != 0,
        _ => false,
    };
    (fits && power < 7).then_some(10 * power)
}

#[cfg(test)]
mod tests {
    use super::{is_too_large, parse};

    #[test]
    fn sizes_of_more_than_64_bits_differ_from_malformed_ones() {
        assert!(["1z", "16E", "1ZiB", "18446744073709551616"].into_iter().all(is_too_large));
        assert!(["15E", "0z", "z", "1y", "", "-1"].into_iter().all(|text| !is_too_large(text)));
    }

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("512b", Some(512)),
            ("1k", Some(1024)),
            ("128K", Some(131_072)),
            ("1.5G", Some(1_610_612_736)),
            (".5M", Some(524_288)),
            ("10GiB", Some(10 << 30)),
            ("3TB", Some(3 << 40)),
            ("15E", Some(15 << 60)),
            ("16E", None),
            ("1.5", None),
            ("", None),
            (".", None),
            ("1.2.3k", None),
            ("k", None),
            ("1Kx", None),
            ("-1", None),
            ("1bb", None),
            ("1z", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
        ] {
            assert_eq!(parse(text), bytes, "{text}");
        }
    }
}
