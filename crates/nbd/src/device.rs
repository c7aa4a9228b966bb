//! What the server needs of a volume, as traits: the pool's volumes implement them, and so does a run of bytes in memory,
//! with which the protocol is tested without a pool.

use crate::handshake::{Directory, ExportInfo};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use weir_machine::Request;

/// Why bytes could not be had. The protocol knows one answer, EIO; the words go to the log.
pub type DeviceError = Box<dyn Error + Send + Sync>;

/// A future answer.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, DeviceError>>;

/// A stretch of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether anything is stored there; what is not reads as zeros.
    pub data: bool,
}

/// A block device, read-only.
pub trait Device: Send + Sync {
    /// Its size in bytes.
    fn size_bytes(&self) -> u64;
    /// The unit in which it is stored, in bytes.
    fn block_bytes(&self) -> u32;
    /// Exactly `len` bytes at `offset`; the caller stays inside the device.
    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> Answer<'a, Bytes>;
    /// The stretches of a range that lies inside the device, in order and without gaps, at most `max` of them.
    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u32, max: usize) -> Answer<'a, Vec<Extent>>;
}

impl Device for weir_volumes::Volume {
    fn size_bytes(&self) -> u64 {
        weir_volumes::Volume::size_bytes(self)
    }

    fn block_bytes(&self) -> u32 {
        weir_volumes::Volume::block_bytes(self)
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: u32) -> Answer<'a, Bytes> {
        Box::pin(async move { Ok(weir_volumes::Volume::read(self, rq, offset, len as usize).await?) })
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u32, max: usize) -> Answer<'a, Vec<Extent>> {
        Box::pin(async move {
            let extents = weir_volumes::Volume::extents(self, rq, offset, len.into(), max).await?;
            Ok(extents.into_iter().map(|e| Extent { len_bytes: e.len_bytes, data: e.data }).collect())
        })
    }
}

/// The devices that are served.
pub trait Exports: Directory + Send + Sync {
    /// Opens one by its name.
    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> Answer<'a, Arc<dyn Device>>;
}

/// Bytes in memory: for tests and fuzzing. Blocks of 4 KiB that hold nothing but zeros are holes.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    /// The bytes.
    pub bytes: Bytes,
    /// Reads that touch this byte fail.
    pub bad_byte: Option<u64>,
}

const MEMORY_BLOCK: usize = 4096;

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn block_bytes(&self) -> u32 {
        MEMORY_BLOCK as u32
    }

    fn read<'a>(&'a self, _: &'a Request, offset: u64, len: u32) -> Answer<'a, Bytes> {
        let end = offset.saturating_add(len.into());
        let bad = self.bad_byte.is_some_and(|at| (offset..end).contains(&at));
        let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        let bytes = range.filter(|(start, end)| start <= end && *end <= self.bytes.len() && !bad);
        let bytes = bytes.map(|(start, end)| self.bytes.slice(start..end)).ok_or_else(|| "a bad byte".into());
        Box::pin(std::future::ready(bytes))
    }

    fn extents<'a>(&'a self, _: &'a Request, offset: u64, len: u32, max: usize) -> Answer<'a, Vec<Extent>> {
        let (mut at, end) = (offset as usize, (offset as usize).saturating_add(len as usize));
        let mut extents: Vec<Extent> = Vec::new();
        while at < end {
            let next = ((at / MEMORY_BLOCK + 1) * MEMORY_BLOCK).min(end);
            let block = at / MEMORY_BLOCK * MEMORY_BLOCK;
            let block = self.bytes.get(block..(block + MEMORY_BLOCK).min(self.bytes.len())).unwrap_or(&[]);
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

/// Devices in memory by their names; the first one is the default.
#[derive(Default)]
pub struct MemoryExports(pub BTreeMap<String, MemoryDevice>);

impl Directory for MemoryExports {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let found = if name.is_empty() { self.0.iter().next() } else { self.0.get_key_value(name) };
        found.map(|(name, device)| ExportInfo {
            name: name.clone(),
            size_bytes: device.size_bytes(),
            block_bytes: device.block_bytes(),
        })
    }
}

impl Exports for MemoryExports {
    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> Answer<'a, Arc<dyn Device>> {
        let found = self.0.get(name).cloned().map(|device| Arc::new(device) as Arc<dyn Device>);
        Box::pin(std::future::ready(found.ok_or_else(|| "no such export".into())))
    }
}
