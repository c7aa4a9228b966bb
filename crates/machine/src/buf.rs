//! Owned, page-aligned buffers: what O_DIRECT and io_uring need.

use bytes::Bytes;

/// An owned buffer whose first byte is aligned to [`Buf::ALIGN`]; its length is any number of bytes.
pub struct Buf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buf {
    /// Alignment of the first byte.
    pub const ALIGN: usize = 4096;

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + Self::ALIGN];
        let start = bytes.as_ptr().align_offset(Self::ALIGN);
        Buf { bytes, start, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Freezes the buffer into shareable bytes without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
