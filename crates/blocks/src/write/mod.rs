//! Writing blocks: from logical bytes to a block pointer.
//!
//! ```text
//!  bytes ─► zeros? a hole ─► compress ─► small? into the pointer ─► encrypt, MAC ─► checksum       [`encode`], pure
//!             ─► DVAs from the allocator: contiguous, or a gang header and pieces                  [`place`], pure
//!                   ─► all copies of all pieces concurrently ─► vdevs ─► BlockPointer
//! ```
//!
//! Only a gang header depends on the addresses, so a block is encoded before space is allocated. The two halves are also
//! available separately: [`Blocks::reserve`] allocates space of a given size, [`Blocks::fill`] writes to it. The meta
//! object set needs this, because its blocks describe the space that they themselves occupy.
//!
//! *Guarantees.* When a write returns, the devices have acknowledged at least one copy of each piece. The block is on
//! stable storage after the next [`Blocks::flush`]. A write that fails or is dropped frees its space; the space is reused
//! when no operation in progress can reach it any more.
//!
//! Source: OpenZFS `module/zfs/zio.c` (`zio_write_compress`, `zio_encrypt`, `zio_write_gang_block`, `zio_alloc_zil`).

mod encode;
mod evacuation;
mod loads;
mod log;
mod metaslabs;
mod nop_write;
mod place;
mod raw_form;
mod rebuild;
mod reflow;
mod space;
mod trim;
pub(crate) mod writer;

pub use evacuation::Evacuations;
pub use loads::{MetaslabSource, SourceError};
pub use log::LogBlocks;
pub use metaslabs::Metaslabs;
pub use rebuild::{Rebuild, RebuiltRange};
pub use reflow::{ReflowLimits, Reflowed, ReflowingVdev};
pub use space::VdevGrid;
pub use trim::{FreeParts, trim};
pub(crate) use writer::Writer;
pub use writer::{NonMetaslabFrees, WritableEncodings};

use crate::alloc::{Class, NotAllocated};
use crate::error::{BlockError, note};
use crate::fault_observer::BlockContext;
use crate::pipeline::Blocks;
use crate::reads::ReadHold;
use crate::scan_queue::ScanQueue;
use crate::vdev::{FailedLeaves, Layouts, Place, PointerFreshness, Recipients, WriteJob, WritePlug};
use bytes::Bytes;
use encode::{Encoded, Encoding};
use futures_util::FutureExt;
use futures_util::future::{join_all, poll_fn};
use nop_write::same;
use place::Placed;
pub use raw_form::RawForm;
use smallvec::smallvec;
use std::sync::Arc;
use weir_codec::compress::ZstdLevel;
use weir_codec::crypt::DatasetKey;
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, ObjectId, ObjectType, ObjsetId, Txg};
use weir_machine::accounts::{Content, Redundancy};
use weir_machine::{Origin, Request};

/// Why a pool is suspended whose other metaslabs are full.
const LOADS_FAILED: &str = "the space maps of metaslabs cannot be read, and other metaslabs have no space";

/// Options of writing a block.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Txg of the block.
    pub txg: Txg,
    /// The object set.
    pub objset: ObjsetId,
    /// The object.
    pub object: ObjectId,
    /// The block's number on its level.
    pub block: u64,
    /// Level above the data.
    pub level: u8,
    /// Type of the object.
    pub object_type: ObjectType,
    /// Compression; `On` is lz4. [`CompressionKind::Off`] keeps blocks of zeros as they are; all others make them holes.
    pub compression: CompressionKind,
    /// The block's bytes, compressed already: they are stored instead, unless they take no less space (`zfs receive` of
    /// streams with compressed blocks).
    pub compressed: Option<Compressed>,
    /// Level of zstd.
    pub compression_level: ZstdLevel,
    /// Checksum; `On` is fletcher4.
    pub checksum: ChecksumKind,
    /// Copies, 1 to 3 (an encrypted block has at most 2).
    pub copies: u8,
    /// Allocation class.
    pub class: Class,
    /// The dataset's key, if it is encrypted.
    pub keys: Option<Arc<DatasetKey>>,
    /// The block is part of an encrypted object set and is written without the key: an indirect block gets the MAC of its
    /// pointers, which needs none; the header of the object set is stored unchanged, with the MACs that it has.
    pub sealed: bool,
    /// The bytes are those of a block of data or dnodes as they are stored, encrypted or authenticated by another pool that has
    /// the key (`zfs receive` of raw streams).
    pub raw: Option<RawForm>,
    /// The block that this one replaces, if it may stay: of a nop-write, see [`Blocks::write`].
    pub replaces: Option<Box<BlockPointer>>,
    /// Whether payloads of at most 112 bytes may be embedded in the pointer (feature `embedded_data`).
    pub embed: bool,
    /// Whether holes have a birth txg (feature `hole_birth`).
    pub hole_birth: bool,
    /// Blocks of data (of dnodes: dnodes in use) below and including this one.
    pub fill: u64,
    /// Origin of the block's bytes, for the accounts.
    pub writer: Origin,
}

/// The bytes of a block, compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// Compression function.
    pub kind: CompressionKind,
    /// Compressed bytes; padding may follow.
    pub bytes: Bytes,
}

impl WriteOptions {
    /// The default options: one copy, lz4, fletcher4, the normal class, not encrypted, holes and embedded payloads.
    pub fn new(txg: Txg, object_type: ObjectType) -> Self {
        WriteOptions {
            txg,
            objset: ObjsetId::MOS,
            object: ObjectId(0),
            block: 0,
            level: 0,
            object_type,
            compression: CompressionKind::Lz4,
            compressed: None,
            compression_level: ZstdLevel::DEFAULT,
            checksum: ChecksumKind::Fletcher4,
            copies: 1,
            class: Class::Normal,
            keys: None,
            sealed: false,
            raw: None,
            replaces: None,
            embed: true,
            hole_birth: true,
            fill: 1,
            writer: Origin::POOL,
        }
    }

    /// Contents of the block, for the accounts.
    fn content(&self) -> Content {
        if self.level > 0 || self.object_type.is_metadata() { Content::Metadata } else { Content::Data }
    }

    /// Maximum number of copies that the pointer has DVAs for.
    fn max_copies(&self) -> u8 {
        let encrypted =
            (self.keys.is_some() || self.raw.is_some()) && self.level == 0 && self.object_type.is_encrypted();
        if encrypted { 2 } else { 3 }
    }
}

/// Space for one block that will be written later. Dropping this does not free the space; [`Blocks::unreserve`] does.
pub struct Reserved {
    placed: Placed,
    psize_bytes: u64,
    txg: Txg,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reserved({} bytes, {:?})", self.psize_bytes, self.placed)
    }
}

impl Reserved {
    /// Reserved bytes before parity: the encoded block must not be longer.
    pub fn psize_bytes(&self) -> u64 {
        self.psize_bytes
    }

    /// Txg of the allocation.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// DVAs that the block pointer will have.
    pub fn dvas(&self) -> Vec<weir_format::Dva> {
        self.placed.dvas()
    }

    /// Allocated bytes, over all copies.
    pub fn asize_bytes(&self) -> u64 {
        self.placed.dvas().iter().map(|d| d.asize_bytes).sum()
    }
}

/// A block that was compressed, encrypted and checksummed.
#[derive(Debug)]
pub enum Prepared {
    /// A block that is not stored: a hole, or a payload in the pointer.
    Pointer(BlockPointer),
    /// A block that has to be stored.
    Ready(Ready),
}

/// A block that lacks only its addresses.
#[derive(Debug)]
pub struct Ready(encode::Stored);

impl Ready {
    /// The block pointer without addresses.
    pub fn pointer(&self) -> &BlockPointer {
        &self.0.pointer
    }
}

impl Blocks {
    /// Delays the reuse of all blocks that are allocated now; see [`ReadHold`]. `None` if the pool is not open for writing.
    pub fn hold(&self) -> Option<ReadHold> {
        self.writer().ok().map(|w| w.reads.begin())
    }

    /// The last synced txg when the oldest read in progress began. What was freed in later txgs is not used again before its end.
    pub fn oldest_read(&self) -> Option<Txg> {
        self.writer().ok().and_then(|writer| writer.reads.oldest())
    }

    /// The blocks that a scan has found and not read.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn scan_queue(&self) -> Result<Arc<ScanQueue>, BlockError> {
        Ok(self.writer()?.scan_queue.clone())
    }

    /// The blocks of intent logs.
    pub fn log(&self) -> LogBlocks<'_> {
        LogBlocks(self)
    }

    /// Check for stale pointers; `None` if the pool is not open for writing.
    pub(crate) fn freshness(&self) -> Option<&dyn PointerFreshness> {
        self.writer().ok().map(|w| w as &dyn PointerFreshness)
    }

    fn writer(&self) -> Result<&Writer, BlockError> {
        self.writing.as_ref().filter(|_| self.tree().is_writable()).ok_or(BlockError::ReadOnly)
    }

    /// Sets the encodings that later writes may use.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_formats(&self, formats: WritableEncodings) -> Result<(), BlockError> {
        *self.writer()?.formats.lock() = formats;
        Ok(())
    }

    /// Encodings that writes may use.
    pub fn formats(&self) -> WritableEncodings {
        let set = |w: &Writer| *w.formats.lock();
        self.writer().map_or(WritableEncodings::ALL, set)
    }

    /// Writes a block and returns its pointer. A block of zeros becomes a hole, unless compression is off. A block that equals the
    /// one that it replaces is not written, and the pointer is that of the other ([`WriteOptions::replaces`]).
    ///
    /// # Errors
    /// [`BlockError::NoSpace`]; [`BlockError::Device`] or [`BlockError::Missing`] if a copy of no piece could be written;
    /// [`BlockError::ReadOnly`]; [`BlockError::BadSize`] unless the data are 512 bytes to 16 MiB, a multiple of 512.
    pub async fn write(
        &self,
        request: &Request,
        data: Bytes,
        options: &WriteOptions,
    ) -> Result<BlockPointer, BlockError> {
        match request.wait_computed(self.clock(), self.prepare(data, options)).await? {
            Prepared::Pointer(pointer) => Ok(pointer),
            Prepared::Ready(ready) => self.store(request, ready, options).await,
        }
    }

    /// Writes several blocks as [`Blocks::write`] does, and returns the pointers in the same order. One computation encodes
    /// all of them, and all are queued before the devices start, so that writes of adjacent blocks are merged.
    ///
    /// # Errors
    /// As [`Blocks::write`], with the number of the first block that could not be written; the others may have been.
    pub async fn write_all(
        &self,
        request: &Request,
        blocks: Vec<(Bytes, WriteOptions)>,
    ) -> Result<Vec<BlockPointer>, (usize, BlockError)> {
        let writer = self.writer().map_err(|error| (0, error))?;
        let (options, works): (Vec<_>, Vec<_>) = blocks
            .into_iter()
            .map(|(data, options)| {
                let work = self.work(writer, data, &options, None);
                (options, work)
            })
            .unzip();
        let cost_bytes = works.iter().map(|(cost_bytes, _)| cost_bytes).sum();
        let all = move || works.into_iter().map(|(_, work)| work()).collect::<Vec<_>>();
        let encoded = request.wait_computed(self.clock(), writer.compute.run_sized(cost_bytes, all)).await;
        let encoded = encoded.map_err(|_| (0, BlockError::ComputeLost))?;
        let plug = &WritePlug::default();
        let writes = encoded.into_iter().zip(&options).map(|(encoded, options)| async move {
            match encoded? {
                Encoded::Pointer(pointer) => Ok(pointer),
                Encoded::Stored(stored) => self.store_with(request, Ready(stored), options, Some(plug)).await,
            }
        });
        let mut writes = join_all(writes);
        let answers = poll_fn(|cx| {
            let answers = writes.poll_unpin(cx);
            plug.release();
            answers
        });
        let answers = answers.await.into_iter().enumerate();
        answers.map(|(n, answer)| answer.map_err(|error| (n, error))).collect()
    }

    /// Encodes a block without allocating space: the first half of [`Blocks::write`]. Dedup looks up the checksum before it
    /// decides whether the block is written.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`], [`BlockError::BadSize`].
    pub async fn prepare(&self, data: Bytes, options: &WriteOptions) -> Result<Prepared, BlockError> {
        Ok(match self.encode(self.writer()?, data, options, None).await? {
            Encoded::Pointer(pointer) => Prepared::Pointer(pointer),
            Encoded::Stored(stored) => Prepared::Ready(Ready(stored)),
        })
    }

    /// Allocates space for a prepared block and writes it: the second half of [`Blocks::write`], with the same options.
    ///
    /// # Errors
    /// As [`Blocks::write`].
    pub async fn store(
        &self,
        request: &Request,
        ready: Ready,
        options: &WriteOptions,
    ) -> Result<BlockPointer, BlockError> {
        self.store_with(request, ready, options, None).await
    }

    async fn store_with(
        &self,
        request: &Request,
        ready: Ready,
        options: &WriteOptions,
        plug: Option<&WritePlug>,
    ) -> Result<BlockPointer, BlockError> {
        let Ready(stored) = ready;
        if let Some(pointer) = same(self.tree(), &stored.pointer, options) {
            return Ok(pointer);
        }
        let psize_bytes = stored.bytes.len() as u64;
        let placed = self.place(self.writer()?, psize_bytes, options).await?;
        let guard = AllocationGuard { blocks: self, placed: Some(placed), txg: options.txg };
        let pointer = self.issue(request, guard.placed(), &stored, options, plug).await?;
        guard.keep();
        Ok(pointer)
    }

    /// Allocates space for a block of `psize_bytes`, rounded up to whole sectors. [`Blocks::free`] of the pointer that
    /// [`Blocks::fill`] returns frees the space, or [`Blocks::unreserve`].
    ///
    /// # Errors
    /// [`BlockError::NoSpace`], [`BlockError::ReadOnly`].
    pub async fn reserve(&self, psize_bytes: u64, options: &WriteOptions) -> Result<Reserved, BlockError> {
        let writer = self.writer()?;
        let psize_bytes = psize_bytes.max(1).next_multiple_of(self.unit_bytes());
        let placed = self.place(writer, psize_bytes, options).await?;
        Ok(Reserved { placed, psize_bytes, txg: options.txg })
    }

    /// Frees reserved space.
    ///
    /// # Errors
    /// [`BlockError::Space`] if it was freed already.
    pub fn unreserve(&self, reserved: Reserved) -> Result<(), BlockError> {
        self.free_placed(&reserved.placed, reserved.txg)
    }

    /// Writes a block to its reserved space: compressed if it does not fit otherwise, padded with zeros. It never becomes a
    /// hole or an embedded payload. May be repeated as long as no stored pointer refers to the block.
    ///
    /// # Errors
    /// [`BlockError::NoRoom`] if it does not fit; as [`Blocks::write`].
    pub async fn fill(
        &self,
        request: &Request,
        reserved: &Reserved,
        data: Bytes,
        options: &WriteOptions,
    ) -> Result<BlockPointer, BlockError> {
        let writer = self.writer()?;
        let encoded = self.encode(writer, data, options, Some(reserved.psize_bytes));
        match request.wait_computed(self.clock(), encoded).await? {
            Encoded::Pointer(_) => Err(BlockError::BadSize { len_bytes: 0 }),
            Encoded::Stored(stored) => {
                debug_assert_eq!(options.txg, reserved.txg, "a block is written in the txg that reserved its space");
                self.issue(request, &reserved.placed, &stored, options, None).await
            }
        }
    }

    /// Physical size of `data` in bytes, before padding to whole sectors: 0 for a hole or an embedded payload. A compressed
    /// block that ends in zeros may need a few bytes more.
    ///
    /// # Errors
    /// As [`Blocks::write`].
    pub async fn compressed_bytes(&self, data: Bytes, options: &WriteOptions) -> Result<u64, BlockError> {
        let writer = self.writer()?;
        let len = data.len();
        Ok(match self.encode(writer, data, options, None).await? {
            Encoded::Pointer(_) => 0,
            Encoded::Stored(stored) if stored.bytes.len() < len => {
                let zeros = stored.bytes.iter().rev().take_while(|byte| **byte == 0).count();
                (stored.bytes.len() - zeros) as u64
            }
            Encoded::Stored(_) => len as u64,
        })
    }

    async fn encode(
        &self,
        writer: &Writer,
        data: Bytes,
        options: &WriteOptions,
        reserved_bytes: Option<u64>,
    ) -> Result<Encoded, BlockError> {
        let (cost_bytes, work) = self.work(writer, data, options, reserved_bytes);
        writer.compute.run_sized(cost_bytes, work).await.map_err(|_| BlockError::ComputeLost)?
    }

    /// The computation that encodes a block, and its cost as the number of bytes whose checksum takes as long.
    fn work(
        &self,
        writer: &Writer,
        data: Bytes,
        options: &WriteOptions,
        reserved_bytes: Option<u64>,
    ) -> (usize, impl FnOnce() -> Result<Encoded, BlockError> + Send + use<>) {
        let salt_and_iv = options.keys.as_ref().map(|keys| writer.salt_and_iv(keys));
        let unit_bytes = self.unit_bytes();
        let formats = self.formats();
        let plain = options.compression == CompressionKind::Off && options.keys.is_none();
        // Compression or encryption takes about ten times as long as a checksum of the same bytes.
        let cost_bytes = if plain { data.len() } else { data.len().saturating_mul(10) };
        let options = options.clone();
        let salt = self.salt.clone();
        let pool = writer.buffers.clone();
        let work = move || {
            let (options, salt, pool) = (&options, &salt, &pool);
            let encoding = Encoding { options, salt, pool, formats, unit_bytes, salt_and_iv, reserved_bytes };
            encode::encode(&encoding, data)
        };
        (cost_bytes, work)
    }

    /// Allocates space for a block; loads metaslabs if necessary. If there is no space in those that could be loaded, the pool
    /// is suspended until they can.
    async fn place(&self, writer: &Writer, psize_bytes: u64, options: &WriteOptions) -> Result<Placed, BlockError> {
        let request = place::PlacementRequest {
            class: options.class,
            copies: options.copies.clamp(1, options.max_copies()),
            header_copies: (options.copies + 1).clamp(1, options.max_copies()),
            txg: options.txg,
            unit_bytes: self.unit_bytes(),
        };
        loop {
            let placed = place::place(&mut writer.space(), psize_bytes, &request);
            match placed {
                Ok(placed) => return Ok(placed),
                Err(NotAllocated::Full) => {
                    let has_failed = writer.space().has_failed_loads();
                    if !(has_failed && self.tree().suspension().wait(&LOADS_FAILED).await) {
                        return Err(BlockError::NoSpace { psize_bytes });
                    }
                    writer.space().retry_failed_loads();
                }
                Err(NotAllocated::Load(vdev, metaslab)) => writer.load(vdev, metaslab).await,
            }
        }
    }

    /// Writes a block, and again if the pool was suspended because its devices failed.
    async fn issue(
        &self,
        request: &Request,
        placed: &Placed,
        stored: &encode::Stored,
        options: &WriteOptions,
        plug: Option<&WritePlug>,
    ) -> Result<BlockPointer, BlockError> {
        loop {
            match self.issue_once(request, placed, stored, options, plug).await {
                Err(error) if error.is_of_devices() && self.tree().suspension().wait(&error).await => {}
                answer => return answer,
            }
        }
    }

    /// Writes all copies of all pieces of a block concurrently, and returns its pointer.
    async fn issue_once(
        &self,
        request: &Request,
        placed: &Placed,
        stored: &encode::Stored,
        options: &WriteOptions,
        plug: Option<&WritePlug>,
    ) -> Result<BlockPointer, BlockError> {
        let mut writes = Vec::new();
        let unencodable = |fault| BlockError::Unencodable { fault };
        let pointer =
            place::compose(placed, stored.pointer, &stored.bytes, &self.salt, &mut writes).map_err(unencodable)?;
        let pool = self.writing.as_ref().map_or(&self.pool, |writer| &writer.buffers);
        let hold = self.hold().map(Arc::new);
        let job = |content| WriteJob {
            request,
            clock: self.clock(),
            pool,
            txg: options.txg,
            repair: false,
            plug,
            here: false,
            about: BlockContext::default(),
            hold: hold.clone(),
            layouts: Layouts::default(),
            recipients: Recipients::All,
            failed: Some(FailedLeaves::default()),
            cost: self.tree().accounts().write_cost(
                content,
                options.txg.0,
                options.objset.0,
                smallvec![(options.writer, 1)],
            ),
        };
        let of_contents = &job(options.content());
        let is_gang = writes.iter().any(|write| write.is_gang_header);
        let of_headers = &is_gang.then(|| job(Content::Metadata));
        let copies = writes.into_iter().map(|write| async move {
            let job = of_headers.as_ref().filter(|_| write.is_gang_header).unwrap_or(of_contents);
            let place = |d: &weir_format::Dva| Place::new(d.vdev, d.offset_bytes);
            let copies = write.dvas.iter().enumerate().map(|(n, dva)| {
                let copy = if n == 0 { Redundancy::First } else { Redundancy::Copy };
                self.tree().write(job, copy, place(dva), write.bytes.clone())
            });
            let answers = join_all(copies).await;
            let mut worst = None;
            let mut written = false;
            for answer in answers {
                match answer {
                    Ok(()) => written = true,
                    Err(error) => note(&mut worst, error),
                }
            }
            worst.filter(|_| !written).map_or(Ok(()), Err)
        });
        for answer in join_all(copies).await {
            answer?;
        }
        let failed = of_headers.iter().chain([of_contents]).flat_map(|job| &job.failed);
        failed.for_each(|failed| self.tree().record_failed(failed, options.txg));
        Ok(pointer)
    }
}

/// Allocated space that is freed on drop, unless its block was written.
struct AllocationGuard<'a> {
    blocks: &'a Blocks,
    placed: Option<Placed>,
    txg: Txg,
}

impl AllocationGuard<'_> {
    fn placed(&self) -> &Placed {
        static NOWHERE: Placed = Placed::NOWHERE;
        self.placed.as_ref().unwrap_or(&NOWHERE)
    }

    fn keep(mut self) {
        self.placed = None;
    }
}

impl Drop for AllocationGuard<'_> {
    fn drop(&mut self) {
        if let Some(placed) = self.placed.take() {
            // Freeing space that this write allocated does not fail.
            let _ = self.blocks.free_placed(&placed, self.txg);
        }
    }
}
