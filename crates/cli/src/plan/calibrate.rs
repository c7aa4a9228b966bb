//! `weir plan calibrate`: what work costs on the processors of this machine.
#![allow(clippy::disallowed_methods, reason = "measures real time, outside of any engine")]

use crate::failure::Failure;
use clap::Parser;
use std::hint::black_box;
use std::time::{Duration, Instant};
use weir_codec::checksum::fletcher::fletcher4;
use weir_codec::compress::ZstdLevel;
use weir_codec::parity;
use weir_format::{CompressionKind, Endian};
use weir_planner::hardware::processors::Costs;

/// Bytes of a block.
const BLOCK_BYTES: usize = 128 << 10;
/// Blocks of the buffer: together larger than the caches of a processor's core.
const BLOCKS: usize = 256;
/// Data columns of a RAID-Z row.
const COLUMNS: usize = 8;
/// Duration of a round; of the rounds, the fastest counts, because other work on the machine only adds time.
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 5;

/// Measure what work costs on this machine.
///
/// Prints the section [costs] of a description: one processor's nanoseconds for each KiB of checksum, LZ4, parity and copy. The costs
/// of a request and of a device operation are the planner's defaults.
#[derive(Debug, Parser)]
#[command(name = "calibrate", override_usage = "weir plan calibrate")]
pub struct CalibrateArgs {}

/// Runs the command.
pub fn run(_: &CalibrateArgs) -> Result<u8, Failure> {
    print!("{}", section(ROUND)?);
    Ok(0)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("weir plan calibrate: {error}"))
}

/// Bytes that do not compress (xorshift64).
fn noise(bytes: usize) -> Vec<u8> {
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

fn section(round: Duration) -> Result<String, Failure> {
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
    let copy = per_kib(round, &data, |block| {
        output.copy_from_slice(block);
        black_box(&output);
        Ok(())
    })?;
    let Costs { request_ns, device_operation_ns, .. } = Costs::default();
    Ok(format!(
        "[costs]\n\
         checksum_ns_per_kib = {checksum:.1}    # measured: fletcher4 of blocks of 128 KiB\n\
         compress_ns_per_kib = 0.0      # with compression = lz4: {compress:.1} measured on data that does not compress\n\
         decompress_ns_per_kib = 0.0    # data that did not compress is stored as it is\n\
         parity_ns_per_kib = {one_parity:.1}      # measured: one parity column of eight data columns\n\
         copy_ns_per_kib = {:.1}        # measured: two copies in memory; TLS or signatures cost more\n\
         request_ns = {request_ns:.1}          # assumed\n\
         device_operation_ns = {device_operation_ns:.1}  # assumed\n",
        copy * 2.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_one_of_a_description() {
        let text = section(Duration::from_millis(2)).unwrap();
        let pool = "[pool]\ndrive = \"nvme\"\ndrive_tb = 1\nlayout = \"single\"\n";
        let costs = weir_planner::plan::description::Description::parse(&format!("{pool}{text}")).unwrap().costs;
        assert!(
            costs.checksum_ns_per_kib > 0.0 && costs.parity_ns_per_kib > 0.0 && costs.copy_ns_per_kib > 0.0,
            "{text}"
        );
        assert_eq!(costs.request_ns, Costs::default().request_ns);
    }
}
