//! Deduplication: blocks with the same contents are stored once.
//!
//! ```text
//!   write    checksum known ─► entry? ─ no ──► block written, entry with one reference
//!                                 └ yes ─► pointer to the entry's DVAs, one more reference     nothing is written
//!   free     entry with that DVA? ─ yes ─► one reference fewer      no: the block is freed as usual
//!   sync     changed entries ─► their table; entries without references ─► their blocks are freed     [`table`]
//! ```
//!
//! The key of an entry consists of checksum, sizes and compression. An entry has a block for each number of copies (the
//! *legacy* form) or one block for all (the *flat* form of fast tables). Tables of the fast form have logs, too. Weir
//! replays them into the tables when it imports a pool, and leaves them empty.
//!
//! Entries that a txg changes are kept here and written when it syncs. A write of contents that another write is
//! storing at the moment waits for it, and then finds its entry.
//!
//! *Blocks that are not deduplicated*, although they could be: a block with fewer copies in the table than requested, a
//! gang block, an encrypted block. Such a block is written as usual, and its pointer has no dedup bit.
//!
//! Invariants: the references of an entry are the pointers with the dedup bit that lead to its DVAs; a key has one
//! entry, in one class; a block in the table is freed when its last reference is released, when that txg syncs.
//!
//! Source: OpenZFS `module/zfs/ddt.c`, `module/zfs/zio.c` (`zio_ddt_write`, `zio_ddt_free`).

pub mod table;

use crate::error::{ErrorLocation, ObjectError};
use crate::object_set::ObjectSet;
use bytes::Bytes;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub use table::{DedupChanges, Table};
use weir_blocks::{Blocks, Prepared, ReadOptions, WriteOptions};
use weir_format::ddt::{DdtClass, DdtKey, DdtPhys};
use weir_format::{BlockPointer, ChecksumKind};
use weir_machine::Request;

/// Dedup bit of a block pointer.
const DEDUP: u64 = 1 << 62;
/// Blocks of an entry of the legacy form: ditto blocks (no longer made), and one, two, three copies.
const VARIANTS: usize = 4;

/// Dedup property of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupPolicy {
    /// Checksum that identifies blocks; all data of the dataset use it.
    pub checksum: ChecksumKind,
    /// Whether blocks with the same checksum are compared byte by byte before they are shared.
    pub verify: bool,
}

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
    /// Returns the block with this number of copies.
    fn slot(&mut self, copies: u8) -> Option<&mut DdtPhys> {
        let at = if self.blocks.len() == 1 { 0 } else { usize::from(copies) };
        self.blocks.get_mut(at)
    }

    /// Returns the block that a pointer leads to.
    fn of_pointer(&mut self, pointer: &BlockPointer) -> Option<&mut DdtPhys> {
        let place = pointer.dva(0).to_words();
        let birth = pointer.physical_birth();
        self.blocks.iter_mut().find(|b| b.dva_words.starts_with(&place) && b.birth == birth && birth.0 != 0)
    }
}

#[derive(Default)]
struct State {
    tables: BTreeMap<u8, Table>,
    /// Entries that the open txg changed.
    changed: BTreeMap<EntryId, Entry>,
    /// Entries in use by a task, and the tasks that wait for them.
    busy: BTreeMap<EntryId, Vec<oneshot::Sender<()>>>,
}

/// Dedup tables of a pool that is open for changes.
pub struct Dedup {
    mos: Arc<ObjectSet>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Dedup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dedup({} entries changed)", self.state().changed.len())
    }
}

/// Exclusive use of an entry, until it is dropped.
struct EntryLock<'a> {
    dedup: &'a Dedup,
    id: EntryId,
}

impl Drop for EntryLock<'_> {
    fn drop(&mut self) {
        let waiters = self.dedup.state().busy.remove(&self.id);
        for waiter in waiters.into_iter().flatten() {
            let _gone = waiter.send(());
        }
    }
}

fn id_of(pointer: &BlockPointer) -> Option<EntryId> {
    let checksum = pointer.checksum_kind()?;
    Some((checksum as u8, DdtKey::of(pointer)))
}

/// Returns the pointer to a block of the table, for one more owner.
fn shared(ready: &BlockPointer, block: &DdtPhys) -> BlockPointer {
    let mut words = *ready.words();
    words[..6].copy_from_slice(&block.dva_words);
    words[6] |= DEDUP;
    words[9] = if block.birth == ready.logical_birth() { 0 } else { block.birth.0 };
    BlockPointer::from_words(words)
}

impl Dedup {
    /// Returns the tables of a new pool.
    pub fn new(mos: Arc<ObjectSet>) -> Arc<Self> {
        Arc::new(Dedup { mos, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self) -> &Arc<Blocks> {
        self.mos.cache().blocks()
    }

    /// Waits until no other task uses an entry, and locks it.
    async fn lock_entry(&self, id: EntryId) -> EntryLock<'_> {
        loop {
            let waiting = {
                let mut state = self.state();
                match state.busy.get_mut(&id) {
                    Some(waiters) => {
                        let (tell, told) = oneshot::channel();
                        waiters.push(tell);
                        told
                    }
                    None => {
                        state.busy.insert(id, Vec::new());
                        return EntryLock { dedup: self, id };
                    }
                }
            };
            // The loop checks again, whether the lock was handed over or its owner was dropped.
            let _done = waiting.await;
        }
    }

    /// Whether the stored block has these bytes.
    async fn is_same(&self, rq: &Request, pointer: &BlockPointer, bytes: &Bytes, read: &ReadOptions) -> bool {
        // A block that cannot be read is not shared.
        self.mos.cache().read(rq, pointer, read).await.is_ok_and(|found| found == *bytes)
    }

    /// Writes a block of data, or refers to a stored block with the same contents.
    ///
    /// # Errors
    /// Errors of reading the tables and of writing the block.
    pub async fn write(
        &self,
        rq: &Request,
        bytes: &Bytes,
        options: &WriteOptions,
        verify: bool,
        read: &ReadOptions,
    ) -> Result<BlockPointer, ObjectError> {
        let place = ErrorLocation {
            objset: options.objset,
            object: options.object,
            level: options.level,
            block: options.block,
        };
        let failed = |error| ObjectError::block(place, error);
        let ready = match self.blocks().prepare(bytes.clone(), options).await.map_err(failed)? {
            Prepared::Pointer(pointer) => return Ok(pointer),
            Prepared::Ready(ready) => ready,
        };
        let pointer = *ready.pointer();
        let Some(id) = id_of(&pointer) else {
            return self.blocks().store(rq, ready, options).await.map_err(failed);
        };
        let _turn = self.lock_entry(id).await;
        let mut entry = self.load(rq, id).await?;
        let there = entry.blocks.iter().copied().find(|b| b.birth.0 != 0);
        let differs = match there {
            Some(block) if verify => !self.is_same(rq, &shared(&pointer, &block), bytes, read).await,
            _ => false,
        };
        let slot = entry.slot(options.copies).filter(|_| !differs);
        let Some(slot) = slot else { return self.blocks().store(rq, ready, options).await.map_err(failed) };
        if slot.birth.0 != 0 {
            if slot.dvas().count() < usize::from(options.copies) {
                return self.blocks().store(rq, ready, options).await.map_err(failed);
            }
            slot.references += 1;
            let pointer = shared(&pointer, slot);
            self.state().changed.insert(id, entry);
            return Ok(pointer);
        }
        let stored = self.blocks().store(rq, ready, options).await.map_err(failed)?;
        if stored.is_gang() {
            return Ok(stored);
        }
        let mut dva_words = [0; 6];
        dva_words.copy_from_slice(&stored.words()[..6]);
        *slot = DdtPhys { dva_words, references: 1, birth: stored.physical_birth(), class_start_s: 0 };
        let pointer = shared(&pointer, slot);
        self.state().changed.insert(id, entry);
        Ok(pointer)
    }

    /// Releases the reference of a pointer with the dedup bit. Returns false if the table has no entry for its block;
    /// the caller then frees the block as usual.
    ///
    /// # Errors
    /// Errors of reading the tables.
    pub async fn release(&self, rq: &Request, pointer: &BlockPointer) -> Result<bool, ObjectError> {
        let Some(id) = id_of(pointer) else { return Ok(false) };
        let _turn = self.lock_entry(id).await;
        let mut entry = self.load(rq, id).await?;
        let Some(block) = entry.of_pointer(pointer) else { return Ok(false) };
        block.references = block.references.saturating_sub(1);
        self.state().changed.insert(id, entry);
        Ok(true)
    }

    /// Returns the present state of an entry; an empty entry if there is none.
    async fn load(&self, rq: &Request, id: EntryId) -> Result<Entry, ObjectError> {
        let table = {
            let state = self.state();
            if let Some(entry) = state.changed.get(&id) {
                return Ok(entry.clone());
            }
            state.tables.get(&id.0).cloned()
        };
        let table = match table {
            Some(table) => table,
            None => {
                let fresh = Table::fresh(rq, &self.mos).await?;
                self.state().tables.entry(id.0).or_insert(fresh).clone()
            }
        };
        table.find(rq, &self.mos, &id.1).await
    }

    /// Returns the bytes that sharing saves, without parity, as of the last synced txg.
    pub fn saved_bytes(&self) -> u64 {
        let one = |table: &Table| {
            let sums = table.histograms.iter().map(weir_format::ddt::DdtHistogram::bytes);
            sums.map(|(own, used)| used.saturating_sub(own)).fold(0, u64::saturating_add)
        };
        self.state().tables.values().map(one).fold(0, u64::saturating_add)
    }
}
