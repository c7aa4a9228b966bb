//! Bounds-checked reads of integers in either byte order from a byte slice.

use thiserror::Error;

/// The byte order in which a structure was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endian {
    /// Little-endian: x86, ARM.
    Little,
    /// Big-endian: SPARC, and all XDR data.
    Big,
}

/// Why bytes could not be decoded as an on-disk structure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the structure does.
    #[error("{what}: {needed} bytes needed at offset {offset}, {have} available")]
    Truncated {
        /// The structure.
        what: &'static str,
        /// Where the missing field starts.
        offset: usize,
        /// Size of the field in bytes.
        needed: usize,
        /// Bytes available from `offset` on.
        have: usize,
    },
    /// The magic number does not match the structure.
    #[error("{what}: bad magic number {found:#x}")]
    Magic {
        /// The structure.
        what: &'static str,
        /// The value found.
        found: u64,
    },
    /// A field with a value that the format does not allow.
    #[error("{what}: field {field} has the invalid value {value:#x}")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// A required field is missing or has another type.
    #[error("{what}: {field} is missing")]
    Missing {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// A read position in a byte slice with a byte order.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    endian: Endian,
    what: &'static str,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte; `what` names the structure in errors.
    pub fn new(bytes: &'a [u8], endian: Endian, what: &'static str) -> Self {
        Cursor { bytes, at: 0, endian, what }
    }

    /// The position, in bytes from the start of the slice.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The byte order.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Takes the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        if len > self.remaining() {
            return Err(DecodeError::Truncated {
                what: self.what,
                offset: self.at,
                needed: len,
                have: self.remaining(),
            });
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    /// Takes the next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Skips `len` bytes.
    pub fn skip(&mut self, len: usize) -> Result<(), DecodeError> {
        self.bytes(len).map(drop)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes as an integer.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        let b = self.array()?;
        Ok(match self.endian {
            Endian::Little => u16::from_le_bytes(b),
            Endian::Big => u16::from_be_bytes(b),
        })
    }

    /// The next four bytes as an integer.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        let b = self.array()?;
        Ok(match self.endian {
            Endian::Little => u32::from_le_bytes(b),
            Endian::Big => u32::from_be_bytes(b),
        })
    }

    /// The next eight bytes as an integer.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        let b = self.array()?;
        Ok(match self.endian {
            Endian::Little => u64::from_le_bytes(b),
            Endian::Big => u64::from_be_bytes(b),
        })
    }

    /// The next `N` 64-bit integers.
    pub fn words<const N: usize>(&mut self) -> Result<[u64; N], DecodeError> {
        let mut out = [0; N];
        if self.remaining() < N * 8 {
            // The error names the first word that is missing.
            for word in &mut out {
                *word = self.u64()?;
            }
            return Ok(out);
        }
        let (words, _) = self.bytes(N * 8)?.as_chunks::<8>();
        match self.endian {
            Endian::Little => out.iter_mut().zip(words).for_each(|(out, word)| *out = u64::from_le_bytes(*word)),
            Endian::Big => out.iter_mut().zip(words).for_each(|(out, word)| *out = u64::from_be_bytes(*word)),
        }
        Ok(out)
    }
}
