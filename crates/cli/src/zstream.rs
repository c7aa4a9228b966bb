//! `weir zstream`: `dump` shows the records of a send stream of any length, `redup` removes its deduplication, `recompress` changes the
//! compression of its blocks, `token` shows the contents of a resume token. One record is in memory at a time.

mod recompress;
mod redup;
mod text;
mod writer;

pub use text::token_text;

use crate::args::CommandLine;
use crate::failure::Failure;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::Read;
use weir_dsl::ResumeState;
use weir_format::Endian;
use weir_format::stream::{MAX_PAYLOAD, RECORD_BYTES, Record, StreamDecoder, StreamItem};
use weir_send::RunningFletcher4;

/// Examine and convert send streams.
#[derive(Debug, Parser)]
#[command(name = "zstream", override_usage = "zstream COMMAND [OPTION]… [FILE]")]
pub struct ZstreamArgs {
    #[command(subcommand)]
    command: ZstreamCommand,
}

#[derive(Debug, Subcommand)]
enum ZstreamCommand {
    Dump(DumpArgs),
    Recompress(recompress::RecompressArgs),
    Redup(redup::RedupArgs),
    Token(TokenArgs),
}

/// Show what a token of an interrupted receive says.
#[derive(Debug, Parser)]
#[command(name = "zstream token", override_usage = "zstream token RESUME_TOKEN")]
struct TokenArgs {
    /// Token: the property receive_resume_token of a dataset
    #[arg(value_name = "RESUME_TOKEN")]
    token: Option<String>,
}

/// Show the records of a send stream.
#[derive(Debug, Parser)]
#[command(name = "zstream dump", override_usage = "zstream dump [-Cdv] [FILE]")]
struct DumpArgs {
    /// Do not verify the checksums of the records
    #[arg(short = 'C')]
    ignore_checksums: bool,
    /// Show each record
    #[arg(short)]
    verbose: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'd')]
    _data: bool,
    /// Send stream; default: standard input
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
}

/// The kinds of records in the order in which OpenZFS sums them up; the others follow where there are any.
const SUMMARY: [usize; 9] = [0, 5, 1, 2, 3, 6, 8, 4, 7];
/// Bytes of a record's header.
const HEADER_BYTES: u64 = 312;

/// Memory that is kept for the next record: enough for all but BEGIN.
const KEPT_BYTES: usize = RECORD_BYTES + MAX_PAYLOAD as usize;

/// The records of a stream as they come.
struct Records<R> {
    input: R,
    /// The present one.
    bytes: Vec<u8>,
    decoder: StreamDecoder<RunningFletcher4>,
    begun: bool,
}

impl<R: Read> Records<R> {
    fn new(input: R) -> Self {
        Records { input, bytes: Vec::new(), decoder: StreamDecoder::new(RunningFletcher4::default()), begun: false }
    }

    /// Reads until this number of bytes of the record is there, or the input ends. A claimed length alone allocates no
    /// memory.
    fn fill(&mut self, bytes: usize) -> Result<(), String> {
        let missing = bytes.saturating_sub(self.bytes.len()) as u64;
        let read = self.input.by_ref().take(missing).read_to_end(&mut self.bytes);
        read.map(drop).map_err(|e| e.to_string())
    }

    /// The byte order of the stream, before its first record is taken.
    fn endian(&mut self) -> Result<Endian, String> {
        debug_assert!(!self.begun, "the first record is BEGIN, which says the byte order");
        self.fill(RECORD_BYTES)?;
        Record::endian_of_begin(&self.bytes).map_err(|e| e.to_string())
    }

    /// The next record; `None` at the end.
    fn next(&mut self) -> Result<Option<StreamItem<'_>>, String> {
        // The first record may have been read for the byte order.
        if self.begun {
            self.bytes.clear();
        }
        self.fill(RECORD_BYTES)?;
        if self.bytes.is_empty() && self.begun {
            return Ok(None);
        }
        self.begun = true;
        let bytes = self.decoder.record_bytes(&self.bytes).map_err(|e| e.to_string())?;
        // A list that came with BEGIN may have been a long one.
        self.bytes.shrink_to(bytes.max(KEPT_BYTES));
        self.fill(bytes)?;
        self.decoder.take(&self.bytes).map(Some).map_err(|e| e.to_string())
    }

    /// The next record, if its checksum is right.
    fn next_whole(&mut self) -> Result<Option<StreamItem<'_>>, String> {
        match self.next()? {
            Some(item) if !item.checksum_holds() => Err(wrong_checksum(&item)),
            item => Ok(item),
        }
    }
}

fn wrong_checksum(item: &StreamItem<'_>) -> String {
    format!("wrong checksum in the record at {:#x}", item.offset)
}

/// Runs the command.
pub fn run(args: &ZstreamArgs) -> Result<u8, Failure> {
    let args = match &args.command {
        ZstreamCommand::Dump(args) => args,
        ZstreamCommand::Recompress(args) => return recompress::run(args),
        ZstreamCommand::Redup(args) => return redup::run(args),
        ZstreamCommand::Token(args) => return token(args),
    };
    let name = args.files.first().map_or("standard input".into(), |file| file.to_string_lossy());
    let failed = |e: &dyn std::fmt::Display| Failure::failed(format!("{name}: {e}"));
    let input: Box<dyn Read> = match args.files.first() {
        Some(path) => Box::new(std::fs::File::open(path).map_err(|e| failed(&e))?),
        None => Box::new(std::io::stdin().lock()),
    };
    let mut records = Records::new(input);
    let mut counts = [(0u64, 0u64); Record::NAMES.len()];
    let mut payload = 0;
    loop {
        let item = match records.next() {
            Ok(Some(item)) => item,
            Ok(None) => break,
            // What a stream that was cut off has is shown, too.
            Err(error) => {
                summarize(&counts, payload);
                return Err(failed(&error));
            }
        };
        if !args.ignore_checksums && !item.checksum_holds() {
            return Err(failed(&wrong_checksum(&item)));
        }
        if let Some((count, bytes)) = counts.get_mut(item.record.kind() as usize) {
            *count += 1;
            *bytes += item.payload.len() as u64;
        }
        payload += item.payload.len() as u64;
        match &item.record {
            Record::Begin(begin) => println!("{}", text::begin_text(begin, item.payload)),
            end @ Record::End { .. } => println!("{}", text::record_text(end, 0)),
            other if args.verbose => println!("{}", text::record_text(other, item.payload.len())),
            _ => {}
        }
    }
    summarize(&counts, payload);
    Ok(0)
}

/// Runs `zstream token`. The lines are those of the list in the token, as OpenZFS prints it.
fn token(args: &TokenArgs) -> Result<u8, Failure> {
    let token = args.token.as_deref().ok_or_else(|| TokenArgs::misused("missing resume token"))?;
    let state = ResumeState::from_token(token).map_err(|why| Failure::failed(format!("zstream token: {why}")))?;
    print!("{}", text::token_text(&state));
    Ok(0)
}

/// Says how many records of each kind there were, and how long.
fn summarize(counts: &[(u64, u64)], payload: u64) {
    println!("SUMMARY:");
    for kind in SUMMARY {
        let (Some(name), Some((count, bytes))) = (Record::NAMES.get(kind), counts.get(kind)) else { continue };
        println!("\tTotal DRR_{name} records = {count} ({bytes} bytes)");
    }
    for kind in (0..Record::NAMES.len()).filter(|k| !SUMMARY.contains(k)) {
        let (Some(name), Some((count, bytes))) = (Record::NAMES.get(kind), counts.get(kind)) else { continue };
        if *count > 0 {
            println!("\tTotal DRR_{name} records = {count} ({bytes} bytes)");
        }
    }
    let total: u64 = counts.iter().map(|c| c.0).sum();
    let overhead = total * HEADER_BYTES;
    println!("\tTotal records = {total}");
    println!("\tTotal payload size = {payload} ({payload:#x})");
    println!("\tTotal header overhead = {overhead} ({overhead:#x})");
    println!("\tTotal stream length = {} ({:#x})", payload + overhead, payload + overhead);
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::stream::{Begin, WriteRecord};

    /// Gives a stream's bytes bit by bit.
    struct Trickle<I>(I, Vec<u8>);

    impl<I: Iterator<Item = Vec<u8>>> Read for Trickle<I> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if self.1.is_empty() {
                self.1 = self.0.next().unwrap_or_default();
            }
            let count = into.len().min(self.1.len()).min(70_001);
            into[..count].copy_from_slice(&self.1.drain(..count).collect::<Vec<_>>());
            Ok(count)
        }
    }

    fn begin(payload_len: u32) -> Vec<u8> {
        let begin = Begin {
            header_type: 1,
            features: 0,
            creation_time_s: 5,
            objset_type: 2,
            flags: 4,
            to_guid: 7,
            from_guid: 0,
            to_name: b"tank@a".to_vec(),
            payload_len,
        };
        Record::Begin(begin).encode(Endian::Little, [0; 4])
    }

    #[test]
    fn a_long_stream_takes_the_memory_of_its_longest_record() {
        let write = |_| {
            let record = Record::Write(WriteRecord { logical_bytes: 128 << 10, ..WriteRecord::default() });
            [record.encode(Endian::Little, [0; 4]), vec![7; 128 << 10]].concat()
        };
        let mut records = Records::new(Trickle(std::iter::once(begin(0)).chain((0..300).map(write)), Vec::new()));
        let mut count = 0;
        let mut most = 0;
        while let Some(item) = records.next().unwrap() {
            assert!(count == 0 || item.payload == vec![7; 128 << 10]);
            count += 1;
            most = most.max(records.bytes.capacity());
        }
        assert_eq!(count, 301);
        assert!(most <= 1 << 20, "{most}");
    }

    #[test]
    fn what_is_missing_is_said_and_takes_no_memory() {
        let cut = |bytes: Vec<u8>| Records::new(std::io::Cursor::new(bytes)).next().map(drop).unwrap_err();
        assert!(cut(begin(0)[..200].to_vec()).contains("send stream"));
        let mut records = Records::new(std::io::Cursor::new(begin(200 << 20)));
        assert!(records.next().is_err());
        assert!(records.bytes.capacity() < 1 << 20);
        assert!(cut(Vec::new()).contains("send stream"), "nothing is no stream");
    }
}
