//! XDR (RFC 4506): big-endian words; every item is padded to four bytes.
//!
//! The decoder is total: any input yields a value or `None`. Lengths are checked against the caller's limit and the
//! available bytes before anything is copied. It allocates nothing.

/// Decodes XDR from untrusted bytes.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Decodes from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Decoder { rest: bytes }
    }

    /// Fixed-length opaque bytes, with their padding.
    pub fn fixed(&mut self, len: usize) -> Option<&'a [u8]> {
        let (value, rest) = self.rest.split_at_checked(len)?;
        let (_padding, rest) = rest.split_at_checked(padding(len))?;
        self.rest = rest;
        Some(value)
    }

    /// An unsigned integer.
    pub fn u32(&mut self) -> Option<u32> {
        self.fixed(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self) -> Option<u64> {
        self.fixed(8)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// Variable-length opaque bytes or a string, at most `max` long.
    pub fn opaque(&mut self, max: usize) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok().filter(|len| *len <= max)?;
        self.fixed(len)
    }

    /// The bytes that are not decoded yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Number of padding bytes after `len` bytes.
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() % 4
}

/// Encodes XDR.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    /// The encoded bytes.
    pub bytes: Vec<u8>,
}

impl Encoder {
    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(value.into())
    }

    /// Fixed-length opaque bytes, with their padding.
    pub fn fixed(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len() + padding(value.len()), 0);
        self
    }

    /// Variable-length opaque bytes or a string.
    pub fn opaque(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32).fixed(value)
    }
}

/// Encoded size in bytes of variable-length opaque bytes.
pub fn opaque_bytes(len: usize) -> usize {
    4 + len + padding(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_values_decode_to_themselves() {
        let mut out = Encoder::default();
        out.u32(7).u64(1 << 40).opaque(b"abcde").bool(true).fixed(b"xy");
        assert_eq!(out.bytes.len(), 4 + 8 + 12 + 4 + 4);
        let mut reader = Decoder::new(&out.bytes);
        assert_eq!((reader.u32(), reader.u64()), (Some(7), Some(1 << 40)));
        assert_eq!((reader.opaque(5), reader.u32(), reader.fixed(2)), (Some(&b"abcde"[..]), Some(1), Some(&b"xy"[..])));
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn lengths_beyond_the_limit_or_the_bytes_are_refused() {
        assert_eq!(Decoder::new(&[0, 0, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0]).opaque(5), None);
        assert_eq!(Decoder::new(&[0xff; 12]).opaque(usize::MAX), None);
        // The padding is part of the value: without it the message is cut short.
        assert_eq!(Decoder::new(&[0, 0, 0, 1, 9]).opaque(5), None);
        assert_eq!(Decoder::new(&[1, 2, 3]).u32(), None);
    }
}
