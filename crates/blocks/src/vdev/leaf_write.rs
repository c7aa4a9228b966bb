//! Writes to a leaf's disk.
//!
//! ```text
//!   write ─► below limit? ─► disk ─► completion (on the disk's thread): submit the next of the queue, then wake writers
//!              │ no                                                       ▲
//!              └─► queue ─────────────────────────────────────────────────┘
//! ```
//!
//! As with reads ([`super::leaf`]), the completion callback of a disk operation submits the next one before it wakes any
//! writer. Nothing is copied: a merged write consists of the writers' own buffers. If a writer is dropped, its submitted
//! write runs to completion, and the space is not reused before that; a queued one is discarded.
//!
//! Writes of one batch ([`WritePlug`]) are all queued before any is submitted, so that adjacent blocks become one operation
//! per disk.

use super::histogram::{OperationStats, QueueHistograms, Waits};
use super::leaf::QueueTime;
use super::queue::{Batch, Member, Queue, Writes};
use super::reflow::InUse;
use crate::reads::ReadHold;
use bytes::Bytes;
use futures_channel::oneshot;
use std::fmt;
use std::sync::Arc;
use weir_format::label::FRONT_BYTES;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Bufs, Clock, Disk, DiskError, Io, Nanos, Op, Priority};

struct Waiter {
    sender: oneshot::Sender<Answer>,
    data: Bytes,
    waited: QueueTime,
    /// Delays the reuse of the space until the disk has completed the write.
    _holds: WriteHolds,
}

/// Result of a write, and the nanoseconds that it was queued.
type Answer = (Result<(), DiskError>, u64);

impl Waiter {
    /// Completes the write. The result is discarded if the writer was dropped.
    fn complete(self, answer: Result<(), DiskError>) {
        drop(self.sender.send((answer, self.waited.ns())));
    }
}

#[derive(Default)]
struct State {
    queue: Queue<Waiter, Writes>,
    /// Class and length of completed operations after which the next write is not started yet.
    ended: Vec<(Priority, u64)>,
    /// A caller of [`LeafWriteQueue::start_next`] is starting writes.
    is_starting: bool,
}

/// The queue of one leaf, shared by its writers.
#[derive(Clone)]
pub(super) struct LeafWriteQueue(Arc<Shared>);

struct Shared {
    clock: Clock,
    histograms: QueueHistograms,
    state: Mutex<State, { order::LEAF_QUEUE }>,
}

impl fmt::Debug for LeafWriteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeafWriteQueue")
    }
}

/// A slot among the writes in progress. Dropping it starts the next queued writes.
struct QueueTicket {
    writers: LeafWriteQueue,
    disk: Arc<dyn Disk>,
    class: Priority,
    len: u64,
    begun: Nanos,
    /// Of the writers; none if all of them were dropped before the write was submitted.
    waits: Waits,
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let Shared { clock, histograms, .. } = &*self.writers.0;
        if !self.waits.is_empty() {
            histograms.record(self.class, self.len, clock.now().ns_since(self.begun), &self.waits);
        }
        self.writers.start_next(&self.disk, self.class, self.len);
    }
}

/// Delays what would be wrong while a device has not answered a write, even if the writer was dropped.
#[derive(Debug, Default)]
pub(super) struct WriteHolds {
    /// The reuse of the space.
    _space: Option<Arc<ReadHold>>,
    /// Steps of a RAID-Z expansion that would use the place for other sectors, and copies of a rebuild.
    _in_use: InUse,
}

impl WriteHolds {
    pub fn new(space: Option<Arc<ReadHold>>, in_use: InUse) -> Self {
        WriteHolds { _space: space, _in_use: in_use }
    }
}

/// Delays the submission of a batch of writes until all of them are queued.
#[derive(Default)]
pub(crate) struct WritePlug(Mutex<Vec<(LeafWriteQueue, Arc<dyn Disk>)>, { order::WRITE_PLUG }>);

impl WritePlug {
    fn held(&self) -> MutexGuard<'_, Vec<(LeafWriteQueue, Arc<dyn Disk>)>> {
        self.0.lock()
    }

    fn hold(&self, writers: &LeafWriteQueue, disk: &Arc<dyn Disk>) {
        let mut held = self.held();
        if !held.iter().any(|(other, _)| Arc::ptr_eq(&other.0, &writers.0)) {
            held.push((writers.clone(), disk.clone()));
        }
    }

    /// Submits the queued writes. The batch calls this whenever its writes have been polled.
    pub fn release(&self) {
        let held = std::mem::take(&mut *self.held());
        for (writers, disk) in held {
            writers.begin_all(&disk);
        }
    }
}

impl Drop for WritePlug {
    fn drop(&mut self) {
        // The rest would never be submitted, and would block the writes queued behind it.
        self.release();
    }
}

impl LeafWriteQueue {
    pub fn new(clock: &Clock) -> Self {
        let histograms = QueueHistograms::default();
        LeafWriteQueue(Arc::new(Shared { clock: clock.clone(), histograms, state: Mutex::default() }))
    }

    /// Locks the state; the lock is held for a few instructions, never across an await or a submission.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Writes a range of the allocatable space as soon as the limits permit and the plug is released, possibly merged with
    /// other writes. With `here`, the calling thread may block if the write is submitted without queueing.
    pub async fn write(
        &self,
        disk: &Arc<dyn Disk>,
        class: Priority,
        (offset, data): (u64, Bytes),
        plug: Option<&WritePlug>,
        here: bool,
        holds: WriteHolds,
    ) -> Answer {
        let (sender, answer) = oneshot::channel();
        let len = data.len() as u64;
        let mut token = Waiter { sender, data, waited: QueueTime::Ended(0), _holds: holds };
        let starts = {
            let queue = &mut self.lock().queue;
            if plug.is_none() && queue.try_start(class, len) {
                Some(Member { offset, len, token })
            } else {
                token.waited = QueueTime::Since(self.0.clock.now());
                queue.wait(class, offset, len, token);
                None
            }
        };
        if let Some(member) = starts {
            self.begin(disk, Batch { class, offset, len, members: vec![member] }, here);
        } else if let Some(plug) = plug {
            plug.hold(self, disk);
        }
        let dropped = DiskError::Refused { op: Op::Write, why: "the disk dropped the operation" };
        answer.await.unwrap_or((Err(dropped), 0))
    }

    /// Number of writes since the pool was opened, without those of scrubs and resilvers.
    pub fn foreground_operations(&self) -> u64 {
        self.lock().queue.foreground()
    }

    /// How long writes take, how large they are, and how many there are now.
    pub fn stats(&self) -> OperationStats {
        let (pending, active) = self.lock().queue.counts();
        self.0.histograms.values(pending, active)
    }

    /// Submits queued writes up to the limits.
    fn begin_all(&self, disk: &Arc<dyn Disk>) {
        loop {
            let next = self.lock().queue.start_next();
            let Some(batch) = next else { return };
            self.begin(disk, batch, false);
        }
    }

    /// Starts the next queued writes after an operation has ended. A disk may complete an operation within its submission,
    /// which calls this again; the outer call then starts the further writes, so that the recursion is bounded.
    fn start_next(&self, disk: &Arc<dyn Disk>, class: Priority, len: u64) {
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
                let Some((class, len)) = state.ended.pop() else {
                    state.is_starting = false;
                    return;
                };
                state.queue.done(class, len)
            };
            if let Some(batch) = next {
                self.begin(disk, batch, false);
            }
        }
    }

    /// Submits a batch that the queue has started.
    fn begin(&self, disk: &Arc<dyn Disk>, mut batch: Batch<Waiter>, here: bool) {
        // Writes whose writers were dropped are discarded.
        batch.members.retain(|m| !m.token.sender.is_canceled());
        QueueTime::end(batch.members.iter_mut().map(|member| &mut member.token.waited), &self.0.clock);
        let ticket = Arc::new(QueueTicket {
            writers: self.clone(),
            disk: disk.clone(),
            class: batch.class,
            len: batch.len,
            begun: self.0.clock.now(),
            waits: batch.members.iter().map(|member| member.token.waited.ns()).collect(),
        });
        for run in runs(batch.members) {
            start(disk, run, Some(ticket.clone()), here);
        }
    }
}

/// Splits a batch into runs of adjacent members; discarded members leave gaps.
fn runs(members: Vec<Member<Waiter>>) -> Vec<Vec<Member<Waiter>>> {
    let mut runs: Vec<Vec<Member<Waiter>>> = Vec::new();
    for member in members {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|m| m.offset.checked_add(m.len) == Some(member.offset)) => {
                run.push(member)
            }
            _ => runs.push(vec![member]),
        }
    }
    runs
}

/// Writes a run of adjacent members in one operation. If it fails, each member is written alone, because one bad sector
/// must not fail the writes of its neighbours.
fn start(disk: &Arc<dyn Disk>, run: Vec<Member<Waiter>>, ticket: Option<Arc<QueueTicket>>, here: bool) {
    let offset = run.first().map_or(0, |m| m.offset).wrapping_add(FRONT_BYTES);
    let parts = run.iter().map(|m| m.token.data.clone()).collect();
    let len = run.iter().map(|m| m.len).sum();
    let retry_disk = disk.clone();
    let done = Box::new(move |answer: Result<Bufs, DiskError>| {
        drop(ticket);
        let retry = answer.is_err() && run.len() > 1;
        for member in run {
            if retry {
                start(&retry_disk, vec![member], None, false);
            } else {
                member.token.complete(answer.as_ref().map(drop).map_err(Clone::clone));
            }
        }
    });
    disk.submit(Io { op: Op::Write, offset, len, bufs: Bufs::new(), parts, here, done });
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use weir_machine::Geometry;

    /// A disk that delays operations, or fails later ones if so configured.
    #[derive(Default)]
    struct Holding(std::sync::Mutex<(Vec<Io>, bool)>);

    impl Holding {
        fn take(&self, refuses: bool) -> Vec<Io> {
            let mut state = self.0.lock().unwrap();
            state.1 = refuses;
            std::mem::take(&mut state.0)
        }
    }

    impl Disk for Holding {
        fn geometry(&self) -> Geometry {
            Geometry { size_bytes: 1 << 40, sector_bytes: 512, rotational: false }
        }

        fn submit(&self, io: Io) {
            {
                let mut state = self.0.lock().unwrap();
                if !state.1 {
                    return state.0.push(io);
                }
            }
            io.fail_errno(5);
        }
    }

    const BLOCK: u64 = 4096;

    #[test]
    fn adjacent_writes_are_merged_without_copying() {
        let holding = Arc::new(Holding::default());
        let writers = LeafWriteQueue::new(&weir_sim::SimWorld::new(1).machine().clock);
        let disk: Arc<dyn Disk> = holding.clone();
        let data: Vec<Bytes> = (0..200).map(|n| Bytes::from(vec![n as u8; BLOCK as usize])).collect();
        let write = |n: usize| {
            Box::pin(writers.write(
                &disk,
                Priority::Async,
                (n as u64 * BLOCK, data[n].clone()),
                None,
                false,
                WriteHolds::default(),
            ))
        };
        let mut writes: Vec<_> = (0..data.len()).map(write).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        let mut at = 0;
        let mut joined = 0;
        loop {
            let submitted = holding.take(false);
            if submitted.is_empty() {
                break;
            }
            for io in submitted {
                assert_eq!(io.offset, FRONT_BYTES + at as u64 * BLOCK);
                assert!(io.parts.iter().zip(&data[at..]).all(|(part, data)| part.as_ptr() == data.as_ptr()));
                (at, joined) = (at + io.parts.len(), joined.max(io.parts.len()));
                io.succeed();
            }
        }
        assert!(at == data.len() && joined > 100, "{joined}");
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_some_and(|answer| answer.0 == Ok(()))));
    }

    #[test]
    fn plugged_writes_are_one_operation_and_are_always_submitted() {
        let holding = Arc::new(Holding::default());
        let writers = LeafWriteQueue::new(&weir_sim::SimWorld::new(1).machine().clock);
        let disk: Arc<dyn Disk> = holding.clone();
        let class = Priority::Async;
        let write = |n: u64| (n * BLOCK, Bytes::from(vec![7; BLOCK as usize]));
        let plug = WritePlug::default();
        let mut together: Vec<_> = (0..8)
            .map(|n| Box::pin(writers.write(&disk, class, write(n), Some(&plug), false, WriteHolds::default())))
            .collect();
        assert!(together.iter_mut().all(|write| write.now_or_never().is_none()) && holding.take(false).is_empty());
        // A write without a plug is queued behind them.
        let mut later = Box::pin(writers.write(&disk, class, write(9), None, false, WriteHolds::default()));
        assert!((&mut later).now_or_never().is_none() && holding.take(false).is_empty());
        plug.release();
        let submitted = holding.take(false);
        assert_eq!(submitted.iter().map(|io| io.len).collect::<Vec<_>>(), [8 * BLOCK, BLOCK]);
        submitted.into_iter().for_each(Io::succeed);
        assert!(together.iter_mut().all(|write| write.now_or_never().is_some_and(|answer| answer.0 == Ok(()))));
        assert_eq!(later.now_or_never(), Some((Ok(()), 0)));
        // Dropping the plug submits the writes queued behind it.
        let mut left = Box::pin(writers.write(&disk, class, write(0), Some(&plug), false, WriteHolds::default()));
        let mut later = Box::pin(writers.write(&disk, class, write(1), None, false, WriteHolds::default()));
        assert!((&mut left).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        drop((left, together));
        drop(plug);
        let submitted = holding.take(false);
        assert_eq!(submitted.iter().map(|io| io.offset).collect::<Vec<_>>(), [FRONT_BYTES + BLOCK]);
        submitted.into_iter().for_each(Io::succeed);
        assert_eq!(later.now_or_never(), Some((Ok(()), 0)));
    }

    #[test]
    fn a_disk_that_fails_synchronously_fails_any_number_of_writes() {
        let holding = Arc::new(Holding::default());
        let writers = LeafWriteQueue::new(&weir_sim::SimWorld::new(1).machine().clock);
        let disk: Arc<dyn Disk> = holding.clone();
        let data = Bytes::from_static(&[7; 512]);
        let write = |n: u64| {
            Box::pin(writers.write(
                &disk,
                Priority::Async,
                (n * BLOCK, data.clone()),
                None,
                false,
                WriteHolds::default(),
            ))
        };
        let mut writes: Vec<_> = (0..100_000).map(write).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        holding.take(true).into_iter().for_each(|io| io.fail_errno(5));
        assert!(writes.iter_mut().all(|write| matches!(write.now_or_never(), Some((Err(_), _)))));
    }

    #[test]
    fn queued_writes_of_dropped_writers_are_discarded() {
        let holding = Arc::new(Holding::default());
        let writers = LeafWriteQueue::new(&weir_sim::SimWorld::new(1).machine().clock);
        let disk: Arc<dyn Disk> = holding.clone();
        let write = |n: u64| {
            Box::pin(writers.write(
                &disk,
                Priority::Async,
                (n * BLOCK, Bytes::from(vec![0; 4096])),
                None,
                false,
                WriteHolds::default(),
            ))
        };
        let mut writes: Vec<_> = (0..100).map(write).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        let submitted = holding.take(false);
        // Of the queued writes, one in the middle is kept.
        let last = writes.swap_remove(submitted.len() + 20);
        drop(writes);
        submitted.into_iter().for_each(Io::succeed);
        let submitted = holding.take(false);
        assert_eq!(submitted.iter().map(|io| io.len).collect::<Vec<_>>(), [BLOCK]);
        submitted.into_iter().for_each(Io::succeed);
        assert_eq!(last.now_or_never(), Some((Ok(()), 0)));
    }
}
