//! Devices in memory, for tests and fuzzing of the protocols without a pool.

use crate::block::{BlockDevice, BlockError, BlockExport, BlockExports, BlockFuture, Extent, HostBlockExports};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::ready;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use weir_machine::Request;
use weir_machine::lock::{Mutex, MutexGuard, order};

const MEMORY_BLOCK: usize = 4096;

/// A device in memory. Blocks of 4 KiB that contain only zeros are holes.
#[derive(Debug, Default)]
pub struct MemoryDevice {
    bytes: Mutex<Vec<u8>, { order::MEMORY_DEVICE }>,
    bad_byte: Option<u64>,
    writable: bool,
    max_write_bytes: Option<u64>,
    id: u64,
    flushed: Mutex<Vec<u8>>,
}

impl MemoryDevice {
    /// A read-only device with this content.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes: Vec<u8> = bytes.into();
        MemoryDevice { flushed: Mutex::new(bytes.clone()), bytes: Mutex::new(bytes), ..MemoryDevice::default() }
    }

    /// Makes the device writable or read-only.
    pub fn with_writing(self, writable: bool) -> Self {
        MemoryDevice { writable, ..self }
    }

    /// Sets the identity of the device, which is 0 otherwise.
    pub fn with_id(self, id: u64) -> Self {
        MemoryDevice { id, ..self }
    }

    /// Makes reads of the byte at this offset fail.
    pub fn with_bad_byte(self, at: u64) -> Self {
        MemoryDevice { bad_byte: Some(at), ..self }
    }

    /// Makes writes of more than `bytes` bytes fail with [`BlockError::Full`].
    pub fn with_max_write_bytes(self, bytes: u64) -> Self {
        MemoryDevice { max_write_bytes: Some(bytes), ..self }
    }

    /// The current content.
    pub fn bytes(&self) -> Vec<u8> {
        self.locked().clone()
    }

    /// The content that is stable.
    pub fn flushed(&self) -> Vec<u8> {
        self.stable().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock()
    }

    fn stable(&self) -> MutexGuard<'_, Vec<u8>> {
        self.flushed.lock()
    }

    /// Changes a range; with `fua`, also of the stable content.
    fn change(&self, offset: u64, len: u64, fua: bool, change: impl Fn(&mut [u8])) -> Result<(), BlockError> {
        if !self.writable {
            return Err(BlockError::ReadOnly);
        }
        let outside = || BlockError::io("outside of the device");
        let range = range(offset, len).ok_or_else(outside)?;
        change(self.locked().get_mut(range.clone()).ok_or_else(outside)?);
        if fua {
            change(self.stable().get_mut(range).ok_or_else(outside)?);
        }
        Ok(())
    }
}

fn range(offset: u64, len: u64) -> Option<Range<usize>> {
    let end = offset.checked_add(len)?;
    Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

impl BlockDevice for MemoryDevice {
    fn id(&self) -> u64 {
        self.id
    }

    fn size_bytes(&self) -> u64 {
        self.locked().len() as u64
    }

    fn block_bytes(&self) -> u32 {
        MEMORY_BLOCK as u32
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn read<'a>(&'a self, _: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Bytes> {
        let end = offset.saturating_add(len as u64);
        let bad = self.bad_byte.is_some_and(|at| (offset..end).contains(&at));
        let range = range(offset, len as u64).filter(|_| !bad);
        let bytes = range.and_then(|range| self.locked().get(range).map(Bytes::copy_from_slice));
        ready(bytes.ok_or_else(|| BlockError::io("unreadable byte"))).boxed()
    }

    fn extents<'a>(&'a self, _: &'a Request, offset: u64, len: u64, max: usize) -> BlockFuture<'a, Vec<Extent>> {
        let mut at = offset as usize;
        let end = (offset as usize).saturating_add(len as usize);
        let all = self.locked();
        let mut extents: Vec<Extent> = Vec::new();
        while at < end {
            let next = ((at / MEMORY_BLOCK + 1) * MEMORY_BLOCK).min(end);
            let block = at / MEMORY_BLOCK * MEMORY_BLOCK;
            let block = all.get(block..(block + MEMORY_BLOCK).min(all.len())).unwrap_or(&[]);
            let data = block.iter().any(|byte| *byte != 0);
            let full = extents.len() == max;
            match extents.last_mut().filter(|last| last.data == data) {
                Some(last) => last.len_bytes += (next - at) as u64,
                None if full => break,
                None => extents.push(Extent { len_bytes: (next - at) as u64, data }),
            }
            at = next;
        }
        ready(Ok(extents)).boxed()
    }

    fn write<'a>(&'a self, _: &'a Request, offset: u64, bytes: Bytes, fua: bool) -> BlockFuture<'a, ()> {
        let len = bytes.len() as u64;
        let done = match self.max_write_bytes.is_some_and(|max| len > max) {
            true => Err(BlockError::Full("write is larger than the test permits".into())),
            false => self.change(offset, len, fua, |range| range.copy_from_slice(&bytes)),
        };
        ready(done).boxed()
    }

    fn write_zeroes<'a>(&'a self, _: &'a Request, offset: u64, len: u64, fua: bool) -> BlockFuture<'a, ()> {
        ready(self.change(offset, len, fua, |range| range.fill(0))).boxed()
    }

    fn flush<'a>(&'a self, _: &'a Request) -> BlockFuture<'a, ()> {
        let bytes = self.locked();
        self.stable().copy_from_slice(&bytes);
        ready(Ok(())).boxed()
    }
}

/// Devices in memory by name; the first one is the default export.
#[derive(Clone, Default)]
pub struct MemoryExports(pub BTreeMap<String, Arc<MemoryDevice>>);

impl HostBlockExports for MemoryExports {
    fn seen_by(&self, _: IpAddr) -> Arc<dyn BlockExports> {
        Arc::new(self.clone())
    }
}

impl BlockExports for MemoryExports {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<BlockExport> {
        let found = if name.is_empty() { self.0.iter().next() } else { self.0.get_key_value(name) };
        found.map(|(name, device)| BlockExport {
            name: name.clone(),
            size_bytes: device.size_bytes(),
            block_bytes: device.block_bytes(),
            writable: device.is_writable(),
        })
    }

    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> BlockFuture<'a, Arc<dyn BlockDevice>> {
        let found = self.0.get(name).map(|device| Arc::clone(device) as Arc<dyn BlockDevice>);
        ready(found.ok_or(BlockError::NotFound)).boxed()
    }
}
