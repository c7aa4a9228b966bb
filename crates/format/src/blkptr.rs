//! Block pointers (`blkptr_t`, OpenZFS `include/sys/spa.h`): 128 bytes that say where a block lies, how it is
//! encoded, when it was born and what its checksum is.
//!
//! ```text
//!  word  63      56      48      40      32      24      16       8       0
//!   0,2,4 |  pad  |      vdev (24)        | grid  |     asize (24) ×512   |   DVA 0, 1, 2
//!   1,3,5 |G|                     offset (63) ×512                        |
//!   6     |BDX|lvl| type  | cksum |E|comp |    psize      |    lsize      |   sizes ×512, less one
//!   7     |R|                        padding                              |   R: rewritten
//!   8     |                           padding                             |
//!   9     |                   physical birth txg                          |
//!   10    |                    logical birth txg                          |
//!   11    |                       fill count                              |
//!   12-15 |                      checksum (4 words)                       |
//! ```
//!
//! *Embedded* pointers (E set) carry up to 112 bytes of compressed payload in the words 0–5, 7–9 and 11–15 instead;
//! *encrypted* ones (X set) keep salt and IV in DVA 2 and the upper half of the fill count, and the MAC in the last two
//! checksum words.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::ids::Txg;
use crate::kinds::{ChecksumKind, CompressionKind, ObjectType};
use std::fmt;

/// Where one copy of a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dva {
    /// Index of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in that vdev's allocatable space (after the two front labels and the boot block: add 4 MiB).
    pub offset_bytes: u64,
    /// Allocated size in bytes, parity and padding included.
    pub asize_bytes: u64,
    /// A gang header lies there instead of the data.
    pub gang: bool,
    /// RAID-Z layout hint; unused.
    pub grid: u8,
}

impl Dva {
    /// From the two words of the on-disk form.
    pub fn from_words(w0: u64, w1: u64) -> Self {
        Dva {
            vdev: ((w0 >> 32) & 0xff_ffff) as u32,
            grid: (w0 >> 24) as u8,
            asize_bytes: (w0 & 0xff_ffff) << 9,
            // An offset past 2^64 bytes can only be forged: it stays beyond every device.
            offset_bytes: (w1 & (u64::MAX >> 1)).checked_mul(512).unwrap_or(u64::MAX),
            gang: w1 >> 63 != 0,
        }
    }

    /// The two words of the on-disk form.
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.vdev) << 32 | u64::from(self.grid) << 24 | (self.asize_bytes >> 9) & 0xff_ffff,
            u64::from(self.gang) << 63 | (self.offset_bytes >> 9),
        ]
    }
}

/// The payload of an embedded block pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// What it is: 0 data, 1 reserved, 2 redacted.
    pub etype: u8,
    /// Physical (compressed) size in bytes, at most 112.
    pub psize_bytes: usize,
    /// Logical size in bytes.
    pub lsize_bytes: usize,
    /// Payload; the first `psize_bytes` count.
    pub payload: [u8; BlockPointer::EMBEDDED_BYTES],
}

/// A block pointer, kept as its sixteen words: decoding never fails, encoding gives the same bytes back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockPointer {
    words: [u64; 16],
}

impl BlockPointer {
    /// Bytes on disk.
    pub const SIZE: usize = 128;
    /// Payload bytes of an embedded pointer.
    pub const EMBEDDED_BYTES: usize = 112;
    /// A pointer to nothing.
    pub const HOLE: BlockPointer = BlockPointer { words: [0; 16] };

    /// Reads the sixteen words.
    pub fn decode(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(BlockPointer { words: cursor.words()? })
    }

    /// From words in this machine's order.
    pub fn from_words(words: [u64; 16]) -> Self {
        BlockPointer { words }
    }

    /// The words in this machine's order.
    pub fn words(&self) -> &[u64; 16] {
        &self.words
    }

    /// The on-disk bytes.
    pub fn encode(&self, endian: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        for (chunk, w) in out.chunks_exact_mut(8).zip(self.words) {
            chunk.copy_from_slice(&match endian {
                Endian::Little => w.to_le_bytes(),
                Endian::Big => w.to_be_bytes(),
            });
        }
        out
    }

    fn prop(&self, shift: u32, bits: u32) -> u64 {
        (self.words[6] >> shift) & ((1 << bits) - 1)
    }

    /// Byte order of the block's contents.
    pub fn endian(&self) -> Endian {
        if self.prop(63, 1) == 1 { Endian::Little } else { Endian::Big }
    }

    /// The block is in the dedup table.
    pub fn is_dedup(&self) -> bool {
        self.prop(62, 1) == 1
    }

    /// The X bit: the block is encrypted (level 0), authenticated, or above such blocks.
    pub fn uses_crypt(&self) -> bool {
        self.prop(61, 1) == 1
    }

    /// Encrypted contents: X, level 0, an encrypted type.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// Authenticated but not encrypted: X, level 0, an unencrypted type.
    pub fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.object_type().is_encrypted()
    }

    /// X on an indirect block: its checksum's second half is a MAC over the MACs below.
    pub fn has_indirect_mac(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    /// Level above the data: 0 is data.
    pub fn level(&self) -> u8 {
        self.prop(56, 5) as u8
    }

    /// Type of the object that the block belongs to.
    pub fn object_type(&self) -> ObjectType {
        ObjectType(self.prop(48, 8) as u8)
    }

    /// Whether the payload is in the pointer itself.
    pub fn is_embedded(&self) -> bool {
        self.prop(39, 1) == 1
    }

    /// The checksum function; `None` if undefined or the pointer is embedded.
    pub fn checksum_kind(&self) -> Option<ChecksumKind> {
        if self.is_embedded() { None } else { ChecksumKind::from_u8(self.prop(40, 8) as u8) }
    }

    /// The compression function; `None` if undefined.
    pub fn compression(&self) -> Option<CompressionKind> {
        CompressionKind::from_u8(self.prop(32, 7) as u8)
    }

    /// Logical (uncompressed) size in bytes; 0 for a hole without birth.
    pub fn lsize_bytes(&self) -> u64 {
        if self.is_embedded() {
            if self.embedded_type() == 0 { self.prop(0, 25) + 1 } else { 0 }
        } else if self.words[6] == 0 {
            0
        } else {
            (self.prop(0, 16) + 1) << 9
        }
    }

    /// Physical (stored, without parity and padding) size in bytes; for embedded pointers the payload's length.
    pub fn psize_bytes(&self) -> u64 {
        if self.is_embedded() { self.prop(25, 7) + 1 } else { (self.prop(16, 16) + 1) << 9 }
    }

    /// The allocated size in bytes over all copies.
    pub fn asize_bytes(&self) -> u64 {
        self.dvas().map(|d| d.asize_bytes).sum()
    }

    fn embedded_type(&self) -> u8 {
        self.prop(40, 8) as u8
    }

    /// Whether this is a redaction marker instead of data.
    pub fn is_redacted(&self) -> bool {
        self.is_embedded() && self.embedded_type() == 2
    }

    /// The embedded payload, if any.
    pub fn embedded(&self) -> Option<Embedded> {
        if !self.is_embedded() {
            return None;
        }
        // The payload is a byte string laid over the words in the order of the machine that wrote them: word-wise
        // little-endian once the words themselves have been read in their own order (BPE_GET_ETYPE, decode_embedded_bp).
        let mut payload = [0; Self::EMBEDDED_BYTES];
        let words = self.words.iter().enumerate().filter(|(i, _)| *i != 6 && *i != 10);
        for (chunk, (_, w)) in payload.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&w.to_le_bytes());
        }
        Some(Embedded {
            etype: self.embedded_type(),
            psize_bytes: self.psize_bytes() as usize,
            lsize_bytes: self.prop(0, 25) as usize + 1,
            payload,
        })
    }

    /// No block there: a hole (possibly with a birth txg).
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// Whether all words are 0.
    pub fn is_null(&self) -> bool {
        self.words == [0; 16]
    }

    /// The `index`th address (0–2), whether or not it is in use.
    pub fn dva(&self, index: usize) -> Dva {
        Dva::from_words(self.words[2 * index], self.words[2 * index + 1])
    }

    /// The addresses in use: 0 to 3 copies (at most 2 for encrypted blocks).
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        let count = if self.is_embedded() {
            0
        } else if self.is_encrypted() {
            2
        } else {
            3
        };
        (0..count).map(|i| self.dva(i)).filter(|d| d.asize_bytes != 0)
    }

    /// Whether the first copy is a gang.
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && self.dva(0).gang
    }

    /// The txg in which the contents were born.
    pub fn logical_birth(&self) -> Txg {
        Txg(self.words[10])
    }

    /// The txg in which the block was allocated (later than the logical birth for deduplicated, cloned and removed ones).
    pub fn physical_birth(&self) -> Txg {
        if self.is_embedded() || self.words[9] == 0 { self.logical_birth() } else { Txg(self.words[9]) }
    }

    /// Rewritten in place of an older block with the same logical birth (`zfs rewrite`).
    pub fn is_rewritten(&self) -> bool {
        !self.is_embedded() && self.words[7] >> 63 != 0
    }

    /// When the block was allocated as far as snapshots and dead lists are concerned (`BP_GET_BIRTH`): the physical
    /// birth of a rewritten block, the logical one of all others.
    pub fn birth(&self) -> Txg {
        if self.is_rewritten() { self.physical_birth() } else { self.logical_birth() }
    }

    /// In the entries of a bpobj or livelist: the block was freed rather than allocated.
    pub fn is_free_marked(&self) -> bool {
        self.words[11] & 1 != 0
    }

    /// Number of non-hole data blocks (or allocated dnodes) below and including this one.
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            self.words[11] & 0xffff_ffff
        } else {
            self.words[11]
        }
    }

    /// The checksum words.
    pub fn checksum(&self) -> [u64; 4] {
        [self.words[12], self.words[13], self.words[14], self.words[15]]
    }

    /// The bytes of a word that carries a byte string, which the writer laid down in its own order.
    fn word_bytes(&self, index: usize) -> [u8; 8] {
        match self.endian() {
            Endian::Little => self.words[index].to_le_bytes(),
            Endian::Big => self.words[index].to_be_bytes(),
        }
    }

    /// Salt of an encrypted block, as it goes into the key derivation; zero for merely authenticated ones.
    pub fn crypt_salt(&self) -> [u8; 8] {
        if self.is_authenticated() { [0; 8] } else { self.word_bytes(4) }
    }

    /// Initialisation vector of an encrypted block; zero for merely authenticated ones.
    pub fn crypt_iv(&self) -> [u8; 12] {
        let mut iv = [0; 12];
        if self.is_authenticated() {
            return iv;
        }
        iv[..8].copy_from_slice(&self.word_bytes(5));
        let tail = (self.words[11] >> 32) as u32;
        iv[8..].copy_from_slice(&match self.endian() {
            Endian::Little => tail.to_le_bytes(),
            Endian::Big => tail.to_be_bytes(),
        });
        iv
    }

    /// Message authentication code of an encrypted or authenticated block (object sets keep theirs in the block).
    pub fn crypt_mac(&self) -> [u8; 16] {
        let mut mac = [0; 16];
        if self.object_type() != ObjectType::OBJSET {
            mac[..8].copy_from_slice(&self.word_bytes(14));
            mac[8..].copy_from_slice(&self.word_bytes(15));
        }
        mac
    }
}

impl fmt::Debug for BlockPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hole() {
            return write!(f, "HOLE [L{} {}] birth={}", self.level(), self.object_type().name(), self.logical_birth());
        }
        write!(f, "[L{} {}]", self.level(), self.object_type().name())?;
        for d in self.dvas() {
            write!(f, " {}:{:x}:{:x}", d.vdev, d.offset_bytes, d.asize_bytes)?;
        }
        write!(f, " {:x}L/{:x}P birth={}", self.lsize_bytes(), self.psize_bytes(), self.logical_birth())
    }
}
