//! `weir plan calibrate`: what work costs on the processors of this machine.
#![allow(clippy::disallowed_methods, reason = "measures real time, outside of any engine")]

use super::calibrate_engine::{self, EngineCosts};
use super::drive;
use crate::bench::read_result;
use crate::failure::Failure;
use clap::Parser;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_codec::checksum::fletcher::fletcher4;
use weir_codec::compress::ZstdLevel;
use weir_codec::parity;
use weir_format::{CompressionKind, Endian};

/// Bytes of a block.
const BLOCK_BYTES: usize = 128 << 10;
/// Blocks of the buffer: together larger than the caches of a processor's core.
const BLOCKS: usize = 256;
/// Data columns of a RAID-Z row.
const COLUMNS: usize = 8;
/// Duration of a round; of the rounds, the fastest counts, because other work on the machine only adds time.
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 5;
/// Cost of a network protocol for each request, in nanoseconds: assumed.
const PROTOCOL_NS: f64 = 20_000.0;
/// Copies of the data by a network protocol and the kernel: assumed.
const PROTOCOL_COPIES: f64 = 2.0;

/// Measure what work costs on this machine.
///
/// Prints the section [costs] of a description: one processor's nanoseconds for each KiB of checksum, LZ4, parity and copy, and for
/// requests, records and device operations, which are measured on a small pool in a temporary file. With --device, also the drive that a run of 'weir bench
/// device' measured.
#[derive(Debug, Parser)]
#[command(name = "calibrate", override_usage = "weir plan calibrate [--in-process] [--device RESULT]")]
pub struct CalibrateArgs {
    /// Leave out what a network protocol costs for each request: for loads of 'weir bench' on a dataset
    #[arg(long)]
    in_process: bool,
    /// Directory of a run of 'weir bench device', or its result.json
    #[arg(long, value_name = "RESULT")]
    device: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Result<u8, Failure> {
    let drive = args.device.as_deref().map(|path| {
        let result = read_result(path)?;
        Ok::<String, Failure>(drive::line(&drive::flash(&result)?, &result.target))
    });
    print!("{}", drive.transpose()?.unwrap_or_default());
    let (protocol_ns, copies) = if args.in_process { (0.0, 0.0) } else { (PROTOCOL_NS, PROTOCOL_COPIES) };
    print!("{}", section(&measure(ROUND)?, protocol_ns, copies));
    Ok(0)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("weir plan calibrate: {error}"))
}

/// Bytes that do not compress (xorshift64).
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Nanoseconds for each KiB of work on one block after the other; the fastest round.
fn per_kib(round: Duration, data: &[u8], mut work: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut best = f64::INFINITY;
    // The blocks in turn, so that each is read from memory and not from a cache of the processor.
    let mut blocks = data.chunks_exact(BLOCK_BYTES).cycle();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let mut kib = 0;
        while begun.elapsed() < round {
            for block in blocks.by_ref().take(16) {
                work(black_box(block))?;
                kib += BLOCK_BYTES / 1024;
            }
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / kib as f64);
    }
    Ok(best)
}

/// Measured costs, in nanoseconds of one processor.
struct Measured {
    checksum_per_kib: f64,
    compress_per_kib: f64,
    parity_per_kib: f64,
    copy_per_kib: f64,
    engine: EngineCosts,
}

fn measure(round: Duration) -> Result<Measured, Failure> {
    let data = noise(BLOCK_BYTES * BLOCKS);
    let checksum_per_kib = per_kib(round, &data, |block| {
        black_box(fletcher4(Endian::Little, block));
        Ok(())
    })?;
    let mut output = vec![0; BLOCK_BYTES];
    // A block that saves less than an eighth is stored uncompressed, so the output is that much smaller.
    let most = BLOCK_BYTES - BLOCK_BYTES / 8;
    let compress_per_kib = per_kib(round, &data, |block| {
        let level = ZstdLevel::DEFAULT;
        let done = weir_codec::compress(CompressionKind::Lz4, level, block, &mut output[..most]);
        black_box(done.map_err(failed)?);
        Ok(())
    })?;
    let mut column = vec![0; BLOCK_BYTES / COLUMNS];
    let parity_per_kib = per_kib(round, &data, |block| {
        let columns: Vec<&[u8]> = block.chunks_exact(BLOCK_BYTES / COLUMNS).collect();
        parity::generate(&columns, &mut [&mut column]).map_err(failed)?;
        black_box(&column);
        Ok(())
    })?;
    let copy_per_kib = per_kib(round, &data, |block| {
        output.copy_from_slice(block);
        black_box(&output);
        Ok(())
    })?;
    let engine = calibrate_engine::measure(round)?;
    Ok(Measured { checksum_per_kib, compress_per_kib, parity_per_kib, copy_per_kib, engine })
}

/// The section of a description. Each of `protocol_ns` and `copies` is of a network protocol: the assumed cost of a request, and the number
/// of copies in memory.
fn section(measured: &Measured, protocol_ns: f64, copies: f64) -> String {
    let Measured { checksum_per_kib: checksum, compress_per_kib, parity_per_kib, copy_per_kib, engine } = measured;
    // Checksums and copies have costs of their own.
    let copy = engine.cached_ns_per_kib + copies * copy_per_kib;
    let read_kib = (engine.read_ns_per_kib - checksum).max(0.0);
    let write_kib = (engine.write_ns_per_kib - engine.cached_ns_per_kib - checksum).max(0.0);
    format!(
        "[costs]\n\
         checksum_ns_per_kib = {checksum:.1}    # measured: fletcher4 of blocks of 128 KiB\n\
         compress_ns_per_kib = 0.0      # with compression = lz4: {compress_per_kib:.1} measured on data that does not compress\n\
         decompress_ns_per_kib = 0.0    # data that did not compress is stored as it is\n\
         parity_ns_per_kib = {parity_per_kib:.1}      # measured: one parity column of eight data columns\n\
         copy_ns_per_kib = {copy:.1}        # measured: a read from the ARC, and {copies:.0} copies in memory; TLS or signatures cost more\n\
         request_ns = {:.0}         # measured: {:.0} of a read from the ARC; assumed: {protocol_ns:.0} of a network protocol\n\
         task_ns = {:.0}            # measured: beyond that, a read from the ARC among 16\n\
         write_request_ns = {:.0}   # measured: beyond that, a write until its data are dirty\n\
         device_operation_ns = {:.0}  # measured: a random read from the device, beyond a record of a sequential one\n\
         read_record_ns = {:.0}     # measured: a record of a sequential read from the device, besides its bytes\n\
         read_ns_per_kib = {read_kib:.1}    # measured: a KiB of that, besides its checksum\n\
         written_record_ns = {:.0}  # measured: an overwritten record in the sync of its txg, besides its bytes\n\
         write_ns_per_kib = {write_kib:.1}   # measured: a KiB of that and of the write, besides its checksum\n",
        engine.request_ns + protocol_ns,
        engine.request_ns,
        engine.task_ns,
        engine.write_request_ns,
        engine.device_operation_ns,
        engine.read_record_ns,
        engine.written_record_ns,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_planner::hardware::processors::Costs;

    fn parsed(section: &str) -> Costs {
        let pool = "[pool]\ndrive = \"nvme\"\ndrive_tb = 1\nlayout = \"single\"\n";
        weir_planner::plan::description::Description::parse(&format!("{pool}{section}")).unwrap().costs
    }

    #[test]
    fn the_section_has_what_was_measured_and_charges_bytes_once() {
        let engine = EngineCosts {
            request_ns: 3000.0,
            cached_ns_per_kib: 5.0,
            task_ns: 7000.0,
            read_record_ns: 9000.0,
            read_ns_per_kib: 130.0,
            device_operation_ns: 20_000.0,
            write_request_ns: 4000.0,
            written_record_ns: 50_000.0,
            write_ns_per_kib: 250.0,
        };
        let measured = Measured {
            checksum_per_kib: 100.0,
            compress_per_kib: 900.0,
            parity_per_kib: 70.0,
            copy_per_kib: 50.0,
            engine,
        };
        let expected = Costs {
            checksum_ns_per_kib: 100.0,
            compress_ns_per_kib: 0.0,
            decompress_ns_per_kib: 0.0,
            parity_ns_per_kib: 70.0,
            copy_ns_per_kib: 105.0,
            request_ns: 3500.0,
            task_ns: 7000.0,
            write_request_ns: 4000.0,
            device_operation_ns: 20_000.0,
            read_record_ns: 9000.0,
            read_ns_per_kib: 30.0,
            written_record_ns: 50_000.0,
            write_ns_per_kib: 145.0,
        };
        assert_eq!(parsed(&section(&measured, 500.0, 2.0)), expected);
    }

    /// The process runs other tests meanwhile, which use its processor time: the figures themselves say nothing.
    #[test]
    fn every_measurement_ends_with_a_figure() {
        let measured = measure(Duration::from_millis(2)).unwrap();
        assert!(measured.checksum_per_kib > 0.0 && measured.parity_per_kib > 0.0 && measured.copy_per_kib > 0.0);
        assert!(measured.compress_per_kib > 0.0 && measured.engine.request_ns > 0.0);
        parsed(&section(&measured, 0.0, 0.0));
    }
}
