//! The space of a cache device: a ring that is written in order, with the log blocks that list its contents. Pure.
//!
//! ```text
//!   start                hand          evict                                end
//!     |== newer blocks ====|·· cleared ··|== older blocks of the last round ===|
//!           data data … log data … log                 (none in the first round)
//! ```
//!
//! Space is cleared ahead of the hand, then written. Every `log_entries` blocks, a log block follows their data; it points
//! to the log block before the previous one, and the header to the two newest, so that there are two chains.
//!
//! Invariants: `start ≤ hand ≤ end`; after the first round, `hand ≤ evict`, and no block between them is in the index.
//!
//! Source: OpenZFS `module/zfs/arc.c` (`l2arc_evict`, `l2arc_log_blk_insert`, `l2arc_log_blk_commit`,
//! `l2arc_log_blkptr_valid`, `l2arc_range_check_overlap`).

use std::collections::VecDeque;
use std::ops::Range;
use weir_codec::compress::ZstdLevel;
use weir_codec::{Salt, checksum, compress};
use weir_format::l2arc::{self, FLAG_FIRST, L2Entry, L2Header, LogPointer};
use weir_format::{ChecksumKind, CompressionKind, Endian};
use weir_machine::invariant;

/// Place of a cache device's space on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte after labels and header.
    pub start_bytes: u64,
    /// First byte after the space.
    pub end_bytes: u64,
    /// log2 of the sector size.
    pub ashift: u32,
}

/// GUIDs that a header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// GUID of the pool.
    pub pool_guid: u64,
    /// GUID of the cache device.
    pub vdev_guid: u64,
}

impl Extent {
    /// Size in bytes of the space.
    pub fn size_bytes(&self) -> u64 {
        self.end_bytes.saturating_sub(self.start_bytes)
    }

    /// Rounds a size up to whole sectors of the device.
    pub fn align(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(1 << self.ashift)
    }
}

/// A log block to be written.
#[derive(Debug)]
pub struct LogBlock {
    /// Place on the device.
    pub offset_bytes: u64,
    /// The bytes, whole sectors.
    pub bytes: Vec<u8>,
}

/// The ring of a cache device.
#[derive(Debug)]
pub struct Ring {
    extent: Extent,
    hand: u64,
    evict: u64,
    is_first_round: bool,
    entries_per_log: usize,
    /// The newest log block and its predecessor, as in the header.
    heads: [LogPointer; 2],
    /// All log blocks that are present, the newest first.
    logs: VecDeque<LogPointer>,
    log_bytes: u64,
    /// Entries of the next log block.
    open: Vec<L2Entry>,
    open_payload_bytes: u64,
}

/// Whether an address is in a part of the ring from `bottom` to `top`, both included; the part may contain the end.
fn overlaps(bottom: u64, top: u64, address: u64) -> bool {
    match bottom.cmp(&top) {
        std::cmp::Ordering::Less => (bottom..=top).contains(&address),
        std::cmp::Ordering::Greater => address <= top || bottom <= address,
        std::cmp::Ordering::Equal => address == top,
    }
}

impl Ring {
    /// The ring of a device with nothing on it.
    pub fn new(extent: Extent) -> Self {
        Ring {
            extent,
            hand: extent.start_bytes,
            evict: extent.start_bytes,
            is_first_round: true,
            entries_per_log: l2arc::log_entries(extent.start_bytes, extent.end_bytes),
            heads: Default::default(),
            logs: VecDeque::new(),
            log_bytes: 0,
            open: Vec::new(),
            open_payload_bytes: 0,
        }
    }

    /// The ring that a header describes, without its log blocks, which [`Ring::restore`] adds. `None` if the header is of
    /// another device or layout (`l2arc_dev_hdr_read`).
    pub fn of_header(extent: Extent, owner: Owner, header: &L2Header) -> Option<Self> {
        let mut ring = Ring::new(extent);
        let is_own = header.version == l2arc::VERSION
            && header.pool_guid == owner.pool_guid
            && header.vdev_guid == owner.vdev_guid
            && header.log_entries == ring.entries_per_log as u64
            && header.end_bytes == extent.end_bytes
            && overlaps(extent.start_bytes, extent.end_bytes, header.evict_bytes);
        if !is_own || ring.entries_per_log == 0 {
            return None;
        }
        let [newest, _] = header.logs;
        let hand = newest.offset_bytes.checked_add(newest.psize_bytes())?;
        ring.hand = hand.max(extent.start_bytes);
        ring.evict = header.evict_bytes.max(extent.start_bytes);
        ring.is_first_round = header.flags & FLAG_FIRST != 0;
        ring.heads = header.logs;
        // Nothing could be written behind another hand: the header is not one that OpenZFS or Weir writes.
        let is_whole = ring.hand == extent.align(ring.hand);
        let is_sound = is_whole && ring.hand <= extent.end_bytes && (ring.is_first_round || ring.hand <= ring.evict);
        is_sound.then_some(ring)
    }

    /// The header as of now.
    pub fn header(&self, owner: Owner) -> L2Header {
        L2Header {
            endian: Endian::Little,
            version: l2arc::VERSION,
            pool_guid: owner.pool_guid,
            vdev_guid: owner.vdev_guid,
            log_entries: self.entries_per_log as u64,
            evict_bytes: self.evict,
            flags: if self.is_first_round { FLAG_FIRST } else { 0 },
            start_bytes: self.extent.start_bytes,
            end_bytes: self.extent.end_bytes,
            logs: self.heads,
            log_bytes: self.log_bytes,
            log_count: self.logs.len() as u64,
            trim_time_s: 0,
            trim_state: 0,
        }
    }

    /// The two newest log blocks.
    pub fn heads(&self) -> [LogPointer; 2] {
        self.heads
    }

    /// Entries in each log block; 0 if the device has none.
    pub fn entries_per_log(&self) -> usize {
        self.entries_per_log
    }

    /// Bytes of the log blocks that are present.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// The most bytes that the log blocks of `bytes` of data take (`l2arc_log_blk_overhead`).
    pub fn log_overhead_bytes(&self, bytes: u64) -> u64 {
        let blocks = match self.entries_per_log as u64 {
            0 => 0,
            each => (bytes >> 9).div_ceil(each),
        };
        blocks * self.extent.align(l2arc::LOG_BYTES as u64)
    }

    /// Whether a log block and its data are still on the device.
    pub fn is_present(&self, log: &LogPointer) -> bool {
        let size = log.psize_bytes();
        let Some(last) = log.offset_bytes.checked_add(size - 1) else { return false };
        let first = log.payload_start;
        if size > l2arc::LOG_BYTES as u64 || first < self.extent.start_bytes || last > self.extent.end_bytes {
            return false;
        }
        if self.is_first_round {
            return last < self.hand;
        }
        !overlaps(first, last, self.hand)
            && !overlaps(first, last, self.evict)
            && !overlaps(self.hand, self.evict, first)
            && !overlaps(self.hand, self.evict, last)
    }

    /// Whether the log block after `newer` in time order begins a round that `newer` has overwritten: the chains form a loop.
    pub fn ends_after(&self, newer: &LogPointer, older: &LogPointer) -> bool {
        !self.is_first_round && overlaps(older.payload_start, newer.payload_start, self.evict)
    }

    /// Whether a log block may be older than another one, the last that was found. Log blocks are found from the hand back to
    /// the start, then, after the first round, from the end back to the hand; `passed_start` notes that. So an invalid
    /// chain ends.
    pub fn is_older(&self, older: &LogPointer, newer: &LogPointer, passed_start: &mut bool) -> bool {
        if older.offset_bytes < newer.offset_bytes {
            return true;
        }
        !self.is_first_round && !std::mem::replace(passed_start, true)
    }

    /// Adds a log block that was read back; they come in the order from the newest to the oldest.
    pub fn restore(&mut self, log: LogPointer) {
        invariant!(self.is_present(&log), "a log block is restored that was overwritten");
        invariant!(self.open.is_empty(), "a log block is restored after blocks were written");
        self.log_bytes += log.psize_bytes();
        self.logs.push_back(log);
    }

    /// Clears `bytes` ahead of the hand, and goes back to the start if they do not fit before the end. Returns the cleared
    /// ranges, whose blocks must leave the index before anything is written.
    pub fn clear_ahead(&mut self, bytes: u64) -> Vec<Range<u64>> {
        invariant!(bytes <= self.extent.size_bytes(), "more is cleared than the device has");
        let mut cleared = Vec::new();
        let end = self.extent.end_bytes;
        if self.hand.saturating_add(bytes) > end {
            self.clear_until(end, &mut cleared);
            self.hand = self.extent.start_bytes;
            self.evict = self.extent.start_bytes;
            self.is_first_round = false;
        }
        self.clear_until(self.hand.saturating_add(bytes).min(end), &mut cleared);
        invariant!(self.is_first_round || self.hand <= self.evict, "the hand is beyond what was cleared");
        cleared
    }

    fn clear_until(&mut self, address: u64, cleared: &mut Vec<Range<u64>>) {
        if self.is_first_round {
            return;
        }
        self.evict = self.evict.max(address);
        cleared.push(self.hand..self.evict);
        while let Some(oldest) = self.logs.back().filter(|log| !self.is_present(log)) {
            let left = self.log_bytes.checked_sub(oldest.psize_bytes());
            invariant!(left.is_some(), "log blocks of {} bytes lose {}", self.log_bytes, oldest.psize_bytes());
            self.log_bytes = left.unwrap_or(0);
            self.logs.pop_back();
        }
    }

    /// Whether `bytes` and a log block fit into the cleared space.
    pub fn has_room(&self, bytes: u64) -> bool {
        let limit = if self.is_first_round { self.extent.end_bytes } else { self.evict };
        let log = if self.entries_per_log == 0 { 0 } else { self.extent.align(l2arc::LOG_BYTES as u64) };
        self.hand.checked_add(bytes).and_then(|sum| sum.checked_add(log)).is_some_and(|sum| sum <= limit)
    }

    /// Takes the next place, for whole sectors of data.
    pub fn place(&mut self, bytes: u64) -> u64 {
        invariant!(self.has_room(bytes), "{bytes} bytes are written where nothing was cleared");
        invariant!(bytes == self.extent.align(bytes), "{bytes} bytes are no whole sectors");
        let at = self.hand;
        self.hand += bytes;
        at
    }

    /// Lists a block that was placed, of `bytes` with padding. Returns the log block that is full with it.
    pub fn log(&mut self, entry: L2Entry, bytes: u64) -> Option<LogBlock> {
        if self.entries_per_log == 0 {
            return None;
        }
        self.open_payload_bytes += bytes;
        self.open.push(entry);
        if self.open.len() < self.entries_per_log {
            return None;
        }
        let block = self.commit();
        invariant!(self.open.is_empty(), "a new log block has entries");
        Some(block)
    }

    /// Places the log block of the open entries.
    fn commit(&mut self) -> LogBlock {
        let entries = std::mem::take(&mut self.open);
        let plain = l2arc::encode_log(&self.heads[1], &entries);
        let (bytes, compression) = packed(&self.extent, plain);
        // Cannot fail: the kind is one that is computed from the bytes.
        let sum = checksum(ChecksumKind::Fletcher4, Endian::Little, &Salt::none(), &bytes).unwrap_or_default();
        let size = bytes.len() as u64;
        let payload_start = entries.first().map_or(self.hand, |entry| entry.offset_bytes);
        let payload_bytes = std::mem::take(&mut self.open_payload_bytes);
        let pointer = LogPointer::new(self.hand, payload_start, payload_bytes, size, compression, sum);
        self.heads = [pointer, self.heads[0]];
        self.logs.push_front(pointer);
        self.log_bytes += pointer.psize_bytes();
        let offset_bytes = self.hand;
        self.hand += size;
        invariant!(self.hand <= self.extent.end_bytes, "a log block is beyond the end");
        LogBlock { offset_bytes, bytes }
    }

    /// Forgets the entries of the open log block: their data was not written.
    pub fn drop_open(&mut self) {
        self.open.clear();
        self.open_payload_bytes = 0;
    }
}

/// Compresses a log block, if that saves a sector of the device.
fn packed(extent: &Extent, plain: Vec<u8>) -> (Vec<u8>, CompressionKind) {
    let mut out = vec![0; plain.len()];
    let room = plain.len().saturating_sub(1 << extent.ashift);
    let len = out
        .get_mut(..room)
        .and_then(|out| compress(CompressionKind::Lz4, ZstdLevel::DEFAULT, &plain, out).ok().flatten());
    match len.map(|len| extent.align(len as u64) as usize) {
        Some(len) if len < plain.len() => {
            out.truncate(len);
            (out, CompressionKind::Lz4)
        }
        _ => (plain, CompressionKind::Off),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::l2arc::EntryFacts;
    use weir_format::{Dva, Txg};

    const EXTENT: Extent = Extent { start_bytes: (4 << 20) + 4096, end_bytes: 1 << 30, ashift: 12 };
    const OWNER: Owner = Owner { pool_guid: 7, vdev_guid: 8 };

    fn entry(n: u64, offset_bytes: u64, size: u64) -> L2Entry {
        let facts = EntryFacts {
            lsize_bytes: size,
            psize_bytes: size,
            compression: CompressionKind::Off,
            is_metadata: false,
            is_protected: false,
            is_prefetched: false,
            is_mfu: false,
        };
        let dva = Dva { offset_bytes: n << 20, asize_bytes: size, ..Dva::default() };
        L2Entry::new(dva, Txg(5), offset_bytes, &facts, 0)
    }

    /// Writes through the ring for several rounds, with a model of what is where.
    #[test]
    fn what_is_present_was_not_overwritten_in_any_round() {
        let mut ring = Ring::new(EXTENT);
        let mut live: Vec<Range<u64>> = Vec::new();
        let mut n = 0;
        let size = 1 << 20;
        for _ in 0..300 {
            let cleared = ring.clear_ahead(16 << 20);
            live.retain(|range| !cleared.iter().any(|gone| gone.contains(&range.start)));
            for _ in 0..12 {
                let at = ring.place(size);
                assert!(live.iter().all(|range| range.end <= at || at + size <= range.start), "round of {n}");
                live.push(at..at + size);
                n += 1;
                if let Some(log) = ring.log(entry(n, at, size), size) {
                    let end = log.offset_bytes + log.bytes.len() as u64;
                    assert!(live.iter().all(|range| range.end <= log.offset_bytes || end <= range.start));
                }
            }
            let header = ring.header(OWNER);
            assert!(header.log_count >= 1 || n < 63);
            assert!(ring.logs.iter().all(|log| ring.is_present(log)));
        }
        assert!(!ring.is_first_round && n > 3000);
        // Each block is in at most one of the log blocks that are present.
        assert!(ring.logs.len() > 10 && ring.logs.len() as u64 <= 1 + 1024 / 63);
    }

    /// Headers with valid checksums and any values are refused, or lead to a ring that works.
    #[test]
    fn no_header_leads_out_of_the_space() {
        let mut state = 1u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match state % 4 {
                0 => state,
                1 => EXTENT.start_bytes + state % EXTENT.size_bytes(),
                2 => EXTENT.align(EXTENT.start_bytes + state % EXTENT.size_bytes()),
                _ => EXTENT.end_bytes - (state >> 8) % 3 * 4096,
            }
        };
        let mut accepted = 0;
        for _ in 0..4000 {
            let mut header = Ring::new(EXTENT).header(OWNER);
            header.evict_bytes = random();
            header.flags = random() & 1;
            let size = (1 + (random() >> 13) % 32) << 11;
            header.logs[0] = LogPointer::new(random(), random(), random(), size, CompressionKind::Off, [0; 4]);
            let Some(mut ring) = Ring::of_header(EXTENT, OWNER, &header) else { continue };
            accepted += 1;
            let _present = ring.is_present(&header.logs[0]);
            for n in 0..200 {
                let cleared = ring.clear_ahead(8 << 20);
                assert!(cleared.iter().all(|gone| gone.end <= EXTENT.end_bytes && gone.start >= EXTENT.start_bytes));
                while ring.has_room(1 << 20) {
                    let at = ring.place(1 << 20);
                    let _log = ring.log(entry(n, at, 1 << 20), 1 << 20);
                }
            }
        }
        assert!(accepted > 20, "{accepted} headers were accepted");
    }

    #[test]
    fn a_chain_of_log_blocks_ends_after_a_round() {
        let at = |offset| LogPointer::new(offset, 0, 0, 512, CompressionKind::Off, [0; 4]);
        let mut ring = Ring::new(EXTENT);
        let mut passed_start = false;
        assert!(ring.is_older(&at(5), &at(6), &mut passed_start) && !ring.is_older(&at(6), &at(5), &mut passed_start));
        ring.is_first_round = false;
        assert!(ring.is_older(&at(9), &at(5), &mut passed_start), "from the start to the end");
        assert!(ring.is_older(&at(8), &at(9), &mut passed_start) && !ring.is_older(&at(9), &at(8), &mut passed_start));
    }

    #[test]
    fn a_ring_continues_from_its_header() {
        let mut ring = Ring::new(EXTENT);
        let _none = ring.clear_ahead(100 << 20);
        for n in 0..63 {
            let at = ring.place(4096);
            assert_eq!(ring.log(entry(n, at, 4096), 4096).is_some(), n == 62);
        }
        let header = ring.header(OWNER);
        let mut again = Ring::of_header(EXTENT, OWNER, &header).unwrap();
        assert_eq!(again.hand, ring.hand);
        assert!(again.is_present(&header.logs[0]) && !again.is_present(&header.logs[1]));
        again.restore(header.logs[0]);
        assert_eq!(again.header(OWNER), header);
        let others = [
            L2Header { pool_guid: 9, ..header.clone() },
            L2Header { vdev_guid: 9, ..header.clone() },
            L2Header { version: 2, ..header.clone() },
            L2Header { log_entries: 62, ..header.clone() },
            L2Header { end_bytes: 1 << 31, ..header.clone() },
            L2Header { evict_bytes: 1 << 31, ..header.clone() },
            L2Header { flags: 0, ..header.clone() },
        ];
        assert!(others.iter().all(|other| Ring::of_header(EXTENT, OWNER, other).is_none()));
    }
}
