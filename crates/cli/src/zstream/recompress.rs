//! `zstream recompress`: changes the compression of a send stream's blocks, or removes it.
//!
//! Each WRITE record's block is decompressed and compressed again. A block that does not become smaller is sent uncompressed.
//! Encrypted blocks stay as they are: their contents are unknown without the key. BEGIN says what the receiver must support.
//!
//! Source: OpenZFS `cmd/zstream/zstream_recompress.c`.

use super::Records;
use super::writer::Writer;
use crate::args::CommandLine;
use crate::failure::Failure;
use clap::Parser;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use weir_codec::compress::ZstdLevel;
use weir_dsl::props::{Shape, ZfsProp, native};
use weir_format::CompressionKind;
use weir_format::stream::{Begin, MAX_PAYLOAD, Record, StreamItem, WriteRecord, feature};

/// Sizes of compressed blocks are multiples of a sector, in bytes.
const SECTOR_BYTES: usize = 512;
/// Bits of the value of the property `compression` that are the number of the compression; a level is above them.
const KIND_BITS: u32 = 7;

/// Change the compression of the blocks of a send stream.
///
/// Reads the stream from standard input and writes it to standard output.
#[derive(Debug, Parser)]
#[command(name = "zstream recompress", override_usage = "zstream recompress [-l LEVEL] COMPRESSION")]
pub(super) struct RecompressArgs {
    /// Level of zstd
    #[arg(short, value_name = "LEVEL")]
    level: Option<u8>,
    /// A value of the property compression: off, lz4, gzip-1 …
    #[arg(value_name = "COMPRESSION")]
    compression: String,
}

/// The compression that blocks get. Only zstd uses the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    kind: CompressionKind,
    level: ZstdLevel,
}

impl RecompressArgs {
    fn target(&self) -> Result<Target, Failure> {
        let Shape::Index(names) = native(ZfsProp::Compression).shape else {
            return Err(Failure::failed("the property compression has no list of values"));
        };
        let word = names.iter().find(|(name, _)| *name == self.compression).map(|(_, word)| *word);
        let unknown = || Self::misused(&format!("there is no compression '{}'", self.compression));
        let word = word.ok_or_else(unknown)?;
        let kind = CompressionKind::from_u8((word & ((1 << KIND_BITS) - 1)) as u8).ok_or_else(unknown)?;
        let kind = if kind == CompressionKind::On { CompressionKind::Lz4 } else { kind };
        let of_name = u8::try_from(word >> KIND_BITS).ok().filter(|level| *level != 0);
        let level = match self.level.or(of_name) {
            Some(number) => ZstdLevel::from_u8(number)
                .ok_or_else(|| Self::misused(&format!("there is no zstd level {number}: the levels are 1 to 19")))?,
            None => ZstdLevel::DEFAULT,
        };
        Ok(Target { kind, level })
    }
}

/// Runs the command.
pub(super) fn run(args: &RecompressArgs) -> Result<u8, Failure> {
    let target = args.target()?;
    if std::io::stdout().is_terminal() {
        return Err(Failure::failed("the stream is not written to a terminal: redirect standard output"));
    }
    let mut output = BufWriter::new(std::io::stdout().lock());
    let done = recompress(BufReader::new(std::io::stdin().lock()), &mut output, target);
    done.map_err(|why| Failure::failed(format!("standard input: {why}")))?;
    Ok(0)
}

/// Converts the stream `input`.
///
/// # Errors
/// What is wrong with the stream, or why it cannot be read or written.
fn recompress(input: impl Read, output: &mut impl Write, target: Target) -> Result<(), String> {
    let mut records = Records::new(input);
    let mut writer = Writer::new(output, records.endian()?);
    while let Some(item) = records.next_whole()? {
        let StreamItem { offset, record, payload, stored, .. } = item;
        // Old senders give records no checksums of their own.
        let has_checksum = stored != [0; 4];
        match record {
            Record::Begin(begin) => {
                let features = target.features(begin.features);
                writer.write(Record::Begin(Begin { features, ..begin }), payload, has_checksum)?;
            }
            Record::Write(write) if write.mac == [0; 16] => {
                let (write, block) =
                    target.convert(write, payload).map_err(|why| format!("the record at {offset:#x}: {why}"))?;
                writer.write(Record::Write(write), &block, has_checksum)?;
            }
            other => writer.write(other, payload, has_checksum)?,
        }
    }
    writer.flush()
}

impl Target {
    /// Features that the receiver must support. Blocks in records of other kinds may be compressed, so that no feature but COMPRESSED is
    /// taken away.
    fn features(self, before: u64) -> u64 {
        match self.kind {
            CompressionKind::Off if before & feature::RAW == 0 => before & !feature::COMPRESSED,
            CompressionKind::Off => before,
            CompressionKind::Lz4 => before | feature::COMPRESSED | feature::LZ4,
            CompressionKind::Zstd => before | feature::COMPRESSED | feature::ZSTD,
            _ => before | feature::COMPRESSED,
        }
    }

    /// The record of a block and the block, compressed.
    fn convert(self, write: WriteRecord, payload: &[u8]) -> Result<(WriteRecord, Vec<u8>), String> {
        let too_long = || format!("a block of {} bytes is longer than any", write.logical_bytes);
        let bytes = usize::try_from(write.logical_bytes).ok().filter(|bytes| *bytes as u64 <= MAX_PAYLOAD);
        let bytes = bytes.ok_or_else(too_long)?;
        let block = match write.compression {
            0 => payload.to_vec(),
            number => {
                let kind = CompressionKind::from_u8(number).ok_or_else(|| format!("unknown compression {number}"))?;
                weir_codec::decompress(kind, payload, bytes).map_err(|error| error.to_string())?
            }
        };
        debug_assert_eq!(block.len(), bytes, "an uncompressed block is as long as the record says");
        let plain = WriteRecord { compression: 0, compressed_bytes: 0, ..write };
        if self.kind == CompressionKind::Off {
            return Ok((plain, block));
        }
        let mut smaller = vec![0; bytes.saturating_sub(SECTOR_BYTES)];
        let fits = weir_codec::compress(self.kind, self.level, &block, &mut smaller);
        let Some(size) = fits.map_err(|error| error.to_string())? else { return Ok((plain, block)) };
        let size_on_disk = size.next_multiple_of(SECTOR_BYTES);
        smaller.truncate(size);
        smaller.resize(size_on_disk, 0);
        if size_on_disk >= bytes {
            return Ok((plain, block));
        }
        let compression = self.kind.to_u8();
        Ok((WriteRecord { compression, compressed_bytes: size_on_disk as u64, ..plain }, smaller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::stream::StreamReader;
    use weir_format::{Endian, ObjectId};
    use weir_send::RunningFletcher4;

    const BLOCK: usize = 4096;

    fn target(name: &str, level: Option<u8>) -> Result<Target, String> {
        RecompressArgs { level, compression: name.into() }.target().map_err(|failure| failure.line)
    }

    /// A stream of a block that can be compressed and of one that cannot.
    fn stream(endian: Endian, mac: [u8; 16]) -> Vec<u8> {
        let mut noise = 1u64;
        let mut random = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 33) as u8
        };
        // zle compresses zeros alone.
        let mostly_zeros = [vec![7; 9], vec![0; BLOCK - 9]].concat();
        let blocks = [mostly_zeros, (0..BLOCK).map(|_| random()).collect()];
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, endian);
        let begin = Begin {
            header_type: 1,
            features: feature::LARGE_BLOCKS,
            creation_time_s: 5,
            objset_type: 2,
            flags: 4,
            to_guid: 7,
            from_guid: 0,
            to_name: b"tank@a".to_vec(),
            payload_len: 0,
        };
        writer.write(Record::Begin(begin), &[], true).unwrap();
        for (n, block) in blocks.iter().enumerate() {
            let offset = (n * BLOCK) as u64;
            let logical_bytes = BLOCK as u64;
            let record =
                WriteRecord { object: ObjectId(9), offset, logical_bytes, mac, to_guid: 7, ..WriteRecord::default() };
            writer.write(Record::Write(record), block, true).unwrap();
        }
        writer.write(Record::End { checksum: [0; 4], to_guid: 7 }, &[], true).unwrap();
        out
    }

    fn converted(source: &[u8], target: Target) -> Vec<u8> {
        let mut out = Vec::new();
        recompress(source, &mut out, target).unwrap();
        let items = StreamReader::new(&out, RunningFletcher4::default()).unwrap();
        assert!(items.map(Result::unwrap).all(|item| item.checksum_holds()));
        out
    }

    #[test]
    fn blocks_are_compressed_in_another_way_and_come_back() {
        for endian in [Endian::Little, Endian::Big] {
            let source = stream(endian, [0; 16]);
            let mut last = source.clone();
            for (name, features) in [
                ("lz4", feature::LZ4 | feature::COMPRESSED),
                ("gzip-1", feature::COMPRESSED),
                ("zstd-19", feature::ZSTD | feature::COMPRESSED),
                ("zle", feature::COMPRESSED),
            ] {
                last = converted(&last, target(name, None).unwrap());
                let mut items = StreamReader::new(&last, RunningFletcher4::default()).unwrap().map(Result::unwrap);
                let Record::Begin(begin) = items.next().unwrap().record else { panic!("no BEGIN") };
                assert_eq!(begin.features & features, features, "{name}");
                let Record::Write(first) = items.next().unwrap().record else { panic!("no WRITE") };
                let Record::Write(second) = items.next().unwrap().record else { panic!("no WRITE") };
                assert_eq!((first.compressed_bytes, second.compressed_bytes), (512, 0), "{name}");
                assert_eq!(first.compression, target(name, None).unwrap().kind.to_u8());
            }
            let plain = converted(&last, target("off", None).unwrap());
            assert_eq!(plain.len(), source.len());
            let payloads = |bytes: &[u8]| {
                let items = StreamReader::new(bytes, RunningFletcher4::default()).unwrap();
                items.map(|item| item.unwrap().payload.to_vec()).collect::<Vec<_>>()
            };
            assert_eq!(payloads(&plain), payloads(&source), "{endian:?}");
        }
    }

    #[test]
    fn encrypted_blocks_stay_as_they_are() {
        let source = stream(Endian::Little, [1; 16]);
        let out = converted(&source, target("gzip", None).unwrap());
        assert_eq!(out.len(), source.len());
    }

    #[test]
    fn compressions_are_those_of_the_property_with_zstds_level() {
        assert_eq!(target("on", None).unwrap().kind, CompressionKind::Lz4);
        assert_eq!(target("zstd", Some(7)).unwrap(), target("zstd-7", None).unwrap());
        assert!(target("zstd", Some(77)).unwrap_err().contains("zstd level 77"));
        assert!(target("rar", None).unwrap_err().contains("no compression 'rar'"));
    }

    #[test]
    fn a_damaged_block_is_an_error_that_names_the_record() {
        let source = stream(Endian::Little, [0; 16]);
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, Endian::Little);
        for item in StreamReader::new(&source, RunningFletcher4::default()).unwrap().map(Result::unwrap) {
            let record = match item.record {
                Record::Write(write) => {
                    Record::Write(WriteRecord { compression: 15, compressed_bytes: BLOCK as u64, ..write })
                }
                other => other,
            };
            writer.write(record, item.payload, true).unwrap();
        }
        let why = recompress(&out[..], &mut Vec::new(), target("off", None).unwrap()).unwrap_err();
        assert!(why.starts_with("the record at 0x138: "), "{why}");
    }
}
