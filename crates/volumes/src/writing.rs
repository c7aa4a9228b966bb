//! Changing a volume (OpenZFS `module/zfs/zvol.c`, `module/os/linux/zfs/zvol_os.c`).
//!
//! Each change is a transaction of its own, or several if it is large, under the lock of its range; within it the blocks
//! are changed and the intent log is told. What is not flushed may be lost in a crash, in any order of ranges that do not
//! overlap; a flush commits the log.

use super::{DATA, PROPERTIES, Volume, VolumeError};
use crate::ranges::Ranges;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_format::zil::{LogBody, LogRecord};
use weir_machine::Request;
use weir_objects::live::Purpose;
use weir_objects::txg::Tx;
use weir_objects::zil::{Replayer, Zil};
use weir_objects::{ObjectError, ObjectSet, Place, zap};

/// Most bytes that one transaction writes.
const PIECE_BYTES: usize = 1 << 20;
/// What a change of size, or a discard, is said to write.
const SMALL_BYTES: u64 = 16 << 10;
const SIZE: &str = "size";

/// What a volume is opened for writing with.
#[derive(Clone, Default)]
pub struct Opening {
    /// Its intent log; without one, a flush waits for the group.
    pub zil: Option<Arc<Zil>>,
    /// The property `readonly`.
    pub read_only: bool,
}

/// What a volume has that can be changed.
pub(crate) struct Writing {
    zil: Option<Arc<Zil>>,
    ranges: Ranges,
}

impl Volume {
    /// Opens the volume in `objects`, which is live, for changes. Before anything else is changed its log must be
    /// replayed ([`Zil::replay`]).
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub async fn open_writable(
        rq: &Request,
        objects: Arc<ObjectSet>,
        name: &str,
        opening: Opening,
    ) -> Result<Arc<Self>, VolumeError> {
        let mut volume = Self::open_as(rq, objects, name).await?;
        if volume.objects.is_live() {
            volume.read_only.store(opening.read_only, Ordering::Relaxed);
            volume.writing = Some(Writing { zil: opening.zil, ranges: Ranges::default() });
        }
        Ok(Arc::new(volume))
    }

    /// Whether it takes changes.
    pub fn is_writable(&self) -> bool {
        self.writing().is_ok()
    }

    /// Gives it another property `readonly`.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    fn writing(&self) -> Result<&Writing, VolumeError> {
        let refused = || VolumeError::ReadOnly { name: self.name.clone() };
        self.writing.as_ref().filter(|_| !self.read_only.load(Ordering::Relaxed)).ok_or_else(refused)
    }

    /// An error of a change at `offset`.
    fn changing(&self, offset: u64) -> impl Fn(ObjectError) -> VolumeError {
        move |source| match source {
            ObjectError::ReadOnly { .. } => VolumeError::ReadOnly { name: self.name.clone() },
            ObjectError::NoSpace { .. } | ObjectError::Quota { .. } => VolumeError::NoSpace { name: self.name.clone() },
            source => self.failed(offset, source),
        }
    }

    /// Writes `data` at `offset`. Stable only after [`Volume::flush`], or on return with `stable`.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`]; [`VolumeError::OutOfRange`] if it does not all fit; [`VolumeError::NoSpace`].
    pub async fn write(&self, rq: &Request, offset: u64, data: Bytes, stable: bool) -> Result<(), VolumeError> {
        let writing = self.writing()?;
        let len = data.len() as u64;
        self.check(offset, len)?;
        {
            let _held = writing.ranges.lock(offset..offset + len).await;
            self.put(rq, offset, data).await?;
        }
        self.settle(rq, stable).await
    }

    /// Writes a range that is locked.
    async fn put(&self, rq: &Request, offset: u64, data: Bytes) -> Result<(), VolumeError> {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let to_boundary = PIECE_BYTES - (at % PIECE_BYTES as u64) as usize;
            let piece = rest.split_to(rest.len().min(to_boundary));
            let tx = self.objects.begin(rq, piece.len() as u64, Purpose::Write).await.map_err(self.changing(at))?;
            self.put_piece(rq, &tx, at, &piece).await.map_err(self.changing(at))?;
            if let Some(zil) = self.zil() {
                zil.log_write(&tx, DATA, at, &piece, self.block_bytes.into());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Puts bytes into blocks; whole blocks without a copy.
    async fn put_piece(&self, rq: &Request, tx: &Tx, offset: u64, piece: &Bytes) -> Result<(), ObjectError> {
        let block_bytes = u64::from(self.block_bytes).max(512);
        let (mut at, mut rest) = (offset, piece.clone());
        while !rest.is_empty() {
            let to_boundary = block_bytes - at % block_bytes;
            if to_boundary < block_bytes || (rest.len() as u64) < block_bytes {
                let part = rest.split_to(rest.len().min(to_boundary as usize));
                self.objects.write(rq, tx, DATA, at, &part).await?;
                at += part.len() as u64;
            } else {
                let part = rest.split_to(block_bytes as usize);
                self.objects.write_block(rq, tx, DATA, at / block_bytes, part).await?;
                at += block_bytes;
            }
        }
        Ok(())
    }

    /// The range reads as zeros, every byte of it. Blocks that it covers are given back, whether the caller asks for that
    /// (`discard`) or not: zeros cost nothing.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn zero(
        &self,
        rq: &Request,
        offset: u64,
        len: u64,
        _discard: bool,
        stable: bool,
    ) -> Result<(), VolumeError> {
        let writing = self.writing()?;
        self.check(offset, len)?;
        let (start, end) = (offset, offset + len);
        if start < end {
            let _held = writing.ranges.lock(start..end).await;
            self.objects.free_down(rq, DATA, start..end).await.map_err(self.changing(start))?;
            let tx = self.objects.begin(rq, SMALL_BYTES, Purpose::Free).await.map_err(self.changing(start))?;
            let punched = self.objects.punch(rq, &tx, DATA, start, end - start).await;
            punched.map_err(self.changing(start))?;
            if let Some(zil) = self.zil() {
                let body = LogBody::Truncate { object: DATA, offset: start, length: end - start };
                zil.log(&tx, DATA, &body);
            }
        }
        self.settle(rq, stable).await
    }

    /// Returns when all that was written before the call is on stable storage.
    ///
    /// # Errors
    /// [`VolumeError::Object`] if the pool cannot be written any more.
    pub async fn flush(&self, rq: &Request) -> Result<(), VolumeError> {
        if self.writing.is_none() {
            return Ok(());
        }
        let done = match (self.zil(), self.objects.groups()) {
            (Some(zil), _) => zil.commit(rq, Some(DATA)).await,
            (None, Some(groups)) => groups.wait_synced(groups.open()).await,
            (None, None) => Ok(()),
        };
        done.map_err(self.changing(0))
    }

    /// Gives it another size. What is beyond is gone, what is new reads as zeros. Writers must have stopped.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`]; [`VolumeError::NoSpace`].
    pub async fn resize(&self, rq: &Request, size_bytes: u64) -> Result<(), VolumeError> {
        let writing = self.writing()?;
        let _held = writing.ranges.lock(0..u64::MAX).await;
        let failed = self.changing(size_bytes);
        self.objects.free_down(rq, DATA, size_bytes..u64::MAX).await.map_err(&failed)?;
        let tx = self.objects.begin(rq, SMALL_BYTES, Purpose::Free).await.map_err(&failed)?;
        zap::put_word(rq, &self.objects, &tx, PROPERTIES, SIZE, size_bytes).await.map_err(&failed)?;
        self.objects.punch(rq, &tx, DATA, size_bytes, u64::MAX).await.map_err(&failed)?;
        if let Some(zil) = self.zil() {
            // No record says this: whoever flushes waits for the group.
            zil.log_unsaid(&tx, None);
        }
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    /// Looks again how large it is: somebody else has changed that.
    ///
    /// # Errors
    /// [`VolumeError::NoSize`]; [`VolumeError::Object`].
    pub async fn renew(&self, rq: &Request) -> Result<(), VolumeError> {
        let size_bytes = Self::read_size(rq, &self.objects, &self.name).await?;
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    fn zil(&self) -> Option<&Arc<Zil>> {
        self.writing.as_ref()?.zil.as_ref()
    }

    async fn settle(&self, rq: &Request, stable: bool) -> Result<(), VolumeError> {
        if stable || self.zil().is_some_and(|zil| zil.commits_each()) { self.flush(rq).await } else { Ok(()) }
    }

    /// Does again what a record says; `zvol_replay_write`, `zvol_replay_truncate`. What reaches beyond a volume that has
    /// become smaller since is cut off.
    async fn replay_body(&self, rq: &Request, body: &LogBody<'_>, block: Option<Bytes>) -> Result<(), ObjectError> {
        let size_bytes = self.size_bytes();
        match body {
            LogBody::Commit => Ok(()),
            LogBody::Write(write) => {
                let (offset, bytes) = match (write.data, block) {
                    (Some(data), _) => (write.offset, Bytes::copy_from_slice(data)),
                    // A record that leads to a block holds all of it.
                    (None, Some(block)) => (write.offset - write.offset % (block.len() as u64).max(1), block),
                    (None, None) => (write.offset, Bytes::from(vec![0; write.length as usize])),
                };
                let kept = size_bytes.saturating_sub(offset).min(bytes.len() as u64);
                let bytes = bytes.slice(..kept as usize);
                // It was promised: it passes quotas, and takes of the reserve.
                let tx = self.objects.begin(rq, kept, Purpose::Free).await?;
                self.put_piece(rq, &tx, offset, &bytes).await?;
                if let Some(zil) = self.zil() {
                    zil.log(&tx, DATA, body);
                }
                Ok(())
            }
            LogBody::Truncate { offset, length, .. } => {
                self.objects.free_down(rq, DATA, *offset..offset.saturating_add(*length)).await?;
                let tx = self.objects.begin(rq, SMALL_BYTES, Purpose::Free).await?;
                self.objects.punch(rq, &tx, DATA, *offset, *length).await?;
                if let Some(zil) = self.zil() {
                    zil.log(&tx, DATA, body);
                }
                Ok(())
            }
            _ => {
                let place = Place { objset: self.objects.id(), object: DATA, ..Place::default() };
                Err(ObjectError::Corrupt { place, why: "a record of a file in the log of a volume" })
            }
        }
    }
}

impl Replayer for Volume {
    fn replay<'a>(
        &'a self,
        rq: &'a Request,
        _record: &'a LogRecord<'a>,
        body: &'a LogBody<'a>,
        data: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.replay_body(rq, body, data).boxed()
    }
}

#[cfg(test)]
mod tests;
