//! Fuzz targets: bytes from a store and from a command line.

use crate::record::Record;
use crate::url::{DiskUrl, StoreUrl};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("store-disk", store_disk)];

/// Decodes a disk's record and a URL.
pub fn store_disk(bytes: &[u8]) {
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(Record::decode(&record.encode()), Ok(record), "decoding what was encoded");
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(disk) = DiskUrl::parse(text)
    {
        assert_eq!(StoreUrl::parse(&disk.url.to_string()), Ok(disk.url), "parsing what was shown");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_inputs_are_decoded_or_refused() {
        weir_sim::fuzz::run_targets(super::TARGETS, 2000, 400);
    }
}
