//! Benchmark of each kernel on one core, over blocks of 128 KiB: `cargo run --release -p weir-codec --example
//! kernels`.
//!
//! Each figure is the best of several rounds, each of ten milliseconds, in 10⁶ bytes of block per second. The second
//! column is the median, which shows how much other load disturbed the measurement. An argument selects the kernels
//! whose name contains it; `-H` prints tabs and no header, like `zpool -H`.

// This tool is not part of the engine: it reads the real clock.
#![allow(clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::{Duration, Instant};
use weir_codec::compress::ZstdLevel;
use weir_codec::crypt::{BlockCrypt, DatasetKey, Suite, WrappedKey, WrappingKey};
use weir_codec::{Salt, checksum, compress, decompress_into, parity};
use weir_format::{ChecksumKind, CompressionKind, Endian, ObjectType};

const BLOCK: usize = 128 << 10;
const ROUNDS: usize = 21;
const ROUND: Duration = Duration::from_millis(10);

struct Table {
    filter: String,
    bare: bool,
}

impl Table {
    /// Measures `work`, which processes `bytes` bytes, and prints its row.
    fn row(&self, name: &str, bytes: usize, mut work: impl FnMut()) {
        if !name.contains(&self.filter) {
            return;
        }
        let mut once = || {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        let warm = (0..3).map(|_| once()).min().unwrap_or_default().max(Duration::from_nanos(50));
        let repeats = (ROUND.as_nanos() / warm.as_nanos()).clamp(1, 1_000_000) as u32;
        let mut rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                (0..repeats).for_each(|_| work());
                bytes as f64 * f64::from(repeats) / start.elapsed().as_secs_f64() / 1e6
            })
            .collect();
        rounds.sort_by(|a, b| b.total_cmp(a));
        let best = rounds[0];
        let median = rounds[ROUNDS / 2];
        if self.bare {
            println!("{name}\t{best:.0}\t{median:.0}");
        } else {
            println!("{name:<44} {best:>9.0} {median:>9.0}");
        }
    }
}

/// Bytes that compress like program text: words of a small vocabulary and some numbers.
fn text() -> Vec<u8> {
    const WORDS: [&str; 24] = [
        "static ",
        "int ",
        "return ",
        "if (",
        "else ",
        "struct ",
        "uint64_t ",
        "size",
        "offset",
        "error",
        "= ",
        "0;\n",
        "\t",
        "(void) ",
        "for (",
        "zio",
        "->",
        "NULL",
        ") {\n",
        "}\n",
        "/* ",
        " */\n",
        "const char *",
        "flags",
    ];
    let mut state = 1u64;
    let mut out = Vec::with_capacity(BLOCK + 32);
    while out.len() < BLOCK {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (state >> 33) as usize;
        if pick.is_multiple_of(7) {
            out.extend(format!("{:x}", pick & 0xffff).bytes());
        } else {
            out.extend(WORDS[pick % WORDS.len()].bytes());
        }
    }
    out.truncate(BLOCK);
    out
}

fn checksums(table: &Table, block: &[u8]) {
    let salt = Salt::new([9; 32]);
    for (kind, endian, name) in [
        (ChecksumKind::Fletcher2, Endian::Little, "fletcher2"),
        (ChecksumKind::Fletcher2, Endian::Big, "fletcher2 byteswapped"),
        (ChecksumKind::Fletcher4, Endian::Little, "fletcher4"),
        (ChecksumKind::Fletcher4, Endian::Big, "fletcher4 byteswapped"),
        (ChecksumKind::Sha256, Endian::Little, "sha256"),
        (ChecksumKind::Sha512, Endian::Little, "sha512"),
        (ChecksumKind::Skein, Endian::Little, "skein"),
        (ChecksumKind::Edonr, Endian::Little, "edonr"),
        (ChecksumKind::Blake3, Endian::Little, "blake3"),
    ] {
        table.row(name, BLOCK, || {
            let _ = black_box(checksum(kind, endian, &salt, black_box(block)));
        });
    }
}

fn compression(table: &Table, block: &[u8]) {
    let fast = ZstdLevel::from_u8(103).unwrap_or(ZstdLevel::DEFAULT);
    for (kind, level, name) in [
        (CompressionKind::Lz4, ZstdLevel::DEFAULT, "lz4"),
        (CompressionKind::Lzjb, ZstdLevel::DEFAULT, "lzjb"),
        (CompressionKind::Zle, ZstdLevel::DEFAULT, "zle"),
        (CompressionKind::Gzip(1), ZstdLevel::DEFAULT, "gzip-1"),
        (CompressionKind::Gzip(6), ZstdLevel::DEFAULT, "gzip-6"),
        (CompressionKind::Zstd, ZstdLevel::DEFAULT, "zstd-3"),
        (CompressionKind::Zstd, fast, "zstd-fast-1"),
    ] {
        let mut output = vec![0; 2 * BLOCK];
        let Ok(Some(bytes)) = compress(kind, level, block, &mut output) else { continue };
        let stored = output[..bytes].to_vec();
        let ratio = BLOCK as f64 / bytes as f64;
        table.row(&format!("{name} compress (x{ratio:.2})"), BLOCK, || {
            let _ = black_box(compress(kind, level, black_box(block), &mut output));
        });
        let mut out = vec![0; BLOCK];
        table.row(&format!("{name} decompress"), BLOCK, || {
            let _ = black_box(decompress_into(kind, black_box(&stored), &mut out));
        });
    }
}

fn encryption(table: &Table, block: &[u8]) {
    let Ok(wrapping) = WrappingKey::from_raw(&[1; 32]) else { return };
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Aes128Ccm, Suite::Aes256Ccm] {
        let wrapped = WrappedKey::seal(&wrapping, suite, 1, [0; 12], &[2; 32], &[3; 64]);
        let Ok(key) = wrapped.and_then(|w| DatasetKey::unwrap(&wrapping, &w)) else { continue };
        let crypt = BlockCrypt {
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            endian: Endian::Little,
            salt: [4; 8],
            iv: [5; 12],
        };
        let mut stored = block.to_vec();
        let Ok(mac) = key.encrypt(&crypt, &mut stored) else { continue };
        let mut data = stored.clone();
        table.row(&format!("{} decrypt (with a copy)", suite.name()), BLOCK, || {
            data.copy_from_slice(&stored);
            let _ = black_box(key.decrypt(&crypt, &mac, &mut data));
        });
    }
}

/// Parity of eight data columns of 128 KiB each, and of 16 KiB each (a 128 KiB record). The throughput includes data
/// and parity bytes.
fn raidz(table: &Table) {
    const COLUMNS: usize = 8;
    for size in [BLOCK, BLOCK / COLUMNS] {
        let data: Vec<Vec<u8>> = (0..COLUMNS).map(|c| (0..size).map(|i| (i * 7 + c * 31) as u8).collect()).collect();
        let columns: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
        let mut parities = vec![vec![0; size]; 3];
        for count in 1..=3 {
            let mut rows: Vec<&mut [u8]> = parities[..count].iter_mut().map(|p| &mut p[..]).collect();
            table.row(&format!("raidz{count} generate 8+{count} x {}K", size >> 10), size * (COLUMNS + count), || {
                let _ = black_box(parity::generate(black_box(&columns), &mut rows));
            });
        }
        let known: Vec<Option<&[u8]>> = parities.iter().map(|p| Some(&p[..])).collect();
        for count in 1..=3 {
            let mut have: Vec<Option<&[u8]>> = columns.iter().copied().map(Some).collect();
            (0..count).for_each(|i| have[2 * i] = None);
            let mut rebuilt = vec![vec![0; size]; count];
            let mut rows: Vec<&mut [u8]> = rebuilt.iter_mut().map(|p| &mut p[..]).collect();
            table.row(
                &format!("raidz{count} rebuild {count} of 8+{count} x {}K", size >> 10),
                size * (COLUMNS + count),
                || {
                    let _ = black_box(parity::reconstruct(black_box(&have), &known[..count], &mut rows));
                },
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bare = arguments.iter().any(|a| a == "-H");
    let filter = arguments.into_iter().find(|a| a != "-H").unwrap_or_default();
    let table = Table { filter, bare };
    if !bare {
        println!("{:<44} {:>9} {:>9}", "KERNEL (one core, 128 KiB blocks)", "MB/S", "MEDIAN");
    }
    let block = text();
    checksums(&table, &block);
    compression(&table, &block);
    encryption(&table, &block);
    raidz(&table);
}
