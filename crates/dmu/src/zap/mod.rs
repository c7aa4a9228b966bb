//! ZAPs: the key/value objects of a pool. Directories, properties, names of snapshots and nearly all other names are
//! in ZAPs.
//!
//! There are two forms (their blocks: `weir_format::zap`). A *micro* ZAP is one block that is searched from end to end.
//! A *fat* ZAP is a hash table: header block → pointer table → leaf → chain. A look-up reads at most three blocks,
//! mostly from the cache.
//!
//! *Order.* Both are walked in the order of (hash, collision differentiator), which depends only on names. An
//! [`Entry::cookie`] is this pair packed into 64 bits, plus one. It is valid as long as the entry exists; 0 is the
//! start.
//!
//! *Names* are compared after [`name::normalize`] if the ZAP has normalization flags. The flags of the hash and those
//! of the comparison differ if case is significant.
//!
//! Invariants: a walk continues to strictly greater hashes with each leaf, and each leaf must own the hash by which it
//! was found, so that a malformed table is detected and no walk is endless. Nothing beyond one leaf is allocated.

mod entry;
mod fat;
pub mod name;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use entry::{Entry, Key, Match, Value};
pub use read::{Zap, ZapLayout, lookup, lookup_word};
pub use write::{
    NewZap, add, add_int, create, create_at, insert, lookup_int, put, put_bytes, put_int, put_word, put_words, remove,
    remove_int, remove_match, remove_name,
};
