//! Digests: CRC32C over the header with its additional segments, and over the data with its padding (RFC 7143, 13.1).
//!
//! The checksum is sent with its least significant byte first.

use bytes::Bytes;

/// Length of a digest in bytes.
pub const DIGEST_BYTES: usize = 4;

/// Which segments have digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Headers have.
    pub header: bool,
    /// Data segments have.
    pub data: bool,
}

/// The digest of consecutive pieces.
pub fn of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> [u8; DIGEST_BYTES] {
    let crc = pieces.into_iter().fold(0, crc32c::crc32c_append);
    crc.to_le_bytes()
}

/// The digest of data in pieces, with its padding.
pub fn of_data(pieces: &[Bytes], padding: &[u8]) -> [u8; DIGEST_BYTES] {
    of(pieces.iter().map(|piece| &piece[..]).chain([padding]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of RFC 3720, B.4.
    #[test]
    fn the_examples_of_the_standard() {
        assert_eq!(of([&[0; 32][..]]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(of([&[0xff; 32][..]]), [0x43, 0xab, 0xa8, 0x62]);
        let counting: [u8; 32] = std::array::from_fn(|at| at as u8);
        assert_eq!(of([&counting[..7], &counting[7..]]), [0x4e, 0x79, 0xdd, 0x46]);
    }
}
