//! Writing blocks: from logical bytes to a pointer that leads to them.
//!
//! ```text
//!  bytes ─► zeros? a hole ─► compress ─► small? into the pointer ─► encrypt, MAC ─► checksum       [`encode`], pure
//!             ─► places from the allocator: whole, or in pieces with a header (a gang)             [`place`], pure
//!                   ─► all copies of all pieces at once ─► vdevs ─► BlockPointer
//! ```
//!
//! Nothing of a block depends on where it lies but a gang's header, so it is made ready before space is asked for, and
//! the two halves can be taken apart: [`Blocks::reserve`] takes space of a given size, [`Blocks::fill`] writes to it.
//! The meta object set needs that, whose blocks tell of the space that they take themselves.
//!
//! *What is promised.* When a write returns, its bytes are at their devices, at least one copy of each piece; stable they
//! are after the next [`Blocks::flush`]. A write that fails, or is dropped, gives its space back, to be used when no
//! operation that is still under way can reach it any more.
//!
//! Source: OpenZFS `module/zfs/zio.c` (`zio_write_compress`, `zio_encrypt`, `zio_write_gang_block`, `zio_alloc_zil`).

mod encode;
mod log;
mod place;
mod reads;
mod space;
mod trim;

pub use reads::ReadHold;
pub use space::{NonMetaslabFrees, VdevGrid};

use crate::alloc::{AllocStatus, Allocator, Class};
use crate::error::{BlockError, note};
use crate::fault_observer::BlockContext;
use crate::pipeline::Blocks;
use crate::vdev::{Place, PointerFreshness, WriteJob, WritePlug};
use bytes::Bytes;
use encode::{Encoded, Encoding};
use futures_util::FutureExt;
use futures_util::future::{join_all, poll_fn};
use place::Placed;
use reads::Reads;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_codec::compress::ZstdLevel;
use weir_codec::crypt::{DatasetKey, IV_BYTES, SALT_BYTES};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, ObjectId, ObjectType, ObjsetId, Txg};
use weir_machine::{BufPool, Compute, Entropy, FixedMap, Machine, Request};

/// How a block is to be written.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The transaction group that it belongs to.
    pub txg: Txg,
    /// The object set.
    pub objset: ObjsetId,
    /// The object.
    pub object: ObjectId,
    /// The block's number on its level.
    pub block: u64,
    /// Level above the data.
    pub level: u8,
    /// What the object holds.
    pub object_type: ObjectType,
    /// Compression; `On` is lz4. [`CompressionKind::Off`] keeps blocks of zeros as they are; all others make them holes.
    pub compression: CompressionKind,
    /// The level of zstd.
    pub compression_level: ZstdLevel,
    /// Checksum; `On` is fletcher4.
    pub checksum: ChecksumKind,
    /// Copies, 1 to 3 (an encrypted block has at most 2).
    pub copies: u8,
    /// For which vdevs.
    pub class: Class,
    /// The dataset's key, if it is encrypted.
    pub keys: Option<Arc<DatasetKey>>,
    /// The bytes are an encrypted object set that carries its MACs already: it is stored as it is, its key not at hand.
    pub sealed: bool,
    /// Whether payloads of at most 112 bytes may go into the pointer (feature `embedded_data`).
    pub embed: bool,
    /// Whether holes tell when they were born (feature `hole_birth`).
    pub hole_birth: bool,
    /// Blocks of data (of dnodes: dnodes in use) below and including this one.
    pub fill: u64,
}

impl WriteOptions {
    /// The usual options: one copy, lz4, fletcher4, the normal class, not encrypted, holes and payloads in pointers.
    pub fn new(txg: Txg, object_type: ObjectType) -> Self {
        WriteOptions {
            txg,
            objset: ObjsetId::MOS,
            object: ObjectId(0),
            block: 0,
            level: 0,
            object_type,
            compression: CompressionKind::Lz4,
            compression_level: ZstdLevel::DEFAULT,
            checksum: ChecksumKind::Fletcher4,
            copies: 1,
            class: Class::Normal,
            keys: None,
            sealed: false,
            embed: true,
            hole_birth: true,
            fill: 1,
        }
    }

    /// Copies that the pointer has room for.
    fn most_copies(&self) -> u8 {
        let encrypted = self.keys.is_some() && self.level == 0 && self.object_type.is_encrypted();
        if encrypted { 2 } else { 3 }
    }
}

/// Forms of blocks and pointers that a pool must allow by a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritableEncodings {
    /// `lz4_compress`; without it what would be lz4 is lzjb.
    pub lz4: bool,
    /// `embedded_data`: payloads in pointers.
    pub embedded_data: bool,
    /// `hole_birth`: holes tell when they were born.
    pub hole_birth: bool,
}

impl WritableEncodings {
    /// Those of a pool of today.
    pub const ALL: WritableEncodings = WritableEncodings { lz4: true, embedded_data: true, hole_birth: true };
}

/// How many blocks are encrypted with one salt before another is drawn.
const SALT_USES: u64 = 400_000_000;

/// What the pool's blocks need for writing.
pub(crate) struct Writer {
    compute: Compute,
    entropy: Entropy,
    /// Where the memory for what is stored comes from.
    buffers: BufPool,
    space: Mutex<Allocator>,
    reads: Arc<Reads>,
    formats: Mutex<WritableEncodings>,
    /// The group of the pool's checkpoint; 0 if it has none.
    kept_to: AtomicU64,
    aside: Mutex<NonMetaslabFrees>,
    /// By a key's GUID, the salt in use and how often it was.
    salts: Mutex<FixedMap<u64, ([u8; SALT_BYTES], u64)>>,
}

impl Writer {
    pub(crate) fn new(machine: &Machine) -> Self {
        let (compute, entropy, buffers) =
            (machine.compute.clone(), machine.entropy.clone(), machine.write_buffers.clone());
        let (space, reads, kept_to, aside, salts) = Default::default();
        Writer {
            compute,
            entropy,
            buffers,
            space,
            reads,
            formats: Mutex::new(WritableEncodings::ALL),
            kept_to,
            aside,
            salts,
        }
    }

    /// Held only for a few instructions, never while anything is waited for.
    fn space(&self) -> MutexGuard<'_, Allocator> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Writer::space`].
    fn aside(&self) -> MutexGuard<'_, NonMetaslabFrees> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Salt and IV for one block: a pair that was never used before, but by a chance of 2⁻⁹⁶.
    fn salt_and_iv(&self, keys: &DatasetKey) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let mut iv = [0; IV_BYTES];
        self.entropy.fill(&mut iv);
        let mut salts = self.salts.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = salts.entry(keys.guid()).or_insert(([0; SALT_BYTES], SALT_USES));
        if entry.1 >= SALT_USES {
            self.entropy.fill(&mut entry.0);
            entry.1 = 0;
        }
        entry.1 += 1;
        (entry.0, iv)
    }
}

/// Space for one block that will be written later. It stays taken until it is given back by hand: dropping this does
/// nothing.
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
    /// Bytes of the place, before parity: a block may be compressed to this or less.
    pub fn psize_bytes(&self) -> u64 {
        self.psize_bytes
    }

    /// The transaction group that it was taken in.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Its places, as the pointer will name them.
    pub fn dvas(&self) -> Vec<weir_format::Dva> {
        self.placed.dvas()
    }

    /// Bytes that it takes up on the vdevs, over all copies.
    pub fn asize_bytes(&self) -> u64 {
        self.placed.dvas().iter().map(|d| d.asize_bytes).sum()
    }
}

/// A block that was compressed, encrypted and summed up.
#[derive(Debug)]
pub enum Prepared {
    /// There is nothing to store: a hole, or a payload in the pointer.
    Pointer(BlockPointer),
    /// It is to be stored.
    Ready(Ready),
}

/// A block that lacks only its places.
#[derive(Debug)]
pub struct Ready(encode::Stored);

impl Ready {
    /// The pointer that will lead to it, without addresses.
    pub fn pointer(&self) -> &BlockPointer {
        &self.0.pointer
    }
}

impl PointerFreshness for Writer {
    fn standing(&self, place: Place, psize_bytes: u64, birth: Txg) -> AllocStatus {
        self.space().standing(place.vdev, place.offset, psize_bytes, birth)
    }

    fn hold(&self) -> ReadHold {
        self.reads.begin()
    }
}

impl Blocks {
    /// Keeps the space of every block that is in use now from being used again: see [`ReadHold`]. Every read holds one for
    /// itself; `None` if the pool is not open for writing.
    pub fn hold(&self) -> Option<ReadHold> {
        self.writer().ok().map(|w| w.reads.begin())
    }

    /// Who knows whether old pointers still lead to their blocks, if the pool is open for writing.
    pub(crate) fn umpire(&self) -> Option<&dyn PointerFreshness> {
        self.writer().ok().map(|w| w as &dyn PointerFreshness)
    }

    fn writer(&self) -> Result<&Writer, BlockError> {
        self.writing.as_ref().filter(|_| self.tree().is_writable()).ok_or(BlockError::ReadOnly)
    }

    /// What blocks and pointers may look like, from now on.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn set_formats(&self, formats: WritableEncodings) -> Result<(), BlockError> {
        *self.writer()?.formats.lock().unwrap_or_else(PoisonError::into_inner) = formats;
        Ok(())
    }

    /// What blocks and pointers may look like.
    pub fn formats(&self) -> WritableEncodings {
        let set = |w: &Writer| *w.formats.lock().unwrap_or_else(PoisonError::into_inner);
        self.writer().map_or(WritableEncodings::ALL, set)
    }

    /// Writes a block, and gives the pointer that leads to it. A block of zeros becomes a hole, unless it is not to be
    /// compressed.
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
        match self.prepare(data, options).await? {
            Prepared::Pointer(pointer) => Ok(pointer),
            Prepared::Ready(ready) => self.store(request, ready, options).await,
        }
    }

    /// Writes several blocks, as [`Blocks::write`] does each: they go to a processor together and to the devices at once, so
    /// that neighbours are joined. Gives the pointers in the same order.
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
        let encoded = writer.compute.run_sized(cost_bytes, all).await.map_err(|_| (0, BlockError::ComputeLost))?;
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
            plug.pull();
            answers
        });
        let answers = answers.await.into_iter().enumerate();
        answers.map(|(n, answer)| answer.map_err(|error| (n, error))).collect()
    }

    /// The first half of [`Blocks::write`]: everything but places. What looks for a block of the same contents needs its
    /// checksum before it knows whether one is written at all.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`], [`BlockError::BadSize`].
    pub async fn prepare(&self, data: Bytes, options: &WriteOptions) -> Result<Prepared, BlockError> {
        Ok(match self.encode(self.writer()?, data, options, None).await? {
            Encoded::Pointer(pointer) => Prepared::Pointer(pointer),
            Encoded::Stored(stored) => Prepared::Ready(Ready(stored)),
        })
    }

    /// The second half of [`Blocks::write`], with the options of the first.
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
        let psize_bytes = stored.bytes.len() as u64;
        let placed = self.place(self.writer()?, psize_bytes, options)?;
        let guard = Guard { blocks: self, placed: Some(placed), txg: options.txg };
        let pointer = self.issue(request, guard.placed(), stored, options.txg, plug).await?;
        guard.keep();
        Ok(pointer)
    }

    /// Takes space for a block of `psize_bytes` (rounded up to whole sectors). It stays taken until [`Blocks::free`] frees
    /// the pointer that [`Blocks::fill`] gives, or [`Blocks::unreserve`] gives it back.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`], [`BlockError::ReadOnly`].
    pub fn reserve(&self, psize_bytes: u64, options: &WriteOptions) -> Result<Reserved, BlockError> {
        let writer = self.writer()?;
        let psize_bytes = psize_bytes.max(1).next_multiple_of(self.unit_bytes());
        let placed = self.place(writer, psize_bytes, options)?;
        Ok(Reserved { placed, psize_bytes, txg: options.txg })
    }

    /// Gives reserved space back.
    ///
    /// # Errors
    /// [`BlockError::Space`] if it was given back already.
    pub fn unreserve(&self, reserved: Reserved) -> Result<(), BlockError> {
        self.give_back(&reserved.placed, reserved.txg)
    }

    /// Writes a block to the place reserved for it: compressed if that makes it fit, filled up with zeros. It never becomes
    /// a hole or part of its pointer. May be repeated, as long as nothing leads to the block.
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
        match self.encode(writer, data, options, Some(reserved.psize_bytes)).await? {
            Encoded::Pointer(_) => Err(BlockError::BadSize { len_bytes: 0 }),
            Encoded::Stored(stored) => self.issue(request, &reserved.placed, stored, reserved.txg, None).await,
        }
    }

    /// The physical size that `data` will have, before it is padded to whole sectors: 0 for what becomes a hole or part of
    /// its pointer. A compressed block that ends in zeros may need a few bytes more.
    ///
    /// # Errors
    /// As [`Blocks::write`].
    pub async fn compressed_bytes(&self, data: Bytes, options: &WriteOptions) -> Result<u64, BlockError> {
        let (writer, len) = (self.writer()?, data.len());
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
        room_bytes: Option<u64>,
    ) -> Result<Encoded, BlockError> {
        let (cost_bytes, work) = self.work(writer, data, options, room_bytes);
        writer.compute.run_sized(cost_bytes, work).await.map_err(|_| BlockError::ComputeLost)?
    }

    /// What a processor has to do for a block, and how much that is: as many bytes to be summed up would take as long.
    fn work(
        &self,
        writer: &Writer,
        data: Bytes,
        options: &WriteOptions,
        room_bytes: Option<u64>,
    ) -> (usize, impl FnOnce() -> Result<Encoded, BlockError> + Send + use<>) {
        let salt_and_iv = options.keys.as_ref().map(|keys| writer.salt_and_iv(keys));
        let (unit_bytes, formats) = (self.unit_bytes(), self.formats());
        let plain = options.compression == CompressionKind::Off && options.keys.is_none();
        // A checksum alone is quick; compressing or encrypting as many bytes takes ten times as long.
        let cost_bytes = if plain { data.len() } else { data.len().saturating_mul(10) };
        let (options, salt, pool) = (options.clone(), self.salt.clone(), writer.buffers.clone());
        let work = move || {
            let (options, salt, pool) = (&options, &salt, &pool);
            let how = Encoding { options, salt, pool, formats, unit_bytes, salt_and_iv, room_bytes };
            encode::encode(&how, data)
        };
        (cost_bytes, work)
    }

    fn place(&self, writer: &Writer, psize_bytes: u64, options: &WriteOptions) -> Result<Placed, BlockError> {
        let want = place::PlacementRequest {
            class: options.class,
            copies: options.copies.clamp(1, options.most_copies()),
            header_copies: (options.copies + 1).clamp(1, options.most_copies()),
            txg: options.txg,
            unit_bytes: self.unit_bytes(),
        };
        let placed = place::place(&mut writer.space(), psize_bytes, &want);
        placed.ok_or(BlockError::NoSpace { psize_bytes })
    }

    /// Writes all copies of all pieces of a block at once, and gives its pointer.
    async fn issue(
        &self,
        request: &Request,
        placed: &Placed,
        stored: encode::Stored,
        txg: Txg,
        plug: Option<&WritePlug>,
    ) -> Result<BlockPointer, BlockError> {
        let mut writes = Vec::new();
        let unencodable = |fault| BlockError::Unencodable { fault };
        let pointer =
            place::compose(placed, stored.pointer, &stored.bytes, &self.salt, &mut writes).map_err(unencodable)?;
        let pool = self.writing.as_ref().map_or(&self.pool, |writer| &writer.buffers);
        let (clock, about, hold) = (self.clock(), BlockContext::default(), self.hold().map(Arc::new));
        let job = WriteJob { request, clock, pool, txg, repair: false, plug, here: false, about, hold };
        let job = &job;
        let copies = writes.into_iter().map(|write| async move {
            let place = |d: &weir_format::Dva| Place::new(d.vdev, d.offset_bytes);
            let copies = write.dvas.iter().map(|d| self.tree().write(job, place(d), write.bytes.clone()));
            let answers = join_all(copies).await;
            let (mut worst, mut written) = (None, false);
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
        Ok(pointer)
    }
}

/// Space that is given back unless its block was written.
struct Guard<'a> {
    blocks: &'a Blocks,
    placed: Option<Placed>,
    txg: Txg,
}

impl Guard<'_> {
    fn placed(&self) -> &Placed {
        static NOWHERE: Placed = Placed::NOWHERE;
        self.placed.as_ref().unwrap_or(&NOWHERE)
    }

    fn keep(mut self) {
        self.placed = None;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(placed) = self.placed.take() {
            // What was taken a moment ago can be given back.
            let _ = self.blocks.give_back(&placed, self.txg);
        }
    }
}
