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
//!
//! ```
//! use weir_codec::compress::ZstdLevel;
//! use weir_codec::{Salt, checksum, compress, decompress, parity};
//! use weir_format::{ChecksumKind, CompressionKind, Endian};
//!
//! let block = vec![7; 4096];
//! let mut room = vec![0; 4096 * 7 / 8]; // a block that does not save an eighth is stored as it is
//! let len = compress(CompressionKind::Lz4, ZstdLevel::DEFAULT, &block, &mut room)?.unwrap();
//! assert_eq!(decompress(CompressionKind::Lz4, &room[..len], block.len())?, block);
//!
//! let words = checksum(ChecksumKind::Fletcher4, Endian::Little, &Salt::none(), &room[..len])?;
//! room[0] ^= 1;
//! assert_ne!(checksum(ChecksumKind::Fletcher4, Endian::Little, &Salt::none(), &room[..len])?, words);
//!
//! // RAID-Z1 over two data columns: a lost column is rebuilt from the other one and the parity.
//! let a = [1, 2];
//! let b = [3, 4];
//! let mut p = [0; 2];
//! let mut rebuilt = [0; 2];
//! parity::generate(&[&a, &b], &mut [&mut p])?;
//! parity::reconstruct(&[None, Some(&b)], &[Some(&p)], &mut [&mut rebuilt])?;
//! assert_eq!(rebuilt, a);
//! # Ok::<(), weir_codec::CodecError>(())
//! ```

pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod error;
pub mod fuzz;
pub mod parity;

pub use checksum::{Salt, checksum};
pub use compress::{compress, decompress, decompress_into};
pub use error::{CodecError, DecompressFault};
