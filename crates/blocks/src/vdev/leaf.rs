//! Leaves: one disk each, behind a queue ([`super::queue`]).
//!
//! ```text
//!   read ─► room? ─► disk ─► answer (on the disk's thread): the next of the queue goes to the disk, then readers are told
//!             │ no                                            ▲
//!             └─► queue ──────────────────────────────────────┘
//! ```
//!
//! Whoever has a disk's answer starts what comes next, before anybody is woken: the disk does not wait for a task to get
//! its turn on a processor. A reader that is dropped leaves its read to end by itself; what still waits then is not begun.

use super::queue::{Batch, Member, Queue};
use super::write::{LeafWrites, WriteCounts};
use super::{Dtl, Place, Proof, Vdev, VdevRead};
use crate::error::BlockError;
use crate::fault_observer::{BlockContext, DeviceRange, Fault, FaultKind, FaultNotifier};
use futures_channel::oneshot;
use smallvec::smallvec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_format::Txg;
use weir_machine::{Buf, Bufs, Disk, DiskError, Io, Op, Parts, Priority};

/// Two labels and the boot area stand before the allocatable space (`VDEV_LABEL_START_SIZE`).
pub const FRONT_BYTES: u64 = 4 << 20;

/// Where a place of the allocatable space is on the device. Wrapping: a RAID-Z vdev that is being widened has its scratch
/// area in front of the space.
pub(super) fn on_device(offset: u64) -> u64 {
    offset.wrapping_add(FRONT_BYTES)
}

/// What a leaf did, counted since the pool was opened.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads answered.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// Reads whose bytes were not those that were written.
    pub checksum_errors: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes that they wrote.
    pub write_bytes: u64,
    /// Writes and flushes answered with an error.
    pub write_errors: u64,
    /// Bytes written to put wrong ones right.
    pub repaired_bytes: u64,
}

impl Counters {
    /// The counters now.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }

    /// Counts bytes that turned out wrong.
    pub(crate) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// One who waits, with the buffer that is to be filled.
struct Waiter {
    tell: oneshot::Sender<Result<Buf, DiskError>>,
    buf: Buf,
}

impl Waiter {
    /// A reader that no longer waits does not want its answer.
    fn tell(self, answer: Result<Buf, DiskError>) {
        drop(self.tell.send(answer));
    }
}

/// A disk and what waits for it.
struct LeafReadQueue {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: Queue<Waiter>,
    /// Turns that ended and are not passed on yet: class and length.
    ended: Vec<(Priority, u64)>,
    /// Somebody is passing turns on.
    passing: bool,
}

pub(crate) struct Leaf {
    line: Option<Arc<LeafReadQueue>>,
    counters: Counters,
    writes: LeafWrites,
    bell: FaultNotifier,
}

impl Leaf {
    pub fn new(disk: Option<Arc<dyn Disk>>, dtl: Dtl, bell: &FaultNotifier) -> Self {
        let line = disk.map(|disk| Arc::new(LeafReadQueue { disk, state: Mutex::default() }));
        Leaf { line, counters: Counters::default(), writes: LeafWrites::new(dtl), bell: bell.clone() }
    }

    pub fn present(&self) -> bool {
        self.line.is_some()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All that is counted.
    pub fn counts(&self) -> Counts {
        let WriteCounts { writes, write_bytes, write_errors, repaired_bytes } = self.writes.counts();
        Counts { writes, write_bytes, write_errors, repaired_bytes, ..self.counters.counts() }
    }

    /// Tells what went wrong with a range of the device.
    pub fn tell(
        &self,
        leaf: u64,
        what: FaultKind<'_>,
        (offset_bytes, size_bytes): (u64, u64),
        about: BlockContext,
        priority: Priority,
    ) {
        let spot = Some(DeviceRange { leaf, offset_bytes, size_bytes, counts: self.counts() });
        self.bell.ring(&Fault { what, spot, about, priority });
    }

    pub fn disk(&self) -> Option<&Arc<dyn Disk>> {
        self.line.as_ref().map(|line| &line.disk)
    }

    pub(super) fn writes(&self) -> &LeafWrites {
        &self.writes
    }

    /// Whether its DTL has no txg after `birth`. A leaf that is not there gives no old bytes either.
    pub fn has_all_since(&self, birth: Txg) -> bool {
        !self.present() || !self.writes.dtl().reaches_beyond(birth)
    }

    /// Whether it is there, and lacks blocks born in `birth`.
    pub fn is_stale(&self, birth: Txg) -> bool {
        self.present() && self.writes.dtl().contains(birth)
    }

    /// Reads under way and waiting, and whether one at `offset` would go on where the last one ended.
    pub fn load(&self, offset: u64) -> (usize, bool) {
        self.line.as_ref().map_or((0, false), |line| {
            let queue = &line.lock().queue;
            (queue.load(), queue.goes_on(offset))
        })
    }

    pub fn read_preference(&self, birth: Txg) -> u8 {
        if self.line.is_none() { 2 } else { u8::from(self.is_stale(birth)) }
    }

    /// Reads `len` bytes at `offset` of the allocatable space.
    pub async fn read(
        &self,
        vdev: &Vdev,
        job: &VdevRead<'_>,
        place: Place,
        offset: u64,
        len: u64,
        proof: Option<Proof<'_>>,
    ) -> Result<Buf, BlockError> {
        self.read_into(vdev, job, place, offset, len, proof, None).await
    }

    /// The same into a buffer of `len` bytes, if one is given. The answer may lie elsewhere all the same: what a disk of
    /// larger sectors gave, or what was asked for twice.
    #[allow(clippy::too_many_arguments, reason = "the read of the other vdevs, and where to put it")]
    pub async fn read_into(
        &self,
        vdev: &Vdev,
        job: &VdevRead<'_>,
        place: Place,
        offset: u64,
        len: u64,
        proof: Option<Proof<'_>>,
        into: Option<Buf>,
    ) -> Result<Buf, BlockError> {
        let Place { vdev: top, offset: at, .. } = place;
        let Some(line) = &self.line else {
            return Err(BlockError::Missing { vdev: top, offset: at, devices: vec![vdev.name.clone()] });
        };
        let started = job.clock.now();
        let answer = line.read(job.request.priority, offset, len, into).await;
        job.request.record_device(job.clock.now().ns_since(started));
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let range = (on_device(offset), len);
        let tell = |what: FaultKind<'_>| self.tell(vdev.guid, what, range, job.about, job.request.priority);
        let buf = answer.map_err(|error| {
            self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            tell(FaultKind::Read(&error));
            BlockError::Device { vdev: top, offset: at, device: vdev.name.clone(), error }
        })?;
        self.counters.read_bytes.fetch_add(len, Ordering::Relaxed);
        match proof.map(|test| test(buf.as_ref())) {
            None | Some(Ok(())) => Ok(buf),
            Some(Err(fault)) => {
                // A leaf whose DTL has the block's birth gives old bytes: that is known, and no new fault.
                if job.blames(place) && !self.is_stale(job.birth) {
                    self.counters.checksum_error();
                    tell(FaultKind::Checksum(Some(&fault)));
                }
                Err(BlockError::Corrupt { vdev: top, offset: at, fault })
            }
        }
    }
}

/// A place among the reads under way. Given up, it passes to the next that waits, which begins.
struct QueueTicket {
    line: Arc<LeafReadQueue>,
    class: Priority,
    len: u64,
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.line.pass_on(self.class, self.len);
    }
}

impl LeafReadQueue {
    /// Held only for a few instructions, never while anything is waited for or begun.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn has ended: begins what comes next. A disk may answer while an operation is handed to it, which ends the next
    /// turn before this call returns; so whoever is at it already does that as well.
    fn pass_on(self: &Arc<Self>, class: Priority, len: u64) {
        {
            let mut state = self.lock();
            state.ended.push((class, len));
            if std::mem::replace(&mut state.passing, true) {
                return;
            }
        }
        loop {
            let next = {
                let mut state = self.lock();
                let Some((class, len)) = state.ended.pop() else {
                    state.passing = false;
                    return;
                };
                state.queue.done(class, len)
            };
            let Some(mut batch) = next else { continue };
            batch.members.retain(|m| !m.token.tell.is_canceled());
            self.begin(batch);
        }
    }

    /// Reads as soon as there is room, perhaps together with others.
    async fn read(
        self: &Arc<Self>,
        class: Priority,
        offset: u64,
        len: u64,
        into: Option<Buf>,
    ) -> Result<Buf, DiskError> {
        let (tell, answer) = oneshot::channel();
        let waiter = Waiter { tell, buf: into.unwrap_or_else(|| self.disk.buffer(len as usize)) };
        let starts = {
            let queue = &mut self.lock().queue;
            queue.asked(offset, len);
            if queue.try_start(class, len) {
                Some(waiter)
            } else {
                queue.wait(class, offset, len, waiter);
                None
            }
        };
        if let Some(waiter) = starts {
            self.alone(offset, len, waiter, Some(QueueTicket { line: self.clone(), class, len }));
        }
        answer.await.unwrap_or(Err(dropped()))
    }

    /// Starts a batch, whose turn it is.
    fn begin(self: &Arc<Self>, batch: Batch<Waiter>) {
        let Batch { class, offset, len, mut members } = batch;
        let turn = QueueTicket { line: self.clone(), class, len };
        match (members.len(), members.pop()) {
            (1, Some(one)) => self.alone(one.offset, one.len, one.token, Some(turn)),
            (_, Some(last)) => {
                members.push(last);
                self.together(offset, members, turn);
            }
            // All who waited left: the turn passes to the next.
            (_, None) => {}
        }
    }

    /// Fills the buffers of all members in one operation, what lies between them into buffers that are thrown away. One
    /// by one where they overlap or are not whole sectors of the disk, and where the disk gave an error: one bad sector
    /// must not spoil its neighbours.
    fn together(self: &Arc<Self>, offset: u64, mut members: Vec<Member<Waiter>>, turn: QueueTicket) {
        let sector = u64::from(self.disk.geometry().sector_bytes.max(1));
        let start = on_device(offset);
        let (mut at, mut whole) = (offset, start.is_multiple_of(sector));
        for member in &members {
            whole &= member.offset >= at && member.offset % sector == 0 && member.len % sector == 0;
            at = member.offset.saturating_add(member.len);
        }
        if !whole {
            return self.one_by_one(members, Some(turn));
        }
        let (mut bufs, mut at) = (Bufs::new(), offset);
        for member in &mut members {
            if member.offset > at {
                bufs.push(self.disk.buffer((member.offset - at) as usize));
            }
            bufs.push(std::mem::replace(&mut member.token.buf, Buf::empty()));
            at = member.offset + member.len;
        }
        let line = self.clone();
        let done = Box::new(move |answer: Result<Bufs, DiskError>| {
            drop(turn);
            let Ok(bufs) = answer else { return line.one_by_one(members, None) };
            let (mut bufs, mut at) = (bufs.into_iter(), offset);
            for member in members {
                if member.offset > at {
                    drop(bufs.next());
                }
                at = member.offset + member.len;
                member.token.tell(bufs.next().ok_or(dropped()));
            }
        });
        let len = at - offset;
        self.disk.submit(Io { op: Op::Read, offset: start, len, bufs, parts: Parts::new(), here: false, done });
    }

    fn one_by_one(self: &Arc<Self>, members: Vec<Member<Waiter>>, mut turn: Option<QueueTicket>) {
        for Member { offset, len, mut token } in members {
            // A read that failed gave no buffer back.
            if token.buf.is_empty() {
                token.buf = self.disk.buffer(len as usize);
            }
            self.alone(offset, len, token, turn.take());
        }
    }

    /// Fills one buffer. Where the disk's own sectors are larger than the pool's, the answer is another buffer.
    fn alone(&self, offset: u64, len: u64, waiter: Waiter, turn: Option<QueueTicket>) {
        let geometry = self.disk.geometry();
        let (sector, size_bytes) = (u64::from(geometry.sector_bytes.max(1)), geometry.size_bytes);
        let start = on_device(offset);
        let Some(end) = start.checked_add(len).filter(|&end| end <= size_bytes) else {
            drop(turn);
            return waiter.tell(Err(DiskError::OutOfRange { op: Op::Read, offset: start, len, size_bytes }));
        };
        let (first, last) = (start / sector * sector, end.next_multiple_of(sector));
        let Waiter { tell, mut buf } = waiter;
        if last - first != len {
            buf = self.disk.buffer((last - first) as usize);
        }
        let done = Box::new(move |answer: Result<Bufs, DiskError>| {
            drop(turn);
            let answer = answer.and_then(|mut bufs| {
                let mut buf = bufs.pop().ok_or(dropped())?;
                buf.advance((start - first) as usize);
                buf.truncate(len as usize);
                Ok(buf)
            });
            // A reader that no longer waits does not want its answer.
            drop(tell.send(answer));
        });
        let (len, bufs) = (last - first, smallvec![buf]);
        self.disk.submit(Io { op: Op::Read, offset: first, len, bufs, parts: Parts::new(), here: false, done });
    }
}

fn dropped() -> DiskError {
    DiskError::Refused { op: Op::Read, why: "the disk dropped the operation" }
}
