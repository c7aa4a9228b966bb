//! Leaves: one disk each.

use super::{Job, Place, Proof, Vdev};
use crate::error::BlockError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use weir_format::Txg;
use weir_machine::{Buf, Disk, DiskError};

/// Two labels and the boot area stand before the allocatable space (`VDEV_LABEL_START_SIZE`).
pub const FRONT_BYTES: u64 = 4 << 20;

/// What a leaf did, counted since the pool was opened.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads answered.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// Reads whose bytes were not those that were written.
    pub checksum_errors: u64,
}

impl Counters {
    /// The counters now.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
        }
    }

    /// Counts bytes that turned out wrong.
    pub(crate) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Leaf {
    disk: Option<Arc<dyn Disk>>,
    stale: bool,
    dtl: Vec<(Txg, Txg)>,
    counters: Counters,
    under_way: AtomicUsize,
}

/// Counts a read as under way for as long as it lives, also when the future that holds it is dropped.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Leaf {
    pub fn new(disk: Option<Arc<dyn Disk>>, stale: bool, dtl: Vec<(Txg, Txg)>) -> Self {
        Leaf { disk, stale, dtl, counters: Counters::default(), under_way: AtomicUsize::new(0) }
    }

    pub fn present(&self) -> bool {
        self.disk.is_some()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn load(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    pub fn reluctance(&self, birth: Txg) -> u8 {
        if self.disk.is_none() {
            2
        } else {
            u8::from(self.stale || self.dtl.iter().any(|(from, to)| (*from..=*to).contains(&birth)))
        }
    }

    /// Reads `len` bytes at `offset` of the allocatable space.
    pub async fn read(
        &self,
        vdev: &Vdev,
        job: &Job<'_>,
        place: Place,
        offset: u64,
        len: u64,
        proof: Option<Proof<'_>>,
    ) -> Result<Buf, BlockError> {
        let Place { vdev: top, offset: at, .. } = place;
        let Some(disk) = &self.disk else {
            return Err(BlockError::Missing { vdev: top, offset: at, devices: vec![vdev.name.clone()] });
        };
        let started = job.clock.now();
        let answer = {
            let _under_way = UnderWay::new(&self.under_way);
            transfer(disk, offset, len).await
        };
        job.request.book_device(job.clock.now().ns_since(started));
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let buf = answer.map_err(|error| {
            self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            BlockError::Device { vdev: top, offset: at, device: vdev.name.clone(), error }
        })?;
        self.counters.read_bytes.fetch_add(len, Ordering::Relaxed);
        match proof.map(|test| test(buf.as_ref())) {
            None | Some(Ok(())) => Ok(buf),
            Some(Err(fault)) => {
                self.counters.checksum_error();
                Err(BlockError::Corrupt { vdev: top, offset: at, fault })
            }
        }
    }
}

/// Reads a range of the allocatable space, widened to the disk's own sectors where they are larger than the pool's.
async fn transfer(disk: &Arc<dyn Disk>, offset: u64, len: u64) -> Result<Buf, DiskError> {
    let geometry = disk.geometry();
    let sector = u64::from(geometry.sector_bytes.max(1));
    let out_of_range = DiskError::OutOfRange {
        op: weir_machine::Op::Read,
        offset: offset.wrapping_add(FRONT_BYTES),
        len,
        size_bytes: geometry.size_bytes,
    };
    // Wrapping: a RAID-Z vdev that is being widened has its scratch area in front of the space.
    let start = offset.wrapping_add(FRONT_BYTES);
    let Some(end) = start.checked_add(len).filter(|&end| end <= geometry.size_bytes) else { return Err(out_of_range) };
    let first = start / sector * sector;
    let last = end.next_multiple_of(sector);
    let mut buf = disk.read(first, (last - first) as usize).await?;
    buf.advance((start - first) as usize);
    buf.truncate(len as usize);
    Ok(buf)
}
