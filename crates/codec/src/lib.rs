//! Checksums, compression, encryption and parity of the OpenZFS format: the transformations between stored bytes and
//! logical blocks. Pure functions over slices: no I/O, no clock, no blocking lock.
//!
//! ```text
//!   columns of a RAID-Z row ──parity──▶ stored block ──checksum──▶ verified ──crypt──▶ plaintext ──compress──▶ logical block
//!              (rebuild)                              (verify)            (decrypt)         (decompress)
//! ```
//!
//! Every function is *total*: any bytes, lengths and numbers give a value or a [`CodecError`], never a panic. Memory
//! use is bounded by the caller's buffers. Blocks written by a host of the other byte order are supported: see
//! [`checksum`].
//!
//! Only the `simd` functions of [`checksum`] and [`parity`] use `unsafe`, after run-time detection of the processor's
//! features. Each has a portable version, and a test that both agree.

pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod error;
pub mod fuzz;
pub mod parity;

pub use checksum::{Salt, checksum};
pub use compress::{compress, decompress, decompress_into};
pub use error::{CodecError, DecompressFault};
