//! Block pointers (`blkptr_t`, OpenZFS `include/sys/spa.h`): 128 bytes that hold a block's addresses, encoding, birth
//! txgs and checksum.
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

/// Data virtual address: the location of one copy of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dva {
    /// Index of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in that vdev's allocatable space (after the two front labels and the boot block: add 4 MiB).
    pub offset_bytes: u64,
    /// Allocated size in bytes, parity and padding included.
    pub asize_bytes: u64,
    /// The address is that of a gang header, not of the data.
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
            // An offset past 2^64 bytes is invalid; saturation keeps it beyond the end of every device.
            offset_bytes: (w1 & (u64::MAX >> 1)).saturating_mul(512),
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
    /// Type of the payload: 0 data, 1 reserved, 2 redacted.
    pub etype: u8,
    /// Physical (compressed) size in bytes. Up to 128 in an invalid pointer, although only 112 fit: see
    /// [`Embedded::bytes`].
    pub psize_bytes: usize,
    /// Logical size in bytes.
    pub lsize_bytes: usize,
    /// Payload; only the first `psize_bytes` are valid.
    pub payload: [u8; BlockPointer::EMBEDDED_BYTES],
}

impl Embedded {
    /// Payload type: plain data.
    pub const DATA: u8 = 0;
    /// Payload type: a marker that the data was redacted.
    pub const REDACTED: u8 = 2;

    /// The payload, still compressed; `None` if `psize_bytes` exceeds the payload area.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.payload.get(..self.psize_bytes)
    }
}

/// A block pointer, kept as its sixteen words: every word sequence decodes, and encoding returns the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockPointer {
    words: [u64; 16],
}

impl BlockPointer {
    /// Bytes on disk.
    pub const SIZE: usize = 128;
    /// Payload bytes of an embedded pointer.
    pub const EMBEDDED_BYTES: usize = 112;
    /// A hole: all words are 0.
    pub const HOLE: BlockPointer = BlockPointer { words: [0; 16] };

    /// Decodes 128 bytes.
    pub fn decode(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(BlockPointer { words: cursor.words()? })
    }

    /// The pointers in an indirect block, with their indexes, without the null ones. Most pointers of a small file's
    /// indirect block are null, and finding them so costs a tenth of decoding them.
    pub fn in_block(bytes: &[u8], endian: Endian) -> impl Iterator<Item = (usize, Self)> + '_ {
        let pointers = bytes.as_chunks::<{ Self::SIZE }>().0.iter().enumerate();
        pointers.filter(|(_, bytes)| **bytes != [0; Self::SIZE]).filter_map(move |(index, bytes)| {
            let pointer = Self::decode(&mut Cursor::new(bytes, endian, "indirect block")).ok()?;
            Some((index, pointer))
        })
    }

    /// A pointer made of words in host byte order.
    pub fn from_words(words: [u64; 16]) -> Self {
        BlockPointer { words }
    }

    /// The words in host byte order.
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

    /// Whether the block has an entry in the dedup table (D bit).
    pub fn is_dedup(&self) -> bool {
        self.prop(62, 1) == 1
    }

    /// Whether the X bit is set: the block is encrypted (level 0), authenticated, or an indirect block above such
    /// blocks.
    pub fn uses_crypt(&self) -> bool {
        self.prop(61, 1) == 1
    }

    /// Whether the contents are encrypted: X bit, level 0 and an encrypted object type.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// Whether the contents are authenticated but not encrypted: X bit, level 0 and an unencrypted object type.
    pub fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.object_type().is_encrypted()
    }

    /// Whether the second half of the checksum is a MAC over the MACs of the blocks below: X bit on an indirect
    /// block.
    pub fn has_indirect_mac(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    /// Level in the block tree; 0 is data.
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
        // The payload is a byte string stored in the writer's byte order; after the words are decoded in that order,
        // the payload is their little-endian bytes (BPE_GET_ETYPE, decode_embedded_bp).
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

    /// Whether there is no block: a hole, possibly with a birth txg.
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// Whether all words are 0.
    pub fn is_null(&self) -> bool {
        self.words == [0; 16]
    }

    /// The `index`th address (0–2), whether or not it is in use.
    pub fn dva(&self, index: usize) -> Dva {
        match self.words.get(..6).and_then(|w| w.chunks_exact(2).nth(index)) {
            Some([w0, w1]) => Dva::from_words(*w0, *w1),
            _ => Dva::default(),
        }
    }

    /// This pointer with the address of one of its copies alone. The checksum of a gang's header depends on the first address, so
    /// that of a gang stays as it is.
    pub fn with_copy(&self, index: usize) -> Self {
        if self.is_embedded() || self.is_gang() {
            return *self;
        }
        let dva = self.dva(index).to_words();
        let mut words = self.words;
        // The third address of an encrypted block is its salt and IV.
        let end = if self.is_encrypted() { 4 } else { 6 };
        words.iter_mut().take(end).zip(dva.iter().chain(&[0; 4])).for_each(|(word, new)| *word = *new);
        BlockPointer { words }
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

    /// Whether the first copy is a gang block.
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && self.dva(0).gang
    }

    /// The txg in which the contents were written.
    pub fn logical_birth(&self) -> Txg {
        Txg(self.words[10])
    }

    /// The txg in which the block was allocated: later than the logical birth for deduplicated, cloned and rewritten
    /// blocks and for copies made by device removal.
    pub fn physical_birth(&self) -> Txg {
        if self.is_embedded() || self.words[9] == 0 { self.logical_birth() } else { Txg(self.words[9]) }
    }

    /// Whether `zfs rewrite` wrote the block again with the logical birth of the block it replaced (R bit).
    pub fn is_rewritten(&self) -> bool {
        !self.is_embedded() && self.words[7] >> 63 != 0
    }

    /// The birth txg that snapshots and deadlists compare (`BP_GET_BIRTH`): the physical birth of a rewritten block,
    /// the logical birth of any other.
    pub fn birth(&self) -> Txg {
        if self.is_rewritten() { self.physical_birth() } else { self.logical_birth() }
    }

    /// Whether an entry of a bpobj or livelist records a free rather than an allocation.
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

    /// The bytes of a word that holds part of a byte string, in the writer's byte order.
    fn word_bytes(&self, index: usize) -> [u8; 8] {
        match self.endian() {
            Endian::Little => self.words[index].to_le_bytes(),
            Endian::Big => self.words[index].to_be_bytes(),
        }
    }

    /// Salt of an encrypted block, as input of the key derivation; zero for blocks that are only authenticated.
    pub fn crypt_salt(&self) -> [u8; 8] {
        if self.is_authenticated() { [0; 8] } else { self.word_bytes(4) }
    }

    /// Initialisation vector of an encrypted block; zero for blocks that are only authenticated.
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

impl BlockPointer {
    /// Formats the pointer in one line like zdb.
    pub fn display(&self) -> BlockPointerDisplay<'_> {
        BlockPointerDisplay(self)
    }

    fn crypt_name(&self) -> &'static str {
        match () {
            () if self.is_encrypted() => "encrypted",
            () if self.is_authenticated() => "authenticated",
            () if self.has_indirect_mac() => "indirect-MAC",
            () => "unencrypted",
        }
    }
}

/// Displays a block pointer in zdb's format; made by [`BlockPointer::display`].
#[derive(Clone, Copy, Debug)]
pub struct BlockPointerDisplay<'a>(&'a BlockPointer);

impl fmt::Display for BlockPointerDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bp = self.0;
        let level = bp.level();
        let kind = bp.object_type().name();
        let birth = bp.logical_birth();
        let compression = bp.compression().map_or("unknown", CompressionKind::name);
        if bp.is_hole() {
            return write!(f, "HOLE [L{level} {kind}] size={:x}L birth={birth}L", bp.lsize_bytes());
        }
        if let Some(e) = bp.embedded() {
            return write!(
                f,
                "EMBEDDED [L{level} {kind}] et={} {compression} size={:x}L/{:x}P birth={birth}L",
                e.etype, e.lsize_bytes, e.psize_bytes
            );
        }
        let copies = bp.dvas().count();
        for (i, d) in bp.dvas().enumerate() {
            write!(f, "DVA[{i}]=<{}:{:x}:{:x}> ", d.vdev, d.offset_bytes, d.asize_bytes)?;
        }
        let w = bp.words();
        if bp.is_encrypted() {
            write!(f, "salt={:x} iv={:x}:{:x} ", w[4], w[5], w[11] >> 32)?;
        }
        write!(
            f,
            "[L{level} {kind}] {} {compression} {} {} {} {} {} ",
            bp.checksum_kind().map_or("unknown", ChecksumKind::name),
            bp.crypt_name(),
            if bp.endian() == Endian::Little { "LE" } else { "BE" },
            if bp.is_gang() { "gang" } else { "contiguous" },
            if bp.is_dedup() { "dedup" } else { "unique" },
            ["zero", "single", "double", "triple"].get(copies).unwrap_or(&"triple"),
        )?;
        write!(
            f,
            "size={:x}L/{:x}P birth={birth}L/{}P fill={} cksum={:016x}:{:016x}:{:016x}:{:016x}",
            bp.lsize_bytes(),
            bp.psize_bytes(),
            bp.physical_birth(),
            bp.fill(),
            w[12],
            w[13],
            w[14],
            w[15]
        )
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The root pointer of a golden pool (mirror2-a12), built from zdb's output.
    fn golden() -> BlockPointer {
        let dva = |offset_bytes| Dva { vdev: 0, offset_bytes, asize_bytes: 0x1000, gang: false, grid: 0 }.to_words();
        let [a, b] = dva(0x116_8000);
        let [c, d] = dva(0x1b_1000);
        let [e, f] = dva(0x400_6000);
        let prop = 1 << 63 | 11 << 48 | 7 << 40 | 2 << 32 | 7 << 16 | 7;
        let sum = [0x3_7e7c_f1ce, 0xd69_5052_fac5, 0x19_c405_c5ff_0a03, 0x2109_0d00_3024_1e9e];
        BlockPointer::from_words([a, b, c, d, e, f, prop, 0, 0, 0, 56, 48, sum[0], sum[1], sum[2], sum[3]])
    }

    #[test]
    fn display_matches_zdb() {
        let expected = "DVA[0]=<0:1168000:1000> DVA[1]=<0:1b1000:1000> DVA[2]=<0:4006000:1000> [L0 DMU objset] \
                        fletcher4 uncompressed unencrypted LE contiguous unique triple size=1000L/1000P \
                        birth=56L/56P fill=48 \
                        cksum=000000037e7cf1ce:00000d695052fac5:0019c405c5ff0a03:21090d0030241e9e";
        assert_eq!(golden().display().to_string(), expected);
        assert_eq!((golden().lsize_bytes(), golden().asize_bytes()), (4096, 3 * 4096));
    }

    #[test]
    fn pointers_in_a_block_keep_their_indexes() {
        for endian in [Endian::Little, Endian::Big] {
            let mut block = vec![0; 8 * BlockPointer::SIZE + 5];
            for index in [1, 7] {
                block[index * BlockPointer::SIZE..][..BlockPointer::SIZE].copy_from_slice(&golden().encode(endian));
            }
            // A hole with a birth is not null.
            let mut hole = [0; 16];
            hole[10] = 9;
            let hole = BlockPointer::from_words(hole);
            block[3 * BlockPointer::SIZE..][..BlockPointer::SIZE].copy_from_slice(&hole.encode(endian));
            let found: Vec<(usize, BlockPointer)> = BlockPointer::in_block(&block, endian).collect();
            assert_eq!(found, [(1, golden()), (3, hole), (7, golden())]);
        }
    }

    #[test]
    fn embedded_payload_size_is_bounded() {
        let mut words = [0u64; 16];
        words[0] = u64::from_le_bytes(*b"12345678");
        words[6] = 1 << 39 | 15 << 32 | 2 << 25 | 99;
        words[10] = 5;
        let e = BlockPointer::from_words(words).embedded().unwrap();
        assert_eq!((e.bytes().unwrap(), e.lsize_bytes), (&b"123"[..], 100));
        words[6] |= 127 << 25;
        assert_eq!(BlockPointer::from_words(words).embedded().unwrap().bytes(), None);
    }

    #[test]
    fn birth_of_a_rewritten_block_is_its_physical_birth() {
        let mut words = *golden().words();
        words[9] = 80;
        assert_eq!(BlockPointer::from_words(words).birth(), Txg(56));
        words[7] = 1 << 63;
        let bp = BlockPointer::from_words(words);
        assert_eq!((bp.birth(), bp.logical_birth(), bp.physical_birth()), (Txg(80), Txg(56), Txg(80)));
    }

    #[test]
    fn crypt_fields_use_the_blocks_byte_order() {
        let mut words = *golden().words();
        words[6] = 1 << 63 | 1 << 61 | 19 << 48 | 7 << 40;
        words[4] = 0x0102_0304_0506_0708;
        words[11] = 0x0a0b_0c0d_0000_0001;
        let little = BlockPointer::from_words(words);
        words[6] &= !(1 << 63);
        let big = BlockPointer::from_words(words);
        assert_eq!(little.crypt_salt(), [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(big.crypt_salt(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(&big.crypt_iv()[8..], [10, 11, 12, 13]);
        assert_eq!((little.fill(), little.dvas().count()), (1, 2));
    }

    proptest! {
        #[test]
        fn words_and_dvas_round_trip(words in any::<[u64; 16]>()) {
            let bp = BlockPointer::from_words(words);
            for endian in [Endian::Little, Endian::Big] {
                let bytes = bp.encode(endian);
                prop_assert_eq!(BlockPointer::decode(&mut Cursor::new(&bytes, endian, "t")), Ok(bp));
            }
            let mask = [0x00ff_ffff_ffff_ffff, (1 << 63) | ((1 << 55) - 1)];
            let dva = Dva::from_words(words[0] & mask[0], words[1] & mask[1]);
            prop_assert_eq!(dva.to_words(), [words[0] & mask[0], words[1] & mask[1]]);
        }
    }
}
