//! A cache device: its disk, its state and its counters.

use super::ring::{Extent, Owner};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use weir_codec::checksum::embedded::seal_embedded;
use weir_codec::checksum::{Verifier, verify_embedded};
use weir_format::l2arc::L2Header;
use weir_format::{ChecksumKind, Endian, label};
use weir_machine::{Buf, Clock, Disk, invariant};

/// Errors of the device after which it is not used any more.
const MAX_ERRORS: u64 = 10;

/// State of a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// The device's contents are being found again; it is read, and not written yet.
    Rebuilding,
    /// The device is read and written.
    Active,
    /// The device returned too many errors.
    Faulted,
    /// The device did not answer in time.
    Hung,
    /// The device was taken out of service.
    Closed,
}

const STATES: [CacheState; 5] =
    [CacheState::Rebuilding, CacheState::Active, CacheState::Faulted, CacheState::Hung, CacheState::Closed];

/// A cache device that is added to a cache.
pub struct NewCacheDevice {
    /// GUIDs of the pool and the device, for the header.
    pub owner: Owner,
    /// The device.
    pub disk: Arc<dyn Disk>,
    /// log2 of its sector size.
    pub ashift: u32,
}

impl NewCacheDevice {
    /// The place of the space for blocks (`l2arc_add_vdev`); `None` if the device is too small, or its sectors are larger
    /// than `ashift` says.
    fn extent(&self) -> Option<Extent> {
        let geometry = self.disk.geometry();
        if !(9..=16).contains(&self.ashift) || geometry.sector_bytes > 1 << self.ashift {
            return None;
        }
        let start_bytes = label::FRONT_BYTES + header_bytes(self.ashift) as u64;
        let end_bytes = label::usable_device_bytes(geometry.size_bytes).checked_sub(label::BACK_BYTES)?;
        (end_bytes > start_bytes).then_some(Extent { start_bytes, end_bytes, ashift: self.ashift })
    }
}

/// Bytes of the header with its padding.
fn header_bytes(ashift: u32) -> usize {
    L2Header::SIZE.max(1 << ashift)
}

/// Counters of a cache device since it was added.
#[derive(Debug, Default)]
pub(super) struct DeviceCounters {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    /// Bytes of the log blocks that are present.
    pub log_bytes: AtomicU64,
}

/// A cache device in use.
pub(super) struct CacheDevice {
    pub number: u32,
    pub owner: Owner,
    pub extent: Extent,
    pub counters: DeviceCounters,
    disk: Arc<dyn Disk>,
    clock: Clock,
    deadline: Duration,
    state: AtomicU8,
}

impl CacheDevice {
    /// `deadline` is the time after which an operation without an answer takes the device out of service.
    pub fn new(number: u32, new: &NewCacheDevice, clock: Clock, deadline: Duration) -> Option<Self> {
        let extent = new.extent()?;
        Some(CacheDevice {
            number,
            owner: new.owner,
            extent,
            counters: DeviceCounters::default(),
            disk: new.disk.clone(),
            clock,
            deadline,
            state: AtomicU8::new(CacheState::Rebuilding as u8),
        })
    }

    pub fn state(&self) -> CacheState {
        STATES.get(self.state.load(Ordering::Relaxed) as usize).copied().unwrap_or(CacheState::Closed)
    }

    /// Whether copies may be read from the device.
    pub fn is_readable(&self) -> bool {
        matches!(self.state(), CacheState::Rebuilding | CacheState::Active)
    }

    /// Changes the state, unless the device is out of service, which is final. Returns whether it was in service.
    pub fn set_state(&self, state: CacheState) -> bool {
        let in_service = |old: u8| {
            matches!(STATES.get(old as usize), Some(CacheState::Rebuilding | CacheState::Active)).then_some(state as u8)
        };
        let changed = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, in_service).is_ok();
        invariant!(self.state() != CacheState::Rebuilding || !changed, "a cache device is rebuilt twice");
        changed
    }

    /// Counts an error. Too many take the device out of service.
    fn failed(&self, counter: &AtomicU64, error: Option<weir_machine::DiskError>) {
        counter.fetch_add(1, Ordering::Relaxed);
        let counters = &self.counters;
        let all = counters.read_errors.load(Ordering::Relaxed) + counters.write_errors.load(Ordering::Relaxed);
        match error {
            None if self.set_state(CacheState::Hung) => {
                tracing::warn!(guid = self.owner.vdev_guid, "a cache device does not answer: it is not used any more");
            }
            Some(error) if all >= MAX_ERRORS && self.set_state(CacheState::Faulted) => {
                tracing::warn!(guid = self.owner.vdev_guid, %error, "a cache device fails: it is not used any more");
            }
            _ => {}
        }
    }

    /// Reads whole sectors; `None` if the device fails or does not answer in time.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Option<Buf> {
        let read = pin!(self.disk.read(offset_bytes, len));
        let late = pin!(self.clock.sleep(self.deadline));
        match select(read, late).await {
            Either::Left((Ok(buf), _)) => {
                self.counters.reads.fetch_add(1, Ordering::Relaxed);
                self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
                Some(buf)
            }
            Either::Left((Err(error), _)) => {
                self.failed(&self.counters.read_errors, Some(error));
                None
            }
            Either::Right(_) => {
                self.failed(&self.counters.read_errors, None);
                None
            }
        }
    }

    /// Writes whole sectors. Returns whether the device has them.
    pub async fn write(&self, offset_bytes: u64, bytes: bytes::Bytes) -> bool {
        let len = bytes.len() as u64;
        let write = pin!(self.disk.write(offset_bytes, bytes));
        let late = pin!(self.clock.sleep(self.deadline));
        match select(write, late).await {
            Either::Left((Ok(()), _)) => {
                self.counters.writes.fetch_add(1, Ordering::Relaxed);
                self.counters.written_bytes.fetch_add(len, Ordering::Relaxed);
                true
            }
            Either::Left((Err(error), _)) => {
                self.failed(&self.counters.write_errors, Some(error));
                false
            }
            Either::Right(_) => {
                self.failed(&self.counters.write_errors, None);
                false
            }
        }
    }

    /// Reads the header; `None` if there is none whose checksum matches.
    pub async fn read_header(&self) -> Option<L2Header> {
        let buf = self.read(label::FRONT_BYTES, header_bytes(self.extent.ashift)).await?;
        let verifier = Verifier::Label { offset_bytes: label::FRONT_BYTES };
        verify_embedded(ChecksumKind::Label, verifier, buf.as_ref()).ok()?;
        L2Header::decode(buf.as_ref()).ok()
    }

    /// Writes the header (`l2arc_dev_hdr_update`).
    pub async fn write_header(&self, header: &L2Header) -> bool {
        let mut bytes = header.encode(header_bytes(self.extent.ashift));
        let verifier = Verifier::Label { offset_bytes: label::FRONT_BYTES };
        // Fails only for an area that is shorter than a trailer.
        let is_sealed = seal_embedded(ChecksumKind::Label, Endian::Little, verifier, &mut bytes).is_ok();
        is_sealed && self.write(label::FRONT_BYTES, Buf::copy_from(&bytes).into_bytes()).await
    }
}
