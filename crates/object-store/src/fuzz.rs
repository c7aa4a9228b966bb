//! Fuzz targets: bytes from a store and from a command line.

use crate::record::Record;
use crate::url::{DiskUrl, StoreUrl};

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
