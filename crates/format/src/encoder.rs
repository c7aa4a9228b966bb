//! Appends integers in either byte order: the counterpart of [`Cursor`](crate::Cursor).
//!
//! Every structure that Weir can write has an `encode` over an [`Encoder`]. The tests check that `decode(encode(x))
//! == x` and, for bytes of a real pool, `encode(decode(b)) == b`.

use crate::cursor::Endian;

/// Collects the bytes of a structure in one byte order.
#[derive(Clone, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    endian: Endian,
}

impl Encoder {
    /// An empty encoder with a capacity of 128 bytes, enough for most structures.
    pub fn new(endian: Endian) -> Self {
        Encoder::with_capacity(endian, 128)
    }

    /// An empty encoder with a capacity of `bytes`.
    pub fn with_capacity(endian: Endian, bytes: usize) -> Self {
        Encoder { bytes: Vec::with_capacity(bytes), endian }
    }

    /// The byte order.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes written so far.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `len` zero bytes.
    pub fn zeros(&mut self, len: usize) {
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    /// Appends zero bytes up to position `len`; does nothing if the position is `len` or more.
    pub fn pad_to(&mut self, len: usize) {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
    }

    /// Appends a byte.
    pub fn u8(&mut self, v: u8) {
        self.bytes.push(v);
    }

    /// Appends two bytes.
    pub fn u16(&mut self, v: u16) {
        self.bytes(&match self.endian {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        });
    }

    /// Appends four bytes.
    pub fn u32(&mut self, v: u32) {
        self.bytes(&match self.endian {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        });
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.bytes(&match self.endian {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        });
    }

    /// Appends 64-bit integers.
    pub fn words(&mut self, words: &[u64]) {
        for w in words {
            self.u64(*w);
        }
    }

    /// The collected bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Overwrites the 32-bit integer at `at`, which must have been written already.
    pub(crate) fn patch_u32(&mut self, at: usize, v: u32) {
        let b = match self.endian {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        };
        if let Some(slot) = self.bytes.get_mut(at..at + 4) {
            slot.copy_from_slice(&b);
        }
    }
}
