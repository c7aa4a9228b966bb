//! A leaf's disk as writers see it.
//!
//! ```text
//!   write ─► room? ─► disk ─► answer (on the disk's thread): the next of the queue goes to the disk, then writers are told
//!              │ no                                             ▲
//!              └─► queue ───────────────────────────────────────┘
//! ```
//!
//! As with reads ([`super::leaf`]), whoever has a disk's answer starts what comes next, before anybody is woken. Nothing is
//! copied: the parts of a joined write are the writers' own bytes, one behind the other. A writer that is dropped leaves
//! its write to end by itself, and the place is not used again before that; what still waits then is not begun.
//!
//! Writes that come together ([`WritePlug`]) all go into the queue first: of blocks that lie side by side, each disk then gets
//! one operation.

use super::leaf::FRONT_BYTES;
use super::write_queue::{Batch, Member, WriteQueue};
use crate::write::ReadHold;
use bytes::Bytes;
use futures_channel::oneshot;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_machine::{Bufs, Disk, DiskError, Io, Op, Priority};

struct Waiter {
    tell: oneshot::Sender<Result<(), DiskError>>,
    data: Bytes,
    /// The place is not used again before the disk has answered, or while this waits.
    _hold: Option<Arc<ReadHold>>,
}

impl Waiter {
    /// A writer that no longer waits does not want its answer.
    fn tell(self, answer: Result<(), DiskError>) {
        drop(self.tell.send(answer));
    }
}

#[derive(Default)]
struct State {
    queue: WriteQueue<Waiter>,
    /// Turns that ended and are not passed on yet.
    ended: Vec<Priority>,
    /// Somebody is passing turns on.
    passing: bool,
}

/// The queue of one leaf, shared by its writers.
#[derive(Clone, Default)]
pub(super) struct LeafWriteQueue(Arc<Mutex<State>>);

impl fmt::Debug for LeafWriteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writers")
    }
}

/// A place among the writes under way. Given up, it passes to the next that waits, which begins.
struct QueueTicket {
    writers: LeafWriteQueue,
    disk: Arc<dyn Disk>,
    class: Priority,
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.writers.pass_on(&self.disk, self.class);
    }
}

/// Holds writes back until all that come together are in their queues.
#[derive(Default)]
pub(crate) struct WritePlug(Mutex<Vec<(LeafWriteQueue, Arc<dyn Disk>)>>);

impl WritePlug {
    fn held(&self) -> MutexGuard<'_, Vec<(LeafWriteQueue, Arc<dyn Disk>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, writers: &LeafWriteQueue, disk: &Arc<dyn Disk>) {
        let mut held = self.held();
        if !held.iter().any(|(other, _)| Arc::ptr_eq(&other.0, &writers.0)) {
            held.push((writers.clone(), disk.clone()));
        }
    }

    /// Lets them begin. To be called whenever those who write have been polled.
    pub fn pull(&self) {
        let held = std::mem::take(&mut *self.held());
        for (writers, disk) in held {
            writers.begin_all(&disk);
        }
    }
}

impl Drop for WritePlug {
    fn drop(&mut self) {
        // Nobody else would begin what is left, not even for others that come to wait behind it.
        self.pull();
    }
}

impl LeafWriteQueue {
    /// Held only for a few instructions, never while anything is waited for or begun.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a range of the allocatable space as soon as there is room and no plug, perhaps together with others; with
    /// `here`, if that is at once, perhaps on this thread.
    pub async fn write(
        &self,
        disk: &Arc<dyn Disk>,
        class: Priority,
        (offset, data): (u64, Bytes),
        plug: Option<&WritePlug>,
        here: bool,
        hold: Option<Arc<ReadHold>>,
    ) -> Result<(), DiskError> {
        let (tell, answer) = oneshot::channel();
        let (len, token) = (data.len() as u64, Waiter { tell, data, _hold: hold });
        let starts = {
            let queue = &mut self.lock().queue;
            if plug.is_none() && queue.try_start(class) {
                Some(Member { offset, len, token })
            } else {
                queue.wait(class, offset, len, token);
                None
            }
        };
        if let Some(member) = starts {
            self.begin(disk, Batch { class, members: vec![member] }, here);
        } else if let Some(plug) = plug {
            plug.hold(self, disk);
        }
        answer.await.unwrap_or(Err(DiskError::Refused { op: Op::Write, why: "the disk dropped the operation" }))
    }

    /// Begins whatever may begin now.
    fn begin_all(&self, disk: &Arc<dyn Disk>) {
        loop {
            let next = self.lock().queue.start_next();
            let Some(batch) = next else { return };
            self.begin(disk, batch, false);
        }
    }

    /// A turn has ended: begins what comes next. A disk may answer while an operation is handed to it, which ends the next
    /// turn before this call returns; so whoever is at it already does that as well.
    fn pass_on(&self, disk: &Arc<dyn Disk>, class: Priority) {
        {
            let mut state = self.lock();
            state.ended.push(class);
            if std::mem::replace(&mut state.passing, true) {
                return;
            }
        }
        loop {
            let next = {
                let mut state = self.lock();
                let Some(class) = state.ended.pop() else {
                    state.passing = false;
                    return;
                };
                state.queue.done(class)
            };
            if let Some(batch) = next {
                self.begin(disk, batch, false);
            }
        }
    }

    /// Starts a batch, whose turn it is.
    fn begin(&self, disk: &Arc<dyn Disk>, mut batch: Batch<Waiter>, here: bool) {
        let turn = Arc::new(QueueTicket { writers: self.clone(), disk: disk.clone(), class: batch.class });
        // What nobody waits for is not written.
        batch.members.retain(|m| !m.token.tell.is_canceled());
        for run in runs(batch.members) {
            start(disk, run, Some(turn.clone()), here);
        }
    }
}

/// Members that touch each other, each run in one piece: those who left made gaps.
fn runs(members: Vec<Member<Waiter>>) -> Vec<Vec<Member<Waiter>>> {
    let mut runs: Vec<Vec<Member<Waiter>>> = Vec::new();
    for member in members {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|m| m.offset + m.len == member.offset) => run.push(member),
            _ => runs.push(vec![member]),
        }
    }
    runs
}

/// Writes what lies in one piece to the allocatable space, and tells each how it went. One bad sector does not spoil its
/// neighbours: then each is written alone.
fn start(disk: &Arc<dyn Disk>, run: Vec<Member<Waiter>>, turn: Option<Arc<QueueTicket>>, here: bool) {
    let offset = run.first().map_or(0, |m| m.offset).wrapping_add(FRONT_BYTES);
    let (parts, len) = (run.iter().map(|m| m.token.data.clone()).collect(), run.iter().map(|m| m.len).sum());
    let again = disk.clone();
    let done = Box::new(move |answer: Result<Bufs, DiskError>| {
        drop(turn);
        let alone = answer.is_err() && run.len() > 1;
        for member in run {
            if alone {
                start(&again, vec![member], None, false);
            } else {
                member.token.tell(answer.as_ref().map(drop).map_err(Clone::clone));
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

    /// A disk that holds the first operations back, and refuses all others if it is told to.
    #[derive(Default)]
    struct Holding(Mutex<(Vec<Io>, bool)>);

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
    fn neighbours_are_written_together_from_where_they_lie() {
        let (holding, writers) = (Arc::new(Holding::default()), LeafWriteQueue::default());
        let disk: Arc<dyn Disk> = holding.clone();
        let data: Vec<Bytes> = (0..200).map(|n| Bytes::from(vec![n as u8; BLOCK as usize])).collect();
        let write = |n: usize| {
            Box::pin(writers.write(&disk, Priority::Async, (n as u64 * BLOCK, data[n].clone()), None, false, None))
        };
        let mut writes: Vec<_> = (0..data.len()).map(write).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        let (mut at, mut joined) = (0, 0);
        loop {
            let under_way = holding.take(false);
            if under_way.is_empty() {
                break;
            }
            for io in under_way {
                assert_eq!(io.offset, FRONT_BYTES + at as u64 * BLOCK);
                assert!(io.parts.iter().zip(&data[at..]).all(|(part, data)| part.as_ptr() == data.as_ptr()));
                (at, joined) = (at + io.parts.len(), joined.max(io.parts.len()));
                io.succeed();
            }
        }
        assert!(at == data.len() && joined > 100, "{joined}");
        assert!(writes.iter_mut().all(|write| write.now_or_never() == Some(Ok(()))));
    }

    #[test]
    fn what_comes_together_is_one_operation_and_does_not_wait_for_ever() {
        let (holding, writers) = (Arc::new(Holding::default()), LeafWriteQueue::default());
        let disk: Arc<dyn Disk> = holding.clone();
        let (write, class) = (|n: u64| (n * BLOCK, Bytes::from(vec![7; BLOCK as usize])), Priority::Async);
        let plug = WritePlug::default();
        let mut together: Vec<_> =
            (0..8).map(|n| Box::pin(writers.write(&disk, class, write(n), Some(&plug), false, None))).collect();
        assert!(together.iter_mut().all(|write| write.now_or_never().is_none()) && holding.take(false).is_empty());
        // One without a plug stands behind them.
        let mut later = Box::pin(writers.write(&disk, class, write(9), None, false, None));
        assert!((&mut later).now_or_never().is_none() && holding.take(false).is_empty());
        plug.pull();
        let under_way = holding.take(false);
        assert_eq!(under_way.iter().map(|io| io.len).collect::<Vec<_>>(), [8 * BLOCK, BLOCK]);
        under_way.into_iter().for_each(Io::succeed);
        assert!(together.iter_mut().all(|write| write.now_or_never() == Some(Ok(()))));
        assert_eq!(later.now_or_never(), Some(Ok(())));
        // Whoever leaves with the plug in hand leaves the way free.
        let mut left = Box::pin(writers.write(&disk, class, write(0), Some(&plug), false, None));
        let mut later = Box::pin(writers.write(&disk, class, write(1), None, false, None));
        assert!((&mut left).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        drop((left, together));
        drop(plug);
        let under_way = holding.take(false);
        assert_eq!(under_way.iter().map(|io| io.offset).collect::<Vec<_>>(), [FRONT_BYTES + BLOCK]);
        under_way.into_iter().for_each(Io::succeed);
        assert_eq!(later.now_or_never(), Some(Ok(())));
    }

    #[test]
    fn a_disk_that_refuses_at_once_refuses_any_number_of_writes() {
        let (holding, writers) = (Arc::new(Holding::default()), LeafWriteQueue::default());
        let disk: Arc<dyn Disk> = holding.clone();
        let data = Bytes::from_static(&[7; 512]);
        let write =
            |n: u64| Box::pin(writers.write(&disk, Priority::Async, (n * BLOCK, data.clone()), None, false, None));
        let mut writes: Vec<_> = (0..100_000).map(write).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        holding.take(true).into_iter().for_each(|io| io.fail_errno(5));
        assert!(writes.iter_mut().all(|write| matches!(write.now_or_never(), Some(Err(_)))));
    }

    #[test]
    fn what_nobody_waits_for_is_not_begun() {
        let (holding, writers) = (Arc::new(Holding::default()), LeafWriteQueue::default());
        let disk: Arc<dyn Disk> = holding.clone();
        let write = |n: u64| {
            Box::pin(writers.write(&disk, Priority::Async, (n * BLOCK, Bytes::from(vec![0; 4096])), None, false, None))
        };
        let mut writes: Vec<_> = (0..100).map(write).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        let under_way = holding.take(false);
        // Of those that wait, one in the middle stays.
        let last = writes.swap_remove(under_way.len() + 20);
        drop(writes);
        under_way.into_iter().for_each(Io::succeed);
        let under_way = holding.take(false);
        assert_eq!(under_way.iter().map(|io| io.len).collect::<Vec<_>>(), [BLOCK]);
        under_way.into_iter().for_each(Io::succeed);
        assert_eq!(last.now_or_never(), Some(Ok(())));
    }
}
