//! Finding the contents of a cache device again, from the log blocks that its writer left.
//!
//! The entries lead to copies that may be stale: the pool may have freed the blocks, or a power cut may have separated a
//! header from its data. Both are harmless, because a block is looked up by address and birth, and its checksum decides.
//!
//! Source: OpenZFS `module/zfs/arc.c` (`l2arc_rebuild`, `l2arc_log_blk_read`, `l2arc_log_blk_restore`).

use super::L2arc;
use super::device::CacheDevice;
use super::index::{BlockId, CopyPlace};
use super::ring::Ring;
use std::sync::atomic::Ordering;
use weir_codec::{Salt, checksum, decompress};
use weir_format::l2arc::{L2Entry, LOG_BYTES, LogPointer, decode_log};
use weir_format::{ChecksumKind, CompressionKind, Endian};
use weir_machine::invariant;

/// Reads the header and the log blocks of a device, and adds what they list to the index. Returns the ring to write on
/// with: an empty one if there is no header of this device in this pool.
pub(super) async fn rebuild(l2: &L2arc, device: &CacheDevice) -> Ring {
    let header = device.read_header().await;
    let found = header.and_then(|header| Ring::of_header(device.extent, device.owner, &header));
    let Some(mut ring) = found else { return Ring::new(device.extent) };
    let [mut this, mut next] = ring.heads();
    let mut count = 0u64;
    let mut passed_start = false;
    while device.is_readable() && ring.is_present(&this) {
        let Some((previous, entries)) = read_log(device, &this, ring.entries_per_log()).await else { break };
        if l2.is_memory_short() {
            l2.counters.rebuilds_short_of_memory.fetch_add(1, Ordering::Relaxed);
            break;
        }
        // From the newest to the oldest, so that a newer copy of a block stays.
        let added = l2.restore(device, entries.into_iter().rev());
        l2.counters.rebuilt_blocks.fetch_add(added, Ordering::Relaxed);
        ring.restore(this);
        count += 1;
        if ring.ends_after(&this, &next) || !ring.is_older(&next, &this, &mut passed_start) {
            break;
        }
        (this, next) = (next, previous);
    }
    l2.counters.rebuilt_logs.fetch_add(count, Ordering::Relaxed);
    if count == 0 {
        // The header leads nowhere (`l2arc_rebuild` resets it, too).
        return Ring::new(device.extent);
    }
    ring
}

/// Reads a log block; `None` if it is not the one that the pointer describes.
async fn read_log(device: &CacheDevice, pointer: &LogPointer, count: usize) -> Option<(LogPointer, Vec<L2Entry>)> {
    let size = pointer.psize_bytes();
    let is_whole =
        size == device.extent.align(size) && pointer.offset_bytes == device.extent.align(pointer.offset_bytes);
    if !is_whole || size > LOG_BYTES as u64 {
        return None;
    }
    let buf = device.read(pointer.offset_bytes, size as usize).await?;
    decode(pointer, buf.as_ref(), count)
}

fn decode(pointer: &LogPointer, bytes: &[u8], count: usize) -> Option<(LogPointer, Vec<L2Entry>)> {
    // The checksum is in the byte order of its writer, which the magic number of the compressed block does not show.
    let sum = |endian| checksum(ChecksumKind::Fletcher4, endian, &Salt::none(), bytes).ok();
    if ![Endian::Little, Endian::Big].into_iter().any(|endian| sum(endian) == Some(pointer.checksum)) {
        return None;
    }
    match pointer.compression()? {
        CompressionKind::Off => decode_log(bytes, count).ok(),
        CompressionKind::Lz4 => {
            let plain = decompress(CompressionKind::Lz4, bytes, LOG_BYTES).ok()?;
            decode_log(&plain, count).ok()
        }
        _ => None,
    }
}

impl L2arc {
    /// Adds entries of a log block to the index, unless the block has a newer copy. Returns the number that were added.
    fn restore(&self, device: &CacheDevice, entries: impl Iterator<Item = L2Entry>) -> u64 {
        let extent = device.extent;
        let mut added = 0;
        let mut index = self.index.lock();
        for entry in entries {
            let id = BlockId::of_entry(&entry);
            let end = entry.offset_bytes.checked_add(extent.align(entry.psize_bytes()));
            let is_inside = entry.offset_bytes >= extent.start_bytes && end.is_some_and(|end| end <= extent.end_bytes);
            let is_whole = entry.offset_bytes == extent.align(entry.offset_bytes);
            if id.birth == 0 || !is_inside || !is_whole || index.contains(&id) {
                continue;
            }
            index.insert(id, CopyPlace { device: device.number, offset_bytes: entry.offset_bytes, prop: entry.prop });
            added += 1;
        }
        self.note_memory(&index);
        invariant!(index.sums(device.number).count >= added, "the index lost entries");
        added
    }
}
