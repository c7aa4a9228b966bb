//! `weir plan calibrate`: what work costs on the processors of this machine.
#![allow(clippy::disallowed_methods, reason = "measures real time, outside of any engine")]

use super::{calibrate_engine, drive};
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

/// Measure what work costs on this machine.
///
/// Prints the section [costs] of a description: one processor's nanoseconds for each KiB of checksum, LZ4, parity and copy, and for a
/// request and a device operation, which are measured on a small pool in a temporary file. With --device, also the drive that a run of 'weir bench
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
    print!("{}", section(ROUND, args.in_process)?);
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

fn section(round: Duration, in_process: bool) -> Result<String, Failure> {
    let data = noise(BLOCK_BYTES * BLOCKS);
    let checksum = per_kib(round, &data, |block| {
        black_box(fletcher4(Endian::Little, block));
        Ok(())
    })?;
    let mut output = vec![0; BLOCK_BYTES];
    // A block that saves less than an eighth is stored uncompressed, so the output is that much smaller.
    let most = BLOCK_BYTES - BLOCK_BYTES / 8;
    let compress = per_kib(round, &data, |block| {
        let level = ZstdLevel::DEFAULT;
        let done = weir_codec::compress(CompressionKind::Lz4, level, block, &mut output[..most]);
        black_box(done.map_err(failed)?);
        Ok(())
    })?;
    let mut column = vec![0; BLOCK_BYTES / COLUMNS];
    let one_parity = per_kib(round, &data, |block| {
        let columns: Vec<&[u8]> = block.chunks_exact(BLOCK_BYTES / COLUMNS).collect();
        parity::generate(&columns, &mut [&mut column]).map_err(failed)?;
        black_box(&column);
        Ok(())
    })?;
    let one_copy = per_kib(round, &data, |block| {
        output.copy_from_slice(block);
        black_box(&output);
        Ok(())
    })?;
    let copies = one_copy * 2.0;
    let engine = calibrate_engine::measure(round)?;
    let protocol = if in_process { 0.0 } else { PROTOCOL_NS };
    // The checksum is charged by the KiB.
    let device_operation = (engine.device_operation_ns - checksum * 4.0).max(0.0);
    let written_record = (engine.written_record_ns - (checksum + copies) * 4.0).max(0.0);
    Ok(format!(
        "[costs]\n\
         checksum_ns_per_kib = {checksum:.1}    # measured: fletcher4 of blocks of 128 KiB\n\
         compress_ns_per_kib = 0.0      # with compression = lz4: {compress:.1} measured on data that does not compress\n\
         decompress_ns_per_kib = 0.0    # data that did not compress is stored as it is\n\
         parity_ns_per_kib = {one_parity:.1}      # measured: one parity column of eight data columns\n\
         copy_ns_per_kib = {copies:.1}        # measured: two copies in memory; TLS or signatures cost more\n\
         request_ns = {:.0}         # measured: {:.0} of a read from the ARC; assumed: {protocol:.0} of a network protocol\n\
         device_operation_ns = {device_operation:.0}  # measured: a read of a record of 4 KiB\n\
         written_record_ns = {written_record:.0}  # measured: overwritten records of 4 KiB and the sync of their txg\n",
        engine.request_ns + protocol,
        engine.request_ns
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_one_of_a_description() {
        let text = section(Duration::from_millis(2), true).unwrap();
        let pool = "[pool]\ndrive = \"nvme\"\ndrive_tb = 1\nlayout = \"single\"\n";
        let costs = weir_planner::plan::description::Description::parse(&format!("{pool}{text}")).unwrap().costs;
        assert!(
            costs.checksum_ns_per_kib > 0.0 && costs.parity_ns_per_kib > 0.0 && costs.copy_ns_per_kib > 0.0,
            "{text}"
        );
        assert!(costs.request_ns > 100.0 && costs.request_ns < 1e6, "{text}");
        assert!(costs.device_operation_ns > 0.0 && costs.device_operation_ns < 1e7, "{text}");
        assert!(costs.written_record_ns > 1000.0 && costs.written_record_ns < 1e7, "{text}");
    }
}
