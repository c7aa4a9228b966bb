//! The contents of a simulated disk: a pristine image, durable writes over it, cached writes, and the effects of
//! faults.
//!
//! ```text
//!   read:   image ◄ durable sectors ◄ cached writes, in the order of completion ◄ misdirected sectors ◄ flipped bits
//!   flush:  cached writes that were completed when it was submitted become durable
//!   cut:    any subset of the cached and the unfinished writes survives, and of one write any subset of its sectors
//! ```
//!
//! The image file is never changed, so a golden pool can be used directly. A sector is atomic under a power cut: it
//! has the old or the new bytes, as drives guarantee.

use crate::fault::{Fault, FaultId};
use crate::read_set::{SectorSet, TouchedSectors};
use crate::rng::Rng;
use crate::trace::{hash_bytes, mix};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A write that is not durable.
#[derive(Clone)]
struct Cached {
    /// Position in the order of completion.
    order: u64,
    offset: u64,
    data: Arc<[u8]>,
}

/// Size of a page in bytes: the unit that copies of a medium share.
const PAGE: usize = 4096;
/// Number of pages in a chunk.
const PAGES: usize = 256;
const CHUNK: u64 = (PAGE * PAGES) as u64;

/// The written pages; the others are as in the image.
type Chunk = Vec<Option<Arc<[u8; PAGE]>>>;

/// Durable writes over the image. Copies share chunks and pages until one of them writes to them (copy on write).
#[derive(Clone, Default)]
struct Durable(BTreeMap<u64, Arc<Chunk>>);

impl Durable {
    /// Copies the written pages over the contents of `into`, which starts at `offset`.
    fn read(&self, offset: u64, into: &mut [u8]) {
        let end = offset + into.len() as u64;
        for (number, chunk) in self.0.range(offset / CHUNK..end.div_ceil(CHUNK)) {
            let start = number * CHUNK;
            let first = (offset.max(start) - start) as usize / PAGE;
            let last = ((end.min(start + CHUNK) - start) as usize).div_ceil(PAGE);
            for (n, page) in chunk.iter().enumerate().take(last).skip(first) {
                if let Some(page) = page {
                    overlay(offset, into, start + (n * PAGE) as u64, page.as_slice());
                }
            }
        }
    }

    /// Writes bytes within one page; `fill` reads the previous contents of a page that was not written before.
    fn write(&mut self, offset: u64, bytes: &[u8], fill: impl FnOnce(u64, &mut [u8])) {
        let chunk = self.0.entry(offset / CHUNK).or_insert_with(|| Arc::new(vec![None; PAGES]));
        let within = (offset % CHUNK) as usize;
        let page = Arc::make_mut(chunk)[within / PAGE].get_or_insert_with(|| {
            let mut page = [0; PAGE];
            if bytes.len() < PAGE {
                fill(offset - (within % PAGE) as u64, &mut page);
            }
            Arc::new(page)
        });
        Arc::make_mut(page)[within % PAGE..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Whether both have the same contents in the sectors `among`, over zeros. Shared pages are not compared.
    fn is_equivalent(&self, other: &Durable, among: &SectorSet, sector_bytes: u64) -> bool {
        let numbers: BTreeSet<&u64> = self.0.keys().chain(other.0.keys()).collect();
        numbers.into_iter().all(|number| match (self.0.get(number), other.0.get(number)) {
            (Some(one), Some(two)) if Arc::ptr_eq(one, two) => true,
            (one, two) => (0..PAGES).all(|n| {
                let at = number * CHUNK + (n * PAGE) as u64;
                match (one.and_then(|chunk| chunk[n].as_ref()), two.and_then(|chunk| chunk[n].as_ref())) {
                    (None, None) => true,
                    (Some(one), Some(two)) if Arc::ptr_eq(one, two) => true,
                    (one, two) => is_page_equal(at, one.map(|p| &**p), two.map(|p| &**p), among, sector_bytes),
                }
            }),
        })
    }
}

/// Whether two pages at `at`, or zeros, have the same contents in the sectors `among`.
fn is_page_equal(
    at: u64,
    one: Option<&[u8; PAGE]>,
    two: Option<&[u8; PAGE]>,
    among: &SectorSet,
    sector_bytes: u64,
) -> bool {
    const ZEROS: [u8; PAGE] = [0; PAGE];
    let one = one.unwrap_or(&ZEROS);
    let two = two.unwrap_or(&ZEROS);
    let sectors = one.chunks(sector_bytes as usize).zip(two.chunks(sector_bytes as usize));
    sectors.zip(at / sector_bytes..).all(|((one, two), number)| one == two || !among.has(number))
}

/// The effect of one fault on the contents.
#[derive(Clone, Default)]
struct FaultMarks {
    /// Bits that read flipped, by byte offset.
    rot: BTreeMap<u64, u8>,
    /// Unreadable sectors.
    unreadable: BTreeSet<u64>,
    /// Sectors that read as other contents.
    misdirected: BTreeMap<u64, Vec<u8>>,
}

/// The contents of a disk. A copy shares nearly all memory with its original.
#[derive(Clone)]
pub struct Medium {
    sector: u64,
    size: u64,
    image: Option<Arc<File>>,
    durable: Durable,
    cached: Vec<Cached>,
    in_flight: BTreeMap<u64, (u64, Arc<[u8]>)>,
    order: u64,
    marks: BTreeMap<FaultId, FaultMarks>,
    /// Fingerprint of the durable contents, if it is maintained.
    fingerprint: Option<u64>,
    /// The sectors read and written since [`Medium::track_reads`], if reads are tracked.
    touched: Option<TouchedSectors>,
}

impl Medium {
    /// Makes the medium larger.
    pub fn grow(&mut self, size: u64) {
        debug_assert!(size >= self.size, "a medium does not shrink");
        self.size = size;
    }

    /// A medium of `size` bytes: those of `image`, or zeros.
    pub fn new(sector: u64, size: u64, image: Option<File>) -> Self {
        Medium {
            sector,
            size,
            image: image.map(Arc::new),
            durable: Durable::default(),
            cached: Vec::new(),
            in_flight: BTreeMap::new(),
            order: 0,
            marks: BTreeMap::new(),
            fingerprint: None,
            touched: None,
        }
    }

    /// Starts to track the sectors that are read before they are written.
    pub(crate) fn track_reads(&mut self) {
        self.touched = Some(TouchedSectors::default());
    }

    /// Stops tracking; returns the sectors that were read before they were written.
    pub(crate) fn take_read_set(&mut self) -> SectorSet {
        self.touched.take().map(TouchedSectors::into_read).unwrap_or_default()
    }

    pub(crate) fn note_read(&mut self, offset: u64, len: u64) {
        let sectors = self.sectors(offset, len as usize);
        if let Some(touched) = &mut self.touched {
            touched.note_read(sectors);
        }
    }

    /// Whether both have the same durable bytes in these sectors. Always false for media with cached writes, faults
    /// or images.
    pub(crate) fn is_equivalent(&self, other: &Medium, among: &SectorSet) -> bool {
        let plain = |of: &Medium| of.image.is_none() && of.cached.is_empty() && of.marks.is_empty();
        plain(self)
            && plain(other)
            && (self.sector, self.size) == (other.sector, other.size)
            && self.durable.is_equivalent(&other.durable, among, self.sector)
    }

    /// Starts or stops maintaining a fingerprint of the durable contents. Two media that started with the same
    /// contents and have the same fingerprint have the same contents, except with probability 2^-64.
    pub fn keep_fingerprint(&mut self, keep: bool) {
        self.fingerprint = keep.then_some(self.fingerprint.unwrap_or(0));
    }

    /// The fingerprint, if it is maintained.
    pub fn fingerprint(&self) -> Option<u64> {
        self.fingerprint
    }

    fn sectors(&self, offset: u64, len: usize) -> std::ops::Range<u64> {
        offset / self.sector..(offset + len as u64).div_ceil(self.sector)
    }

    /// Reads with the effects of faults. False if a sector is unreadable.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.read_true(offset, into);
        let sectors = self.sectors(offset, into.len());
        let end = offset + into.len() as u64;
        for marks in self.marks.values() {
            if marks.unreadable.range(sectors.clone()).next().is_some() {
                return false;
            }
            for (sector, data) in marks.misdirected.range(sectors.clone()) {
                overlay(offset, into, sector * self.sector, data);
            }
            for (at, mask) in marks.rot.range(offset..end) {
                into[(at - offset) as usize] ^= mask;
            }
        }
        true
    }

    /// Reads the bytes written, without the effects of faults.
    pub fn read_true(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        if let Some(image) = &self.image {
            read_image(image, offset, into);
        }
        self.durable.read(offset, into);
        for write in &self.cached {
            overlay(offset, into, write.offset, &write.data);
        }
    }

    /// Begins a write: from now on, any part of it may survive a power cut.
    pub fn begin_write(&mut self, id: u64, offset: u64, data: Arc<[u8]>) {
        self.in_flight.insert(id, (offset, data));
    }

    /// Abandons a write that failed.
    pub fn abandon_write(&mut self, id: u64) {
        self.in_flight.remove(&id);
    }

    /// Fails a write: none of its sectors, all of them or the first ones have reached the cache.
    pub fn tear(&mut self, id: u64, rng: &mut Rng) {
        let Some((offset, data)) = self.in_flight.get(&id).cloned() else { return };
        let sectors = data.len() as u64 / self.sector;
        let kept = match rng.below(3) {
            0 => 0,
            1 => sectors,
            _ => rng.below(sectors + 1),
        };
        if kept > 0 {
            self.in_flight.insert(id, (offset, data[..(kept * self.sector) as usize].into()));
            self.complete_write(id, None);
        }
    }

    /// Fails a flush: some of the cached writes up to `watermark` are lost for good.
    pub fn lose(&mut self, watermark: u64, rng: &mut Rng) {
        self.cached.retain(|write| write.order > watermark || rng.chance(1, 2));
    }

    /// Completes a write: its data are in the cache. `redirect` is the misdirecting fault and the byte offset at
    /// which the data appear instead.
    pub fn complete_write(&mut self, id: u64, redirect: Option<(FaultId, u64)>) {
        let Some((offset, data)) = self.in_flight.remove(&id) else { return };
        let sectors = self.sectors(offset, data.len());
        if let Some(touched) = &mut self.touched {
            touched.note_write(sectors);
        }
        if let Some((fault, to)) = redirect {
            let mut old = vec![0; data.len()];
            self.read_true(offset, &mut old);
            self.repair(offset, data.len());
            let to = to.min(self.size.saturating_sub(data.len() as u64)) / self.sector * self.sector;
            self.repair(to, data.len());
            let sector = self.sector;
            let misdirected = &mut self.marks.entry(fault).or_default().misdirected;
            for (target, bytes) in [(offset, &old[..]), (to, &data[..])] {
                for (n, chunk) in bytes.chunks(sector as usize).enumerate() {
                    misdirected.insert(target / sector + n as u64, chunk.to_vec());
                }
            }
        } else {
            self.repair(offset, data.len());
        }
        self.order += 1;
        self.cached.push(Cached { order: self.order, offset, data });
    }

    /// Order number of the last completed write: a flush submitted now covers the writes up to it.
    pub fn watermark(&self) -> u64 {
        self.order
    }

    /// Makes the completed writes up to order number `watermark` durable.
    pub fn make_durable(&mut self, watermark: u64) {
        let keep = self.cached.iter().position(|w| w.order > watermark).unwrap_or(self.cached.len());
        for write in self.cached.drain(..keep).collect::<Vec<_>>() {
            self.store(write.offset, &write.data, || true);
        }
    }

    /// Makes those sectors of a write durable for which `survives` returns true.
    fn store(&mut self, offset: u64, data: &[u8], mut survives: impl FnMut() -> bool) {
        let image = self.image.as_deref();
        let mut old = vec![0; if self.fingerprint.is_some() { self.sector as usize } else { 0 }];
        for (n, bytes) in data.chunks(self.sector as usize).enumerate() {
            if !survives() {
                continue;
            }
            let at = offset + n as u64 * self.sector;
            if let Some(fingerprint) = &mut self.fingerprint {
                // Xor removes the old contents of the sector from the fingerprint.
                old.fill(0);
                image.into_iter().for_each(|image| read_image(image, at, &mut old));
                self.durable.read(at, &mut old);
                *fingerprint ^= mix(hash_bytes(&old), at) ^ mix(hash_bytes(bytes), at);
            }
            for (n, piece) in bytes.chunks(PAGE).enumerate() {
                let fill = |at, page: &mut [u8]| image.into_iter().for_each(|image| read_image(image, at, page));
                self.durable.write(at + (n * PAGE) as u64, piece, fill);
            }
        }
    }

    /// Simulates a power failure. Draws first the share of writes that survive, then the fate of each write.
    pub fn power_cut(&mut self, rng: &mut Rng) {
        let survival = rng.below(5);
        let mut unfinished: Vec<_> = std::mem::take(&mut self.in_flight).into_values().collect();
        rng.shuffle(&mut unfinished);
        let cached = std::mem::take(&mut self.cached).into_iter().map(|w| (w.offset, w.data));
        for (offset, data) in cached.chain(unfinished) {
            if rng.chance(survival, 4) {
                self.store(offset, &data, || true);
            } else if rng.chance(1, 3) {
                let part = 1 + rng.below(3);
                self.store(offset, &data, || rng.chance(part, 4));
            }
        }
    }

    /// Applies a fault's effect to the contents.
    pub fn mark(&mut self, id: FaultId, fault: &Fault, rng: &mut Rng) {
        let size = self.size;
        match *fault {
            Fault::Rot { offset, len, bits } => {
                let marks = self.marks.entry(id).or_default();
                for _ in 0..bits {
                    let at = offset.saturating_add(rng.below(len));
                    // Or, not xor: a second hit on a bit must not restore it.
                    *marks.rot.entry(at).or_default() |= 1 << rng.below(8);
                }
            }
            Fault::Unreadable { offset, len } => {
                let end = offset.saturating_add(len).min(size);
                let sectors = offset / self.sector..end.div_ceil(self.sector);
                self.marks.entry(id).or_default().unreadable.extend(sectors);
            }
            _ => {}
        }
    }

    /// Removes a fault's effect.
    pub fn unmark(&mut self, id: FaultId) {
        self.marks.remove(&id);
    }

    /// Overwriting a range removes the effects of faults on it.
    fn repair(&mut self, offset: u64, len: usize) {
        let sectors = self.sectors(offset, len);
        for marks in self.marks.values_mut() {
            marks.rot.retain(|at, _| !(offset..offset + len as u64).contains(at));
            marks.unreadable.retain(|s| !sectors.contains(s));
            marks.misdirected.retain(|s, _| !sectors.contains(s));
        }
    }
}

fn read_image(image: &File, offset: u64, into: &mut [u8]) {
    let mut done = 0;
    while done < into.len() {
        match image.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) => panic!("the image under a simulated disk cannot be read: {error}"),
        }
    }
}

/// Copies the part of `data`, which starts at `at`, that overlaps `into`, which starts at `offset`.
fn overlay(offset: u64, into: &mut [u8], at: u64, data: &[u8]) {
    let start = offset.max(at);
    let end = (offset + into.len() as u64).min(at + data.len() as u64);
    if start < end {
        let from = (start - at) as usize;
        let to = (start - offset) as usize;
        let len = (end - start) as usize;
        into[to..to + len].copy_from_slice(&data[from..from + len]);
    }
}
