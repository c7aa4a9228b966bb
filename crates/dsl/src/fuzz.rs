//! Fuzz targets of the decoders of this crate; those of on-disk structures are in `weir_format`. Each target must
//! return for every input, in time and memory bounded by the input's length.

use crate::KeySpec;
use crate::sync_tasks::BptreeEntry;
use std::collections::BTreeMap;
use weir_dmu::zap::Value;
use weir_format::dsl::crypto_key;
use weir_format::{Cursor, Endian, ObjectId};

/// A target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Name and body of each target.
pub const TARGETS: &[Target] = &[
    ("free_tree", free_tree_target),
    ("key_object", key_object_target),
    ("resume_token", crate::resume::token_target),
];

fn free_tree_target(data: &[u8]) {
    let endian = if data.first().is_some_and(|first| first & 1 == 1) { Endian::Big } else { Endian::Little };
    let mut c = Cursor::new(data.get(1..).unwrap_or_default(), endian, "fuzz");
    let words: Vec<u64> = std::iter::from_fn(|| c.u64().ok()).collect();
    if let Some(tree) = BptreeEntry::of_words(&words) {
        let again: Vec<u64> = tree.bytes().as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(BptreeEntry::of_words(&again), Some(tree), "encoding and decoding is the identity");
    }
}

/// The entries of a key object: each the index of a name, the size of its integers, and their bytes.
fn key_object_target(data: &[u8]) {
    const NAMES: [&str; 10] = [
        crypto_key::SUITE,
        crypto_key::GUID,
        crypto_key::IV,
        crypto_key::MAC,
        crypto_key::MASTER_KEY,
        crypto_key::HMAC_KEY,
        crypto_key::ROOT_DDOBJ,
        crypto_key::VERSION,
        crypto_key::KEYFORMAT,
        crypto_key::PBKDF2_SALT,
    ];
    let mut fields = BTreeMap::new();
    let mut rest = data;
    while let Some(([which, shape], more)) = rest.split_first_chunk::<2>() {
        let (bytes, more) = more.split_at_checked(usize::from(shape >> 1)).unwrap_or((more, &[]));
        let value = match shape & 1 {
            0 => Value { int_size: 1, words: bytes.iter().map(|b| u64::from(*b)).collect() },
            _ => Value { int_size: 8, words: bytes.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w)).collect() },
        };
        if let Some(name) = NAMES.get(usize::from(which % 10)) {
            fields.insert((*name).to_owned(), value);
        }
        rest = more;
    }
    if let Ok(spec) = KeySpec::of_fields(&fields, ObjectId(7)) {
        let _ = spec.wrapping_key("fuzz", data);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_panics() {
        weir_sim::fuzz::run_targets(super::TARGETS, 2000, 1500);
    }
}
