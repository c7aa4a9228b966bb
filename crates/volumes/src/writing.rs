//! Writes, discards and resizes of a volume (OpenZFS `module/zfs/zvol.c`, `module/os/linux/zfs/zvol_os.c`).
//!
//! Each change is one transaction, or several if it is large, under the lock of its range. The transaction changes
//! the blocks and adds an intent log record. Changes that are not flushed may be lost in a crash, for non-overlapping
//! ranges in any order; a flush commits the log.

use super::{DATA, PROPERTIES, Volume, VolumeError};
use crate::ranges::RangeLocks;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet, zap};
use weir_format::zil::{LogBody, LogRecord};
use weir_machine::{Request, Stage, Target};
use weir_zil::{Replayer, Zil};

/// Maximum number of bytes that one transaction writes.
const MAX_TX_BYTES: usize = 1 << 20;
/// Bytes that a resize or a discard reserves in its transaction.
const SMALL_BYTES: u64 = 16 << 10;
const SIZE: &str = "size";

/// Options for opening a volume for writing.
#[derive(Clone, Default)]
pub struct WriteOptions {
    /// The volume's intent log; without one, a flush waits for a txg sync.
    pub zil: Option<Arc<Zil>>,
    /// The property `readonly`.
    pub read_only: bool,
}

/// State of a volume that is open for writing.
pub(crate) struct WriteState {
    zil: Option<Arc<Zil>>,
    pub(crate) ranges: RangeLocks,
}

impl Volume {
    /// Opens the volume in `objects` for writing if the object set is writable, else read-only. The caller must
    /// replay the log before the first change ([`Zil::replay`]).
    ///
    /// # Errors
    /// As for [`Volume::open`].
    pub async fn open_writable(
        rq: &Request,
        objects: Arc<ObjectSet>,
        name: &str,
        options: WriteOptions,
    ) -> Result<Arc<Self>, VolumeError> {
        let mut volume = Self::open_as(rq, objects, name).await?;
        if volume.objects.is_live() {
            volume.read_only.store(options.read_only, Ordering::Relaxed);
            volume.write_state = Some(WriteState { zil: options.zil, ranges: RangeLocks::default() });
        }
        Ok(Arc::new(volume))
    }

    /// Whether the volume accepts changes.
    pub fn is_writable(&self) -> bool {
        self.write_state().is_ok()
    }

    /// Sets the property `readonly`.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    pub(crate) fn write_state(&self) -> Result<&WriteState, VolumeError> {
        let read_only = || VolumeError::ReadOnly { name: self.name.clone() };
        self.write_state.as_ref().filter(|_| !self.read_only.load(Ordering::Relaxed)).ok_or_else(read_only)
    }

    /// Converts an error of a change at `offset`.
    pub(crate) fn change_error(&self, offset: u64) -> impl Fn(ObjectError) -> VolumeError {
        move |source| match source {
            ObjectError::ReadOnly { .. } => VolumeError::ReadOnly { name: self.name.clone() },
            ObjectError::NoSpace { .. } | ObjectError::Quota { .. } => VolumeError::NoSpace { name: self.name.clone() },
            source => self.failed(offset, source),
        }
    }

    /// Writes `data` at `offset`. The data is stable after [`Volume::flush`]; with `stable`, on return.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`]; [`VolumeError::OutOfRange`] if the range extends past the end of the volume;
    /// [`VolumeError::NoSpace`].
    pub async fn write(&self, rq: &Request, offset: u64, data: Bytes, stable: bool) -> Result<(), VolumeError> {
        let state = self.write_state()?;
        let len = data.len() as u64;
        self.check(offset, len)?;
        {
            let clock = &self.objects.cache().machine().clock;
            let _lock = rq.timed(clock, Stage::Locks, state.ranges.lock(offset..offset + len)).await;
            self.write_locked(rq, offset, data).await?;
        }
        self.commit_if(rq, stable).await
    }

    /// Writes a range that the caller has locked.
    async fn write_locked(&self, rq: &Request, offset: u64, data: Bytes) -> Result<(), VolumeError> {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let to_boundary = MAX_TX_BYTES - (at % MAX_TX_BYTES as u64) as usize;
            let piece = rest.split_to(rest.len().min(to_boundary));
            let tx = self
                .objects
                .begin(rq, piece.len() as u64, SpaceReserve::Normal)
                .await
                .map_err(self.change_error(at))?;
            self.write_blocks(rq, &tx, at, &piece).await.map_err(self.change_error(at))?;
            self.objects.account_write(rq, &tx, DATA, at, piece.len() as u64);
            if let Some(zil) = self.zil() {
                zil.log_write(&tx, DATA, at, &piece, self.block_bytes.into());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes bytes to the data object; whole blocks without a copy.
    async fn write_blocks(&self, rq: &Request, tx: &Tx, offset: u64, piece: &Bytes) -> Result<(), ObjectError> {
        let block_bytes = u64::from(self.block_bytes).max(512);
        let mut at = offset;
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let to_boundary = block_bytes - at % block_bytes;
            if to_boundary < block_bytes || (rest.len() as u64) < block_bytes {
                let part = rest.split_to(rest.len().min(to_boundary as usize));
                self.objects.writes().write(rq, tx, DATA, at, &part).await?;
                at += part.len() as u64;
            } else {
                let part = rest.split_to(block_bytes as usize);
                self.objects.writes().write_block(rq, tx, DATA, at / block_bytes, part).await?;
                at += block_bytes;
            }
        }
        Ok(())
    }

    /// Makes every byte of the range read as zero. Frees the blocks that it covers, whether or not `discard` is
    /// requested, since holes read as zeros.
    ///
    /// # Errors
    /// As for [`Volume::write`].
    pub async fn zero(
        &self,
        rq: &Request,
        offset: u64,
        len: u64,
        _discard: bool,
        stable: bool,
    ) -> Result<(), VolumeError> {
        let state = self.write_state()?;
        self.check(offset, len)?;
        let start = offset;
        let end = offset + len;
        if start < end {
            let clock = &self.objects.cache().machine().clock;
            let _lock = rq.timed(clock, Stage::Locks, state.ranges.lock(start..end)).await;
            self.objects.frees().free_long_range(rq, DATA, start..end).await.map_err(self.change_error(start))?;
            let tx =
                self.objects.begin(rq, SMALL_BYTES, SpaceReserve::NetFree).await.map_err(self.change_error(start))?;
            let punched = self.objects.frees().punch(rq, &tx, DATA, start, end - start).await;
            punched.map_err(self.change_error(start))?;
            if let Some(zil) = self.zil() {
                let body = LogBody::Truncate { object: DATA, offset: start, length: end - start };
                zil.log(&tx, DATA, &body);
            }
        }
        self.commit_if(rq, stable).await
    }

    /// Returns when all data written before the call is on stable storage.
    ///
    /// # Errors
    /// [`VolumeError::Object`] if the pool is suspended or the log cannot be written.
    pub async fn flush(&self, rq: &Request) -> Result<(), VolumeError> {
        rq.set_target(Target { dataset: self.objects.id().0, object: DATA.0, ..Target::default() });
        if self.write_state.is_none() {
            return Ok(());
        }
        let done = match (self.zil(), self.objects.txgs()) {
            (Some(zil), _) => zil.commit(rq, Some(DATA)).await,
            (None, Some(txgs)) => txgs.wait_synced(txgs.open()).await,
            (None, None) => Ok(()),
        };
        done.map_err(self.change_error(0))
    }

    /// Resizes the volume. Data beyond a smaller size is freed, new space reads as zeros. The caller must stop
    /// writers first.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`]; [`VolumeError::NoSpace`].
    pub async fn resize(&self, rq: &Request, size_bytes: u64) -> Result<(), VolumeError> {
        let state = self.write_state()?;
        let clock = &self.objects.cache().machine().clock;
        let _lock = rq.timed(clock, Stage::Locks, state.ranges.lock(0..u64::MAX)).await;
        let failed = self.change_error(size_bytes);
        self.objects.frees().free_long_range(rq, DATA, size_bytes..u64::MAX).await.map_err(&failed)?;
        let tx = self.objects.begin(rq, SMALL_BYTES, SpaceReserve::NetFree).await.map_err(&failed)?;
        zap::put_word(rq, &self.objects, &tx, PROPERTIES, SIZE, size_bytes).await.map_err(&failed)?;
        self.objects.frees().punch(rq, &tx, DATA, size_bytes, u64::MAX).await.map_err(&failed)?;
        if let Some(zil) = self.zil() {
            // No log record describes a resize: a later flush waits for the txg sync.
            zil.log_barrier_until_synced(&tx, None);
        }
        self.size.send_replace(size_bytes);
        Ok(())
    }

    /// Reads the size again after another handle has resized the volume.
    ///
    /// # Errors
    /// [`VolumeError::NoSize`]; [`VolumeError::Object`].
    pub async fn refresh_size(&self, rq: &Request) -> Result<(), VolumeError> {
        let size_bytes = Self::read_size(rq, &self.objects, &self.name).await?;
        self.size.send_replace(size_bytes);
        Ok(())
    }

    pub(crate) fn zil(&self) -> Option<&Arc<Zil>> {
        self.write_state.as_ref()?.zil.as_ref()
    }

    /// Commits the log if `stable`, or if the log's policy commits every change.
    async fn commit_if(&self, rq: &Request, stable: bool) -> Result<(), VolumeError> {
        if stable || self.zil().is_some_and(|zil| zil.commits_each()) { self.flush(rq).await } else { Ok(()) }
    }

    /// Replays a log record (`zvol_replay_write`, `zvol_replay_truncate`, `zvol_replay_clone_range`). A write that extends past the end of the
    /// volume, which may have shrunk since, is truncated.
    async fn replay_body(&self, rq: &Request, body: &LogBody<'_>, block: Option<Bytes>) -> Result<(), ObjectError> {
        let size_bytes = self.size_bytes();
        match body {
            LogBody::Commit => Ok(()),
            LogBody::Write(write) => {
                let (offset, bytes) = match (write.data, block) {
                    (Some(data), _) => (write.offset, Bytes::copy_from_slice(data)),
                    // The block that a record points to is replayed as a whole.
                    (None, Some(block)) => (write.offset - write.offset % (block.len() as u64).max(1), block),
                    (None, None) => (write.offset, Bytes::from(vec![0; write.length as usize])),
                };
                let len = size_bytes.saturating_sub(offset).min(bytes.len() as u64);
                let bytes = bytes.slice(..len as usize);
                // The write was acknowledged as stable, so it may exceed quotas and use the reserved space.
                let tx = self.objects.begin(rq, len, SpaceReserve::NetFree).await?;
                self.write_blocks(rq, &tx, offset, &bytes).await?;
                if let Some(zil) = self.zil() {
                    zil.log(&tx, DATA, body);
                }
                Ok(())
            }
            LogBody::Truncate { offset, length, .. } => {
                self.objects.frees().free_long_range(rq, DATA, *offset..offset.saturating_add(*length)).await?;
                let tx = self.objects.begin(rq, SMALL_BYTES, SpaceReserve::NetFree).await?;
                self.objects.frees().punch(rq, &tx, DATA, *offset, *length).await?;
                if let Some(zil) = self.zil() {
                    zil.log(&tx, DATA, body);
                }
                Ok(())
            }
            LogBody::CloneRange { offset, block_bytes, pointers, .. } => {
                self.replay_clone(rq, (*offset, *block_bytes), pointers).await
            }
            _ => {
                let place = ErrorLocation { objset: self.objects.id(), object: DATA, ..ErrorLocation::default() };
                Err(ObjectError::Corrupt { place, why: "a file system record in the log of a volume" })
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
