//! The disk itself: writes gathered by object, objects written under conditions, reads with read-ahead.
//!
//! ```text
//!   write ─► patches of an object ─┬─ a flush, a full object, too much gathered ─► one PUT of the whole object
//!                                  └─ the object is in the store in part ─► GET before, or the copy in memory
//!   PUT ─┬─ answered ─► its tag is known, the bytes stay in memory for a while
//!        ├─ condition not met ──────────────┐
//!        └─ no answer, 5xx ─► unanswered ───┴─► HEAD ─┬─ the tag is the one before ─► PUT again, same condition
//!                                                     ├─ another tag, our bytes (GET) ─► done
//!                                                     └─ another tag, other bytes ─► the lease is still ours? PUT over it
//! ```
//!
//! # Why no old byte comes back
//!
//! *One task per object* changes it: its turn is held until the outcome is known or the operation has failed. A PUT that failed
//! leaves its bytes in memory, as written: reads see them, and the next flush tries again.
//!
//! *Each PUT has a condition*: the tag that the object had, or that there was none. A PUT that arrives late meets an object that
//! a later PUT has changed, and does nothing. One case remains: tags may depend on the bytes alone (S3's do), so the object may
//! get *the same* tag again. Unanswered requests are therefore remembered as long as their signature is valid, and a PUT is
//! done only when no such request could still change its result ([`crate::object::Object::threat_to`]). An object is not
//! deleted while one is unanswered.
//!
//! *The bytes in memory are right.* Only the holder of the lease changes the data. If an object has another tag than expected
//! and the record still names this process, a request of its own or of a former holder arrived late: it is written over. What
//! such a request brings to objects that this process never writes cannot harm a pool: it writes where the last synced txg has
//! free space. Labels are the exception, so after a take-over they are changed (a mark in the blank space of each label)
//! before anything else is: then late labels of the former holder do not meet their condition.
//!
//! A flush is done when the PUTs of all objects that were dirty at its start are answered.

use crate::lease::{Lease, LeaseTimes};
use crate::object::{Known, Object, Patches};
use crate::requests::Requests;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Clock, Geometry, Io, Nanos, Tasks};

/// Objects that are remembered; beyond, those with nothing in memory and nothing unanswered are forgotten.
const REMEMBERED_OBJECTS: usize = 200_000;
/// Sequential reads that are followed at the same time.
const STREAMS: usize = 8;

/// A bug that a test plants, to show that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Repeats a PUT without its condition and without looking at the tag.
    RetriesWithoutEtag,
    /// Takes a deletion without an answer for done, and does not remember it.
    ForgetsUnanswered,
    /// Writes over objects without asking whether the lease is still held.
    IgnoresLease,
}

/// Settings of a disk.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests at the same time that change objects, and again as many that read.
    pub parallel: usize,
    /// Bytes that are gathered before writes wait.
    pub gather_bytes: u64,
    /// Bytes of unchanged objects in memory.
    pub cache_bytes: u64,
    /// How long an operation is repeated before it fails.
    pub deadline: Duration,
    /// How long a request that was not answered may still be executed, unless the store says otherwise: S3 refuses signatures
    /// that are 15 minutes old.
    pub request_life: Duration,
    /// Times of the lease.
    pub lease: LeaseTimes,
    /// A planted bug.
    pub bug: Option<Bug>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            parallel: 16,
            gather_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            deadline: Duration::from_secs(60),
            request_life: Duration::from_secs(16 * 60),
            lease: LeaseTimes::default(),
            bug: None,
        }
    }
}

/// A sequential read: where it goes on, and how many reads it had.
#[derive(Clone, Copy)]
struct Stream {
    end: u64,
    reads: u32,
}

/// The state that changes, under one lock.
#[derive(Default)]
pub(crate) struct State {
    pub objects: BTreeMap<u64, Object>,
    turns: BTreeMap<u64, Arc<Turns>>,
    /// Objects with gathered writes.
    pub dirty: BTreeSet<u64>,
    /// Bytes of patches and of PUTs in progress.
    pub gathered_bytes: u64,
    /// Writes that wait until less is gathered.
    pub waiting: VecDeque<Io>,
    /// Unchanged objects in memory, in the order of their last use.
    used: BTreeMap<u64, u64>,
    clean_bytes: u64,
    next_use: u64,
    streams: VecDeque<Stream>,
}

/// Turns of the tasks that change an object, and of those that load it.
#[derive(Default)]
pub(crate) struct Turns {
    pub change: tokio::sync::Mutex<()>,
    pub load: tokio::sync::Mutex<()>,
}

impl State {
    /// Changes an object, and keeps the sum of the gathered bytes.
    pub fn change<T>(&mut self, index: u64, change: impl FnOnce(&mut Object) -> T) -> T {
        fn weight(object: &Object) -> u64 {
            object.patches.bytes() + object.flying.as_ref().map_or(0, |bytes| bytes.len() as u64)
        }
        let object = self.objects.entry(index).or_default();
        let before = weight(object);
        let value = change(object);
        let after = weight(object);
        self.gathered_bytes = self.gathered_bytes - before + after;
        if after > 0 {
            self.dirty.insert(index);
        } else {
            self.dirty.remove(&index);
        }
        value
    }

    /// Keeps the bytes of an unchanged object in memory, as far as there is room.
    pub fn keep(&mut self, index: u64, bytes: Bytes, limit_bytes: u64) {
        self.drop_clean(index);
        self.clean_bytes += bytes.len() as u64;
        self.next_use += 1;
        self.used.insert(self.next_use, index);
        self.objects.entry(index).or_default().clean = Some((bytes, self.next_use));
        while self.clean_bytes > limit_bytes && self.used.len() > 1 {
            let Some((_, oldest)) = self.used.first_key_value().map(|(seq, index)| (*seq, *index)) else { return };
            self.drop_clean(oldest);
        }
    }

    fn drop_clean(&mut self, index: u64) {
        if let Some((bytes, seq)) = self.objects.get_mut(&index).and_then(|object| object.clean.take()) {
            self.used.remove(&seq);
            self.clean_bytes -= bytes.len() as u64;
        }
    }

    /// Forgets the bytes of an object in memory: they are not those of the store.
    pub fn forget(&mut self, index: u64) {
        self.drop_clean(index);
    }

    /// Records the use of an object in memory.
    pub fn touch(&mut self, index: u64) {
        self.next_use += 1;
        let seq = self.next_use;
        if let Some((_, used)) = self.objects.get_mut(&index).and_then(|object| object.clean.as_mut()) {
            self.used.remove(used);
            *used = seq;
            self.used.insert(seq, index);
        }
    }

    /// Turns of the tasks on an object.
    pub fn turns(&mut self, index: u64) -> Arc<Turns> {
        self.turns.entry(index).or_default().clone()
    }

    /// Notes a read, and returns how many reads in sequence it ends.
    pub fn sequence(&mut self, offset: u64, end: u64) -> u32 {
        let at = self.streams.iter().position(|stream| stream.end == offset);
        let reads = at.and_then(|at| self.streams.remove(at)).map_or(1, |stream| stream.reads.saturating_add(1));
        self.streams.push_back(Stream { end, reads });
        if self.streams.len() > STREAMS {
            self.streams.pop_front();
        }
        reads
    }

    /// Forgets objects with nothing in memory, if there are too many.
    pub fn shrink(&mut self, now: Nanos) {
        if self.objects.len() <= REMEMBERED_OBJECTS {
            return;
        }
        let turns = &self.turns;
        self.objects.retain(|index, object| {
            let is_free = turns.get(index).is_none_or(|turns| Arc::strong_count(turns) == 1);
            let is_idle = object.patches.is_empty() && object.base().is_none() && !object.is_scheduled && is_free;
            !is_idle || object.is_uncertain(now)
        });
        let objects = &self.objects;
        self.turns.retain(|index, turns| objects.contains_key(index) || Arc::strong_count(turns) > 1);
    }
}

/// A disk, shared by all that have it open.
pub struct Core {
    pub(crate) requests: Arc<Requests>,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    pub(crate) settings: Settings,
    pub(crate) geometry: Geometry,
    pub(crate) object_bytes: u64,
    pub(crate) deletes: bool,
    /// `None` if the disk is open for reading only.
    pub(crate) lease: Option<Lease>,
    pub(crate) state: Mutex<State, { order::STORE_OBJECTS }>,
    pub(crate) changing: Semaphore,
    pub(crate) reading: Semaphore,
}

/// Key of an object.
pub fn key(index: u64) -> String {
    format!("{index:016x}")
}

impl Core {
    /// A disk with this record; with a lease if it may be written.
    pub(crate) fn new(
        requests: Arc<Requests>,
        tasks: Tasks,
        settings: Settings,
        record: &crate::record::Record,
        lease: Option<Lease>,
    ) -> Arc<Self> {
        let geometry = Geometry { size_bytes: record.size_bytes, sector_bytes: 512, rotational: false };
        Arc::new(Core {
            clock: requests.clock.clone(),
            requests,
            tasks,
            geometry,
            object_bytes: record.object_bytes,
            deletes: record.conditional_delete,
            lease,
            state: Mutex::default(),
            changing: Semaphore::new(settings.parallel),
            reading: Semaphore::new(settings.parallel),
            settings,
        })
    }

    /// The state; the lock is held for a few instructions, never across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether a bug was planted.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.settings.bug == Some(bug)
    }

    /// Parts of a range: object, offset in it, length.
    pub(crate) fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u32, usize)> + use<> {
        let object_bytes = self.object_bytes;
        let mut at = offset;
        let end = offset + len;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let within = at % object_bytes;
            let take = (object_bytes - within).min(end - at);
            let part = (at / object_bytes, within as u32, take as usize);
            at += take;
            Some(part)
        })
    }

    /// Adds the place of an object to a reason.
    pub(crate) fn at(&self, index: u64, why: impl std::fmt::Display) -> String {
        format!("{}: {why}", self.requests.place(&key(index)))
    }

    /// Adds a write to the patches of its objects. Returns the objects that are now written as a whole.
    pub(crate) fn gather(&self, state: &mut State, offset: u64, parts: &[Bytes]) -> Vec<u64> {
        let mut full = Vec::new();
        let mut at = offset;
        for bytes in parts {
            let mut taken = 0;
            for (index, within, len) in self.parts(at, bytes.len() as u64) {
                let piece = bytes.slice(taken..taken + len);
                taken += len;
                let object_bytes = self.object_bytes as usize;
                let is_full = state.change(index, |object| {
                    object.patches.write(within, piece);
                    object.discarded.remove(within, within + len as u32);
                    !object.is_scheduled && object.patches.cover(0, object_bytes)
                });
                if is_full {
                    state.change(index, |object| object.is_scheduled = true);
                    full.push(index);
                }
            }
            at += bytes.len() as u64;
        }
        full
    }

    /// The patches of a PUT that failed stay as written, below those that came meanwhile.
    pub(crate) fn put_back(&self, index: u64, image: Bytes) {
        let mut state = self.state();
        state.forget(index);
        state.change(index, |object| {
            let mut patches = Patches::default();
            patches.write(0, image);
            patches.join(std::mem::take(&mut object.patches));
            object.patches = patches;
            object.flying = None;
            object.version += 1;
        });
    }

    /// Notes the state of an object in the store, which was just looked at.
    pub(crate) fn learn(&self, index: u64, known: Known) {
        // Only the holder of the lease may rely on what it saw: without it, another process may change the object.
        if self.lease.is_some() {
            self.state().change(index, |object| {
                object.known = known;
                object.is_own = false;
                object.version += 1;
            });
        }
    }

    /// Renews the lease while the disk is open.
    pub(crate) fn renew_until_dropped(self: &Arc<Self>, interval: Duration) {
        let (core, clock) = (Arc::downgrade(self), self.clock.clone());
        drop(self.tasks.spawn(async move {
            loop {
                clock.sleep(interval).await;
                let Some(core) = core.upgrade() else { return };
                let Some(lease) = &core.lease else { return };
                if let Err(why) = lease.renew().await {
                    if lease.lost().is_some() {
                        tracing::error!(disk = core.requests.place(""), why, "the disk is no longer written");
                        return;
                    }
                    tracing::warn!(disk = core.requests.place(&key(0)), why, "the lease could not be renewed yet");
                }
            }
        }));
    }

    /// Writes what is gathered and gives the disk back.
    pub async fn close(self: &Arc<Self>) {
        if self.lease.as_ref().is_some_and(|lease| lease.lost().is_some()) {
            return;
        }
        if let Err(why) = self.flush().await {
            tracing::warn!(why, "a disk was closed with writes that were never flushed");
        }
        // When all permits are here, no change is in progress.
        let all = u32::try_from(self.settings.parallel).unwrap_or(u32::MAX);
        let Ok(_permits) = self.changing.acquire_many(all).await else { return };
        if let Some(lease) = &self.lease {
            lease.release().await;
        }
    }
}
