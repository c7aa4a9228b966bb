//! Fuzz targets: bytes from a store, from a command line and of a price list.

use crate::counters::{Counts, KINDS};
use crate::prices::Prices;
use crate::record::Record;
use crate::url::{DiskUrl, StoreUrl};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("store-disk", store_disk), ("store-prices", store_prices)];

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

/// Decodes a price list, and computes costs by it.
pub fn store_prices(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(prices) = Prices::parse(text)
        && let Some(price) = prices.of("s3://bucket/prefix")
    {
        let most =
            Counts { requests: [u64::MAX; 4], read_bytes: u64::MAX, written_bytes: u64::MAX, ..Counts::default() };
        for (kind, _) in KINDS {
            let none = price.of_requests(kind, &Counts::default());
            assert!(none.nanos == 0 && none.currency == price.of_requests(kind, &most).currency, "costs of nothing");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_inputs_are_decoded_or_refused() {
        weir_sim::fuzz::run_targets(super::TARGETS, 2000, 400);
    }
}
