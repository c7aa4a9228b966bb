//! A minimal reader of datasets on a single disk.

use std::collections::BTreeMap;
use std::path::Path;
use weir_codec::checksum::embedded::MAGIC;
use weir_codec::checksum::verify_block;
use weir_codec::crypt::{DatasetKey, verify_indirect};
use weir_codec::{Salt, decompress};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Dnode, Dva, Endian, ObjectType};

/// Byte offset on a device of the space that DVAs address.
const FRONT: u64 = 4 << 20;

/// The disk image of an unpacked golden pool.
pub struct Image {
    disk: Vec<u8>,
    salt: Salt,
}

/// Hexadecimal digits as bytes.
pub fn bytes<const N: usize>(digits: &str) -> [u8; N] {
    assert_eq!(digits.len(), 2 * N);
    std::array::from_fn(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
}

/// A pointer to an object set, parsed from zdb's output.
pub fn root_pointer(text: &str) -> BlockPointer {
    let hex = |s: &str| u64::from_str_radix(s, 16).unwrap();
    let after = |mark: &str| text.split_once(mark).unwrap().1.split([' ', '/', 'L', '>']).next().unwrap();
    let address: Vec<u64> = after("DVA[0]=<").split(':').map(hex).collect();
    let dva = Dva { vdev: 0, offset_bytes: address[1], asize_bytes: address[2], gang: false, grid: 0 };
    let kinds = (0..15).filter_map(ChecksumKind::from_u8);
    let checksum = kinds.into_iter().find(|k| text.contains(&format!("> {} ", k.name()))).unwrap();
    let compression = if text.contains(" lz4 ") { CompressionKind::Lz4 } else { CompressionKind::Off };
    let sizes: Vec<u64> = text
        .split_once("size=")
        .unwrap()
        .1
        .split(['L', 'P', '/', ' '])
        .take(3)
        .filter(|s| !s.is_empty())
        .map(hex)
        .collect();
    let mut words = [0; 16];
    [words[0], words[1]] = dva.to_words();
    words[6] = (sizes[0] / 512 - 1)
        | (sizes[1] / 512 - 1) << 16
        | u64::from(compression.to_u8()) << 32
        | (checksum as u64) << 40
        | u64::from(ObjectType::OBJSET.0) << 48
        | u64::from(text.contains(" authenticated ")) << 61
        | 1 << 63;
    words[10] = after("birth=").parse().unwrap();
    for (word, digits) in words[12..].iter_mut().zip(text.split_once("cksum=").unwrap().1.split(':')) {
        *word = hex(digits);
    }
    BlockPointer::from_words(words)
}

/// The concatenated bytes of members of a golden pool's archive; of all members if no names are given.
pub fn unpack(folder: &Path, name: &str, members: &[&str]) -> Vec<u8> {
    let archive = folder.join(format!("{name}.tar.zst"));
    let command = "archive=$0; zstd -dc \"$archive\" | tar -xO -f - \"$@\"";
    let output = std::process::Command::new("sh").args(["-c", command]).arg(archive).args(members).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

impl Image {
    /// Unpacks the disk image of a golden pool with one disk.
    pub fn unpack(folder: &Path, name: &str, salt: Salt) -> Self {
        Image { disk: unpack(folder, name, &[]), salt }
    }

    /// A block's logical bytes, verified.
    fn read(&self, pointer: &BlockPointer, key: Option<&DatasetKey>) -> Vec<u8> {
        let lsize = pointer.lsize_bytes() as usize;
        if let Some(embedded) = pointer.embedded() {
            let payload = &embedded.payload[..embedded.psize_bytes];
            return decompress(pointer.compression().unwrap(), payload, lsize).unwrap();
        }
        let at = (pointer.dva(0).offset_bytes + FRONT) as usize;
        let mut stored = self.disk[at..at + pointer.psize_bytes() as usize].to_vec();
        verify_block(pointer, &self.salt, &stored).unwrap();
        assert_eq!(pointer.uses_crypt(), key.is_some());
        if let Some(key) = key {
            if pointer.level() == 0 {
                let mut damaged = stored.clone();
                damaged[11] ^= 0x40;
                assert!(key.open_block(pointer, &mut damaged).is_err(), "{pointer:?}");
            }
            key.open_block(pointer, &mut stored).unwrap_or_else(|e| panic!("{pointer:?}: {e}"));
        }
        let mut logical = decompress(pointer.compression().unwrap(), &stored, lsize).unwrap();
        verify_indirect(pointer, &logical).unwrap();
        if pointer.has_indirect_mac() {
            logical[112] ^= 1;
            assert!(verify_indirect(pointer, &logical).is_err());
            logical[112] ^= 1;
        }
        logical
    }

    /// The logical bytes of an object, up to its last block.
    fn contents(&self, dnode: &Dnode, key: Option<&DatasetKey>) -> Vec<u8> {
        let block_bytes = dnode.data_block_bytes as usize;
        let mut out = vec![0; (dnode.max_block_id as usize + 1) * block_bytes];
        let fan_out = 1usize << (dnode.indirect_shift - 7);
        // Number of data blocks fan_out a top-level pointer.
        let span = fan_out.pow(u32::from(dnode.levels) - 1);
        for (i, pointer) in dnode.block_pointers.iter().enumerate() {
            self.subtree(pointer, key, i * span, fan_out, block_bytes, &mut out);
        }
        out
    }

    fn subtree(
        &self,
        pointer: &BlockPointer,
        key: Option<&DatasetKey>,
        first: usize,
        fan_out: usize,
        block_bytes: usize,
        out: &mut [u8],
    ) {
        if pointer.is_hole() {
            return;
        }
        let block = self.read(pointer, key);
        if pointer.level() == 0 {
            out[first * block_bytes..][..block_bytes].copy_from_slice(&block);
            return;
        }
        let span = fan_out.pow(u32::from(pointer.level()) - 1);
        for (i, child) in block.as_chunks::<128>().0.iter().enumerate() {
            let words = std::array::from_fn(|w| u64::from_le_bytes(std::array::from_fn(|b| child[8 * w + b])));
            self.subtree(&BlockPointer::from_words(words), key, first + i * span, fan_out, block_bytes, out);
        }
    }

    /// Visits every object of the object set at `root` with its contents; also reads the accounting objects and spill
    /// blocks.
    pub fn objects(&self, root: &BlockPointer, key: Option<&DatasetKey>, mut visit: impl FnMut(u64, &[u8])) {
        let set = self.read(root, key);
        let meta = Dnode::decode(&set, Endian::Little).unwrap().unwrap();
        for at in [1024, 1536, 2048] {
            if let Some(accounting) = Dnode::decode(&set[at..], Endian::Little).unwrap() {
                self.contents(&accounting, key);
            }
        }
        let dnodes = self.contents(&meta, key);
        let mut slot = 0;
        while slot < dnodes.len() / Dnode::SLOT {
            let found = Dnode::decode(&dnodes[slot * Dnode::SLOT..], Endian::Little).unwrap();
            if let Some(dnode) = &found {
                if let Some(spill) = &dnode.spill {
                    self.read(spill, key);
                }
                visit(slot as u64, &self.contents(dnode, key));
            }
            slot += found.map_or(1, |d| d.slots());
        }
    }

    /// Decrypts every encrypted log block that another log block points to, even if no longer part of a chain.
    /// Returns the number of blocks, and the number of records by type.
    pub fn log_blocks(&self, key: &DatasetKey) -> (usize, BTreeMap<u64, usize>) {
        let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut blocks = 0;
        let mut records = BTreeMap::new();
        let chain_headers = self.disk.chunks(4096).filter(|c| c.len() == 4096 && word(c, 144) == MAGIC);
        for header in chain_headers {
            let pointer = BlockPointer::from_words(std::array::from_fn(|i| word(header, 8 + 8 * i)));
            let at = (pointer.dva(0).offset_bytes + FRONT) as usize;
            let Some(stored) = self.disk.get(at..at + pointer.psize_bytes() as usize) else { continue };
            if !pointer.is_encrypted() || verify_block(&pointer, &self.salt, stored).is_err() {
                continue;
            }
            let mut block = stored.to_vec();
            key.open_block(&pointer, &mut block).unwrap();
            assert_eq!(block[..184], stored[..184]);
            let used = word(&block, 136) as usize;
            let mut at = 184;
            while at < used {
                *records.entry(word(&block, at) & !(1 << 63)).or_default() += 1;
                if word(&block, at) == 9 {
                    // A write record's offset and length were encrypted.
                    assert!(word(&block, at + 40) < 1 << 32 && word(&block, at + 48) <= 16 << 20);
                }
                at += word(&block, at + 8) as usize;
            }
            blocks += 1;
        }
        (blocks, records)
    }
}
