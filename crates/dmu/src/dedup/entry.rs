//! Entry of a dedup table in memory.

use weir_format::BlockPointer;
use weir_format::ddt::{DdtClass, DdtKey, DdtPhys};

/// Blocks of an entry of the legacy form: ditto blocks (no longer made), and one, two, three copies.
pub(super) const VARIANTS: usize = 4;

/// Number of a checksum, and a key: identifies an entry in the pool.
pub type EntryId = (u8, DdtKey);

/// State of an entry in the open txg.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Class of the table with this entry.
    pub class: Option<DdtClass>,
    /// Blocks of the entry that the class's histogram accounts for.
    pub counted: Option<Vec<DdtPhys>>,
    /// The blocks: one (flat form), or [`VARIANTS`] (legacy form).
    pub blocks: Vec<DdtPhys>,
}

impl Entry {
    /// Whether the table has this entry, or gets it when the open txg syncs.
    pub(super) fn exists(&self) -> bool {
        self.class.is_some() || self.blocks.iter().any(|block| block.birth.0 != 0)
    }

    /// Returns the block with this number of copies.
    pub(super) fn slot(&mut self, copies: u8) -> Option<&mut DdtPhys> {
        let at = if self.blocks.len() == 1 { 0 } else { usize::from(copies) };
        self.blocks.get_mut(at)
    }

    /// Returns the block that a pointer leads to.
    pub(super) fn of_pointer(&mut self, pointer: &BlockPointer) -> Option<&mut DdtPhys> {
        let place = pointer.dva(0).to_words();
        let birth = pointer.physical_birth();
        self.blocks.iter_mut().find(|b| b.dva_words.starts_with(&place) && b.birth == birth && birth.0 != 0)
    }
}
