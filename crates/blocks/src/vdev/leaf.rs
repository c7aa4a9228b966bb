//! Leaves: one disk each, behind a queue ([`super::queue`]).
//!
//! ```text
//!   read ─► below limit? ─► disk ─► completion (on the disk's thread): submit the next of the queue, then wake readers
//!             │ no                                                       ▲
//!             └─► queue ─────────────────────────────────────────────────┘
//! ```
//!
//! The completion callback of a disk operation submits the next one before it wakes any reader, so the disk does not wait
//! for a task to be scheduled. If a reader is dropped, its submitted read runs to completion; a queued one is discarded.

use super::counters::{Counters, Counts};
use super::deadline::WatchedDisk;
use super::histogram::{LeafStats, QueueHistograms, Waits};
use super::leaf_writes::{LeafWrites, WriteCounts};
use super::queue::{Batch, Member, Queue, Reads};
use super::{Dtl, Place, UNKNOWN_BIRTH, VdevRead, Verify};
use crate::error::BlockError;
use crate::fault_observer::{BlockContext, DeviceRange, Fault, FaultKind, FaultNotifier};
use futures_channel::oneshot;
use smallvec::smallvec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use weir_format::Txg;
use weir_format::label::FRONT_BYTES;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Buf, Bufs, Clock, Disk, DiskError, Io, Nanos, Op, Parts, Priority};

/// Device offset of an offset in the allocatable space. Wrapping, because a RAID-Z vdev that is being expanded has its
/// scratch area in front of the allocatable space.
pub(super) fn on_device(offset: u64) -> u64 {
    offset.wrapping_add(FRONT_BYTES)
}

/// A waiting reader, with its buffer.
struct Waiter {
    sender: oneshot::Sender<Answer>,
    buf: Buf,
    waited: QueueTime,
}

/// Result of a read, and the nanoseconds that it was queued.
type Answer = (Result<Buf, DiskError>, u64);

/// Time in a queue of device operations.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueTime {
    /// Queued since then.
    Since(Nanos),
    /// Was queued for so long, in nanoseconds.
    Ended(u64),
}

impl QueueTime {
    /// Ends the time of the operations that are submitted now.
    pub fn end<'a>(times: impl Iterator<Item = &'a mut QueueTime>, clock: &Clock) {
        let mut now = None;
        for time in times {
            if let QueueTime::Since(since) = *time {
                *time = QueueTime::Ended(now.get_or_insert_with(|| clock.now()).ns_since(since));
            }
        }
    }

    /// Nanoseconds in the queue, after they ended.
    pub fn ns(self) -> u64 {
        match self {
            QueueTime::Ended(ns) => ns,
            QueueTime::Since(_) => 0,
        }
    }
}

impl Waiter {
    /// Completes the read. The result is discarded if the reader was dropped.
    fn complete(self, answer: Result<Buf, DiskError>) {
        drop(self.sender.send((answer, self.waited.ns())));
    }
}

/// The disk of a leaf, and the queue of its reads.
struct LeafDisk {
    watched: Arc<WatchedDisk>,
    queue: Arc<LeafReadQueue>,
}

/// A disk and the reads that wait for it.
struct LeafReadQueue {
    disk: Arc<dyn Disk>,
    clock: Clock,
    histograms: QueueHistograms,
    state: Mutex<State, { order::LEAF_QUEUE }>,
}

#[derive(Default)]
struct State {
    queue: Queue<Waiter, Reads>,
    /// Class and length of completed operations after which the next read is not started yet.
    ended: Vec<(Priority, u64)>,
    /// A caller of [`LeafReadQueue::start_next`] is starting reads.
    is_starting: bool,
}

/// A leaf. Successive vdev trees share it ([`super::Tree::replace`]), so its disk, queues, counters and DTL survive a change
/// of the vdevs above.
pub(crate) struct Leaf {
    guid: AtomicU64,
    /// The GUID before the last change of it, by which writes in progress know the leaf; 0 for none.
    former_guid: AtomicU64,
    /// Name in the output of tools.
    pub name: String,
    /// The disk; set later for a leaf whose device was missing.
    disk: OnceLock<LeafDisk>,
    counters: Counters,
    writes: LeafWrites,
    notifier: FaultNotifier,
}

impl Leaf {
    /// Whether the disk has platters, as far as that is known.
    pub fn has_platters(&self) -> bool {
        self.disk.get().is_some_and(|disk| disk.queue.disk.geometry().rotational)
    }

    /// A leaf without a disk, that lacks the writes of the txgs in `dtl`.
    pub fn new(guid: u64, name: String, dtl: Dtl, notifier: &FaultNotifier, clock: &Clock) -> Self {
        let writes = LeafWrites::new(dtl, clock);
        let (guid, former_guid) = (AtomicU64::new(guid), AtomicU64::default());
        let notifier = notifier.clone();
        Leaf { guid, former_guid, name, disk: OnceLock::new(), counters: Counters::default(), writes, notifier }
    }

    /// GUID of the leaf.
    pub fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    /// Gives the leaf another GUID: it becomes a top-level vdev in the place of the one above it.
    pub fn rename(&self, guid: u64) {
        self.former_guid.store(self.guid(), Ordering::Release);
        self.guid.store(guid, Ordering::Release);
        debug_assert!(self.is_named(guid));
    }

    /// Whether the leaf has, or had until its last change, that GUID.
    pub fn is_named(&self, guid: u64) -> bool {
        guid != 0 && (self.guid() == guid || self.former_guid.load(Ordering::Acquire) == guid)
    }

    /// Gives the leaf its disk, which is out of service if `faulted`. False, without a change, if the leaf has a disk.
    pub fn set_disk(&self, disk: Arc<dyn Disk>, faulted: bool, clock: &Clock) -> bool {
        let watched = WatchedDisk::new(disk, clock);
        if faulted {
            watched.take_out();
        }
        let histograms = QueueHistograms::default();
        let queue = LeafReadQueue { disk: watched.clone(), clock: clock.clone(), histograms, state: Mutex::default() };
        self.disk.set(LeafDisk { watched, queue: Arc::new(queue) }).is_ok()
    }

    /// Whether the leaf has a disk that is in service.
    pub fn present(&self) -> bool {
        self.watched().is_some_and(|watched| watched.is_in_service())
    }

    /// Whether the leaf's disk was taken out of service because of errors or a hang, not because it is missing.
    pub fn is_faulted(&self) -> bool {
        self.watched().is_some_and(|watched| !watched.is_in_service() && !watched.is_lost())
    }

    /// The watched disk, in service or not.
    pub(super) fn watched(&self) -> Option<&Arc<WatchedDisk>> {
        self.disk.get().map(|disk| &disk.watched)
    }

    /// The queue of reads, if the disk is in service.
    fn queue(&self) -> Option<&Arc<LeafReadQueue>> {
        self.disk.get().filter(|disk| disk.watched.is_in_service()).map(|disk| &disk.queue)
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Values of all counters of the leaf.
    pub fn counts(&self) -> Counts {
        let WriteCounts { writes, write_bytes, write_errors, repaired_bytes } = self.writes.counts();
        let slow = self.watched().map_or(0, |watched| watched.slow());
        Counts { writes, write_bytes, write_errors, repaired_bytes, slow, ..self.counters.counts() }
    }

    /// Number of the leaf's operations since the pool was opened, without those of scrubs and resilvers.
    pub fn foreground_operations(&self) -> u64 {
        let reads = self.disk.get().map_or(0, |disk| disk.queue.lock().queue.foreground());
        reads.saturating_add(self.writes.writers.foreground_operations())
    }

    /// How long the leaf's operations take, how large they are, and how many there are now.
    pub fn stats(&self) -> LeafStats {
        let reads = self.disk.get().map(|disk| {
            let (pending, active) = disk.queue.lock().queue.counts();
            disk.queue.histograms.values(pending, active)
        });
        LeafStats { reads: reads.unwrap_or_default(), writes: self.writes.writers.stats() }
    }

    /// Sets the error counters and the counter of slow operations to zero.
    pub fn clear_counts(&self) {
        self.counters.clear_errors();
        self.writes.write_errors.store(0, Ordering::Relaxed);
        self.watched().into_iter().for_each(|watched| watched.clear_slow());
    }

    /// Reports a fault of a range of the device.
    pub fn report(
        &self,
        what: FaultKind<'_>,
        (offset_bytes, size_bytes): (u64, u64),
        about: BlockContext,
        priority: Priority,
    ) {
        let spot = Some(DeviceRange { leaf: self.guid(), offset_bytes, size_bytes, counts: self.counts() });
        self.notifier.notify(&Fault { what, spot, about, priority });
    }

    /// The disk, if it is in service.
    pub fn disk(&self) -> Option<&Arc<dyn Disk>> {
        self.queue().map(|queue| &queue.disk)
    }

    pub(super) fn writes(&self) -> &LeafWrites {
        &self.writes
    }

    /// Whether the DTL has no txg after `birth`; true for a missing leaf, which cannot return stale bytes.
    pub fn has_all_since(&self, birth: Txg) -> bool {
        !self.present() || !self.writes.dtl().reaches_beyond(birth)
    }

    /// Whether the leaf's DTL is empty.
    pub fn has_everything(&self) -> bool {
        self.writes.dtl().is_empty()
    }

    /// Whether the leaf is present and its DTL has `birth`; any txg, if that is [`UNKNOWN_BIRTH`].
    pub fn is_stale(&self, birth: Txg) -> bool {
        match birth {
            UNKNOWN_BIRTH => self.is_behind(),
            birth => self.present() && self.writes.dtl().contains(birth),
        }
    }

    /// Whether the leaf is present and lacks anything.
    pub fn is_behind(&self) -> bool {
        self.present() && !self.has_everything()
    }

    /// Number of reads in progress and queued, and whether a read at `offset` continues the last one.
    pub fn load(&self, offset: u64) -> (usize, bool) {
        self.queue().map_or((0, false), |queue| {
            let queue = &queue.lock().queue;
            (queue.load(), queue.is_sequential(offset))
        })
    }

    pub fn read_preference(&self, birth: Txg) -> u8 {
        if self.present() { u8::from(self.is_stale(birth)) } else { 2 }
    }

    /// Reads `len` bytes at `offset` of the allocatable space.
    pub async fn read(
        &self,
        job: &VdevRead<'_>,
        place: Place,
        offset: u64,
        len: u64,
        verify: Option<Verify<'_>>,
    ) -> Result<Buf, BlockError> {
        self.read_into(job, place, offset, len, verify, None).await
    }

    /// Reads into a buffer of `len` bytes, if one is given. The result may be another buffer, if the disk has larger sectors
    /// or the read was repeated.
    #[allow(clippy::too_many_arguments, reason = "the parameters of a read of any vdev, and the buffer")]
    pub async fn read_into(
        &self,
        job: &VdevRead<'_>,
        place: Place,
        offset: u64,
        len: u64,
        verify: Option<Verify<'_>>,
        into: Option<Buf>,
    ) -> Result<Buf, BlockError> {
        let Place { vdev: top, offset: at, .. } = place;
        let Some(queue) = self.queue() else {
            return Err(BlockError::Missing { vdev: top, offset: at, devices: vec![self.name.clone()] });
        };
        let started = job.clock.now();
        let (answer, queued_ns) = queue.read(job.request.priority, offset, len, into).await;
        job.request.record_device(job.clock.now().ns_since(started), queued_ns);
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let range = (on_device(offset), len);
        let report = |what: FaultKind<'_>| self.report(what, range, job.about, job.request.priority);
        let buf = answer.map_err(|error| {
            // That a device in no service fails its reads is no error of it (OpenZFS `vdev_stat_update`).
            if self.present() {
                self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                report(FaultKind::Read(&error));
            }
            BlockError::Device { vdev: top, offset: at, device: self.name.clone(), error }
        })?;
        self.counters.read_bytes.fetch_add(len, Ordering::Relaxed);
        match verify.map(|test| test(buf.as_ref())) {
            None | Some(Ok(())) => Ok(buf),
            Some(Err(fault)) => {
                job.settle(place).await;
                // A leaf whose DTL has the block's birth txg is expected to return stale bytes: this is no new fault.
                if job.reports_fault(place) && !self.is_stale(job.birth) {
                    self.counters.checksum_error();
                    report(FaultKind::Checksum(Some(&fault)));
                }
                Err(BlockError::Corrupt { vdev: top, offset: at, fault })
            }
        }
    }
}

/// A slot among the reads in progress. Dropping it starts the next queued read.
struct QueueTicket {
    queue: Arc<LeafReadQueue>,
    class: Priority,
    len: u64,
    begun: Nanos,
    /// Of the readers; none if all of them were dropped before the read was submitted.
    waits: Waits,
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let QueueTicket { queue, class, len, begun, waits } = self;
        if !waits.is_empty() {
            queue.histograms.record(*class, *len, queue.clock.now().ns_since(*begun), waits);
        }
        queue.start_next(*class, *len);
    }
}

impl LeafReadQueue {
    /// Locks the state; the lock is held for a few instructions, never across an await or a submission.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts the next queued read after an operation has ended. A disk may complete an operation within its submission,
    /// which calls this again; the outer call then starts the further reads, so that the recursion is bounded.
    fn start_next(self: &Arc<Self>, class: Priority, len: u64) {
        {
            let mut state = self.lock();
            state.ended.push((class, len));
            if std::mem::replace(&mut state.is_starting, true) {
                return;
            }
        }
        loop {
            let next = {
                let mut state = self.lock();
                if let Some((class, len)) = state.ended.pop() {
                    state.queue.done(class, len)
                } else if let Some(batch) = state.queue.start_next() {
                    // An end may allow several reads to start.
                    Some(batch)
                } else {
                    state.is_starting = false;
                    return;
                }
            };
            let Some(mut batch) = next else { continue };
            batch.members.retain(|m| !m.token.sender.is_canceled());
            self.begin(batch);
        }
    }

    /// Reads as soon as the limits permit, possibly merged with other reads.
    async fn read(self: &Arc<Self>, class: Priority, offset: u64, len: u64, into: Option<Buf>) -> Answer {
        let (sender, answer) = oneshot::channel();
        let buf = into.unwrap_or_else(|| self.disk.buffer(len as usize));
        let mut waiter = Waiter { sender, buf, waited: QueueTime::Ended(0) };
        let starts = {
            let queue = &mut self.lock().queue;
            queue.record_request(offset, len);
            if queue.try_start(class, len) {
                Some(waiter)
            } else {
                waiter.waited = QueueTime::Since(self.clock.now());
                queue.wait(class, offset, len, waiter);
                None
            }
        };
        if let Some(waiter) = starts {
            let waits = smallvec![0];
            let ticket = QueueTicket { queue: self.clone(), class, len, begun: self.clock.now(), waits };
            self.read_one(offset, len, waiter, Some(ticket));
        }
        answer.await.unwrap_or((Err(dropped()), 0))
    }

    /// Submits a batch that the queue has started.
    fn begin(self: &Arc<Self>, batch: Batch<Waiter>) {
        let Batch { class, offset, len, mut members } = batch;
        QueueTime::end(members.iter_mut().map(|member| &mut member.token.waited), &self.clock);
        let waits = members.iter().map(|member| member.token.waited.ns()).collect();
        let ticket = QueueTicket { queue: self.clone(), class, len, begun: self.clock.now(), waits };
        match (members.len(), members.pop()) {
            (1, Some(one)) => self.read_one(one.offset, one.len, one.token, Some(ticket)),
            (_, Some(last)) => {
                members.push(last);
                self.read_merged(offset, members, ticket);
            }
            // All readers were dropped: dropping the ticket starts the next batch.
            (_, None) => {}
        }
    }

    /// Fills the buffers of all members in one operation; gaps between them are read into buffers that are discarded. The
    /// members are read one by one if they overlap, are not whole sectors of the disk, or if the disk returned an error,
    /// because one bad sector must not fail the reads of its neighbours.
    fn read_merged(self: &Arc<Self>, offset: u64, mut members: Vec<Member<Waiter>>, ticket: QueueTicket) {
        let sector = u64::from(self.disk.geometry().sector_bytes.max(1));
        let start = on_device(offset);
        let mut at = offset;
        let mut whole = start.is_multiple_of(sector);
        for member in &members {
            whole &= member.offset >= at && member.offset % sector == 0 && member.len % sector == 0;
            at = member.offset.saturating_add(member.len);
        }
        if !whole {
            return self.one_by_one(members, Some(ticket));
        }
        let mut bufs = Bufs::new();
        let mut at = offset;
        for member in &mut members {
            if member.offset > at {
                bufs.push(self.disk.buffer((member.offset - at) as usize));
            }
            bufs.push(std::mem::replace(&mut member.token.buf, Buf::empty()));
            // Wrapping: the scratch area of an expansion ends where the allocatable space begins.
            at = member.offset.wrapping_add(member.len);
        }
        let queue = self.clone();
        let done = Box::new(move |answer: Result<Bufs, DiskError>| {
            drop(ticket);
            let Ok(bufs) = answer else { return queue.one_by_one(members, None) };
            let mut bufs = bufs.into_iter();
            let mut at = offset;
            for member in members {
                if member.offset > at {
                    drop(bufs.next());
                }
                at = member.offset.wrapping_add(member.len);
                member.token.complete(bufs.next().ok_or(dropped()));
            }
        });
        let len = at.wrapping_sub(offset);
        self.disk.submit(Io { op: Op::Read, offset: start, len, bufs, parts: Parts::new(), here: false, done });
    }

    fn one_by_one(self: &Arc<Self>, members: Vec<Member<Waiter>>, mut ticket: Option<QueueTicket>) {
        for Member { offset, len, mut token } in members {
            // A failed read does not return its buffer.
            if token.buf.is_empty() {
                token.buf = self.disk.buffer(len as usize);
            }
            self.read_one(offset, len, token, ticket.take());
        }
    }

    /// Fills one buffer. If the disk's sectors are larger than the pool's, the result is another buffer.
    fn read_one(&self, offset: u64, len: u64, waiter: Waiter, ticket: Option<QueueTicket>) {
        let geometry = self.disk.geometry();
        let sector = u64::from(geometry.sector_bytes.max(1));
        let size_bytes = geometry.size_bytes;
        let start = on_device(offset);
        let Some(end) = start.checked_add(len).filter(|&end| end <= size_bytes) else {
            drop(ticket);
            return waiter.complete(Err(DiskError::OutOfRange { op: Op::Read, offset: start, len, size_bytes }));
        };
        let first = start / sector * sector;
        let last = end.next_multiple_of(sector);
        let Waiter { sender, mut buf, waited } = waiter;
        if last - first != len {
            buf = self.disk.buffer((last - first) as usize);
        }
        let done = Box::new(move |answer: Result<Bufs, DiskError>| {
            drop(ticket);
            let answer = answer.and_then(|mut bufs| {
                let mut buf = bufs.pop().ok_or(dropped())?;
                buf.advance((start - first) as usize);
                buf.truncate(len as usize);
                Ok(buf)
            });
            // The result is discarded if the reader was dropped.
            drop(sender.send((answer, waited.ns())));
        });
        let len = last - first;
        let bufs = smallvec![buf];
        self.disk.submit(Io { op: Op::Read, offset: first, len, bufs, parts: Parts::new(), here: false, done });
    }
}

fn dropped() -> DiskError {
    DiskError::Refused { op: Op::Read, why: "the disk dropped the operation" }
}
