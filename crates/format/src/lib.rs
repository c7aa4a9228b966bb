//! The OpenZFS on-disk format: decoders and encoders of every structure. Pure: no I/O, no clock, no lock.
//!
//! Each block is written in the byte order of the host that wrote it; a bit of the block pointer records which
//! ([`BlockPointer::endian`]). Structures are therefore decoded field by field over an endian-aware
//! [`cursor::Cursor`] and never cast.
//!
//! ```
//! use weir_format::NvList;
//!
//! let mut list = NvList::new();
//! list.set("name", "tank");
//! list.set("txg", 4u64);
//! let bytes = list.encode_xdr(); // as labels store it
//!
//! let read = NvList::decode(&bytes)?;
//! assert_eq!((read.get_str("name"), read.get_u64("txg")), (Some("tank"), Some(4)));
//! assert!(NvList::decode(&bytes[..9]).is_err()); // damaged bytes give an error, never a panic
//! # Ok::<(), weir_format::DecodeError>(())
//! ```

pub mod acl;
pub mod blkptr;
pub mod brt;
pub mod cursor;
pub mod ddt;
pub mod dnode;
pub mod dsl;
pub mod encoder;
pub mod features;
pub mod fuzz;
pub mod gang;
pub mod ids;
pub mod indirect;
pub mod kinds;
pub mod l2arc;
pub mod label;
pub mod nvlist;
pub mod objset;
pub mod records;
pub mod sa;
pub mod space_map;
pub mod stream;
pub mod uberblock;
pub mod zap;
pub mod zil;
pub mod znode;

pub use blkptr::{BlockPointer, Dva, Embedded};
pub use cursor::{Cursor, DecodeError, Endian};
pub use dnode::{Dnode, DnodeFlags};
pub use dsl::{DslDataset, DslDir};
pub use encoder::Encoder;
pub use ids::{ObjectId, ObjsetId, Txg};
pub use kinds::{ChecksumKind, CompressionKind, ObjectType};
pub use label::SelfChecksum;
pub use nvlist::{NvList, NvPair, NvValue};
pub use objset::{Objset, ObjsetKind};
pub use uberblock::Uberblock;
