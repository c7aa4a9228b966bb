//! The pipeline: from a block pointer to proven, decrypted, decompressed bytes.
//!
//! ```text
//!  copies in turn ─► (gang) ─► read, checksum proven ─► decrypt, MAC ─► decompress ─► Bytes
//!                              one Buf all the way: what the disk filled is what the caller gets, if nothing was
//!                              compressed
//! ```

use crate::error::{BlockError, note};
use crate::fault_injection::{PointerForger, Stage};
use crate::fault_observer::{BlockContext, Bookmark, Fault, FaultKind};
use crate::gang;
use crate::vdev::{MAX_BLOCK_BYTES, Place, Proof, Tree, VdevRead, WriteJob};
use crate::write::Writer;
use bytes::Bytes;
use futures_util::future::join_all;
use std::sync::Arc;
use weir_codec::checksum::verify_block;
use weir_codec::crypt::{self, DatasetKey};
use weir_codec::{CodecError, Salt, decompress_into};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, ObjsetId};
use weir_machine::{Buf, BufPool, Clock, Machine, Priority, Request, Source};

/// How often a block of an intent log is read again from a device that answers with an error: whether the log ends there
/// cannot be told without it.
const LOG_READ_RETRIES: u32 = 3;

/// What may be kept in the cache (`primarycache`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheClass {
    /// Everything.
    #[default]
    All,
    /// Metadata alone.
    Metadata,
    /// Nothing.
    None,
}

/// How a block is to be read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The dataset's key, if it is encrypted and loaded.
    pub keys: Option<Arc<DatasetKey>>,
    /// Stop once the checksum holds: the physical bytes, neither decrypted nor decompressed.
    pub raw: bool,
    /// The object set that the block belongs to: for errors.
    pub objset: ObjsetId,
    /// Which block it is, where that is known: for who is told of faulty devices.
    pub origin: Option<Bookmark>,
    /// What the cache may keep of it.
    pub cache: CacheClass,
    /// Nobody waits for it yet.
    pub prefetch: bool,
}

/// How a read came to where it is.
#[derive(Clone, Copy)]
pub(crate) struct ReadPath {
    /// Gang headers above.
    pub depth: u8,
    /// Nobody waits for it yet.
    pub prefetch: bool,
    /// Which block is wanted.
    pub origin: Option<Bookmark>,
}

/// The pool's blocks.
pub struct Blocks {
    clock: Clock,
    tree: Arc<Tree>,
    pub(crate) salt: Salt,
    pub(crate) pool: BufPool,
    pub(crate) writing: Option<Writer>,
    /// Tests of hostile pools only: no block is proven, all are forged.
    forger: Option<PointerForger>,
}

impl Blocks {
    /// Blocks on the devices of `tree`. `salt` is the pool's checksum salt ([`Salt::none`] until it is known: the blocks
    /// that lead to it are not salted).
    pub fn new(machine: &Machine, tree: Arc<Tree>, salt: Salt) -> Self {
        let (clock, pool) = (machine.clock.clone(), machine.read_buffers.clone());
        Blocks { writing: Some(Writer::new(machine)), ..Blocks::over(clock, pool, tree, salt) }
    }

    pub(crate) fn over(clock: Clock, pool: BufPool, tree: Arc<Tree>, salt: Salt) -> Self {
        Blocks { clock, tree, salt, pool, writing: None, forger: None }
    }

    /// The same blocks, none of them proven, each changed by `forger`: for tests of hostile pools only (see
    /// [`crate::fault_injection`]).
    #[doc(hidden)]
    pub fn unproven(self, forger: PointerForger) -> Self {
        Blocks { forger: Some(forger), ..self }
    }

    /// Whether bytes have to prove themselves: always, but in tests of hostile pools.
    pub(crate) fn proves(&self) -> bool {
        self.forger.is_none()
    }

    pub(crate) fn forge(&self, pointer: &BlockPointer, stage: Stage, bytes: &mut [u8]) {
        if let Some(forger) = &self.forger {
            forger.forge(pointer, stage, bytes);
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The devices.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The logical bytes of the block that `pointer` leads to: every copy and all redundancy is tried.
    ///
    /// A hole gives zeros of its logical size. With `options.raw`, the physical bytes. The memory behind the answer is
    /// about as long as the answer.
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
            return self.embedded(request, pointer, options);
        }
        if pointer.is_hole() {
            let len = pointer.lsize_bytes();
            request.record(Source::Hole, len);
            return Ok(Bytes::from(vec![0; len as usize]));
        }
        // What is there now stays until this has been read.
        let _hold = self.hold();
        let way = ReadPath { depth: 0, prefetch: options.prefetch, origin: options.origin };
        let answer = match self.physical(request, pointer, way).await {
            Ok(buf) => self.open(request, pointer, options, buf),
            Err(error) => Err(error),
        };
        answer.inspect_err(|error| self.tell_lost(request, pointer, way, error))
    }

    /// The logical bytes of a block whose physical ones are proven; these, with `options.raw`.
    fn open(
        &self,
        request: &Request,
        pointer: &BlockPointer,
        options: &ReadOptions,
        mut buf: Buf,
    ) -> Result<Bytes, BlockError> {
        if options.raw {
            request.record(Source::Disk, buf.len() as u64);
            return Ok(freeze(buf));
        }
        if pointer.is_encrypted() && options.keys.as_ref().is_none_or(|keys| keys.is_revoked()) {
            return Err(BlockError::NoKey { objset: options.objset });
        }
        let corrupt = |fault| corrupt(pointer, fault);
        if let Some(keys) = &options.keys {
            keys.open_block(pointer, buf.as_mut()).map_err(corrupt)?;
        }
        let mut buf = self.decompress(pointer, buf).map_err(corrupt)?;
        if self.proves() {
            crypt::verify_indirect(pointer, buf.as_ref()).map_err(corrupt)?;
        }
        self.forge(pointer, Stage::Logical, buf.as_mut());
        request.record(Source::Disk, buf.len() as u64);
        Ok(freeze(buf))
    }

    /// An intent-log block by the pointer that leads to it: its own checksum proves it, its size is the whole block
    /// with its trailer. A chain ends where the next block was never written: no device is blamed for that. A device that
    /// answers with an error is asked again a few times.
    ///
    /// # Errors
    /// As [`Blocks::read`]; [`BlockError::Device`] also if another copy is wrong: the one that could not be read may be right; [`CodecError::NoTrailer`] or a checksum error is the end of a chain.
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

    /// `len` bytes at a raw address (`zdb -R`), unproven: what the first device that answers gives.
    ///
    /// # Errors
    /// [`BlockError`].
    pub async fn read_raw(&self, request: &Request, vdev: u32, offset: u64, len: u64) -> Result<Bytes, BlockError> {
        let job = self.job(request, weir_format::Txg(u64::MAX));
        let buf = self.tree.read(&job, Place::new(vdev, offset), len, &|_| Ok(())).await?;
        request.record(Source::Disk, len);
        Ok(freeze(buf))
    }

    pub(crate) fn job<'a>(&'a self, request: &'a Request, birth: weir_format::Txg) -> VdevRead<'a> {
        let (clock, pool, umpire) = (&self.clock, &self.pool, self.umpire());
        let (speculative, heals, psize_bytes, about) = Default::default();
        VdevRead { request, clock, pool, birth, speculative, heals, psize_bytes, umpire, about }
    }

    /// A read whose proof proves, and which puts right what it finds wrong if the pool is open for writing. Nobody waits for
    /// what is prefetched, and its pointer may have waited long: it changes nothing.
    pub(crate) fn healing_job<'a>(
        &'a self,
        request: &'a Request,
        pointer: &BlockPointer,
        way: ReadPath,
    ) -> VdevRead<'a> {
        let proves = !matches!(pointer.checksum_kind(), None | Some(ChecksumKind::Off | ChecksumKind::NoParity));
        let heals = proves && self.proves() && !way.prefetch && request.priority != Priority::Async;
        let about = BlockContext { origin: way.origin, checksum: pointer.checksum_kind() };
        VdevRead { heals, psize_bytes: pointer.psize_bytes(), about, ..self.job(request, pointer.physical_birth()) }
    }

    /// Tells that a block is lost, if it should be there: not the next one of an intent log, nor one that was freed.
    fn tell_lost(&self, request: &Request, pointer: &BlockPointer, way: ReadPath, error: &BlockError) {
        let log = matches!(pointer.checksum_kind(), Some(ChecksumKind::Zilog | ChecksumKind::Zilog2));
        let (job, dva) = (self.healing_job(request, pointer, way), pointer.dva(0));
        let quiet = way.prefetch || log || !self.proves() || matches!(error, BlockError::NoKey { .. });
        if !quiet && job.blames(Place::new(dva.vdev, dva.offset_bytes)) {
            let (what, about, priority) = (FaultKind::Lost(error), job.about, request.priority);
            self.tree.bell().ring(&Fault { what, spot: None, about, priority });
        }
    }

    /// Writes the right bytes to copies that were found wrong.
    async fn heal(&self, repairs: &[(WriteJob<'_>, Place)], right: &[u8]) {
        let right = Bytes::copy_from_slice(right);
        // The device counts what it could not write.
        join_all(repairs.iter().map(|(job, place)| self.tree.write(job, *place, right.clone()))).await;
    }

    fn embedded(&self, request: &Request, pointer: &BlockPointer, options: &ReadOptions) -> Result<Bytes, BlockError> {
        let Some(embedded) = pointer.embedded() else { return Err(BlockError::Redacted) };
        let forged = |field, value| BlockError::InvalidPointer { vdev: 0, offset: 0, field, value };
        if embedded.etype != 0 {
            return Err(forged("embedded type", embedded.etype.into()));
        }
        let payload = embedded.payload.get(..embedded.psize_bytes);
        let payload = payload.ok_or(forged("embedded size", embedded.psize_bytes as u64))?;
        let kind = pointer.compression().ok_or(forged("compression", 0))?;
        let bytes = if options.raw {
            Bytes::copy_from_slice(payload)
        } else {
            let mut block = vec![0; embedded.lsize_bytes];
            decompress_into(kind, payload, &mut block).map_err(|fault| corrupt(pointer, fault))?;
            self.forge(pointer, Stage::Logical, &mut block);
            Bytes::from(block)
        };
        request.record(Source::Hole, bytes.len() as u64);
        Ok(bytes)
    }

    pub(crate) fn buffer(&self, len: usize) -> Buf {
        self.pool.take(len)
    }

    /// The physical bytes, checksum proven.
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
        let job = VdevRead { speculative: log, ..self.healing_job(request, pointer, way) };
        let job = VdevRead { heals: job.heals && !log, ..job };
        let proof = |bytes: &[u8]| if self.proves() { verify_block(pointer, &self.salt, bytes) } else { Ok(()) };
        let mut buf = self.any_copy(&job, pointer, pointer.psize_bytes(), &proof).await?;
        if !job.tests_every_copy() {
            self.forge(pointer, Stage::Physical, buf.as_mut());
        }
        Ok(buf)
    }

    /// `len` bytes from the first of a pointer's places where they prove themselves; a scrub tests all places. Where others
    /// were found, the right ones are put.
    pub(crate) async fn any_copy(
        &self,
        job: &VdevRead<'_>,
        pointer: &BlockPointer,
        len: u64,
        proof: Proof<'_>,
    ) -> Result<Buf, BlockError> {
        let (mut worst, mut right, mut wrong) = (None, None, Vec::new());
        for dva in pointer.dvas() {
            let place = Place::new(dva.vdev, dva.offset_bytes);
            match self.tree.read(job, place, len, proof).await {
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
            let repair = |&place: &Place| Some((WriteJob::repairing(job, &self.tree, place)?, place));
            let repairs: Vec<_> = wrong.iter().filter_map(repair).collect();
            if !repairs.is_empty() {
                self.heal(&repairs, buf.as_ref()).await;
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

/// A fault of the whole block, placed at its first copy.
fn corrupt(pointer: &BlockPointer, fault: CodecError) -> BlockError {
    let dva = if pointer.is_embedded() { Default::default() } else { pointer.dva(0) };
    BlockError::Corrupt { vdev: dva.vdev, offset: dva.offset_bytes, fault }
}

/// Sizes that no block has.
fn check_sizes(pointer: &BlockPointer) -> Result<(), BlockError> {
    let dva = if pointer.is_embedded() { Default::default() } else { pointer.dva(0) };
    let forged =
        |field, value| Err(BlockError::InvalidPointer { vdev: dva.vdev, offset: dva.offset_bytes, field, value });
    if pointer.lsize_bytes() > MAX_BLOCK_BYTES {
        return forged("logical size", pointer.lsize_bytes());
    }
    if !pointer.is_hole() && pointer.psize_bytes() > MAX_BLOCK_BYTES {
        return forged("physical size", pointer.psize_bytes());
    }
    if !pointer.is_hole() && pointer.compression().is_none() {
        return forged("compression", 0xff);
    }
    Ok(())
}

/// Shareable bytes whose memory is about as long as they are: what is much shorter than its buffer is copied out.
fn freeze(buf: Buf) -> Bytes {
    if buf.capacity() > buf.len() + buf.len() / 4 + 512 {
        Bytes::copy_from_slice(buf.as_ref())
    } else {
        buf.into_bytes()
    }
}
