//! Fuzz targets for malformed input: the structures that this crate decodes itself, beyond those of `weir_format`. Each
//! target returns for every input, in time and memory bounded by the input's length.

use crate::ddt_brt_reader::dedup_value;
use crate::sa::SaTable;
use crate::zap::{Match, name};
use weir_format::Endian;
use weir_format::zap::NormFlags;

/// A fuzz target: name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Name and body of each target.
pub const TARGETS: &[Target] =
    &[("dedup_value", dedup_value_target), ("sa_row", sa_row_target), ("zap_names", zap_names_target)];

fn dedup_value_target(data: &[u8]) {
    let Some((first, stored)) = data.split_first() else { return };
    if let Some(value) = dedup_value(stored, first & 1 == 1) {
        assert!(value.len() <= 4, "a table has at most four entries of a block");
    }
}

/// Decodes a table of attributes and a layout from the input's first bytes, and a row of attributes from the rest.
fn sa_row_target(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let endian = if first & 1 == 1 { Endian::Big } else { Endian::Little };
    let (table, row) = SaTable::of_bytes(rest);
    if let Ok(attributes) = table.row(row, endian) {
        let bytes: usize = attributes.iter().map(|(_, part)| part.len()).sum();
        assert!(bytes <= row.len(), "no attribute overlaps another");
    }
}

fn zap_names_target(data: &[u8]) {
    let Some(([flags, cut], rest)) = data.split_first_chunk::<2>() else { return };
    let norm = NormFlags(u64::from(*flags));
    let (one, other) = rest.split_at(usize::from(*cut).min(rest.len()));
    if let Some(normal) = name::normalize(one, norm) {
        // Unicode bounds the length of the normalized form of a character.
        assert!(normal.len() <= one.len().saturating_mul(64).max(one.len()));
    }
    for how in [Match::Exact, Match::Normalized, Match::NormalizedCase] {
        if let Some(wanted) = name::NormalizedName::new(one, norm, how) {
            assert!(wanted.is(one), "a name does not equal itself");
            wanted.is(other);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_panics() {
        weir_sim::fuzz::run_targets(super::TARGETS, 2000, 1500);
    }
}
