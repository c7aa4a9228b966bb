//! Bytes on the wire: headers of protocol data units, their digests, and text keys. All multi-byte numbers are big-endian.

pub mod bhs;
pub mod digest;
pub mod text;

pub use bhs::{BHS_BYTES, Bhs};
pub use digest::Digests;
pub use text::Keys;
