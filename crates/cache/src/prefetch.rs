//! Predictive prefetch: detects sequential and strided streams of reads in one object. Pure: no I/O, no clock, no
//! lock.
//!
//! Each object has up to eight *streams*. A read continues a stream if it starts near the stream's end (clients
//! reorder requests). Then the stream prefetches ahead: the distance doubles with every use, from a few reads' length
//! to [`MAX_AHEAD_BYTES`], so that a short file costs little and a long one keeps every disk busy. A new stream
//! prefetches nothing before its second read. Reads at a constant distance from each other form a *strided* stream,
//! which prefetches the next few steps.
//!
//! A random reader creates streams that are not continued; they prefetch nothing and are replaced first. Source:
//! OpenZFS `module/zfs/dmu_zfetch.c`.

use std::ops::Range;

/// Maximum distance of a stream's first prefetch, in bytes.
pub const MIN_AHEAD_BYTES: u64 = 2 << 20;
/// Distance of a stream's first prefetch, in lengths of its read: small for small reads, since they may
/// continue a stream by chance.
const MIN_AHEAD_READS: u64 = 4;
/// Maximum distance of prefetch ahead of the reader, in bytes.
pub const MAX_AHEAD_BYTES: u64 = 16 << 20;
/// Maximum number of streams of one object.
const STREAMS: usize = 8;
/// A read continues a stream if it starts at most this many of its lengths before or after the stream's end, because
/// requests may be reordered. [`SLACK_BYTES`] bounds the distance. A larger factor would make a random reader
/// continue its own old streams by chance.
const SLACK_READS: u64 = 8;
/// Minimum and maximum of the slack, in bytes.
const SLACK_BYTES: [u64; 2] = [64 << 10, 1 << 20];
/// Number of steps that a strided stream prefetches.
const STRIDE_STEPS: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// End of the furthest read.
    next: u64,
    /// End of the range that has been prefetched.
    ahead: u64,
    distance_bytes: u64,
    used: u64,
}

/// The streams of one object.
#[derive(Clone, Debug, Default)]
pub struct Prefetcher {
    streams: Vec<Stream>,
    uses: u64,
    last: Option<(u64, u64)>,
    step: Option<u64>,
    strided_to: u64,
}

impl Prefetcher {
    /// Records a read of `len` bytes at `offset` in an object of `size_bytes`. Returns the ranges to prefetch now,
    /// inside the object and in the order of their expected use.
    pub fn observe(&mut self, offset: u64, len: u64, size_bytes: u64) -> Vec<Range<u64>> {
        let end = offset.saturating_add(len).min(size_bytes);
        if len == 0 || offset >= size_bytes {
            return Vec::new();
        }
        self.uses += 1;
        let slack = len.saturating_mul(SLACK_READS).clamp(SLACK_BYTES[0], SLACK_BYTES[1]);
        let continued = self
            .streams
            .iter_mut()
            .find(|s| offset <= s.next.saturating_add(slack) && s.next <= offset.saturating_add(slack));
        if let Some(stream) = continued {
            stream.used = self.uses;
            if end <= stream.next {
                return Vec::new();
            }
            stream.next = end;
            return stream.run_ahead(len, size_bytes).into_iter().collect();
        }
        let strided = self.observe_stride(offset, len, size_bytes);
        if strided.is_empty() {
            self.start(end);
        }
        strided
    }

    fn start(&mut self, end: u64) {
        let stream = Stream { next: end, ahead: end, distance_bytes: 0, used: self.uses };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| s.used) {
            *oldest = stream;
        }
    }

    fn observe_stride(&mut self, offset: u64, len: u64, size_bytes: u64) -> Vec<Range<u64>> {
        let last = self.last.replace((offset, len));
        let step = last.and_then(|(before, before_len)| {
            (before_len == len).then(|| offset.checked_sub(before)).flatten().filter(|&s| s > len)
        });
        let same = step.is_some() && step == self.step;
        self.step = step;
        let Some(step) = step.filter(|_| same) else {
            self.strided_to = 0;
            return Vec::new();
        };
        let mut ranges = Vec::new();
        for n in 1..=STRIDE_STEPS {
            let Some(at) = step.checked_mul(n).and_then(|d| offset.checked_add(d)).filter(|&a| a < size_bytes) else {
                break;
            };
            if at >= self.strided_to {
                ranges.push(at..at.saturating_add(len).min(size_bytes));
                self.strided_to = at + 1;
            }
        }
        ranges
    }
}

impl Stream {
    fn run_ahead(&mut self, len: u64, size_bytes: u64) -> Option<Range<u64>> {
        let least = len.saturating_mul(MIN_AHEAD_READS).clamp(SLACK_BYTES[0], MIN_AHEAD_BYTES);
        self.distance_bytes = (self.distance_bytes * 2).clamp(least, MAX_AHEAD_BYTES);
        let from = self.ahead.max(self.next);
        let to = self.next.saturating_add(self.distance_bytes).min(size_bytes);
        // Prefetch in pieces large enough for a device operation, not after every small read.
        let worthwhile = to.saturating_sub(from) >= self.distance_bytes / 8 || to == size_bytes;
        if from >= to || !worthwhile {
            return None;
        }
        self.ahead = to;
        Some(from..to)
    }
}
