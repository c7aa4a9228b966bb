//! Deduplication: blocks of the same contents lie on the devices once.
//!
//! ```text
//!   write    checksum known ─► entry? ─ no ──► stored, entry with one reference
//!                                 └ yes ─► the entry's places, one reference more       nothing is written
//!   free     entry with that place? ─ yes ─► one reference less       no: it was forgotten, and is freed as any block
//!   sync     entries that changed ─► their table; those without references ─► their blocks are freed     [`table`]
//! ```
//!
//! An entry is found by its key: checksum, sizes, compression. It has a block for each number of copies (the *legacy*
//! form) or one for all (the *flat* form of fast tables). Tables of the fast form have logs too: these are played into
//! the tables when a pool is opened, and left empty.
//!
//! What one group changes is kept here and written at its end. Two writers of the same contents take turns, so the
//! second finds what the first made.
//!
//! *What is not deduplicated*, though it could be: a block that has fewer copies in the table than are asked for now, a
//! gang, what is encrypted. It is written like any other, and its pointer says so.
//!
//! Invariants: an entry's references are the pointers with the dedup bit that lead to its places; a key has one entry, in
//! one class; a block in the table is freed when its last reference goes, at the end of that group.
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

/// The dedup bit of a pointer.
const DEDUP: u64 = 1 << 62;
/// Blocks of an entry of the legacy form: that of ditto blocks, which nobody makes any more, and one, two, three copies.
const VARIANTS: usize = 4;

/// How a data set's data are deduplicated: its property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupPolicy {
    /// The checksum that tells blocks apart; it is that of all the set's data.
    pub checksum: ChecksumKind,
    /// Blocks of the same checksum are compared before they are taken to be the same.
    pub verify: bool,
}

/// A checksum's number and a key: what an entry is known by in the whole pool.
pub type EntryId = (u8, DdtKey);

/// An entry, as this txg has it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The class of the table that it stands in.
    pub class: Option<DdtClass>,
    /// What that class's histogram counts for it.
    pub counted: Option<Vec<DdtPhys>>,
    /// The blocks: one, or [`VARIANTS`].
    pub blocks: Vec<DdtPhys>,
}

impl Entry {
    /// The block for so many copies.
    fn slot(&mut self, copies: u8) -> Option<&mut DdtPhys> {
        let at = if self.blocks.len() == 1 { 0 } else { usize::from(copies) };
        self.blocks.get_mut(at)
    }

    /// The block that a pointer leads to.
    fn of_pointer(&mut self, pointer: &BlockPointer) -> Option<&mut DdtPhys> {
        let (place, birth) = (pointer.dva(0).to_words(), pointer.physical_birth());
        self.blocks.iter_mut().find(|b| b.dva_words.starts_with(&place) && b.birth == birth && birth.0 != 0)
    }
}

#[derive(Default)]
struct State {
    tables: BTreeMap<u8, Table>,
    /// Entries that this group changed.
    changed: BTreeMap<EntryId, Entry>,
    /// Entries that somebody works on, and who waits for a turn.
    busy: BTreeMap<EntryId, Vec<oneshot::Sender<()>>>,
}

/// The dedup tables of a pool that is open for changes.
pub struct Dedup {
    mos: Arc<ObjectSet>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Dedup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dedup({} entries changed)", self.state().changed.len())
    }
}

/// A turn at an entry, until it is dropped.
struct Turn<'a> {
    dedup: &'a Dedup,
    id: EntryId,
}

impl Drop for Turn<'_> {
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

/// The pointer to a block of the table, for one more owner.
fn shared(ready: &BlockPointer, block: &DdtPhys) -> BlockPointer {
    let mut words = *ready.words();
    words[..6].copy_from_slice(&block.dva_words);
    words[6] |= DEDUP;
    words[9] = if block.birth == ready.logical_birth() { 0 } else { block.birth.0 };
    BlockPointer::from_words(words)
}

impl Dedup {
    /// The tables of a new pool.
    pub fn new(mos: Arc<ObjectSet>) -> Arc<Self> {
        Arc::new(Dedup { mos, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self) -> &Arc<Blocks> {
        self.mos.cache().blocks()
    }

    /// Waits until nobody else works on an entry.
    async fn turn(&self, id: EntryId) -> Turn<'_> {
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
                        return Turn { dedup: self, id };
                    }
                }
            };
            // Whether it was told or dropped, the turn is looked at again.
            let _done = waiting.await;
        }
    }

    /// Whether a block with these bytes is in the table's place.
    async fn is_same(&self, rq: &Request, pointer: &BlockPointer, bytes: &Bytes, read: &ReadOptions) -> bool {
        // One that cannot be read is not shared.
        self.mos.cache().read(rq, pointer, read).await.is_ok_and(|found| found == *bytes)
    }

    /// Writes a block of data, or refers to one of the same contents that is there.
    ///
    /// # Errors
    /// What reading the tables and writing the block meets.
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
        let _turn = self.turn(id).await;
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

    /// Books that a pointer with the dedup bit goes. False if the table does not know its block: then it is freed like
    /// any other.
    ///
    /// # Errors
    /// What reading the tables meets.
    pub async fn release(&self, rq: &Request, pointer: &BlockPointer) -> Result<bool, ObjectError> {
        let Some(id) = id_of(pointer) else { return Ok(false) };
        let _turn = self.turn(id).await;
        let mut entry = self.load(rq, id).await?;
        let Some(block) = entry.of_pointer(pointer) else { return Ok(false) };
        block.references = block.references.saturating_sub(1);
        self.state().changed.insert(id, entry);
        Ok(true)
    }

    /// An entry as it is now; an empty one if there is none.
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

    /// The bytes that sharing saves, parity left out, as of the last group.
    pub fn saved_bytes(&self) -> u64 {
        let one = |table: &Table| {
            let sums = table.histograms.iter().map(weir_format::ddt::DdtHistogram::bytes);
            sums.map(|(own, used)| used.saturating_sub(own)).fold(0, u64::saturating_add)
        };
        self.state().tables.values().map(one).fold(0, u64::saturating_add)
    }
}
