//! Writing to a cache device: which blocks, how much, and in which order.
//!
//! Source: OpenZFS `module/zfs/arc.c` (`l2arc_feed_thread`, `l2arc_write_size`, `l2arc_write_interval`,
//! `l2arc_write_buffers`).

use super::device::{CacheDevice, CacheState};
use super::index::{BlockId, CopyPlace};
use super::ring::{LogBlock, Ring};
use super::{IN_FLIGHT_BYTES, L2Settings, rebuild};
use crate::arc::{ArcState, ContentClass};
use crate::cache::{Cache, FeedCandidate};
use bytes::Bytes;
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_blocks::ReadOptions;
use weir_blocks::cached_copy::stored_form;
use weir_codec::compress::zstd;
use weir_format::l2arc::{EntryFacts, L2Entry, LOG_BYTES};
use weir_format::{BlockPointer, CompressionKind, Txg};
use weir_machine::{Buf, Clock, Priority, Request, invariant};

/// The lists in the order in which they are searched (`l2arc_sublist_lock`).
const LISTS: [(ArcState, ContentClass); 4] = [
    (ArcState::Mfu, ContentClass::Metadata),
    (ArcState::Mru, ContentClass::Metadata),
    (ArcState::Mfu, ContentClass::Data),
    (ArcState::Mru, ContentClass::Data),
];

/// The task of a device: finds its contents, then feeds it until it leaves service or `stopped` ends.
pub(super) async fn run(cache: Weak<Cache>, device: Arc<CacheDevice>, mut stopped: oneshot::Receiver<()>) {
    let Some(mut ring) = begin(&cache, &device).await else { return };
    let mut wait = Duration::ZERO;
    loop {
        let Some(clock) = cache.upgrade().map(|cache| cache.machine().clock.clone()) else { return };
        if wait.is_zero() {
            wait = cache.upgrade().map_or(Duration::ZERO, |cache| cache.l2arc().settings().interval);
        }
        if !sleep(&clock, wait, &mut stopped).await {
            return;
        }
        let Some(cache) = cache.upgrade() else { return };
        if device.state() != CacheState::Active {
            return;
        }
        let settings = cache.l2arc().settings();
        let limits = Limits::of(&cache, &ring, &device, &settings);
        let wrote = feed(&cache, &device, &mut ring, limits).await;
        wait = if wrote > limits.data_bytes / 2 { settings.busy_interval } else { settings.interval };
    }
}

/// Finds what the device has, and writes its header.
async fn begin(cache: &Weak<Cache>, device: &CacheDevice) -> Option<Ring> {
    let cache = cache.upgrade()?;
    let ring = rebuild::rebuild(cache.l2arc(), device).await;
    device.counters.log_bytes.store(ring.log_bytes(), Ordering::Relaxed);
    cache.make_room_for_index();
    let is_written = device.write_header(&ring.header(device.owner)).await;
    (is_written && device.set_state(CacheState::Active)).then_some(ring)
}

/// Waits; false if the device is to leave service.
async fn sleep(clock: &Clock, time: Duration, stopped: &mut oneshot::Receiver<()>) -> bool {
    matches!(select(pin!(clock.sleep(time)), stopped).await, Either::Left(_))
}

/// Limits of a feed.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes of blocks.
    data_bytes: u64,
    /// Bytes of the ring that are cleared for them and their log blocks (`l2arc_write_size`).
    ring_bytes: u64,
}

impl Limits {
    fn of(cache: &Cache, ring: &Ring, device: &CacheDevice, settings: &L2Settings) -> Self {
        let boost = if cache.is_warm() { 0 } else { settings.write_boost_bytes };
        let data_bytes = settings.write_max_bytes.saturating_add(boost);
        let with_logs = data_bytes.saturating_add(ring.log_overhead_bytes(data_bytes));
        // A ring that is written in less than four feeds would hold little more than the last one.
        let most = (device.extent.size_bytes() / 4) >> device.extent.ashift << device.extent.ashift;
        Limits { data_bytes, ring_bytes: device.extent.align(with_logs.min(most)) }
    }
}

/// Writes blocks, then the header. Returns the number of bytes.
async fn feed(cache: &Arc<Cache>, device: &CacheDevice, ring: &mut Ring, limits: Limits) -> u64 {
    let l2 = cache.l2arc();
    if l2.is_memory_short() {
        l2.counters.feeds_short_of_memory.fetch_add(1, Ordering::Relaxed);
        return 0;
    }
    l2.counters.feeds.fetch_add(1, Ordering::Relaxed);
    let mut candidates = candidates(cache, device, ring, limits);
    if candidates.is_empty() {
        return 0;
    }
    {
        let mut index = l2.index.lock();
        for range in ring.clear_ahead(limits.ring_bytes) {
            let count = index.clear(device.number, range);
            l2.counters.cleared_blocks.fetch_add(count, Ordering::Relaxed);
        }
        l2.note_memory(&index);
    }
    let mut wrote = 0;
    while !candidates.is_empty() && device.state() == CacheState::Active {
        let mut bytes = 0;
        let mut fits = |candidate: &FeedCandidate| {
            bytes += candidate.pointer.psize_bytes();
            bytes <= IN_FLIGHT_BYTES
        };
        let count = candidates.iter().take_while(|one| fits(one)).count().max(1);
        let rest = candidates.split_off(count);
        match write_batch(cache, device, ring, candidates).await {
            Some(bytes) => wrote += bytes,
            None => break,
        }
        candidates = rest;
    }
    cache.make_room_for_index();
    device.counters.log_bytes.store(ring.log_bytes(), Ordering::Relaxed);
    if device.state() == CacheState::Active {
        let _is_written = device.write_header(&ring.header(device.owner)).await;
    }
    wrote
}

/// Chooses blocks that are about to leave the ARC, as many as the limits and their log blocks allow.
fn candidates(cache: &Cache, device: &CacheDevice, ring: &Ring, limits: Limits) -> Vec<FeedCandidate> {
    let settings = cache.l2arc().settings();
    let each = ring.entries_per_log().max(1);
    // Beside the data, there is room for the log block that is open now.
    let mut data = limits.data_bytes;
    let mut room = limits.ring_bytes.saturating_sub(LOG_BYTES as u64);
    let mut count = 0;
    let mut takes = |pointer: &BlockPointer| {
        let bytes = device.extent.align(pointer.psize_bytes());
        count += 1;
        let log = if ring.entries_per_log() > 0 && count % each == 0 { LOG_BYTES as u64 } else { 0 };
        if bytes > data || bytes + log > room {
            (data, room) = (0, 0);
            return false;
        }
        (data, room) = (data - bytes, room - bytes - log);
        true
    };
    let search_bytes = limits.data_bytes.saturating_mul(settings.headroom);
    let mut out = Vec::new();
    for (list, kind) in LISTS {
        cache.visit_for_feed(list, kind, search_bytes, settings.takes_prefetched, &mut takes, &mut out);
    }
    invariant!(out.iter().all(|one| !one.pointer.is_gang()), "a gang block was chosen");
    out
}

/// A block with its place.
struct Placed {
    pointer: BlockPointer,
    place: CopyPlace,
    bytes: Bytes,
}

/// Writes blocks, and adds them to the index once the device has them. Returns the bytes of the device that they take; `None`
/// if a write failed.
async fn write_batch(
    cache: &Arc<Cache>,
    device: &CacheDevice,
    ring: &mut Ring,
    candidates: Vec<FeedCandidate>,
) -> Option<u64> {
    let l2 = cache.l2arc();
    let mut placed = Vec::new();
    let mut logs: Vec<LogBlock> = Vec::new();
    let mut wrote = 0;
    for (candidate, stored) in stored_forms(cache, candidates).await {
        let pointer = candidate.pointer;
        let size = device.extent.align(pointer.psize_bytes());
        if !ring.has_room(size) {
            break;
        }
        let offset_bytes = ring.place(size);
        let entry = entry(&candidate, &stored, offset_bytes);
        let place = CopyPlace { device: device.number, offset_bytes, prop: entry.prop };
        placed.push(Placed { pointer, place, bytes: padded(stored, size) });
        wrote += size;
        if let Some(log) = ring.log(entry, size) {
            wrote += log.bytes.len() as u64;
            logs.push(log);
        }
    }
    let data = join_all(placed.iter().map(|one| device.write(one.place.offset_bytes, one.bytes.clone())));
    let logs = logs.into_iter().map(|log| device.write(log.offset_bytes, Buf::copy_from(&log.bytes).into_bytes()));
    let (data, logs) = futures_util::future::join(data, join_all(logs)).await;
    let mut index = l2.index.lock();
    for one in placed.iter().zip(&data).filter(|(_, done)| **done).map(|(one, _)| one) {
        index.insert(BlockId::of(&one.pointer), one.place);
        l2.counters.written_bytes.fetch_add(one.pointer.psize_bytes(), Ordering::Relaxed);
        l2.counters.written_blocks.fetch_add(1, Ordering::Relaxed);
    }
    if !device.is_readable() {
        index.clear_device(device.number);
    }
    l2.note_memory(&index);
    if data.iter().chain(&logs).all(|done| *done) {
        return Some(wrote);
    }
    // The blocks of the open log block may lack their data; those of a log block that was lost are lost with it.
    ring.drop_open();
    None
}

/// The stored forms of blocks: made of their bytes in memory, or read from the pool. Blocks that cannot be read are left out.
async fn stored_forms(cache: &Arc<Cache>, candidates: Vec<FeedCandidate>) -> Vec<(FeedCandidate, Bytes)> {
    let bytes = candidates.iter().map(|one| one.bytes.len()).sum();
    let own = cache.clone();
    let encoded = cache.machine().compute.run_sized(bytes, move || {
        let form = |one: FeedCandidate| {
            let stored = match one.is_raw {
                true => Some(one.bytes.clone()),
                false => stored_form(own.blocks(), &one.pointer, &one.bytes),
            };
            (one, stored)
        };
        candidates.into_iter().map(form).collect::<Vec<_>>()
    });
    let mut out = Vec::new();
    for (one, stored) in encoded.await.unwrap_or_default() {
        let stored = match stored {
            Some(stored) => stored,
            None => {
                let rq = Request::internal("l2arc").with_priority(Priority::Async);
                let options = ReadOptions { raw: true, prefetch: true, ..ReadOptions::default() };
                // An unreadable block is reported when a client reads it.
                let Ok(stored) = cache.blocks().read(&rq, &one.pointer, &options).await else { continue };
                stored
            }
        };
        if stored.len() as u64 == one.pointer.psize_bytes() {
            out.push((one, stored));
        }
    }
    out
}

/// The entry of a log block for a copy (`l2arc_log_blk_insert`).
fn entry(candidate: &FeedCandidate, stored: &Bytes, offset_bytes: u64) -> L2Entry {
    let pointer = &candidate.pointer;
    let compression = pointer.compression().unwrap_or(CompressionKind::Off);
    let facts = EntryFacts {
        lsize_bytes: pointer.lsize_bytes(),
        psize_bytes: pointer.psize_bytes(),
        compression,
        is_metadata: candidate.kind == ContentClass::Metadata,
        is_protected: pointer.uses_crypt(),
        is_prefetched: candidate.is_prefetched,
        is_mfu: candidate.list == ArcState::Mfu,
    };
    let level = match compression {
        CompressionKind::Zstd if !pointer.is_encrypted() => zstd::level(stored).map_or(0, |level| level.to_u8().into()),
        _ => 0,
    };
    L2Entry::new(pointer.dva(0), Txg(pointer.physical_birth().0), offset_bytes, &facts, level)
}

/// Fills up to whole sectors with zeros.
fn padded(stored: Bytes, size: u64) -> Bytes {
    if stored.len() as u64 == size {
        return stored;
    }
    let mut buf = Buf::zeroed(size as usize);
    if let Some(front) = buf.as_mut().get_mut(..stored.len()) {
        front.copy_from_slice(&stored);
    }
    buf.into_bytes()
}
