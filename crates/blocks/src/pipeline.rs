//! The read pipeline: from a block pointer to verified, decrypted, decompressed bytes.
//!
//! ```text
//!  copies in turn ─► (gang) ─► read, verify the checksum ─► decrypt, MAC ─► decompress ─► Bytes
//!                              an uncompressed block is not copied: the caller receives the buffer that the disk filled
//! ```

use crate::error::{BlockError, note};
use crate::fault_injection::{PointerForger, Stage};
use crate::fault_observer::{BlockContext, Bookmark, Fault, FaultKind};
use crate::freeze::freeze;
use crate::gang;
use crate::vdev::{MAX_BLOCK_BYTES, Place, Tree, VdevRead, Verify, WriteJob};
use crate::write::writer::Writer;
use bytes::Bytes;
use futures_util::future::join_all;
use std::sync::Arc;
use weir_codec::checksum::verify_block;
use weir_codec::crypt::{self, DatasetKey};
use weir_codec::{CodecError, Salt, decompress_into};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, ObjsetId};
use weir_machine::accounts::Redundancy;
use weir_machine::{Buf, BufPool, Clock, Machine, Priority, Request};

/// Number of repeated reads of an intent-log block from a device that returns an error. Without the block it is unknown
/// whether the log ends there.
const LOG_READ_RETRIES: u32 = 3;

/// Blocks that the cache may hold (`primarycache`, `secondarycache`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheClass {
    /// Everything.
    #[default]
    All,
    /// Metadata only.
    Metadata,
    /// Nothing.
    None,
}

/// Options of reading a block.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The dataset's key, if it is encrypted and loaded.
    pub keys: Option<Arc<DatasetKey>>,
    /// Return the physical bytes, neither decrypted nor decompressed.
    pub raw: bool,
    /// The object set of the block, for errors.
    pub objset: ObjsetId,
    /// The block's bookmark, if it is known, for reports of faults.
    pub origin: Option<Bookmark>,
    /// Whether the cache may hold the block (`primarycache`).
    pub cache: CacheClass,
    /// Whether cache devices may hold it (`secondarycache`).
    pub secondary: CacheClass,
    /// The read is a prefetch.
    pub prefetch: bool,
    /// Writes the block to the devices that lack it: those whose DTL has its birth txg. Other copies are read only if the
    /// first one is wrong.
    pub resilver: bool,
    /// The block may have reached some devices only, because a crash interrupted its write: wrong bytes are no device fault
    /// (`ZIO_FLAG_SPECULATIVE`).
    pub speculative: bool,
}

/// Context of a read within the pipeline.
#[derive(Clone, Copy)]
pub(crate) struct ReadPath {
    /// Number of gang headers above.
    pub depth: u8,
    /// The read is a prefetch.
    pub prefetch: bool,
    /// The block is written to the devices that lack it.
    pub resilver: bool,
    /// Wrong bytes are no device fault.
    pub speculative: bool,
    /// The block's bookmark, if it is known.
    pub origin: Option<Bookmark>,
}

/// The pool's blocks.
pub struct Blocks {
    clock: Clock,
    tree: Arc<Tree>,
    pub(crate) salt: Salt,
    pub(crate) pool: BufPool,
    pub(crate) writing: Option<Writer>,
    /// Fault injection of tests: no checksum is verified, and all blocks are changed.
    forger: Option<PointerForger>,
}

impl Blocks {
    /// Blocks on the devices of `tree`. `salt` is the pool's checksum salt; [`Salt::none`] until it is read, because the
    /// blocks on the path to it are not salted.
    pub fn new(machine: &Machine, tree: Arc<Tree>, salt: Salt) -> Self {
        let (clock, pool) = (machine.clock.clone(), machine.read_buffers.clone());
        Blocks { writing: Some(Writer::new(machine)), ..Blocks::over(clock, pool, tree, salt) }
    }

    pub(crate) fn over(clock: Clock, pool: BufPool, tree: Arc<Tree>, salt: Salt) -> Self {
        Blocks { clock, tree, salt, pool, writing: None, forger: None }
    }

    /// Skips checksum verification and applies `forger` to every block: for tests only (see [`crate::fault_injection`]).
    #[doc(hidden)]
    pub fn unproven(self, forger: PointerForger) -> Self {
        Blocks { forger: Some(forger), ..self }
    }

    /// Whether checksums are verified: always, except with fault injection.
    pub(crate) fn verifies_checksums(&self) -> bool {
        self.forger.is_none()
    }

    pub(crate) fn inject(&self, pointer: &BlockPointer, stage: Stage, bytes: &mut [u8]) {
        if let Some(forger) = &self.forger {
            forger.inject(pointer, stage, bytes);
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The devices.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Reads the logical bytes of a block; with `options.raw`, the physical bytes. Tries every copy and all redundancy.
    ///
    /// A hole reads as zeros of its logical size. The memory behind the returned bytes is about as long as they are.
    ///
    /// # Errors
    /// [`BlockError`], which names vdev and offset.
    pub async fn read(
        &self,
        request: &Request,
        pointer: &BlockPointer,
        options: &ReadOptions,
    ) -> Result<Bytes, BlockError> {
        if pointer.is_redacted() {
            return Err(BlockError::Redacted);
        }
        check_sizes(pointer)?;
        if pointer.is_embedded() {
            return self.embedded(pointer, options);
        }
        if pointer.is_hole() {
            let len = pointer.lsize_bytes();
            return Ok(Bytes::from(vec![0; len as usize]));
        }
        // Blocks that are allocated now are not overwritten during this read.
        let _hold = self.hold();
        let ReadOptions { prefetch, resilver, speculative, origin, .. } = *options;
        let way = ReadPath { depth: 0, prefetch, resilver, speculative, origin };
        let answer = match self.physical(request, pointer, way).await {
            Ok(buf) => self.open(request, pointer, options, buf),
            Err(error) => Err(error),
        };
        if let Err(error) = &answer {
            self.report_lost(request, pointer, way, error).await;
        }
        answer
    }

    /// Decrypts and decompresses verified physical bytes; with `options.raw`, returns them unchanged.
    pub(crate) fn open(
        &self,
        request: &Request,
        pointer: &BlockPointer,
        options: &ReadOptions,
        buf: Buf,
    ) -> Result<Bytes, BlockError> {
        if options.raw {
            return Ok(freeze(buf));
        }
        if options.keys.is_none() && pointer.compression() == Some(CompressionKind::Off) && pointer.level() == 0 {
            return self.decode(pointer, options, buf);
        }
        request.compute(&self.clock, || self.decode(pointer, options, buf))
    }

    fn decode(&self, pointer: &BlockPointer, options: &ReadOptions, mut buf: Buf) -> Result<Bytes, BlockError> {
        if pointer.is_encrypted() && options.keys.as_ref().is_none_or(|keys| keys.is_revoked()) {
            return Err(BlockError::NoKey { objset: options.objset });
        }
        let corrupt = |fault| corrupt(pointer, fault);
        if let Some(keys) = &options.keys {
            keys.open_block(pointer, buf.as_mut()).map_err(corrupt)?;
        }
        let mut buf = self.decompress(pointer, buf).map_err(corrupt)?;
        if self.verifies_checksums() {
            crypt::verify_indirect(pointer, buf.as_ref()).map_err(corrupt)?;
        }
        self.inject(pointer, Stage::Logical, buf.as_mut());
        Ok(freeze(buf))
    }

    /// Reads an intent-log block, including its header. The checksum is embedded in the block. A chain ends where the next
    /// block was never written, so wrong bytes are not reported as a device fault. A read that fails is repeated a few
    /// times.
    ///
    /// # Errors
    /// As [`Blocks::read`]. [`BlockError::Device`] also if another copy is wrong, because the unreadable copy may be right.
    /// [`CodecError::NoTrailer`] or a checksum error is the end of a chain.
    pub async fn read_zil(
        &self,
        request: &Request,
        pointer: &BlockPointer,
        options: &ReadOptions,
    ) -> Result<Bytes, BlockError> {
        let mut answer = self.read(request, pointer, options).await;
        for _ in 0..LOG_READ_RETRIES {
            if !matches!(answer, Err(BlockError::Device { .. })) {
                break;
            }
            answer = self.read(request, pointer, options).await;
        }
        answer
    }

    /// Reads `len` bytes at a raw address (`zdb -R`) without a checksum, from the first device that returns them.
    ///
    /// # Errors
    /// [`BlockError`] if no device returns them.
    pub async fn read_raw(&self, request: &Request, vdev: u32, offset: u64, len: u64) -> Result<Bytes, BlockError> {
        let job = self.job(request, weir_format::Txg(u64::MAX));
        let buf = self.tree.read(&job, Place::new(vdev, offset), len, &|_| Ok(())).await?;
        Ok(freeze(buf))
    }

    pub(crate) fn job<'a>(&'a self, request: &'a Request, birth: weir_format::Txg) -> VdevRead<'a> {
        VdevRead {
            request,
            clock: &self.clock,
            pool: &self.pool,
            birth,
            speculative: false,
            self_heals: false,
            resilver: false,
            psize_bytes: 0,
            freshness: self.freshness(),
            about: BlockContext::default(),
        }
    }

    /// A read that repairs wrong copies, if the block has a real checksum and the pool is open for writing. Prefetches do
    /// not repair, because a prefetched pointer may be stale.
    pub(crate) fn healing_job<'a>(
        &'a self,
        request: &'a Request,
        pointer: &BlockPointer,
        way: ReadPath,
    ) -> VdevRead<'a> {
        let has_checksum = !matches!(pointer.checksum_kind(), None | Some(ChecksumKind::Off | ChecksumKind::NoParity));
        let is_demand = !way.prefetch && request.priority != Priority::Async;
        let self_heals = has_checksum && self.verifies_checksums() && is_demand;
        let about =
            BlockContext { origin: way.origin, birth: pointer.physical_birth(), checksum: pointer.checksum_kind() };
        VdevRead {
            self_heals,
            resilver: way.resilver && self.verifies_checksums(),
            speculative: way.speculative,
            psize_bytes: pointer.psize_bytes(),
            about,
            ..self.job(request, pointer.physical_birth())
        }
    }

    /// Reports a lost block, unless it is the next one of an intent log, or was freed.
    async fn report_lost(&self, request: &Request, pointer: &BlockPointer, way: ReadPath, error: &BlockError) {
        let log = matches!(pointer.checksum_kind(), Some(ChecksumKind::Zilog | ChecksumKind::Zilog2));
        let job = self.healing_job(request, pointer, way);
        let dva = pointer.dva(0);
        let quiet = way.prefetch
            || way.speculative
            || log
            || !self.verifies_checksums()
            || matches!(error, BlockError::NoKey { .. });
        if quiet {
            return;
        }
        let place = Place::new(dva.vdev, dva.offset_bytes);
        job.settle(place).await;
        if job.reports_fault(place) {
            let fault =
                Fault { what: FaultKind::Lost(error), spot: None, about: job.about, priority: request.priority };
            self.tree.notifier().notify(&fault);
        }
    }

    /// Writes the right bytes to wrong copies.
    async fn heal(&self, repairs: &[(WriteJob<'_>, Place)], right: &[u8]) {
        let right = Bytes::copy_from_slice(right);
        // The leaf counts failed writes.
        join_all(repairs.iter().map(|(job, place)| self.tree.write(job, Redundancy::First, *place, right.clone())))
            .await;
    }

    fn embedded(&self, pointer: &BlockPointer, options: &ReadOptions) -> Result<Bytes, BlockError> {
        let Some(embedded) = pointer.embedded() else { return Err(BlockError::Redacted) };
        let invalid = |field, value| BlockError::InvalidPointer { vdev: 0, offset: 0, field, value };
        if embedded.etype != 0 {
            return Err(invalid("embedded type", embedded.etype.into()));
        }
        let payload = embedded.payload.get(..embedded.psize_bytes);
        let payload = payload.ok_or(invalid("embedded size", embedded.psize_bytes as u64))?;
        let kind = pointer.compression().ok_or(invalid("compression", 0))?;
        let bytes = if options.raw {
            Bytes::copy_from_slice(payload)
        } else {
            let mut block = vec![0; embedded.lsize_bytes];
            decompress_into(kind, payload, &mut block).map_err(|fault| corrupt(pointer, fault))?;
            self.inject(pointer, Stage::Logical, &mut block);
            Bytes::from(block)
        };
        Ok(bytes)
    }

    pub(crate) fn buffer(&self, len: usize) -> Buf {
        self.pool.take(len)
    }

    /// Reads the physical bytes and verifies the checksum.
    pub(crate) async fn physical(
        &self,
        request: &Request,
        pointer: &BlockPointer,
        way: ReadPath,
    ) -> Result<Buf, BlockError> {
        if pointer.is_gang() {
            return gang::read(self, request, pointer, way).await;
        }
        let log = matches!(pointer.checksum_kind(), Some(ChecksumKind::Zilog | ChecksumKind::Zilog2));
        let job = self.healing_job(request, pointer, ReadPath { speculative: way.speculative || log, ..way });
        let job = VdevRead { self_heals: job.self_heals && !log, ..job };
        let verify = |bytes: &[u8]| match self.verifies_checksums() {
            true => request.compute(&self.clock, || verify_block(pointer, &self.salt, bytes)),
            false => Ok(()),
        };
        let mut buf = self.any_copy(&job, pointer, pointer.psize_bytes(), &verify).await?;
        if !job.tests_every_copy() {
            self.inject(pointer, Stage::Physical, buf.as_mut());
        }
        Ok(buf)
    }

    /// Reads `len` bytes from the first of a pointer's DVAs whose bytes pass `verify`; a scrub reads all DVAs. Repairs the
    /// copies that had wrong bytes.
    pub(crate) async fn any_copy(
        &self,
        job: &VdevRead<'_>,
        pointer: &BlockPointer,
        len: u64,
        verify: Verify<'_>,
    ) -> Result<Buf, BlockError> {
        let mut worst = None;
        let mut right = None;
        let mut wrong = Vec::new();
        for dva in pointer.dvas() {
            let place = Place::new(dva.vdev, dva.offset_bytes);
            match self.tree.read(job, place, len, verify).await {
                Ok(buf) => {
                    right = Some(buf);
                    if !job.tests_every_copy() {
                        break;
                    }
                }
                Err(error) => {
                    wrong.extend((!matches!(error, BlockError::Missing { .. })).then_some(place));
                    note(&mut worst, error);
                }
            }
        }
        if let Some(buf) = right {
            let mut repairs = Vec::new();
            for place in wrong {
                repairs.extend(WriteJob::repairing(job, &self.tree, place).await.map(|repair| (repair, place)));
            }
            if !repairs.is_empty() {
                self.heal(&repairs, buf.as_ref()).await;
            }
            if job.resilver {
                let right = Bytes::copy_from_slice(buf.as_ref());
                let resilvering = self.tree.resilvering();
                let places = pointer.dvas().map(|dva| Place::new(dva.vdev, dva.offset_bytes));
                join_all(places.map(|place| resilvering.give(job, place, right.clone()))).await;
            }
            return Ok(buf);
        }
        Err(worst.unwrap_or(BlockError::InvalidPointer { vdev: 0, offset: 0, field: "number of copies", value: 0 }))
    }

    fn decompress(&self, pointer: &BlockPointer, buf: Buf) -> Result<Buf, CodecError> {
        let kind = pointer.compression().unwrap_or(CompressionKind::Inherit);
        let len = pointer.lsize_bytes() as usize;
        if kind == CompressionKind::Off && buf.len() == len {
            return Ok(buf);
        }
        let mut block = self.pool.take(len);
        decompress_into(kind, buf.as_ref(), block.as_mut())?;
        Ok(block)
    }
}

/// An error of the whole block, with the address of its first copy.
fn corrupt(pointer: &BlockPointer, fault: CodecError) -> BlockError {
    let dva = if pointer.is_embedded() { Default::default() } else { pointer.dva(0) };
    BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault }
}

/// Checks sizes and compression against the limits of the format.
fn check_sizes(pointer: &BlockPointer) -> Result<(), BlockError> {
    let dva = if pointer.is_embedded() { Default::default() } else { pointer.dva(0) };
    let invalid =
        |field, value| Err(BlockError::InvalidPointer { vdev: dva.vdev, offset: dva.offset_bytes, field, value });
    if pointer.lsize_bytes() > MAX_BLOCK_BYTES {
        return invalid("logical size", pointer.lsize_bytes());
    }
    if !pointer.is_hole() && pointer.psize_bytes() > MAX_BLOCK_BYTES {
        return invalid("physical size", pointer.psize_bytes());
    }
    if !pointer.is_hole() && pointer.compression().is_none() {
        return invalid("compression", 0xff);
    }
    Ok(())
}
