//! Copies the blocks of one object into a file.

use super::dest::Destination;
use crate::failure::Failure;
use futures_util::future::join_all;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weir_dmu::{Object, ObjectSet};
use weir_machine::{Machine, Request};
use weir_pool::survivors::{BlockListing, Listed};

/// Maximum bytes that are read at the same time.
const AHEAD_BYTES: u64 = 16 << 20;
/// Maximum blocks that are read at the same time.
const AHEAD_BLOCKS: u64 = 32;
/// Maximum number of lost ranges of a file; further ones are one range with the bytes between them.
const MAX_RANGES: usize = 1 << 16;

/// An object whose first bytes are the contents of a file.
pub struct Source<'a> {
    /// The request on whose behalf it is read.
    pub rq: &'a Request,
    /// The machine.
    pub machine: &'a Machine,
    /// The object's set.
    pub set: &'a Arc<ObjectSet>,
    /// The object.
    pub object: Arc<Object>,
    /// Size of the file in bytes.
    pub size_bytes: u64,
}

/// Ranges of bytes in ascending order, adjacent ones joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(pub Vec<Range<u64>>);

impl Ranges {
    /// The first bytes of a file.
    pub fn first(bytes: u64) -> Self {
        let mut ranges = Ranges::default();
        ranges.add(0..bytes);
        ranges
    }

    /// Adds a range that begins at or after the last one.
    pub fn add(&mut self, range: Range<u64>) {
        let is_full = self.0.len() >= MAX_RANGES;
        match self.0.last_mut() {
            Some(last) if last.end >= range.start || is_full => last.end = last.end.max(range.end),
            _ if range.is_empty() => {}
            _ => self.0.push(range),
        }
    }

    /// Number of bytes in the ranges.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges as text: `0-4096 8192-12288`.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|range| format!("{}-{}", range.start, range.end)).collect::<Vec<_>>().join(" ")
    }

    /// Parses a text; `None` if it is none of ranges.
    pub fn parse(text: &str) -> Option<Self> {
        let mut ranges = Ranges::default();
        for word in text.split(' ') {
            let (start, end) = word.split_once('-')?;
            let range = start.parse().ok()?..end.parse().ok()?;
            if range.is_empty() || ranges.0.last().is_some_and(|last| last.end > range.start) {
                return None;
            }
            ranges.0.push(range);
        }
        Some(ranges)
    }
}

/// Copies a file's bytes in these ranges, as far as they can be read; returns those that cannot.
///
/// # Errors
/// Errors of writing.
pub async fn copy(source: &Source<'_>, wanted: &Ranges, out: &File, to: &mut Destination) -> Result<Ranges, Failure> {
    let block_bytes = source.object.block_bytes().max(512);
    let at_once = (AHEAD_BYTES / block_bytes).clamp(1, AHEAD_BLOCKS) as usize;
    let mut lost = Ranges::default();
    for range in &wanted.0 {
        let end = range.end.min(source.size_bytes);
        let last = end.div_ceil(block_bytes);
        let mut listing = BlockListing::from(range.start / block_bytes);
        let mut is_ended = false;
        while !is_ended {
            let mut batch = Vec::new();
            let mut hidden = None;
            while batch.len() < at_once && hidden.is_none() && !is_ended {
                match listing.next(source.rq, source.set, &source.object).await {
                    Listed::Block(block) if block < last => batch.push(block),
                    Listed::Lost(blocks, _) if blocks.start < last => hidden = Some(blocks),
                    _ => is_ended = true,
                }
            }
            let reads = batch.iter().map(|block| source.set.reader().read_block(source.rq, &source.object, *block));
            for (block, read) in batch.iter().zip(join_all(reads).await) {
                let start = block * block_bytes;
                match read {
                    Ok(Some(bytes)) => {
                        let len = bytes.len().min(usize::try_from(end - start).unwrap_or(usize::MAX));
                        let written = out.write_all_at(bytes.get(..len).unwrap_or_default(), start);
                        written.map_err(|error| {
                            Failure::failed(format!("cannot write: {error}\nto go on, run the command again"))
                        })?;
                        to.progress(len as u64, source.machine.clock.now());
                    }
                    Ok(None) => {}
                    Err(_) => lost.add(start..end.min(start + block_bytes)),
                }
            }
            if let Some(blocks) = hidden {
                let start = blocks.start.saturating_mul(block_bytes);
                lost.add(start..end.min(blocks.end.saturating_mul(block_bytes)));
            }
        }
    }
    debug_assert!(lost.0.windows(2).all(|pair| pair[0].end < pair[1].start), "ranges are apart");
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_one() {
        let mut ranges = Ranges::default();
        for range in [0..512, 512..1024, 4096..8192, 4096..4096] {
            ranges.add(range);
        }
        assert_eq!(ranges.to_text(), "0-1024 4096-8192");
        assert_eq!(ranges.bytes(), 1024 + 4096);
        assert_eq!(Ranges::parse("0-1024 4096-8192"), Some(ranges));
        for wrong in ["", "x", "5-5", "8-9 1-2", "9-1"] {
            assert_eq!(Ranges::parse(wrong), None, "{wrong}");
        }
    }
}
