//! Text form of property values.

use super::Value;
use super::table::{Shape, native_named};
use weir_machine::time::civil_day;

/// The text of a property's value.
pub fn text_of(name: &str, value: &Value, parsable: bool) -> String {
    let number = match value {
        Value::Text(text) => return text.clone(),
        Value::Number(number) => *number,
    };
    let Some(native) = native_named(name) else { return number.to_string() };
    match native.shape {
        Shape::Index(names) => {
            names.iter().find(|(_, n)| *n == number).map_or_else(|| number.to_string(), |(text, _)| (*text).to_owned())
        }
        Shape::SizeOrNone if number == 0 && !parsable => "none".into(),
        Shape::CountOrNone if number == u64::MAX => "none".into(),
        Shape::Size | Shape::SizeOrNone if !parsable => human_size(number),
        Shape::Ratio => format!("{}.{:02}{}", number / 100, number % 100, if parsable { "" } else { "x" }),
        Shape::Time if !parsable => human_time(number),
        Shape::YesNo => if number == 0 { "no" } else { "yes" }.into(),
        _ => number.to_string(),
    }
}

/// A size as ZFS writes it: at most five characters, base 1024 (`zfs_nicenum`).
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let unit = (0..7).rev().find(|u| bytes >> (10 * u) > 0).unwrap_or(0);
    let whole = bytes >> (10 * unit);
    let letter = UNITS[unit as usize];
    if unit == 0 || bytes & ((1u64 << (10 * unit)) - 1) == 0 {
        return format!("{whole}{letter}");
    }
    let exact = bytes as f64 / (1u64 << (10 * unit)) as f64;
    // As many decimals as keep the text within five characters.
    (0..=2)
        .rev()
        .map(|places| format!("{exact:.places$}{letter}"))
        .find(|text| text.len() <= 5)
        .unwrap_or_else(|| format!("{whole}{letter}"))
}

/// Seconds since 1970 as `Sat Nov 21  7:24 2026`, in UTC.
pub(super) fn human_time(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = seconds / 86_400;
    let (year, month, day) = civil_day(days.min(u64::from(u32::MAX)));
    format!(
        "{} {} {:2} {:2}:{:02} {}",
        DAYS[(days % 7) as usize],
        MONTHS[(month - 1) as usize],
        day,
        seconds % 86_400 / 3600,
        seconds % 3600 / 60,
        year
    )
}
