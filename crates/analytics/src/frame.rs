//! Frames: points of the history as bytes that protect themselves.
//!
//! ```text
//!   offset  bytes                                          (little-endian)
//!        0      8  magic number
//!        8      4  length of the frame in bytes
//!       12     16  checksum of all other bytes: BLAKE3, its first half
//!       28      8  GUID of the pool ┐
//!       36      8  bucket           ├ the key
//!       44      1  resolution       ┘
//!       45      1  body is compressed: 0 no, 1 Zstandard
//!       46      2  number of points
//!       48      2  number of series
//!       50         body: number of each series (4 bytes), milliseconds of each point since the bucket began (4 bytes),
//!                  then for each series the values of all points
//! ```
//!
//! A bucket is the time of 60 points that follow each other without a gap. Its points are in ascending order of time; a time
//! without points is a gap.
//!
//! A value is stored as the XOR of its bits with those of the point before, so that what does not change is zero, and each series
//! as four planes: the lowest bytes of all values, then the next. This makes long runs for the compression.
//!
//! A series has a number that follows from its name and unit. So a version with other series reads what it knows: a series
//! that a frame lacks is not a number (NaN), and a series that this version lacks is passed over.
//!
//! [`decode_all`] reads frames that follow each other. Behind bytes that are no valid frame it looks for the next magic number:
//! damage takes the frames that it hit, and no other.

use crate::history::Resolution;
use crate::latency::{CLASSES, CODES, LatencyCounts, LatencyKind};
use crate::point::{COUNT, Point, SERIES};
use thiserror::Error;
use weir_codec::compress::ZstdLevel;
use weir_codec::{compress, decompress};
use weir_format::CompressionKind;

/// The last byte is the version.
const MAGIC: &[u8; 8] = b"WEIRHIS\x01";
const LENGTH_AT: usize = 8;
const CHECKSUM_AT: usize = 12;
const KEY_AT: usize = 28;
const HEADER_BYTES: usize = 50;

/// Points in the time of a bucket.
pub(crate) const BUCKET_POINTS: u64 = 60;
/// Maximum number of points of a frame: a clock that is set back makes more than usual.
const MAX_POINTS: usize = 120;
/// Maximum number of series of a frame.
const MAX_SERIES: usize = 256;
/// Maximum length of a frame in bytes.
const MAX_FRAME_BYTES: usize = HEADER_BYTES + body_bytes(MAX_POINTS, MAX_SERIES);

const fn body_bytes(points: usize, series: usize) -> usize {
    4 * (series + points + series * points)
}

/// Place of a frame's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameKey {
    /// GUID of the pool.
    pub pool: u64,
    /// Time between two points.
    pub resolution: Resolution,
    /// Number of the bucket since 1970.
    pub bucket: u64,
}

/// Points of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Place of the points.
    pub key: FrameKey,
    /// Points in ascending order of time, all of them in the time of the bucket.
    pub points: Vec<Point>,
}

/// Reason why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Bytes that do not begin with the magic number.
    #[error("no magic number")]
    Magic,
    /// Bytes that end before the frame does, or whose length is not a possible one.
    #[error("the length is wrong")]
    Length,
    /// Bytes that were changed.
    #[error("the checksum is wrong")]
    Checksum,
    /// The checksum is that of the bytes, and their contents contradict each other.
    #[error("the contents are malformed")]
    Malformed,
}

impl Resolution {
    /// Length of a bucket in milliseconds.
    pub(crate) fn bucket_ms(self) -> u64 {
        self.seconds() * 1000 * BUCKET_POINTS
    }

    fn number(self) -> u8 {
        match self {
            Resolution::Second => 0,
            Resolution::TenSeconds => 1,
            Resolution::Minute => 2,
        }
    }
}

/// Series of a frame: those of [`SERIES`], then the codes of [`LatencyCounts`].
const COLUMNS: usize = COUNT + CODES;

/// Numbers of the series of this version.
fn series_numbers() -> [u32; COLUMNS] {
    std::array::from_fn(|series| {
        let text = match (SERIES.get(series), LatencyKind::ALL.get(series.saturating_sub(COUNT) / CLASSES)) {
            (Some((name, unit)), _) => format!("{name}\0{unit}"),
            (None, Some(kind)) => format!("latency.{}.{}\0code", kind.name(), (series - COUNT) % CLASSES),
            (None, None) => String::new(),
        };
        let hash = blake3::hash(text.as_bytes());
        hash.as_bytes().first_chunk().map_or(0, |first| u32::from_le_bytes(*first))
    })
}

/// Bits of all columns of a point.
fn columns(point: &Point) -> impl Iterator<Item = u32> {
    let values = point.values.into_iter().map(f32::to_bits);
    values.chain(point.latency.codes().into_iter().map(u32::from))
}

impl Frame {
    /// The frame as bytes. Of more than 120 points it has the last.
    ///
    /// # Panics
    /// In debug builds, if the points are not in order, or not in the time of the bucket.
    pub fn encode(&self) -> Vec<u8> {
        let points = self.points.get(self.points.len().saturating_sub(MAX_POINTS)..).unwrap_or_default();
        let start_ms = self.key.bucket.saturating_mul(self.key.resolution.bucket_ms());
        debug_assert!(points.iter().all(|point| point.time_ms / self.key.resolution.bucket_ms() == self.key.bucket));
        debug_assert!(points.is_sorted_by(|one, next| one.time_ms < next.time_ms));
        let mut body = Vec::with_capacity(body_bytes(points.len(), COLUMNS));
        series_numbers().iter().for_each(|number| body.extend(number.to_le_bytes()));
        for point in points {
            body.extend(u32::try_from(point.time_ms.saturating_sub(start_ms)).unwrap_or(u32::MAX).to_le_bytes());
        }
        let mut rows: Vec<_> = points.iter().map(columns).collect();
        for _ in 0..COLUMNS {
            let bits: Vec<u32> = rows.iter_mut().filter_map(Iterator::next).collect();
            let before = std::iter::once(&0).chain(&bits);
            let changes: Vec<[u8; 4]> = bits.iter().zip(before).map(|(now, was)| (now ^ was).to_le_bytes()).collect();
            (0..4).for_each(|plane| body.extend(changes.iter().filter_map(|bytes| bytes.get(plane))));
        }
        let mut room = vec![0; body.len()];
        let compressed = compress(CompressionKind::Zstd, ZstdLevel::DEFAULT, &body, &mut room).ok().flatten();
        let stored = compressed.and_then(|length| room.get(..length)).unwrap_or(&body);
        let mut out = Vec::with_capacity(HEADER_BYTES + stored.len());
        out.extend(MAGIC);
        out.extend(u32::try_from(HEADER_BYTES + stored.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend([0; KEY_AT - CHECKSUM_AT]);
        out.extend(self.key.pool.to_le_bytes());
        out.extend(self.key.bucket.to_le_bytes());
        out.push(self.key.resolution.number());
        out.push(u8::from(compressed.is_some()));
        out.extend((points.len() as u16).to_le_bytes());
        out.extend((COLUMNS as u16).to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        out.extend(stored);
        let sum = checksum(&out);
        out.iter_mut().skip(CHECKSUM_AT).zip(sum).for_each(|(byte, of_sum)| *byte = of_sum);
        out
    }

    /// The frame at the beginning of `bytes`, and its length.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn decode(bytes: &[u8]) -> Result<(Frame, usize), FrameError> {
        if !bytes.starts_with(MAGIC) {
            return Err(FrameError::Magic);
        }
        let length = number::<4>(bytes, LENGTH_AT).map_or(0, u32::from_le_bytes) as usize;
        if !(HEADER_BYTES..=MAX_FRAME_BYTES).contains(&length) {
            return Err(FrameError::Length);
        }
        let bytes = bytes.get(..length).ok_or(FrameError::Length)?;
        if bytes.get(CHECKSUM_AT..KEY_AT) != Some(&checksum(bytes)[..]) {
            return Err(FrameError::Checksum);
        }
        Ok((contents(bytes).ok_or(FrameError::Malformed)?, length))
    }
}

/// Checksum of a frame: that of all of its bytes but the checksum.
fn checksum(frame: &[u8]) -> [u8; KEY_AT - CHECKSUM_AT] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(frame.get(..CHECKSUM_AT).unwrap_or_default());
    hasher.update(frame.get(KEY_AT..).unwrap_or_default());
    hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Contents of a frame whose checksum is right; `None` if they are malformed.
fn contents(frame: &[u8]) -> Option<Frame> {
    let resolution = number::<1>(frame, 44)?[0];
    let resolution = Resolution::ALL.into_iter().find(|one| one.number() == resolution)?;
    let key = FrameKey {
        pool: u64::from_le_bytes(number(frame, 28)?),
        bucket: u64::from_le_bytes(number(frame, 36)?),
        resolution,
    };
    let points = usize::from(u16::from_le_bytes(number(frame, 46)?));
    let series = usize::from(u16::from_le_bytes(number(frame, 48)?));
    if points > MAX_POINTS || series > MAX_SERIES {
        return None;
    }
    let stored = frame.get(HEADER_BYTES..)?;
    let body = match number::<1>(frame, 45)? {
        [0] => stored.to_vec(),
        [1] => decompress(CompressionKind::Zstd, stored, body_bytes(points, series)).ok()?,
        _ => return None,
    };
    if body.len() != body_bytes(points, series) {
        return None;
    }
    let (numbers, rest) = body.split_at_checked(4 * series)?;
    let (times, values) = rest.split_at_checked(4 * points)?;
    let start_ms = key.bucket.checked_mul(resolution.bucket_ms())?;
    let mut made = Vec::with_capacity(points);
    for time in words(times) {
        let is_in_bucket = u64::from(time) < resolution.bucket_ms();
        let time_ms = start_ms.checked_add(u64::from(time)).filter(|_| is_in_bucket)?;
        if made.last().is_some_and(|before: &Point| before.time_ms >= time_ms) {
            return None;
        }
        made.push(Point { time_ms, values: [f32::NAN; COUNT], latency: LatencyCounts::NOT_KNOWN });
    }
    let own = series_numbers();
    for (number, planes) in words(numbers).zip(values.chunks(4 * points.max(1))) {
        let Some(place) = own.iter().position(|one| *one == number) else { continue };
        let mut bits = 0;
        for (at, point) in made.iter_mut().enumerate() {
            let change = [0, 1, 2, 3].map(|plane| planes.get(plane * points + at).copied().unwrap_or(0));
            bits ^= u32::from_le_bytes(change);
            match point.values.get_mut(place) {
                Some(value) => *value = f32::from_bits(bits),
                None => point.latency.set_code(place - COUNT, u16::try_from(bits).ok()?),
            }
        }
    }
    Some(Frame { key, points: made })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| word.first_chunk().map_or(0, |word| u32::from_le_bytes(*word)))
}

/// Frames that were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// Valid frames, in their order in the bytes.
    pub frames: Vec<Frame>,
    /// Number of places where bytes are no valid frame.
    pub damaged: u64,
}

/// Reads frames that follow each other, and passes over what is no valid frame.
pub fn decode_all(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let skipped = match Frame::decode(rest) {
            Ok((frame, length)) => {
                decoded.frames.push(frame);
                length
            }
            Err(_) => {
                decoded.damaged += 1;
                // Also inside the length that it gives, which may be what is wrong. What follows a frame that was only cut off or
                // changed is that frame's contents, in which the magic number does not occur by chance.
                let next = rest.windows(MAGIC.len()).skip(1).position(|window| window == MAGIC);
                next.map_or(rest.len(), |at| at + 1)
            }
        };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    decoded
}

/// Body of the fuzz target: any bytes are read without a panic, and frames that are valid are read again from what they are written
/// as.
pub fn fuzz(bytes: &[u8]) {
    for frame in decode_all(bytes).frames {
        let (again, _) = Frame::decode(&frame.encode()).unwrap_or_else(|why| panic!("{why}: {frame:?}"));
        assert_eq!(again.key, frame.key);
        let bits = |frame: &Frame| -> Vec<_> {
            frame.points.iter().map(|point| (point.time_ms, columns(point).collect::<Vec<_>>())).collect()
        };
        assert_eq!(bits(&again), bits(&frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(bucket: u64, count: u64) -> Frame {
        let resolution = Resolution::TenSeconds;
        let key = FrameKey { pool: 77, resolution, bucket };
        let point = |n: u64| {
            let mut values = [0.0; COUNT];
            values.iter_mut().enumerate().for_each(|(series, value)| *value = (n * series as u64 % 13) as f32 * 1.5e6);
            let latency = LatencyCounts::of(&[(LatencyKind::Writes, &[n, n * 1000, 7])]);
            Point { time_ms: bucket * 600_000 + n * 10_000 + 3, values, latency }
        };
        Frame { key, points: (0..count).map(point).collect() }
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        for count in [0, 1, 59, 60] {
            let one = frame(2_900_000, count);
            let bytes = one.encode();
            assert_eq!(Frame::decode(&bytes), Ok((one, bytes.len())), "{count} points");
        }
        let raw = body_bytes(60, COLUMNS) as f64;
        let length = frame(2_900_000, 60).encode().len() as f64;
        assert!(length < 0.3 * raw, "{length} of {raw} bytes");
    }

    /// A load whose 25 series and 14 classes of latency change with each second.
    #[test]
    fn requests_by_latency_take_a_fifth_of_a_frame() {
        let random = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as f32 / 1e6;
        let length = |has_latency: bool| {
            let point = |second: u64| {
                let of = |series: usize| random(second * 64 + series as u64);
                let values = std::array::from_fn(|series| if series < 25 { 1e8 * (1.0 + of(series)) } else { 0.0 });
                let counts: [u64; 24] =
                    std::array::from_fn(|class| if class > 16 { (200.0 * of(30 + class)) as u64 } else { 0 });
                let rows = [(LatencyKind::Reads, &counts[..]), (LatencyKind::Writes, &counts[..])];
                let latency = LatencyCounts::of(if has_latency { &rows } else { &[] });
                Point { time_ms: 60_000 * 7 + second * 1000, values, latency }
            };
            let key = FrameKey { pool: 1, resolution: Resolution::Second, bucket: 7 };
            Frame { key, points: (0..60).map(point).collect() }.encode().len()
        };
        let [with, without] = [length(true), length(false)];
        println!("{with} bytes with requests by latency, {without} without");
        assert!(with < 8000 && with * 4 < without * 5, "{with} and {without} bytes");
    }

    #[test]
    fn numbers_of_series_differ() {
        let mut numbers = series_numbers();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|two| two[0] != two[1]));
    }

    #[test]
    fn damage_takes_the_frame_that_it_hit() {
        let frames: Vec<Frame> = (0..4).map(|n| frame(2_900_000 + n, 3 + n)).collect();
        let encoded: Vec<Vec<u8>> = frames.iter().map(Frame::encode).collect();
        let bytes = encoded.concat();
        assert_eq!(decode_all(&bytes), Decoded { frames: frames.clone(), damaged: 0 });
        let mut start = 0;
        for (hit, one) in encoded.iter().enumerate() {
            let others: Vec<Frame> =
                frames.iter().enumerate().filter(|(n, _)| *n != hit).map(|(_, frame)| frame.clone()).collect();
            for at in start..start + one.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (at % 8);
                let read = decode_all(&damaged);
                assert_eq!((read.frames == others, read.damaged), (true, 1), "byte {at}");
            }
            start += one.len();
        }
        // A file that was cut off keeps what is whole, and so does one that lost a piece or got one more.
        for at in 0..bytes.len() {
            let kept = decode_all(&bytes[..at]).frames;
            assert_eq!(kept, frames[..kept.len()]);
        }
        let between = [&encoded[0][..], b"WEIRHIS\x01\xff\xff", &encoded[1], &encoded[2][7..], &encoded[3]].concat();
        let read = decode_all(&between);
        assert_eq!((read.frames.len(), read.damaged), (3, 2));
    }

    #[test]
    fn series_of_other_versions_are_passed_over_and_missing_ones_are_no_number() {
        let one = Frame { key: frame(5, 0).key, points: frame(5, 2).points };
        let mut bytes = one.encode();
        // Written again without compression, with another number for the first series.
        let length = bytes.len();
        let mut body = decompress(CompressionKind::Zstd, &bytes[HEADER_BYTES..length], body_bytes(2, COLUMNS)).unwrap();
        body[..4].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        bytes.truncate(HEADER_BYTES);
        bytes.extend(&body);
        bytes[45] = 0;
        let length = bytes.len() as u32;
        bytes[LENGTH_AT..CHECKSUM_AT].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&bytes);
        bytes[CHECKSUM_AT..KEY_AT].copy_from_slice(&sum);
        let (read, _) = Frame::decode(&bytes).unwrap();
        for (point, was) in read.points.iter().zip(&one.points) {
            assert!(point.values[0].is_nan());
            assert_eq!(point.values[1..], was.values[1..]);
        }
        // A right checksum does not make the contents right.
        bytes[HEADER_BYTES + 4 * COLUMNS..][..4].copy_from_slice(&600_000u32.to_le_bytes());
        let sum = checksum(&bytes);
        bytes[CHECKSUM_AT..KEY_AT].copy_from_slice(&sum);
        assert_eq!(Frame::decode(&bytes), Err(FrameError::Malformed));
    }

    proptest! {
        #[test]
        fn any_values_survive(bits in proptest::collection::vec(any::<u32>(), 1..=60), bucket in 0u64..1 << 40) {
            let key = FrameKey { pool: 1, resolution: Resolution::Second, bucket };
            let point = |(n, bits): (usize, &u32)| Point {
                time_ms: bucket * 60_000 + n as u64 * 999,
                values: std::array::from_fn(|series| f32::from_bits(bits.rotate_left(series as u32))),
                latency: LatencyCounts::of(&[(LatencyKind::Reads, &[u64::from(*bits); 30])]),
            };
            fuzz(&Frame { key, points: bits.iter().enumerate().map(point).collect() }.encode());
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz(&bytes);
            fuzz(&[&MAGIC[..], &bytes].concat());
        }
    }
}
