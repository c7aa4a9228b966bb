//! Blocks of the intent log: allocated before they are written, with embedded checksums.
//!
//! The pointer of a log block is stored in the previous block, so the space is allocated one block ahead, and the checksum
//! words of the pointer identify the chain and the position in it. The checksum of the bytes is in the block's header
//! ([`ChecksumKind::Zilog2`]). It covers the bytes in use, rounded up to 4 KiB; only these need to be written.
//!
//! Source: OpenZFS `module/zfs/zil.c` (`zil_lwb_write_issue`), `zio.c` (`zio_alloc_zil`).

use super::writer::Writer;
use crate::alloc::{AllocRequest, Class, NotAllocated};
use crate::error::{BlockError, note};
use crate::fault_observer::BlockContext;
use crate::pipeline::Blocks;
use crate::vdev::{FailedLeaves, Layouts, MAX_BLOCK_BYTES, Place, Recipients, WriteJob};
use bytes::Bytes;
use futures_util::future::join_all;
use std::sync::Arc;
use weir_codec::CodecError;
use weir_codec::checksum::embedded::{Verifier, seal_embedded};
use weir_codec::crypt::layout::set_log_mac;
use weir_codec::crypt::{BlockCrypt, DatasetKey};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, ObjectType, Txg};
use weir_machine::Request;
use weir_machine::accounts::{Content, Redundancy, Shares};

/// Unit of the sizes of log blocks and of the written part of them, in bytes (`ZIL_MIN_BLKSZ`).
const LOG_UNIT_BYTES: u64 = 4096;
/// Size of the chain header in bytes.
const HEADER_BYTES: usize = 184;
/// Offset of the number of bytes in use in the chain header.
const USED_OFFSET: usize = 136;

/// The blocks of intent logs.
#[derive(Clone, Copy)]
pub struct LogBlocks<'a>(pub(super) &'a Blocks);

impl LogBlocks<'_> {
    /// Allocates a log block of `size_bytes` (rounded up to 4 KiB), on a log vdev if there is one with space. `checksum` is
    /// the block's position in its chain: two random words, the object set, the sequence number. With `keys`, the block
    /// will be encrypted.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if no free segment is long enough; the caller then waits until the txg has synced.
    /// [`BlockError::BadSize`], [`BlockError::ReadOnly`].
    pub async fn allocate(
        self,
        size_bytes: u64,
        txg: Txg,
        checksum: [u64; 4],
        keys: Option<&Arc<DatasetKey>>,
    ) -> Result<BlockPointer, BlockError> {
        let LogBlocks(blocks) = self;
        let writer = blocks.writer()?;
        let psize_bytes = size_bytes.max(1).next_multiple_of(LOG_UNIT_BYTES);
        if psize_bytes > MAX_BLOCK_BYTES {
            return Err(BlockError::BadSize { len_bytes: size_bytes });
        }
        let request = AllocRequest { class: Class::Log, psize_bytes, copies: 1, txg };
        let dvas = loop {
            let found = writer.space().allocate(&request);
            match found {
                Err(NotAllocated::Load(vdev, metaslab)) => writer.load(vdev, metaslab).await,
                found => break found.ok(),
            }
        };
        let [dva] = dvas.as_deref().unwrap_or_default() else { return Err(BlockError::NoSpace { psize_bytes }) };
        Ok(log_pointer(writer, dva, psize_bytes, txg, checksum, keys))
    }

    /// Encrypts and checksums a log block and writes it. `bytes` begin with the chain header, its checksum empty, and hold
    /// at least the number of bytes in use that the header names. `writers` are the origins of its records. Several blocks
    /// of a chain may be written concurrently. They are on stable storage after [`Blocks::flush`].
    ///
    /// # Errors
    /// [`BlockError::Unencodable`] if the header is malformed or the key is missing, [`BlockError::Device`],
    /// [`BlockError::Missing`], [`BlockError::ReadOnly`].
    pub async fn write(
        self,
        request: &Request,
        pointer: &BlockPointer,
        bytes: Bytes,
        keys: Option<&Arc<DatasetKey>>,
        writers: Shares,
    ) -> Result<(), BlockError> {
        let LogBlocks(blocks) = self;
        let writer = blocks.writer()?;
        // Parity covers the whole block, so all of the block has to be written.
        let whole = pointer.dvas().any(|d| blocks.tree().sizing(d.vdev).is_ok_and(|s| s.raidz.is_some()));
        let len = bytes.len();
        let keys = keys.cloned();
        let log_pointer = *pointer;
        let sealed = writer.compute.run_sized(len, move || seal(&log_pointer, &bytes, keys.as_deref(), whole));
        let sealed = request.wait_computed(blocks.clock(), sealed).await;
        let sealed = sealed.map_err(|_| BlockError::ComputeLost)?.map_err(|fault| BlockError::Unencodable { fault })?;
        // The checksum words of a log block identify its chain; the third is the object set.
        let objset = pointer.checksum().get(2).copied().unwrap_or(0);
        let job = WriteJob {
            request,
            clock: blocks.clock(),
            pool: &blocks.pool,
            txg: pointer.physical_birth(),
            repair: false,
            plug: None,
            here: request.here && pointer.dvas().all(|d| blocks.tree().is_one_device(d.vdev)),
            about: BlockContext::default(),
            hold: blocks.hold().map(Arc::new),
            layouts: Layouts::default(),
            recipients: Recipients::All,
            failed: Some(FailedLeaves::default()),
            cost: blocks.tree().accounts().write_cost(Content::IntentLog, pointer.physical_birth().0, objset, writers),
        };
        let place = |d: Dva| Place::new(d.vdev, d.offset_bytes);
        let copies = pointer.dvas().map(|d| blocks.tree().write(&job, Redundancy::First, place(d), sealed.clone()));
        let mut worst = None;
        let mut written = false;
        for answer in join_all(copies).await {
            match answer {
                Ok(()) => written = true,
                Err(error) => note(&mut worst, error),
            }
        }
        if written {
            job.failed.iter().for_each(|failed| blocks.tree().record_failed(failed, job.txg));
            return Ok(());
        }
        worst.map_or(Ok(()), Err)
    }
}

fn log_pointer(
    writer: &Writer,
    dva: &Dva,
    psize_bytes: u64,
    txg: Txg,
    checksum: [u64; 4],
    keys: Option<&Arc<DatasetKey>>,
) -> BlockPointer {
    let sectors = psize_bytes / 512 - 1;
    let kinds = u64::from(ChecksumKind::Zilog2 as u8) << 40 | u64::from(CompressionKind::Off.to_u8()) << 32;
    let mut words = [0; 16];
    words[..2].copy_from_slice(&dva.to_words());
    words[6] = 1 << 63 | u64::from(ObjectType::INTENT_LOG.0) << 48 | kinds | sectors << 16 | sectors;
    words[10] = txg.0;
    words[12..].copy_from_slice(&checksum);
    if let Some(keys) = keys {
        let (salt, iv) = writer.salt_and_iv(keys);
        words[6] |= 1 << 61;
        words[4] = u64::from_le_bytes(salt);
        words[5] = iv.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        words[11] = iv.last_chunk().map_or(0, |b| u64::from(u32::from_le_bytes(*b)) << 32);
    }
    BlockPointer::from_words(words)
}

/// Encrypts a log block, adds its checksum, and returns the bytes that are written; with `whole`, the whole block.
fn seal(pointer: &BlockPointer, bytes: &[u8], keys: Option<&DatasetKey>, whole: bool) -> Result<Bytes, CodecError> {
    let bad = CodecError::Structure { what: "log block", offset: USED_OFFSET };
    let used = bytes.get(USED_OFFSET..).and_then(|b| b.first_chunk()).map(|b| u64::from_le_bytes(*b));
    let used = used.filter(|&n| n >= HEADER_BYTES as u64 && n <= pointer.psize_bytes()).ok_or(bad.clone())?;
    let mut block = bytes.get(..used as usize).ok_or(bad)?.to_vec();
    let len = if whole { pointer.psize_bytes() } else { used.next_multiple_of(LOG_UNIT_BYTES) };
    block.resize(len as usize, 0);
    let with_mac = pointer.uses_crypt();
    if with_mac {
        let keys = keys.ok_or(CodecError::Authentication { what: "log block without a key" })?;
        let mac = keys.encrypt(&BlockCrypt::of(pointer), &mut block)?;
        set_log_mac(&mut block, &mac)?;
    }
    let verifier = Verifier::Log { checksum: pointer.checksum(), with_mac };
    seal_embedded(ChecksumKind::Zilog2, Endian::Little, verifier, &mut block)?;
    Ok(Bytes::from(block))
}
