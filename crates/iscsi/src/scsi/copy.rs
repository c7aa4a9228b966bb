//! EXTENDED COPY (LID1) and RECEIVE COPY RESULTS: copies between units of one target, in the foreground.
//!
//! ```text
//!   parameter list: header · target descriptors (which units) · segment descriptors (which blocks)
//! ```
//!
//! Supported: identification descriptors (E4h), and segments from blocks to blocks (02h). One copy at a time runs at a unit,
//! which bounds its memory. A copy is stable when a write would be. Bounds: those of the constants below.

use super::block::{Direction, failed, is_stable};
use super::cdb::BLOCK_BYTES;
use super::execute::{Context, Failure};
use super::inquiry::{self, blocks_of};
use super::reservations::Access;
use super::sense::{Sense, code, key};
use super::unit::OpenUnit;

const MAX_TARGETS: usize = 2;
const MAX_SEGMENTS: usize = 64;
const TARGET_BYTES: usize = 32;
const SEGMENT_BYTES: usize = 28;
const HEADER_BYTES: usize = 16;
const IDENTIFICATION: u8 = 0xe4;
const BLOCKS_TO_BLOCKS: u8 = 0x02;
/// Maximum length of the descriptors of one command in bytes.
const MAX_LIST_BYTES: usize = MAX_TARGETS * TARGET_BYTES + MAX_SEGMENTS * SEGMENT_BYTES;
/// Maximum length of one segment in bytes: its number of blocks has 16 bits.
const MAX_SEGMENT_BYTES: u32 = u16::MAX as u32 * BLOCK_BYTES as u32;
/// Size of the pieces of a copy in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The result of a copy, until the initiator asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyResult {
    /// Session and list identifier.
    pub of: (u64, u8),
    /// Whether all segments were copied.
    pub is_complete: bool,
    /// Number of segments that were copied.
    pub segments: u16,
    /// Number of blocks that were copied.
    pub blocks: u32,
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    source: u16,
    destination: u16,
    blocks: u16,
    from_lba: u64,
    to_lba: u64,
}

/// A decoded parameter list.
#[derive(Debug, PartialEq, Eq)]
struct CopyList<'a> {
    id: u8,
    holds_result: bool,
    /// Designators: kind and value.
    targets: Vec<(u8, &'a [u8])>,
    segments: Vec<Segment>,
}

fn word_16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_be_bytes(*word))
}

fn word_32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
}

fn word_64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_be_bytes(*word))
}

/// Decodes a parameter list.
fn decode(list: &[u8]) -> Result<CopyList<'_>, Sense> {
    let too_short = Sense::illegal(code::PARAMETER_LIST_LENGTH);
    let (header, rest) = list.split_at_checked(HEADER_BYTES).ok_or(too_short)?;
    let targets_bytes = usize::from(word_16(header, 2));
    let segments_bytes = word_32(header, 8) as usize;
    if word_32(header, 12) != 0 {
        return Err(Sense::illegal(code::INLINE_DATA_TOO_LONG));
    }
    if targets_bytes.saturating_add(segments_bytes) > MAX_LIST_BYTES {
        return Err(too_short);
    }
    if targets_bytes > MAX_TARGETS * TARGET_BYTES {
        return Err(Sense::illegal(code::TOO_MANY_TARGETS));
    }
    if segments_bytes > MAX_SEGMENTS * SEGMENT_BYTES {
        return Err(Sense::illegal(code::TOO_MANY_SEGMENTS));
    }
    let (targets, rest) = rest.split_at_checked(targets_bytes).ok_or(too_short)?;
    let (mut segments, _) = rest.split_at_checked(segments_bytes).ok_or(too_short)?;
    let targets = targets.chunks(TARGET_BYTES).map(|one| match one {
        [IDENTIFICATION, ..] if one.len() == TARGET_BYTES => {
            let len = usize::from(one[7]).min(20);
            Ok((one[5], &one[8..8 + len]))
        }
        [IDENTIFICATION, ..] => Err(too_short),
        _ => Err(Sense::illegal(code::UNSUPPORTED_TARGET_DESCRIPTOR)),
    });
    let targets = targets.collect::<Result<Vec<_>, Sense>>()?;
    let mut decoded = Vec::new();
    while let [kind, ..] = *segments {
        if kind != BLOCKS_TO_BLOCKS {
            return Err(Sense::illegal(code::UNSUPPORTED_SEGMENT_DESCRIPTOR));
        }
        let (one, rest) = segments.split_at_checked(SEGMENT_BYTES).ok_or(too_short)?;
        decoded.push(Segment {
            source: word_16(one, 4),
            destination: word_16(one, 6),
            blocks: word_16(one, 10),
            from_lba: word_64(one, 12),
            to_lba: word_64(one, 20),
        });
        segments = rest;
    }
    // List identifier usage 3: no result is kept.
    let holds_result = header[1] >> 3 & 3 != 3;
    Ok(CopyList { id: header[0], holds_result, targets, segments: decoded })
}

/// EXTENDED COPY.
pub async fn copy(context: &Context<'_>, list: &[u8]) -> Result<(), Failure> {
    if list.is_empty() {
        return Ok(());
    }
    let list = decode(list)?;
    let unit = &context.open.unit;
    let _copying = unit.copying.lock().await;
    let mut result = CopyResult { of: (context.nexus.session, list.id), is_complete: true, segments: 0, blocks: 0 };
    let mut done = Ok(());
    for segment in &list.segments {
        done = copy_segment(context, &list, segment).await;
        if done.is_err() {
            result.is_complete = false;
            break;
        }
        result.segments += 1;
        result.blocks = result.blocks.saturating_add(segment.blocks.into());
    }
    if list.holds_result {
        unit.keep_copy_result(result);
    }
    done
}

/// The unit that a descriptor refers to.
async fn target(context: &Context<'_>, list: &CopyList<'_>, index: u16) -> Result<OpenUnit, Failure> {
    let unreachable = Failure::Check(Sense::new(key::COPY_ABORTED, code::COPY_TARGET_NOT_REACHABLE));
    let (kind, value) = list.targets.get(usize::from(index)).ok_or(unreachable)?;
    for lun in context.around.luns() {
        let open = context.around.unit(lun, context.rq).await;
        if let Some(open) = open.filter(|open| inquiry::is_designator(open.unit.id, *kind, value)) {
            return Ok(open);
        }
    }
    Err(unreachable)
}

async fn copy_segment(context: &Context<'_>, list: &CopyList<'_>, segment: &Segment) -> Result<(), Failure> {
    let from = target(context, list, segment.source).await?;
    let to = target(context, list, segment.destination).await?;
    let blocks = u64::from(segment.blocks);
    let is_inside =
        |open: &OpenUnit, lba: u64| lba.checked_add(blocks).is_some_and(|end| end <= blocks_of(&*open.device));
    if !is_inside(&from, segment.from_lba) || !is_inside(&to, segment.to_lba) {
        return Err(Sense::new(key::COPY_ABORTED, code::NONE).into());
    }
    let port = context.nexus.port();
    let conflicts = |open: &OpenUnit, access| open.unit.with_reservations(|all| all.conflicts(&port, access));
    if conflicts(&from, Access::Read) || conflicts(&to, Access::Write) {
        return Err(Failure::Conflict);
    }
    if to.unit.mode().software_write_protect || !to.device.is_writable() {
        return Err(Sense::new(key::DATA_PROTECT, code::WRITE_PROTECTED).into());
    }
    let _lock = to.unit.ranges.shared(segment.to_lba..segment.to_lba + blocks).await;
    let bytes = blocks * BLOCK_BYTES;
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(PIECE_BYTES);
        let offset = segment.to_lba * BLOCK_BYTES + at;
        let copied = to.device.copy_from(context.rq, &*from.device, segment.from_lba * BLOCK_BYTES + at, offset, len);
        copied.await.map_err(|error| failed(context, Direction::Change, offset / BLOCK_BYTES, &error))?;
        at += len;
        context.check_aborted()?;
    }
    if is_stable(&to, false) {
        let flushed = to.device.flush(context.rq).await;
        flushed.map_err(|error| failed(context, Direction::Change, segment.to_lba, &error))?;
    }
    Ok(())
}

/// RECEIVE COPY RESULTS data.
///
/// # Errors
/// INVALID FIELD IN CDB for an unknown service action or list.
pub fn results(context: &Context<'_>, action: u8, list: u8) -> Result<Vec<u8>, Sense> {
    match action {
        0 => {
            let result = context.open.unit.take_copy_result((context.nexus.session, list)).ok_or(Sense::in_cdb(2))?;
            let mut out = 8u32.to_be_bytes().to_vec();
            out.push(if result.is_complete { 1 } else { 2 });
            out.extend_from_slice(&result.segments.to_be_bytes());
            // Transfer count in blocks.
            out.push(0xf1);
            out.extend_from_slice(&result.blocks.to_be_bytes());
            Ok(out)
        }
        3 => Ok(operating_parameters()),
        // No segment has failed that the sense data did not report.
        4 => Ok(vec![0; 4]),
        _ => Err(Sense::in_cdb(1)),
    }
}

fn operating_parameters() -> Vec<u8> {
    let mut out = vec![0; 8];
    out.extend_from_slice(&(MAX_TARGETS as u16).to_be_bytes());
    out.extend_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    out.extend_from_slice(&(MAX_LIST_BYTES as u32).to_be_bytes());
    out.extend_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    // No inline data, no held data, no streams; total concurrent copies; log2 of granularities.
    out.resize(34, 0);
    out.extend_from_slice(&[0, 1, 1, 9, 9, 0]);
    out.resize(43, 0);
    out.push(2);
    out.extend_from_slice(&[BLOCKS_TO_BLOCKS, IDENTIFICATION]);
    let available = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&available.to_be_bytes());
    out
}

/// Page 8Fh: commands, and descriptors.
pub fn third_party_page() -> Vec<u8> {
    let commands = [0x83, 1, 0, 0x84, 3, 0, 3, 4];
    let mut out = Vec::new();
    let mut descriptor = |kind: u16, body: &[u8]| {
        let len = body.len().next_multiple_of(4);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(len as u16).to_be_bytes());
        out.extend_from_slice(body);
        out.resize(out.len() + len - body.len(), 0);
    };
    descriptor(0x0001, &[&[commands.len() as u8], &commands[..]].concat());
    let mut parameters = vec![0; 8];
    parameters.extend_from_slice(&(MAX_TARGETS as u16).to_be_bytes());
    parameters.extend_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    parameters.extend_from_slice(&(MAX_LIST_BYTES as u32).to_be_bytes());
    parameters.resize(28, 0);
    descriptor(0x0004, &parameters);
    descriptor(0x0008, &[2, BLOCKS_TO_BLOCKS, IDENTIFICATION]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(targets: usize, segments: usize) -> Vec<u8> {
        let mut out = vec![7, 0];
        out.extend_from_slice(&((targets * TARGET_BYTES) as u16).to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&((segments * SEGMENT_BYTES) as u32).to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        for _ in 0..targets {
            let mut one = [0; TARGET_BYTES];
            (one[0], one[5], one[7]) = (IDENTIFICATION, 3, 8);
            out.extend(one);
        }
        for n in 0..segments {
            let mut one = [0; SEGMENT_BYTES];
            (one[0], one[11], one[19], one[27]) = (BLOCKS_TO_BLOCKS, 8, n as u8, 100 + n as u8);
            out.extend(one);
        }
        out
    }

    #[test]
    fn lists_are_decoded_within_their_limits() {
        let bytes = list(1, 2);
        let decoded = decode(&bytes).unwrap();
        assert_eq!((decoded.id, decoded.targets, decoded.holds_result), (7, vec![(3, &[0; 8][..])], true));
        assert_eq!(decoded.segments[1], Segment { source: 0, destination: 0, blocks: 8, from_lba: 1, to_lba: 101 });
        let refused = |bytes: &[u8]| decode(bytes).unwrap_err().code;
        assert_eq!(refused(&list(3, 1)), code::TOO_MANY_TARGETS);
        assert_eq!(refused(&list(1, 65)), code::TOO_MANY_SEGMENTS);
        assert_eq!(refused(&list(3, 65)), code::PARAMETER_LIST_LENGTH);
        assert_eq!(refused(&bytes[..bytes.len() - 1]), code::PARAMETER_LIST_LENGTH);
        assert_eq!(refused(&bytes[..20]), code::PARAMETER_LIST_LENGTH);
        let mut other = bytes.clone();
        other[16] = 0xe5;
        assert_eq!(refused(&other), code::UNSUPPORTED_TARGET_DESCRIPTOR);
        let mut other = bytes.clone();
        other[48] = 0;
        assert_eq!(refused(&other), code::UNSUPPORTED_SEGMENT_DESCRIPTOR);
    }
}
