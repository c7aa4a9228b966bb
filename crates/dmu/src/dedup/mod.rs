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
//! gang block, an encrypted block, a block without an entry while the tables are full ([`Dedup::set_full`]). Such a
//! block is written as usual, and its pointer has no dedup bit.
//!
//! Invariants: the references of an entry are the pointers with the dedup bit that lead to its DVAs; a key has one
//! entry, in one class; a block in the table is freed when its last reference is released, when that txg syncs.
//!
//! Source: OpenZFS `module/zfs/ddt.c`, `module/zfs/zio.c` (`zio_ddt_write`, `zio_ddt_free`).

mod entry;
pub mod table;

use crate::ddt_brt_reader::{CHECKSUMS, DedupTable, dedup_log, dedup_tables};
use crate::error::{ErrorLocation, ObjectError};
use crate::live::DedupWriter;
pub use crate::live::policy::DedupPolicy;
use crate::object_set::ObjectSet;
use crate::zap;
use bytes::Bytes;
pub use entry::{Entry, EntryId};
use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
pub use table::Table;
use table::{DIRECTORY, FLAGS, VERSION};
use weir_blocks::{Blocks, Prepared, ReadOptions, WriteOptions};
use weir_format::ddt::{self, DdtClass, DdtHistogram, DdtKey, DdtLogHeader, DdtPhys};
use weir_format::dsl::pool;
use weir_format::{BlockPointer, ChecksumKind, ObjectId};
use weir_machine::Request;
use weir_machine::lock::{Mutex, MutexGuard};

/// Dedup bit of a block pointer.
const DEDUP: u64 = 1 << 62;

#[derive(Default)]
struct State {
    tables: BTreeMap<u8, Table>,
    /// Entries that the open txg changed.
    changed: BTreeMap<EntryId, Entry>,
    /// Entries in use by a task, and the tasks that wait for them.
    busy: BTreeMap<EntryId, Vec<oneshot::Sender<()>>>,
    /// The tables get no new entries: see [`Dedup::set_full`].
    is_full: bool,
}

/// The entries that a txg changed, and the tables they belong to, by the number of their checksum.
#[derive(Debug)]
pub struct DedupChanges {
    /// Changed entries, by checksum and key.
    pub entries: BTreeMap<EntryId, Entry>,
    /// Tables to write, by checksum.
    pub tables: BTreeMap<u8, Table>,
}

impl State {
    /// Reads the entries of a fast table's logs, those of the active log last.
    async fn read_logs(
        &mut self,
        rq: &Request,
        mos: &Arc<ObjectSet>,
        checksum: ChecksumKind,
        table: &mut Table,
    ) -> Result<(), ObjectError> {
        let Some(directory) = table.directory else { return Ok(()) };
        let mut logs = Vec::new();
        for n in 0..2 {
            let id = zap::lookup_word(rq, mos, directory, &ddt::log_name(checksum, n)).await?;
            if let Some(id) = id.map(ObjectId) {
                let (header, entries) = dedup_log(rq, mos, id).await?;
                logs.push((id, header, entries));
            }
        }
        logs.sort_by_key(|(_, header, _)| header.flags & DdtLogHeader::FLUSHING == 0);
        for (id, header, entries) in logs {
            for (key, logged) in entries {
                let class = DdtClass::ALL.get(usize::from(logged.class)).copied().filter(|_| logged.storage == 0);
                // The histograms of the tables do not include the entries of a log.
                let entry = Entry { class, counted: None, blocks: logged.value };
                self.changed.insert((checksum as u8, key), entry);
            }
            if header.length_bytes > 0 {
                table.logs.push((id, header));
            }
        }
        Ok(())
    }
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

    /// Reads the tables of an existing pool, including the entries of their logs.
    ///
    /// # Errors
    /// Errors of reading the tables.
    pub async fn read(rq: &Request, mos: Arc<ObjectSet>) -> Result<Arc<Self>, ObjectError> {
        let mut state = State::default();
        let statistics = zap::lookup_word(rq, &mos, DIRECTORY, pool::DDT_STATS).await?.map(ObjectId);
        for checksum in CHECKSUMS {
            let own = zap::lookup_word(rq, &mos, DIRECTORY, &ddt::directory_name(checksum)).await?.map(ObjectId);
            let Some(directory) = own else { continue };
            let mut table = Table { directory: Some(directory), ..Table::empty(true) };
            let version = zap::lookup_word(rq, &mos, directory, ddt::DIR_VERSION).await?;
            let flags = zap::lookup_word(rq, &mos, directory, ddt::DIR_FLAGS).await?;
            if version != Some(VERSION) || flags != Some(FLAGS) {
                return Err(ObjectError::Unsupported { what: "writing to a dedup table of an unknown version" });
            }
            state.read_logs(rq, &mos, checksum, &mut table).await?;
            state.tables.insert(checksum as u8, table);
        }
        for DedupTable { checksum, class, object, flat } in dedup_tables(rq, &mos).await? {
            let table = state.tables.entry(checksum as u8).or_insert_with(|| Table::empty(flat));
            table.objects[class as usize] = Some(object);
            let name = ddt::table_name(checksum, class);
            let counted = match statistics {
                Some(id) => zap::lookup(rq, &mos, id, &name).await?,
                None => None,
            };
            let counted = counted.and_then(|value| DdtHistogram::from_words(&value.words));
            table.histograms[class as usize] = counted.unwrap_or_default();
        }
        Ok(Arc::new(Dedup { mos, state: Mutex::new(state) }))
    }

    /// Takes the entries that the open txg changed, and each table that has such entries or a log to empty.
    ///
    /// The caller writes them and returns each table with [`Dedup::put_table`].
    pub fn take_changes(&self) -> DedupChanges {
        let mut state = self.state();
        let entries = std::mem::take(&mut state.changed);
        let has_changes =
            |n: &u8| entries.range((*n, DdtKey::default())..).next().is_some_and(|((first, _), _)| first == n);
        let touched = state.tables.keys().copied().filter(has_changes).collect::<Vec<u8>>();
        let with_logs = state.tables.iter().filter(|(_, table)| !table.logs.is_empty()).map(|(n, _)| *n);
        let numbers: Vec<u8> = with_logs.chain(touched).collect();
        let take = |n: u8| Some((n, state.tables.remove(&n)?));
        let tables = numbers.into_iter().filter_map(take).collect();
        DedupChanges { entries, tables }
    }

    /// Returns a table that [`Dedup::take_changes`] took.
    pub fn put_table(&self, checksum: u8, table: Table) {
        self.state().tables.insert(checksum, table);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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
                        let (sender, waiting) = oneshot::channel();
                        waiters.push(sender);
                        waiting
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
    async fn write_block(
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
        let may_enter = entry.exists() || !self.state().is_full;
        let slot = entry.slot(options.copies).filter(|_| !differs && may_enter);
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

    /// Sets whether the tables are full. They get no new entries then: a block whose contents have no entry is written as usual,
    /// and others still share the block of their entry (OpenZFS `ddt_over_quota`).
    pub fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// The ZAPs of the entries of all tables.
    pub fn objects(&self) -> Vec<ObjectId> {
        self.state().tables.values().flat_map(|table| table.objects).flatten().collect()
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

impl DedupWriter for Dedup {
    fn write<'a>(
        &'a self,
        rq: &'a Request,
        bytes: &'a Bytes,
        options: &'a WriteOptions,
        verify: bool,
        read: &'a ReadOptions,
    ) -> BoxFuture<'a, Result<BlockPointer, ObjectError>> {
        Box::pin(self.write_block(rq, bytes, options, verify, read))
    }
}
