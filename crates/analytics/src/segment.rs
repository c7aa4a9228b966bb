//! Segments: the parts in which a history is stored, each a file of some frames that is replaced as a whole.
//!
//! | resolution | frames | time of a segment | segments kept |
//! |---|---|---|---|
//! | second | 10 of a minute | 10 minutes | 7 |
//! | ten seconds | 6 of 10 minutes | 1 hour | 25 |
//! | minute | 8 of an hour | 8 hours | 91 |
//!
//! The newest segment of each resolution is stored again and again while it grows, so it is short; the number of files is that of
//! the table.

use crate::frame::{BUCKET_POINTS, Decoded, Frame, FrameKey, decode_all};
use crate::history::Resolution;
use crate::point::Point;

/// A part of the history of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Time between two points.
    pub resolution: Resolution,
    /// Number of the segment since 1970.
    pub index: u64,
}

impl Resolution {
    /// Frames of a segment.
    fn frames(self) -> u64 {
        match self {
            Resolution::Second => 10,
            Resolution::TenSeconds => 6,
            Resolution::Minute => 8,
        }
    }

    /// Length of a segment in milliseconds.
    fn segment_ms(self) -> u64 {
        self.bucket_ms() * self.frames()
    }

    /// Number of segments that have all points that are kept, wherever the first one begins.
    pub fn kept_segments(self) -> usize {
        let points = (self.frames() * BUCKET_POINTS) as usize;
        self.kept().div_ceil(points) + 1
    }
}

impl Segment {
    /// The segment of a time in milliseconds since 1970.
    pub fn of(resolution: Resolution, time_ms: u64) -> Self {
        Segment { resolution, index: time_ms / resolution.segment_ms() }
    }

    /// First millisecond since 1970.
    pub fn start_ms(self) -> u64 {
        self.index.saturating_mul(self.resolution.segment_ms())
    }

    /// Last millisecond since 1970.
    pub fn last_ms(self) -> u64 {
        self.start_ms().saturating_add(self.resolution.segment_ms() - 1)
    }

    /// Name of its file.
    pub fn name(self) -> String {
        format!("{}-{}", self.resolution.name(), self.index)
    }

    /// The segment of a file; `None` if the name is not that of a segment.
    pub fn named(name: &str) -> Option<Self> {
        let (resolution, index) = name.rsplit_once('-')?;
        let resolution = Resolution::ALL.into_iter().find(|one| one.name() == resolution)?;
        let segment = Segment { resolution, index: index.parse().ok()? };
        // Times of later segments do not fit into 64 bits.
        let is_possible = segment.index <= u64::MAX / resolution.segment_ms();
        (is_possible && segment.name() == name).then_some(segment)
    }

    /// The frames as bytes, of points of this pool in ascending order of time. Points of other segments are left out.
    pub fn encode(self, pool: u64, points: &[Point]) -> Vec<u8> {
        let mut out = Vec::new();
        let bucket_of = |point: &Point| point.time_ms / self.resolution.bucket_ms();
        for points in points.chunk_by(|one, next| bucket_of(one) == bucket_of(next)) {
            let Some(first) = points.first().filter(|first| Segment::of(self.resolution, first.time_ms) == self) else {
                continue;
            };
            let key = FrameKey { pool, resolution: self.resolution, bucket: bucket_of(first) };
            out.extend(Frame { key, points: points.to_vec() }.encode());
        }
        out
    }

    /// Points in the bytes of its file, in ascending order of time, and the number of places where they are damaged. Frames of
    /// another pool or segment count as damage.
    pub fn decode(self, pool: u64, bytes: &[u8]) -> (Vec<Point>, u64) {
        let Decoded { mut frames, mut damaged } = decode_all(bytes);
        frames.retain(|frame| {
            let FrameKey { pool: of, resolution, bucket } = frame.key;
            let is_own = of == pool && resolution == self.resolution && bucket / resolution.frames() == self.index;
            damaged += u64::from(!is_own);
            is_own
        });
        frames.sort_by_key(|frame| frame.key.bucket);
        // One bucket twice: the first of them.
        frames.dedup_by_key(|frame| frame.key.bucket);
        (frames.into_iter().flat_map(|frame| frame.points).collect(), damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::LatencyCounts;
    use crate::point::COUNT;

    fn points(from_ms: u64, step_ms: u64, count: u64) -> Vec<Point> {
        (0..count)
            .map(|n| Point {
                time_ms: from_ms + n * step_ms,
                values: [n as f32; COUNT],
                latency: LatencyCounts::NOT_KNOWN,
            })
            .collect()
    }

    #[test]
    fn segments_have_the_points_of_their_time() {
        for resolution in Resolution::ALL {
            let length = resolution.segment_ms();
            let all = points(5 * length, resolution.seconds() * 1000, 3 * resolution.frames() * BUCKET_POINTS);
            let segment = Segment::of(resolution, 6 * length + 1);
            assert_eq!((segment.index, segment.start_ms(), segment.last_ms()), (6, 6 * length, 7 * length - 1));
            let (read, damaged) = segment.decode(9, &segment.encode(9, &all));
            let own: Vec<Point> =
                all.iter().filter(|point| (6 * length..7 * length).contains(&point.time_ms)).copied().collect();
            assert_eq!((read == own, damaged), (true, 0), "{resolution:?}");
            assert_eq!(segment.decode(8, &segment.encode(9, &all)), (Vec::new(), resolution.frames()));
            let other = Segment { index: 7, ..segment };
            assert_eq!(other.decode(9, &segment.encode(9, &all)), (Vec::new(), resolution.frames()));
        }
        let kept = Resolution::ALL.map(Resolution::kept_segments);
        assert_eq!(kept, [7, 25, 91]);
    }

    #[test]
    fn names_are_those_of_segments_or_of_none() {
        for resolution in Resolution::ALL {
            let segment = Segment::of(resolution, 1_795_000_000_000);
            assert_eq!(Segment::named(&segment.name()), Some(segment));
        }
        for name in
            ["", "second", "second-", "second-01", "second-+1", "second-1.new", "hour-1", "minute-99999999999999"]
        {
            assert_eq!(Segment::named(name), None, "{name}");
        }
    }
}
