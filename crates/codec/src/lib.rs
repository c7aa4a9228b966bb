//! Checksums, compression, encryption and parity of the OpenZFS format: the arithmetic that turns stored bytes into
//! proven ones. Pure functions over slices: no I/O, no clock, no lock that anyone could wait on.
//!
//! ```text
//!   columns of a RAID-Z row ──parity──▶ stored block ──checksum──▶ proven ──crypt──▶ clear ──compress──▶ logical block
//!              (rebuild)                              (verify)            (decrypt)         (decompress)
//! ```
//!
//! Every function here is *total*: any bytes, lengths and numbers give a value or a [`CodecError`], never a panic, and
//! nothing is written or allocated beyond what the caller's buffers say. Blocks of a machine of the other byte order
//! are read as that machine wrote them: see [`checksum`].
//!
//! `unsafe` stands in the `simd` functions of [`checksum`] and [`parity`] alone, each behind the processor's own word
//! that it knows the instructions; beside each stands a portable twin, and a test that both agree.

pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod error;
pub mod fuzz;
pub mod parity;

pub use checksum::{Salt, checksum};
pub use compress::{compress, decompress, decompress_into};
pub use error::{CodecError, DecompressFault};
