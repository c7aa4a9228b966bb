//! The server's interface to volumes, as traits. The pool's volumes implement them, and so do devices in memory,
//! which allow to test the protocol without a pool.

use crate::handshake::{ExportInfo, ExportList};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use weir_machine::Request;
use weir_volumes::VolumeError;

/// Error of a device operation.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The pool or the quota is full: ENOSPC.
    #[error("no space: {0}")]
    Full(Box<dyn Error + Send + Sync>),
    /// The device is read-only: EPERM.
    #[error("the device is read-only")]
    ReadOnly,
    /// Any other error: EIO; the message is logged.
    #[error("{0}")]
    Failed(Box<dyn Error + Send + Sync>),
}

impl DeviceError {
    /// An I/O error with this message or cause.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        DeviceError::Failed(cause.into())
    }
}

/// Future of a device operation.
pub type DeviceFuture<'a, T> = BoxFuture<'a, Result<T, DeviceError>>;

/// A range of a device that is entirely data or entirely hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether it is allocated; a hole reads as zeros.
    pub data: bool,
}

/// A block device. The server calls write, zero and flush only if [`Device::is_writable`].
///
/// All connections to one export share one `Device`: a completed write is visible to all of them, and a flush makes
/// every completed write stable. `CAN_MULTI_CONN` relies on this.
pub trait Device: Send + Sync {
    /// Whether the device is writable.
    fn is_writable(&self) -> bool {
        false
    }
    /// Writes `bytes` at `offset`; the caller ensures that the range is inside the device. On completion the data are
    /// visible to every reader, but not stable.
    fn write<'a>(&'a self, _rq: &'a Request, _offset: u64, _bytes: Bytes) -> DeviceFuture<'a, ()> {
        Box::pin(std::future::ready(Err(DeviceError::ReadOnly)))
    }
    /// Makes a range inside the device read as zeros and frees the blocks that lie entirely within it.
    fn zero<'a>(&'a self, _rq: &'a Request, _offset: u64, _len: u32) -> DeviceFuture<'a, ()> {
        Box::pin(std::future::ready(Err(DeviceError::ReadOnly)))
    }
    /// Makes all completed writes stable.
    fn flush<'a>(&'a self, _rq: &'a Request) -> DeviceFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Block size of the volume in bytes.
    fn block_bytes(&self) -> u32;
    /// Reads exactly `len` bytes at `offset`; the caller ensures that the range is inside the device.
    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, Bytes>;
    /// The extents of a range inside the device, in order and without gaps, at most `max` of them.
    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u32, max: usize) -> DeviceFuture<'a, Vec<Extent>>;
}

impl Device for weir_volumes::Volume {
    fn size_bytes(&self) -> u64 {
        weir_volumes::Volume::size_bytes(self)
    }

    fn block_bytes(&self) -> u32 {
        weir_volumes::Volume::block_bytes(self)
    }

    fn is_writable(&self) -> bool {
        weir_volumes::Volume::is_writable(self)
    }

    fn write<'a>(&'a self, rq: &'a Request, offset: u64, bytes: Bytes) -> DeviceFuture<'a, ()> {
        Box::pin(async move { Ok(weir_volumes::Volume::write(self, rq, offset, bytes, false).await?) })
    }

    fn zero<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, ()> {
        Box::pin(async move { Ok(weir_volumes::Volume::zero(self, rq, offset, len.into(), true, false).await?) })
    }

    fn flush<'a>(&'a self, rq: &'a Request) -> DeviceFuture<'a, ()> {
        Box::pin(async move { Ok(weir_volumes::Volume::flush(self, rq).await?) })
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, Bytes> {
        Box::pin(async move { Ok(weir_volumes::Volume::read(self, rq, offset, len as usize).await?) })
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u32, max: usize) -> DeviceFuture<'a, Vec<Extent>> {
        Box::pin(async move {
            let extents = weir_volumes::Volume::extents(self, rq, offset, len.into(), max).await?;
            Ok(extents.into_iter().map(|e| Extent { len_bytes: e.len_bytes, data: e.data }).collect())
        })
    }
}

impl From<VolumeError> for DeviceError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::ReadOnly { .. } => DeviceError::ReadOnly,
            VolumeError::NoSpace { .. } => DeviceError::Full(error.into()),
            _ => DeviceError::failed(error),
        }
    }
}

/// The exported devices.
pub trait BlockExports: ExportList + Send + Sync {
    /// Opens an export by name.
    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> DeviceFuture<'a, Arc<dyn Device>>;
}

/// A device in memory for tests and fuzzing. Blocks of 4 KiB that contain only zeros are holes.
#[derive(Debug, Default)]
pub struct MemoryDevice {
    bytes: Mutex<Vec<u8>>,
    bad_byte: Option<u64>,
    writable: bool,
    max_write_bytes: Option<u64>,
    flushed: Mutex<Vec<u8>>,
}

const MEMORY_BLOCK: usize = 4096;

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

    /// Makes reads of the byte at this offset fail.
    pub fn with_bad_byte(self, at: u64) -> Self {
        MemoryDevice { bad_byte: Some(at), ..self }
    }

    /// Makes writes of more than `bytes` bytes fail with [`DeviceError::Full`].
    pub fn with_max_write_bytes(self, bytes: u64) -> Self {
        MemoryDevice { max_write_bytes: Some(bytes), ..self }
    }

    /// The current content.
    pub fn bytes(&self) -> Vec<u8> {
        self.locked().clone()
    }

    /// The content at the last flush.
    pub fn flushed(&self) -> Vec<u8> {
        self.flushed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, offset: u64, len: usize, change: impl FnOnce(&mut [u8])) -> Result<(), DeviceError> {
        if !self.writable {
            return Err(DeviceError::ReadOnly);
        }
        let start = usize::try_from(offset).map_err(DeviceError::failed)?;
        let mut bytes = self.locked();
        let range = bytes.get_mut(start..).and_then(|rest| rest.get_mut(..len));
        range.map(change).ok_or_else(|| DeviceError::failed("outside of the device"))
    }
}

impl Device for MemoryDevice {
    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write<'a>(&'a self, _: &'a Request, offset: u64, bytes: Bytes) -> DeviceFuture<'a, ()> {
        let full = self.max_write_bytes.is_some_and(|max| bytes.len() as u64 > max);
        let done = if full { Err(DeviceError::Full("write is larger than the test permits".into())) } else { Ok(()) };
        let done = done.and_then(|()| self.change(offset, bytes.len(), |range| range.copy_from_slice(&bytes)));
        Box::pin(std::future::ready(done))
    }

    fn zero<'a>(&'a self, _: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, ()> {
        Box::pin(std::future::ready(self.change(offset, len as usize, |range| range.fill(0))))
    }

    fn flush<'a>(&'a self, _: &'a Request) -> DeviceFuture<'a, ()> {
        let bytes = self.locked().clone();
        *self.flushed.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        Box::pin(std::future::ready(Ok(())))
    }

    fn size_bytes(&self) -> u64 {
        self.locked().len() as u64
    }

    fn block_bytes(&self) -> u32 {
        MEMORY_BLOCK as u32
    }

    fn read<'a>(&'a self, _: &'a Request, offset: u64, len: u32) -> DeviceFuture<'a, Bytes> {
        let end = offset.saturating_add(len.into());
        let bad = self.bad_byte.is_some_and(|at| (offset..end).contains(&at));
        let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok()).filter(|_| !bad);
        let all = self.locked();
        let bytes = range.and_then(|(start, end)| all.get(start..end)).map(Bytes::copy_from_slice);
        Box::pin(std::future::ready(bytes.ok_or_else(|| DeviceError::failed("unreadable byte"))))
    }

    fn extents<'a>(&'a self, _: &'a Request, offset: u64, len: u32, max: usize) -> DeviceFuture<'a, Vec<Extent>> {
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
        Box::pin(std::future::ready(Ok(extents)))
    }
}

/// Devices in memory by name; the first one is the default export.
#[derive(Default)]
pub struct MemoryExports(pub BTreeMap<String, Arc<MemoryDevice>>);

impl ExportList for MemoryExports {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let found = if name.is_empty() { self.0.iter().next() } else { self.0.get_key_value(name) };
        found.map(|(name, device)| ExportInfo {
            name: name.clone(),
            size_bytes: device.size_bytes(),
            block_bytes: device.block_bytes(),
            writable: device.is_writable(),
        })
    }
}

impl BlockExports for MemoryExports {
    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> DeviceFuture<'a, Arc<dyn Device>> {
        let found = self.0.get(name).map(|device| Arc::clone(device) as Arc<dyn Device>);
        Box::pin(std::future::ready(found.ok_or_else(|| DeviceError::failed("no such export"))))
    }
}
