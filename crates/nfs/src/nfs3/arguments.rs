//! Decoders for the arguments of modifying procedures: attributes to set, create modes, degrees of stability.
//!
//! Decoders are total: malformed input yields `None`, which becomes GARBAGE_ARGS.

use crate::wire::Decoder;
use weir_front::files::{CreateMode, New, SetAttributes, SetTime, Stability};

/// Maximum length of a symbolic link's target that is decoded, in bytes; the file system enforces its own limit.
const MAX_TARGET_BYTES: usize = 4096;
const SECOND_NS: i128 = 1_000_000_000;

/// How stable a WRITE must be before it is answered (`stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum StableHow {
    /// No stability required; a COMMIT follows.
    Unstable = 0,
    /// The data and the metadata needed to read them.
    DataSync = 1,
    /// Data and all metadata.
    FileSync = 2,
}

impl StableHow {
    pub(crate) fn read(input: &mut Decoder<'_>) -> Option<Self> {
        match input.u32()? {
            0 => Some(StableHow::Unstable),
            1 => Some(StableHow::DataSync),
            2 => Some(StableHow::FileSync),
            _ => None,
        }
    }

    /// The stability to ask for.
    pub(crate) fn stability(self) -> Stability {
        if self == StableHow::Unstable { Stability::Unstable } else { Stability::Stable }
    }

    /// The stability that was reached.
    pub(crate) fn reached(stability: Stability) -> Self {
        if stability == Stability::Unstable { StableHow::Unstable } else { StableHow::FileSync }
    }
}

/// Decodes `createhow3`: the treatment of an existing name, and the attributes of a new file.
pub(crate) fn create_how(input: &mut Decoder<'_>) -> Option<(CreateMode, SetAttributes)> {
    match input.u32()? {
        0 => Some((CreateMode::Unchecked, attributes(input)?)),
        1 => Some((CreateMode::Guarded, attributes(input)?)),
        2 => Some((CreateMode::Exclusive(input.fixed(8)?.try_into().ok()?), SetAttributes::default())),
        _ => None,
    }
}

/// Decodes `mknoddata3`: kind and attributes. The kind is `None` if MKNOD cannot create it.
pub(crate) fn special(input: &mut Decoder<'_>) -> Option<(Option<New>, SetAttributes)> {
    let kind = input.u32()?;
    match kind {
        3 | 4 => {
            let set = attributes(input)?;
            let major = input.u32()?;
            let minor = input.u32()?;
            let new = if kind == 3 { New::BlockDevice(major, minor) } else { New::CharDevice(major, minor) };
            Some((Some(new), set))
        }
        6 => Some((Some(New::Socket), attributes(input)?)),
        7 => Some((Some(New::Fifo), attributes(input)?)),
        _ => Some((None, SetAttributes::default())),
    }
}

/// Decodes `sattr3`.
pub(crate) fn attributes(input: &mut Decoder<'_>) -> Option<SetAttributes> {
    Some(SetAttributes {
        mode: optional(input, Decoder::u32)?.map(|mode| mode & 0o7777),
        uid: optional(input, Decoder::u32)?,
        gid: optional(input, Decoder::u32)?,
        size_bytes: optional(input, Decoder::u64)?,
        atime: set_time(input)?,
        mtime: set_time(input)?,
    })
}

/// Decodes SETATTR's guard: the `ctime` that the file must have.
pub(crate) fn guard(input: &mut Decoder<'_>) -> Option<Option<(u32, u32)>> {
    optional(input, |input| Some((input.u32()?, input.u32()?)))
}

/// Decodes the target of a symbolic link.
pub(crate) fn target<'a>(input: &mut Decoder<'a>) -> Option<&'a [u8]> {
    input.opaque(MAX_TARGET_BYTES)
}

fn optional<'a, T>(input: &mut Decoder<'a>, read: impl FnOnce(&mut Decoder<'a>) -> Option<T>) -> Option<Option<T>> {
    match input.u32()? {
        0 => Some(None),
        1 => read(input).map(Some),
        _ => None,
    }
}

fn set_time(input: &mut Decoder<'_>) -> Option<Option<SetTime>> {
    match input.u32()? {
        0 => Some(None),
        1 => Some(Some(SetTime::Now)),
        2 => {
            let seconds = input.u32()?;
            let ns = input.u32()?;
            // Reject a nanosecond field of one second or more.
            (i128::from(ns) < SECOND_NS).then(|| Some(SetTime::At(i128::from(seconds) * SECOND_NS + i128::from(ns))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Encoder;

    #[test]
    fn sattr3_is_decoded_and_truncation_rejected() {
        let mut out = Encoder::default();
        out.u32(1).u32(0o107_755).u32(0).u32(1).u32(20).u32(1).u64(1 << 40).u32(1).u32(2).u32(7).u32(999_999_999);
        let wanted = SetAttributes {
            mode: Some(0o7755),
            uid: None,
            gid: Some(20),
            size_bytes: Some(1 << 40),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(7_999_999_999)),
        };
        assert_eq!(attributes(&mut Decoder::new(&out.bytes)), Some(wanted));
        for cut in (0..out.bytes.len()).step_by(4) {
            assert_eq!(attributes(&mut Decoder::new(&out.bytes[..cut])), None);
        }
        let mut late = out.bytes.clone();
        let at = late.len() - 4;
        late[at..].copy_from_slice(&1_000_000_000u32.to_be_bytes());
        assert_eq!(attributes(&mut Decoder::new(&late)), None);
        let mut odd = out.bytes;
        odd[3] = 2;
        assert_eq!(attributes(&mut Decoder::new(&odd)), None);
    }

    #[test]
    fn unions_decode_each_arm() {
        let how = |words: &[u32]| {
            let mut out = Encoder::default();
            for word in words {
                out.u32(*word);
            }
            create_how(&mut Decoder::new(&out.bytes))
        };
        assert_eq!(
            how(&[2, 0x0102_0304, 0x0506_0708]),
            Some((CreateMode::Exclusive([1, 2, 3, 4, 5, 6, 7, 8]), SetAttributes::default()))
        );
        assert_eq!(how(&[1, 0, 0, 0, 0, 0, 0]), Some((CreateMode::Guarded, SetAttributes::default())));
        assert_eq!((how(&[3]), how(&[2, 1]), how(&[0])), (None, None, None));
        let kind = |words: &[u32]| {
            let mut out = Encoder::default();
            for word in words {
                out.u32(*word);
            }
            special(&mut Decoder::new(&out.bytes)).map(|(special, _)| special)
        };
        assert_eq!(kind(&[3, 0, 0, 0, 0, 0, 0, 8, 1]), Some(Some(New::BlockDevice(8, 1))));
        assert_eq!(kind(&[7, 0, 0, 0, 0, 0, 0]), Some(Some(New::Fifo)));
        assert_eq!((kind(&[1]), kind(&[4, 0, 0, 0, 0, 0, 0, 8])), (Some(None), None));
    }
}
