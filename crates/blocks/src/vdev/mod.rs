//! Virtual devices: the tree from top-level vdevs down to disks.
//!
//! A block's address names a top-level vdev by its index in the pool and a byte offset in the space that it offers. Each
//! kind of vdev turns such a range into ranges of its children:
//!
//! ```text
//!  mirror, replacing, spare   the same range on any one child
//!  raidz, draid               sectors spread over the children, with parity to make good for missing or wrong ones
//!  indirect                   pieces of other top-level vdevs, by the map that device removal left
//!  leaf                       the same offset, after the front labels and the boot area (4 MiB), on its disk
//! ```
//!
//! A read carries the test that its bytes must pass ([`Proof`]), so each vdev can try whatever redundancy it has. A read
//! below RAID-Z carries none: there only the whole block can be proven.
//!
//! A leaf without a disk is *missing*; a leaf that missed writes in some transaction groups is *stale* for blocks born in
//! them and asked last.

mod leaf;
mod mirror;
mod spec;

pub use leaf::Counters;
pub use spec::{Expansion, Reflow, TreeError, VdevKind, VdevSpec};

use crate::error::BlockError;
use futures_util::future::BoxFuture;
use leaf::Leaf;
use std::sync::Arc;
use weir_codec::CodecError;
use weir_format::Txg;
use weir_machine::{Buf, BufPool, Clock, Request};

/// The largest range that is ever read at once: the largest block of the format.
pub const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// The test that the bytes of a read must pass.
pub(crate) type Proof<'a> = &'a (dyn Fn(&[u8]) -> Result<(), CodecError> + Sync);

/// What a read needs on its way through the tree.
pub(crate) struct Job<'a> {
    pub request: &'a Request,
    pub clock: &'a Clock,
    pub pool: &'a BufPool,
    /// When the block was allocated: which layout it has, and which devices missed it.
    pub birth: Txg,
}

/// A range of a top-level vdev, which errors name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub vdev: u32,
    pub offset: u64,
}

/// A vdev below the top, or the top itself.
pub(crate) struct Vdev {
    pub name: String,
    pub guid: u64,
    pub body: Body,
}

pub(crate) enum Body {
    Leaf(Leaf),
    Mirror(Vec<Vdev>),
    Unsupported(&'static str),
}

/// A top-level vdev.
struct Top {
    ashift: u32,
    asize_bytes: u64,
    vdev: Vdev,
}

/// What a leaf is and how it fared.
#[derive(Clone, Debug)]
pub struct LeafHealth {
    /// The leaf's GUID.
    pub guid: u64,
    /// Its name.
    pub name: String,
    /// Whether there is a disk behind it.
    pub present: bool,
    /// What it did.
    pub counts: leaf::Counts,
}

/// The pool's devices.
pub struct Tree {
    tops: Vec<Top>,
}

impl Tree {
    /// Builds the tree from the description of the pool's top-level vdevs; a vdev's `id` is its index.
    ///
    /// # Errors
    /// [`TreeError`] for numbers that no pool has (sector sizes, parities, numbers of children, depth).
    pub fn new(specs: Vec<VdevSpec>) -> Result<Arc<Tree>, TreeError> {
        let tops = spec::sorted(specs)?
            .into_iter()
            .map(|s| Ok(Top { ashift: s.ashift, asize_bytes: s.asize_bytes, vdev: Vdev::build(s, 0)? }))
            .collect::<Result<_, TreeError>>()?;
        Ok(Arc::new(Tree { tops }))
    }

    /// Number of top-level vdevs.
    pub fn len(&self) -> usize {
        self.tops.len()
    }

    /// Whether there are no vdevs.
    pub fn is_empty(&self) -> bool {
        self.tops.is_empty()
    }

    /// Every leaf with its counters, in the order of the tree.
    pub fn health(&self) -> Vec<LeafHealth> {
        let mut out = Vec::new();
        for top in &self.tops {
            top.vdev.health(&mut out);
        }
        out
    }

    fn top(&self, place: Place) -> Result<&Top, BlockError> {
        let Place { vdev, offset } = place;
        let forged = BlockError::Forged { vdev, offset, field: "vdev", value: vdev.into() };
        self.tops.get(vdev as usize).ok_or(forged)
    }

    /// log2 of the sector size of top-level vdev `vdev`, if there is one.
    pub fn ashift(&self, vdev: u32) -> Option<u32> {
        self.tops.get(vdev as usize).map(|t| t.ashift)
    }

    /// Reads `len` bytes at `place`, proven by `proof`: whole sectors are read, `len` bytes are tested and returned.
    pub(crate) async fn read(
        &self,
        job: &Job<'_>,
        place: Place,
        len: u64,
        proof: Proof<'_>,
    ) -> Result<Buf, BlockError> {
        let (top, whole) = self.check(place, len)?;
        let exact = |bytes: &[u8]| proof(bytes.get(..len as usize).unwrap_or(bytes));
        let mut buf = top.vdev.read(self, job, place, place.offset, whole, Some(&exact)).await?;
        buf.truncate(len as usize);
        Ok(buf)
    }

    /// The vdev and the whole sectors of a range, if it can be read at all.
    fn check(&self, place: Place, len: u64) -> Result<(&Top, u64), BlockError> {
        let Place { vdev, offset } = place;
        let top = self.top(place)?;
        let forged = |field, value| Err(BlockError::Forged { vdev, offset, field, value });
        if len == 0 || len > MAX_BLOCK_BYTES {
            return forged("size", len);
        }
        let sector = 1u64 << top.ashift;
        if offset % sector != 0 {
            return forged("offset (not a multiple of the sector size)", offset);
        }
        let whole = len.next_multiple_of(sector);
        let end = offset.checked_add(whole).filter(|&end| top.asize_bytes == 0 || end <= top.asize_bytes);
        if end.is_none() {
            return forged("offset (beyond the device)", offset);
        }
        Ok((top, whole))
    }
}

impl Vdev {
    /// Reads `len` bytes at `offset` of this vdev; `place` is the range of the top-level vdev for which, as errors name
    /// it. With a proof, all redundancy is tried until it holds.
    pub(crate) fn read<'a>(
        &'a self,
        tree: &'a Tree,
        job: &'a Job<'a>,
        place: Place,
        offset: u64,
        len: u64,
        proof: Option<Proof<'a>>,
    ) -> BoxFuture<'a, Result<Buf, BlockError>> {
        Box::pin(async move {
            match &self.body {
                Body::Leaf(leaf) => leaf.read(self, job, place, offset, len, proof).await,
                Body::Mirror(children) => mirror::read(children, tree, job, place, offset, len, proof).await,
                Body::Unsupported(what) => {
                    Err(BlockError::Unsupported { vdev: place.vdev, offset: place.offset, what })
                }
            }
        })
    }

    /// How reluctantly to ask this vdev for a block born in `birth`: 0 willingly, 1 may be stale, 2 not there.
    pub(crate) fn reluctance(&self, birth: Txg) -> u8 {
        match &self.body {
            Body::Leaf(leaf) => leaf.reluctance(birth),
            Body::Mirror(children) => children.iter().map(|c| c.reluctance(birth)).min().unwrap_or(2),
            Body::Unsupported(_) => 2,
        }
    }

    /// Reads under way at this vdev's least busy leaf.
    pub(crate) fn load(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => leaf.load(),
            Body::Mirror(children) => children.iter().map(Vdev::load).min().unwrap_or(0),
            _ => 0,
        }
    }

    fn children(&self) -> &[Vdev] {
        match &self.body {
            Body::Mirror(children) => children,
            _ => &[],
        }
    }

    fn health(&self, out: &mut Vec<LeafHealth>) {
        if let Body::Leaf(leaf) = &self.body {
            let (guid, name) = (self.guid, self.name.clone());
            out.push(LeafHealth { guid, name, present: leaf.present(), counts: leaf.counters().counts() });
        }
        for child in self.children() {
            child.health(out);
        }
    }
}
