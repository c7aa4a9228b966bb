//! Fields of `weir arcstat`.

use crate::times;
use crate::units::{human, human_bytes, percent};
use weir_analytics::Interval;

/// Value of a field.
enum Value {
    Text(String),
    /// Per second.
    Rate(u64),
    Percent(u64, u64),
    Bytes(u64),
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name, as in OpenZFS's `arcstat` where that has one.
    pub name: &'static str,
    /// Width of the column.
    pub width: usize,
    /// Description for `-v`.
    pub help: &'static str,
    value: fn(&Interval) -> Value,
}

/// Fields that are shown by default.
pub const USUAL: [&str; 12] =
    ["time", "read", "hits", "hit%", "miss", "miss%", "pref", "mrug", "mfug", "meta", "size", "c"];

/// All fields.
pub const FIELDS: [Field; 29] = [
    field("time", 8, "Time of day", |all| Value::Text(times::of_day(all.time_ms / 1000))),
    field("pool", 12, "Pool: each has an ARC of its own", |all| Value::Text(all.pool.clone())),
    field("read", 5, "Reads of blocks per second", |all| Value::Rate(all.arc.hits() + all.arc.misses)),
    field("hits", 5, "Reads that the ARC answered per second", |all| Value::Rate(all.arc.hits())),
    field("hit%", 5, "Reads that the ARC answered, in percent", |all| {
        Value::Percent(all.arc.hits(), all.arc.hits() + all.arc.misses)
    }),
    field("miss", 5, "Reads passed to devices per second", |all| Value::Rate(all.arc.misses)),
    field("miss%", 5, "Reads passed to devices, in percent", |all| {
        Value::Percent(all.arc.misses, all.arc.hits() + all.arc.misses)
    }),
    field("dhit", 5, "Hits of blocks that a read or a write cached, per second", |all| {
        Value::Rate(all.arc.demand_hits)
    }),
    field("phit", 5, "First hits of prefetched blocks per second", |all| Value::Rate(all.arc.prefetch_hits)),
    field("join", 5, "Reads that joined one in flight, per second", |all| Value::Rate(all.arc.joined)),
    field("pref", 5, "Prefetches started per second", |all| Value::Rate(all.arc.prefetches)),
    field("mrug", 5, "Misses of blocks evicted from the MRU list not long ago, per second", |all| {
        Value::Rate(all.arc.mru_ghost_hits)
    }),
    field("mfug", 5, "Misses of blocks evicted from the MFU list not long ago, per second", |all| {
        Value::Rate(all.arc.mfu_ghost_hits)
    }),
    field("evic", 5, "Evictions per second", |all| Value::Rate(all.arc.evictions)),
    field("mru", 6, "Size of the MRU list", |all| Value::Bytes(all.arc.mru_data_bytes + all.arc.mru_metadata_bytes)),
    field("mfu", 6, "Size of the MFU list", |all| Value::Bytes(all.arc.mfu_data_bytes + all.arc.mfu_metadata_bytes)),
    field("data", 6, "Size of data", |all| Value::Bytes(all.arc.mru_data_bytes + all.arc.mfu_data_bytes)),
    field("meta", 6, "Size of metadata", |all| Value::Bytes(all.arc.mru_metadata_bytes + all.arc.mfu_metadata_bytes)),
    field("size", 6, "Size of the ARC", |all| Value::Bytes(all.arc.size_bytes())),
    field("c", 6, "Maximum size of the ARC", |all| Value::Bytes(all.arc.max_bytes)),
    field("l2read", 6, "Misses of the ARC looked up on cache devices, per second", |all| {
        Value::Rate(all.arc.l2_hits + all.arc.l2_misses)
    }),
    field("l2hits", 6, "Reads that cache devices answered, per second", |all| Value::Rate(all.arc.l2_hits)),
    field("l2miss", 6, "Reads that missed the cache devices, per second", |all| Value::Rate(all.arc.l2_misses)),
    field("l2hit%", 6, "Reads that cache devices answered, in percent", |all| {
        Value::Percent(all.arc.l2_hits, all.arc.l2_hits + all.arc.l2_misses)
    }),
    field("l2miss%", 7, "Reads that missed the cache devices, in percent", |all| {
        Value::Percent(all.arc.l2_misses, all.arc.l2_hits + all.arc.l2_misses)
    }),
    field("l2bytes", 7, "Bytes read from cache devices per second", |all| Value::Rate(all.arc.l2_read_bytes)),
    field("l2wbytes", 8, "Bytes of blocks written to cache devices per second", |all| {
        Value::Rate(all.arc.l2_written_bytes)
    }),
    field("l2size", 6, "Size of the blocks on cache devices, uncompressed", |all| Value::Bytes(all.arc.l2_size_bytes)),
    field("l2asize", 7, "Size of the blocks on cache devices, as stored", |all| Value::Bytes(all.arc.l2_stored_bytes)),
];

const fn field(name: &'static str, width: usize, help: &'static str, value: fn(&Interval) -> Value) -> Field {
    Field { name, width, help, value }
}

impl Field {
    /// The field of this name.
    pub fn named(name: &str) -> Option<Field> {
        FIELDS.into_iter().find(|field| field.name == name)
    }

    /// Text of the value, `parsable` without units.
    pub fn text(&self, all: &Interval, parsable: bool) -> String {
        match (self.value)(all) {
            Value::Text(text) => text,
            Value::Rate(count) if parsable => format!("{:.0}", all.rate(count)),
            Value::Rate(count) => human(all.rate(count).round() as u64),
            Value::Percent(part, whole) => format!("{:.0}", percent(part, whole)),
            Value::Bytes(bytes) if parsable => bytes.to_string(),
            Value::Bytes(bytes) => human_bytes(bytes),
        }
    }
}
