//! `zdb -R POOL VDEV:OFFSET:SIZE[/PSIZE][:FLAGS]`: bytes at an address, without a block pointer.
//!
//! ```text
//!   VDEV      number of a top-level vdev, or of a device below it (0.1)
//!   OFFSET    in the space of the vdev, hexadecimal, a multiple of 512
//!   SIZE      bytes, hexadecimal: logical, then physical; one number is the physical size
//!   FLAGS     d  decompress          r  raw bytes to standard output     c  also show the checksums
//!             b[OFFSET]  the block pointer at OFFSET of the block        i  all block pointers
//! ```
//!
//! Nothing says how the bytes are compressed, so every method is tried; if only one size is given, with each logical size
//! up to [`MAX_GUESSED_BYTES`]. What is read is not verified.
//!
//! Source: OpenZFS `cmd/zdb/zdb.c` (`zdb_read_block`, `zdb_decompress_block`, `zdb_dump_block`).

use super::ZdbArgs;
use super::text;
use crate::args::CommandLine;
use crate::failure::Failure;
use std::fmt::Write as _;
use std::io::Write as _;
use weir_codec::checksum::{Salt, checksum};
use weir_codec::compress::decompress;
use weir_format::label::FRONT_BYTES;
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Endian};
use weir_machine::{Machine, Request};
use weir_pool::Pool;

/// Multiple of which offsets and sizes are.
const SECTOR_BYTES: u64 = 512;
/// Largest size that is read or decompressed: that of a block.
const MAX_BYTES: u64 = 16 << 20;
/// Largest logical size that is tried if none is given.
const MAX_GUESSED_BYTES: u64 = 1 << 20;
/// Methods in the order in which they are tried: those that recognize what is not theirs come first.
const METHODS: [CompressionKind; 5] = [
    CompressionKind::Lz4,
    CompressionKind::Zstd,
    CompressionKind::Gzip(6),
    CompressionKind::Lzjb,
    CompressionKind::Zle,
];
/// Checksums that need no salt of the pool.
const CHECKSUMS: [ChecksumKind; 4] =
    [ChecksumKind::Fletcher2, ChecksumKind::Fletcher4, ChecksumKind::Sha256, ChecksumKind::Sha512];

/// An address, and what the user asks for.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// The number of the top-level vdev, then those of the children down to the device, if any.
    vdev: Vec<usize>,
    offset: u64,
    logical_bytes: u64,
    physical_bytes: u64,
    /// Whether both sizes are given.
    is_size_known: bool,
    decompress: bool,
    raw: bool,
    checksums: bool,
    /// Offset of a block pointer in the block.
    pointer: Option<usize>,
    indirect: bool,
}

/// Runs the option.
///
/// # Errors
/// If the address is malformed, there is no such vdev, or the bytes cannot be read or decompressed.
pub fn run(machine: &Machine, pool: &Pool, args: &ZdbArgs) -> Result<u8, Failure> {
    let [_, word] = args.words.as_slice() else {
        return Err(ZdbArgs::misused("-R takes POOL VDEV:OFFSET:SIZE[/PSIZE][:FLAGS]"));
    };
    let word = word.to_string_lossy();
    let address = parse(&word).map_err(|why| Failure::failed(format!("Invalid block specifier: {word}  - {why}")))?;
    let stored = machine.block_on(read(pool, &address)).map_err(|why| Failure::failed(format!("{word}: {why}")))?;
    let block = match address.decompress {
        true => match inflated(&address, &stored) {
            Some(block) => block,
            None if address.is_size_known => {
                return Err(Failure::failed(format!("Decompress of {word} failed: no method gives its logical size")));
            }
            None => {
                eprintln!("{word}: no method decompresses it: shown as it is stored");
                stored.clone()
            }
        },
        false => stored.get(..stored.len().min(address.logical_bytes as usize)).unwrap_or_default().to_vec(),
    };
    if address.raw {
        let written = std::io::stdout().write_all(&block);
        return written.map(|()| 0).map_err(|e| Failure::failed(format!("cannot write to standard output: {e}")));
    }
    if let Some(at) = address.pointer {
        let Some(bytes) = block.get(at..).and_then(|rest| rest.get(..BlockPointer::SIZE)) else {
            return Err(Failure::failed(format!("{word}: the block ends before a block pointer at {at:#x}")));
        };
        let pointer = pointers(bytes).next().map_or(BlockPointer::HOLE, |(_, pointer)| pointer);
        println!("{}", text::block_pointer(&pointer));
    } else if address.indirect {
        let count = address.logical_bytes as usize / BlockPointer::SIZE;
        for (index, pointer) in pointers(&block).filter(|(index, _)| *index < count) {
            println!("{:>16x} {}", index * BlockPointer::SIZE, text::block_pointer(&pointer));
        }
    } else {
        print!("{}", dump(&word, &block));
    }
    if address.checksums {
        for kind in CHECKSUMS {
            let sum = checksum(kind, Endian::Little, &Salt::none(), &stored);
            if let Ok([a, b, c, d]) = sum {
                println!("{:>12}\tcksum={a:016x}:{b:016x}:{c:016x}:{d:016x}", kind.name());
            }
        }
    }
    Ok(0)
}

/// The block pointers in a block, with their indexes.
fn pointers(block: &[u8]) -> impl Iterator<Item = (usize, BlockPointer)> + '_ {
    BlockPointer::in_block(block, Endian::Little)
}

/// Reads the physical bytes.
async fn read(pool: &Pool, address: &Address) -> Result<Vec<u8>, String> {
    let (top, below) = address.vdev.split_first().ok_or("no vdev is named")?;
    let no_vdev =
        || format!("there is no vdev {}", address.vdev.iter().map(usize::to_string).collect::<Vec<_>>().join("."));
    let mut vdev = pool.tree.children.iter().find(|vdev| vdev.id == *top as u64).ok_or_else(no_vdev)?;
    if below.is_empty() {
        let top = u32::try_from(*top).map_err(|_| no_vdev())?;
        let read = pool.blocks.read_raw(&Request::internal("zdb"), top, address.offset, address.physical_bytes).await;
        return read.map(|bytes| bytes.to_vec()).map_err(|error| error.to_string());
    }
    for child in below {
        vdev = vdev.children.get(*child).ok_or_else(no_vdev)?;
    }
    let leaf = pool.blocks.tree().leaf(vdev.guid).map_err(|_| format!("{} is no device", vdev.name()))?;
    let disk = leaf.disk().ok_or_else(|| format!("{} is missing", vdev.name()))?;
    let at = address.offset.checked_add(FRONT_BYTES).ok_or("the offset is too large")?;
    let read = disk.read(at, address.physical_bytes as usize).await;
    read.map(|bytes| bytes.as_ref().to_vec()).map_err(|error| error.to_string())
}

/// The bytes decompressed by the first method that succeeds, at the smallest logical size at which it does. Equal sizes are
/// those of a block that is not compressed.
fn inflated(address: &Address, stored: &[u8]) -> Option<Vec<u8>> {
    let (first, last) = match address.is_size_known {
        true if address.logical_bytes == address.physical_bytes => return Some(stored.to_vec()),
        true => (address.logical_bytes, address.logical_bytes),
        false => (address.physical_bytes + SECTOR_BYTES, MAX_GUESSED_BYTES.max(address.physical_bytes)),
    };
    debug_assert!(last <= MAX_BYTES, "no block is longer");
    // ZLE makes something of any bytes.
    let methods = METHODS.iter().filter(|kind| address.is_size_known || **kind != CompressionKind::Zle);
    let at = |kind: CompressionKind| {
        let mut sizes = (first..=last).step_by(SECTOR_BYTES as usize);
        sizes.find_map(|bytes| decompress(kind, stored, bytes as usize).ok())
    };
    methods.copied().find_map(at)
}

/// The bytes in hexadecimal, sixteen a line, with the characters that can be printed.
fn dump(title: &str, block: &[u8]) -> String {
    let mut out = format!("\n{title}\n{:6}    0 1 2 3 4 5 6 7   8 9 a b c d e f  0123456789abcdef\n", "");
    for (line, bytes) in block.chunks(16).enumerate() {
        let mut halves = bytes.chunks(8).map(|half| {
            half.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        });
        let left = halves.next().unwrap_or_default();
        let right = halves.next().unwrap_or_default();
        let shown: String =
            bytes.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' }).collect();
        let _ = writeln!(out, "{:06x}:  {left:16}  {right:16}  {shown}", line * 16);
    }
    out
}

/// Parses an address.
fn parse(word: &str) -> Result<Address, String> {
    let mut fields = word.splitn(4, ':');
    let (vdev, offset, sizes) = match (fields.next(), fields.next(), fields.next()) {
        (Some(vdev), Some(offset), Some(sizes)) => (vdev, offset, sizes),
        _ => return Err("VDEV:OFFSET:SIZE is needed".to_owned()),
    };
    let vdev: Result<Vec<usize>, _> = vdev.split('.').map(str::parse).collect();
    let vdev = vdev.map_err(|_| "invalid vdev".to_owned())?;
    let offset = u64::from_str_radix(offset, 16).map_err(|_| "invalid offset".to_owned())?;
    let (logical_bytes, physical_bytes) = match sizes.split_once('/') {
        Some((logical, physical)) => (size(logical, 'L')?, size(physical, 'P')?),
        None => {
            let bytes = size(sizes, 'P').or_else(|_| size(sizes, 'L'))?;
            (bytes, bytes)
        }
    };
    if offset % SECTOR_BYTES != 0 {
        return Err("offset must be a multiple of sector size".to_owned());
    }
    let mut address = Address {
        vdev,
        offset,
        logical_bytes,
        physical_bytes,
        is_size_known: sizes.contains('/'),
        decompress: false,
        raw: false,
        checksums: false,
        pointer: None,
        indirect: false,
    };
    let flags = fields.next().unwrap_or_default();
    let mut at = flags.chars().peekable();
    while let Some(flag) = at.next() {
        match flag {
            'd' => address.decompress = true,
            'r' => address.raw = true,
            'c' => address.checksums = true,
            'i' => address.indirect = true,
            'b' => {
                // Letters of flags end the offset, as in OpenZFS.
                let mut digits = String::new();
                while let Some(digit) = at.next_if(|c| c.is_ascii_hexdigit() && !matches!(c, 'b' | 'c' | 'd' | 'e')) {
                    digits.push(digit);
                }
                let offset = if digits.is_empty() { Ok(0) } else { usize::from_str_radix(&digits, 16) };
                let offset = offset.ok().filter(|offset| offset % BlockPointer::SIZE == 0);
                address.pointer = Some(offset.ok_or("a block pointer's offset is a multiple of 80, hexadecimal")?);
            }
            ':' => {}
            other => return Err(format!("invalid flag '{other}': d, r, c, i and b are known")),
        }
    }
    Ok(address)
}

/// Parses a size: hexadecimal, with the letter of its kind or without.
fn size(text: &str, letter: char) -> Result<u64, String> {
    let digits = text.strip_suffix(letter).unwrap_or(text);
    let bytes = u64::from_str_radix(digits, 16).map_err(|_| "invalid size(s)".to_owned())?;
    match bytes {
        1..=MAX_BYTES if bytes % SECTOR_BYTES == 0 => Ok(bytes),
        1..=MAX_BYTES => Err("size must be a multiple of sector size".to_owned()),
        _ => Err("invalid size(s): from 200 to 1000000, hexadecimal".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_codec::compress::{ZstdLevel, compress};

    #[test]
    fn addresses_have_sizes_and_flags() {
        let address = parse("0.1:1000:2000L/600P:db80").unwrap();
        assert_eq!((address.vdev.as_slice(), address.offset), (&[0, 1][..], 0x1000));
        assert_eq!((address.logical_bytes, address.physical_bytes), (0x2000, 0x600));
        assert!(address.decompress && address.pointer == Some(0x80) && !address.raw);
        assert_eq!(parse("0:0:200:b80d").unwrap().pointer, Some(0x80));
        assert!(parse("1:400:200:ci").unwrap().checksums);
        for wrong in
            ["", "0", "0:0", "x:0:200", "0:1:200", "0:0:201", "0:0:0", "0:0:2000000", "0:0:200:b1", "0:0:200:z"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_block_of_unknown_compression_and_size_is_decompressed() {
        let block: Vec<u8> = b"_match__pattern_".iter().copied().cycle().take(8 << 10).collect();
        for kind in [CompressionKind::Lz4, CompressionKind::Lzjb, CompressionKind::Gzip(6)] {
            let mut stored = vec![0; block.len()];
            let bytes = compress(kind, ZstdLevel::DEFAULT, &block, &mut stored).unwrap().unwrap();
            stored.truncate(bytes.next_multiple_of(512));
            let sizes = format!("0:0:2000L/{:x}P:d", stored.len());
            assert_eq!(inflated(&parse(&sizes).unwrap(), &stored).unwrap(), block, "{kind:?}");
        }
        assert!(dump("0:0:200", &block).contains("  _match__pattern_\n"));
        let noise: Vec<u8> = (0..512u32).map(|n| ((n * n) >> 3) as u8 | 0x80).collect();
        assert_eq!(inflated(&parse("0:0:1000L/200P:d").unwrap(), &noise), None);
    }
}
