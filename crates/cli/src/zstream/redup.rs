//! `zstream redup`: a deduplicated stream (`zfs send -D` of OpenZFS before 2.0) as one that `zfs receive` takes.
//!
//! WRITE_BYREF says that a block equals that of an earlier WRITE. It becomes a WRITE with the bytes of that block, which are
//! read from the file again, so the stream must be a file. The place of each WRITE is kept in memory, some 50 bytes each.
//! BEGIN loses its flags for deduplication, and all checksums are computed again. Bytes stay in the order of the sender.
//!
//! Source: OpenZFS `cmd/zstream/zstream_redup.c`.

use super::Records;
use super::writer::Writer;
use crate::failure::Failure;
use clap::Parser;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Seek, SeekFrom, Write};
use weir_format::Endian;
use weir_format::stream::{Begin, MAX_PAYLOAD, RECORD_BYTES, Record, StreamItem, WriteRecord, feature};

/// Write a deduplicated send stream to standard output as one without deduplication.
#[derive(Debug, Parser)]
#[command(name = "zstream redup", override_usage = "zstream redup [-v] FILE")]
pub(super) struct RedupArgs {
    /// Print on standard error how many records were converted
    #[arg(short)]
    verbose: bool,
    /// Send stream: a file, because blocks are read from it again
    #[arg(value_name = "FILE")]
    file: OsString,
}

/// Place of a block: GUID of the snapshot, object, offset in bytes.
type Place = (u64, u64, u64);

/// Runs the command.
pub(super) fn run(args: &RedupArgs) -> Result<u8, Failure> {
    let name = args.file.to_string_lossy();
    let failed = |why: String| Failure::failed(format!("{name}: {why}"));
    if std::io::stdout().is_terminal() {
        return Err(Failure::failed("the stream is not written to a terminal: redirect standard output"));
    }
    let open = || std::fs::File::open(&args.file).map_err(|error| failed(error.to_string()));
    let mut output = BufWriter::new(std::io::stdout().lock());
    let counts = redup(BufReader::new(open()?), &mut open()?, &mut output).map_err(failed)?;
    if args.verbose {
        let Counts { records, converted } = counts;
        eprintln!("Converted stream with {records} total records, including {converted} dedup records.");
    }
    Ok(0)
}

/// Numbers of records.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    /// All of them.
    records: u64,
    /// WRITE_BYREF records.
    converted: u64,
}

/// Converts the stream `input`. `earlier` reads the same stream at any place.
///
/// # Errors
/// What is wrong with the stream, or why it cannot be read or written.
fn redup(input: impl Read, earlier: &mut (impl Read + Seek), output: &mut impl Write) -> Result<Counts, String> {
    let mut records = Records::new(input);
    let mut places: BTreeMap<Place, u64> = BTreeMap::new();
    let mut writer = Writer::new(output, records.endian()?);
    let mut counts = Counts { records: 0, converted: 0 };
    while let Some(item) = records.next_whole()? {
        counts.records += 1;
        let StreamItem { offset, record, payload, stored, .. } = item;
        let has_checksum = stored != [0; 4];
        match record {
            Record::Begin(begin) => {
                let kept = begin.features & !(feature::DEDUP | feature::DEDUP_PROPS);
                writer.write(Record::Begin(Begin { features: kept, ..begin }), payload, has_checksum)?;
            }
            Record::WriteByRef { object, offset: at, to_guid, ref_guid, ref_object, ref_offset, .. } => {
                let place = (ref_guid, ref_object.0, ref_offset);
                let found = places.get(&place).ok_or_else(|| {
                    format!("the record at {offset:#x} refers to a block that is not in the stream before it")
                })?;
                let (write, block) = read_write(earlier, *found, writer.endian())?;
                let write = WriteRecord { object, offset: at, to_guid, ..write };
                writer.write(Record::Write(write), &block, has_checksum)?;
                counts.converted += 1;
            }
            Record::Write(write) => {
                places.insert((write.to_guid, write.object.0, write.offset), offset);
                writer.write(Record::Write(write), payload, has_checksum)?;
            }
            other => writer.write(other, payload, has_checksum)?,
        }
    }
    writer.flush()?;
    debug_assert!(counts.converted <= counts.records, "each record is converted once");
    Ok(counts)
}

/// Reads the WRITE record at an offset, which was read before, with its block.
fn read_write(stream: &mut (impl Read + Seek), offset: u64, endian: Endian) -> Result<(WriteRecord, Vec<u8>), String> {
    let failed = |error: std::io::Error| error.to_string();
    stream.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut header = [0; RECORD_BYTES];
    stream.read_exact(&mut header).map_err(failed)?;
    let (record, _) = Record::decode(&header, endian).map_err(|error| error.to_string())?;
    let bytes = record.payload_len().map_err(|error| error.to_string())?;
    let Record::Write(write) = record else { return Err(format!("the file changed at {offset:#x}")) };
    if bytes as u64 > MAX_PAYLOAD {
        return Err(format!("the record at {offset:#x} is longer than a block"));
    }
    let mut block = vec![0; bytes];
    stream.read_exact(&mut block).map_err(failed)?;
    Ok((write, block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use weir_format::ObjectId;
    use weir_format::stream::StreamReader;
    use weir_send::RunningFletcher4;

    const BLOCK: u64 = 4096;

    fn begin(features: u64) -> Record {
        Record::Begin(Begin {
            header_type: 1,
            features,
            creation_time_s: 5,
            objset_type: 2,
            flags: 4,
            to_guid: 7,
            from_guid: 0,
            to_name: b"tank@a".to_vec(),
            payload_len: 0,
        })
    }

    fn write(object: u64, offset: u64) -> Record {
        let object = ObjectId(object);
        Record::Write(WriteRecord { object, offset, logical_bytes: BLOCK, to_guid: 7, ..WriteRecord::default() })
    }

    fn by_ref(object: u64, offset: u64, ref_offset: u64) -> Record {
        Record::WriteByRef {
            object: ObjectId(object),
            offset,
            length: BLOCK,
            to_guid: 7,
            ref_guid: 7,
            ref_object: ObjectId(1),
            ref_offset,
            checksum_type: 8,
            flags: 0,
            key: Default::default(),
        }
    }

    fn stream(endian: Endian, records: Vec<(Record, Vec<u8>)>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, endian);
        for (record, payload) in records {
            writer.write(record, &payload, true).unwrap();
        }
        out
    }

    fn end() -> (Record, Vec<u8>) {
        (Record::End { checksum: [0; 4], to_guid: 7 }, Vec::new())
    }

    #[test]
    fn references_become_blocks_and_checksums_hold() {
        let block = |fill: u8| vec![fill; BLOCK as usize];
        for endian in [Endian::Little, Endian::Big] {
            let source = stream(
                endian,
                vec![
                    (begin(feature::DEDUP | feature::DEDUP_PROPS | feature::EMBED_DATA), Vec::new()),
                    (write(1, 0), block(1)),
                    (write(1, BLOCK), block(2)),
                    (by_ref(9, 3 * BLOCK, BLOCK), Vec::new()),
                    end(),
                ],
            );
            let mut out = Vec::new();
            let counts = redup(&source[..], &mut Cursor::new(&source), &mut out).unwrap();
            assert_eq!(counts, Counts { records: 5, converted: 1 });
            let items: Vec<_> =
                StreamReader::new(&out, RunningFletcher4::default()).unwrap().collect::<Result<_, _>>().unwrap();
            assert!(items.iter().all(StreamItem::checksum_holds), "{endian:?}");
            let Record::Begin(begin) = &items[0].record else { panic!("{:?}", items[0].record) };
            assert_eq!(begin.features, feature::EMBED_DATA);
            assert_eq!((&items[3].record, items[3].payload), (&write(9, 3 * BLOCK), &block(2)[..]));
        }
    }

    #[test]
    fn a_reference_to_a_block_that_was_not_sent_is_an_error() {
        let records = vec![(begin(feature::DEDUP), Vec::new()), (by_ref(9, 0, BLOCK), Vec::new()), end()];
        let source = stream(Endian::Little, records);
        let why = redup(&source[..], &mut Cursor::new(&source), &mut Vec::new()).unwrap_err();
        assert!(why.contains("not in the stream"), "{why}");
    }

    #[test]
    fn a_damaged_stream_is_an_error() {
        let mut source = stream(Endian::Little, vec![(begin(feature::DEDUP), Vec::new()), end()]);
        source[RECORD_BYTES + 20] ^= 1;
        let why = redup(&source[..], &mut Cursor::new(&source), &mut Vec::new()).unwrap_err();
        assert!(why.contains("checksum"), "{why}");
    }
}
