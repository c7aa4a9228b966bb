//! Objects of a pool: what stands between blocks and their meaning.
//!
//! ```text
//!   dsl            datasets: names, snapshots, properties, space, keys          (in the MOS, by ZAPs and bonus areas)
//!   zap  sa  zil   dictionaries · attributes of files · intent logs             (inside one object or object set)
//!   ObjectSet      number → dnode → blocks, holes, what is fetched ahead
//!   ─────────────  weir-cache: block pointer → proven bytes
//! ```
//!
//! Sets opened *live* also change, in transactions ([`live`], [`txg`]).
//!
//! Invariants: nothing read is trusted. Each structure is bounded by the format (a block by 16 MiB, a
//! tree by its levels), each walk by what it has to make progress in. No lock is held across an await.
//!
//! What fails: see [`ObjectError`]; an error names object set, object, level and block, and concerns no more than what
//! it names.

mod arrays;
pub mod bpobj;
mod changed;
pub mod deadlist;
pub mod dedup;
pub mod dsl;
pub mod error;
pub mod fuzz;
pub mod listing;
pub mod live;
pub mod livelist;
pub mod mos_plan;
pub mod object;
pub mod object_set;
pub mod props;
pub mod read;
pub mod sa;
pub mod space_map;
pub mod tables;
pub mod trail;
pub mod txg;
pub mod zap;
pub mod zil;

pub use arrays::write_words;
pub use dsl::{Dataset, Dir, Dsl};
pub use error::{ObjectError, Place};
pub use listing::{DataBlocks, Objects};
pub use live::{Gate, NewObject, Policy, Purpose};
pub use object::Object;
pub use object_set::{ObjectSet, Opening};
pub use read::{Seek, Segments};
pub use trail::Trail;
pub use txg::{Tx, TxGroups};
pub use zap::Zap;
