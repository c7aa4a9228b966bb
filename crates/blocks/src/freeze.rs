//! Buffers that become shared bytes.

use bytes::Bytes;
use weir_machine::Buf;

/// Converts a buffer to shared bytes. Bytes that are much shorter than their buffer are copied, to free the buffer.
pub(crate) fn freeze(buf: Buf) -> Bytes {
    if buf.capacity() > buf.len() + buf.len() / 4 + 512 {
        Bytes::copy_from_slice(buf.as_ref())
    } else {
        buf.into_bytes()
    }
}
