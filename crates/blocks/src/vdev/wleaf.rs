//! A leaf's disk as writers see it: their turn, the batch, the answer.
//!
//! As with reads, nobody owns the queue: the writer whose turn it is writes for its whole batch, and whoever ends a write
//! passes the turn on. A writer that is dropped passes its turn on as well, and those that waited for its batch ask again;
//! then their bytes may be written twice, which does no harm.

use super::leaf::FRONT_BYTES;
use super::wqueue::{Batch, Member, WriteQueue};
use bytes::Bytes;
use futures_channel::oneshot;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_machine::{Disk, DiskError, Op, Priority};

/// What a waiting writer is told.
enum Verdict {
    /// Its bytes were written, or not.
    Done(Result<(), DiskError>),
    /// It is its turn: it writes for itself and for the others of the batch.
    Go(Batch<Waiter>, Turn),
}

struct Waiter {
    answer: oneshot::Sender<Verdict>,
    data: Bytes,
}

/// The queue of one leaf, shared by its writers.
#[derive(Clone, Default)]
pub(super) struct Writers(Arc<Mutex<WriteQueue<Waiter>>>);

impl fmt::Debug for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writers")
    }
}

/// A place among the writes under way. Given up, also with the future (or the unread message) that holds it, it passes to
/// the next that waits.
struct Turn {
    queue: Writers,
    class: Priority,
}

impl Drop for Turn {
    fn drop(&mut self) {
        loop {
            let Some(batch) = self.queue.lock().done(self.class) else { return };
            self.class = batch.class;
            if hand_over(&self.queue, batch) {
                return;
            }
        }
    }
}

/// Gives the turn to the first of the batch that still waits; false if none does.
fn hand_over(queue: &Writers, mut batch: Batch<Waiter>) -> bool {
    // What nobody waits for is not written.
    batch.members.retain(|m| !m.token.answer.is_canceled());
    let Some(first) = batch.members.first_mut() else { return false };
    let (unused, _) = oneshot::channel();
    let leader = std::mem::replace(&mut first.token.answer, unused);
    let turn = Turn { queue: queue.clone(), class: batch.class };
    // If it has gone this very moment, the message comes back, and dropping it passes the turn on.
    drop(leader.send(Verdict::Go(batch, turn)));
    true
}

impl Writers {
    /// Held only for a few instructions, never while anything is waited for.
    fn lock(&self) -> MutexGuard<'_, WriteQueue<Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a range of the allocatable space as soon as it is this write's turn, perhaps together with others.
    pub async fn write(
        &self,
        disk: &Arc<dyn Disk>,
        class: Priority,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DiskError> {
        loop {
            let verdict = {
                let mut queue = self.lock();
                if queue.try_start(class) {
                    None
                } else {
                    let (answer, verdict) = oneshot::channel();
                    queue.wait(class, offset, data.len() as u64, Waiter { answer, data: data.clone() });
                    Some(verdict)
                }
            };
            let Some(verdict) = verdict else {
                let _turn = Turn { queue: self.clone(), class };
                return put(disk, offset, &[&data]).await;
            };
            match verdict.await {
                Ok(Verdict::Done(answer)) => return answer,
                Ok(Verdict::Go(batch, turn)) => return lead(disk, batch, turn).await,
                // The writer that led the batch was dropped: ask again.
                Err(oneshot::Canceled) => {}
            }
        }
    }
}

/// Writes a batch, tells each of the others how it went, and gives the answer of the first, whose turn it is.
async fn lead(disk: &Arc<dyn Disk>, batch: Batch<Waiter>, _turn: Turn) -> Result<(), DiskError> {
    let mut mine = Ok(());
    let mut first = true;
    for run in runs(batch.members) {
        let answer = write_run(disk, run).await;
        if std::mem::take(&mut first) {
            mine = answer;
        }
    }
    mine
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

/// Writes what lies in one piece, tells each how it went, and gives the answer of the first. One bad sector does not
/// spoil its neighbours: then each is written alone.
async fn write_run(disk: &Arc<dyn Disk>, run: Vec<Member<Waiter>>) -> Result<(), DiskError> {
    let offset = run.first().map_or(0, |m| m.offset);
    let parts: Vec<&[u8]> = run.iter().map(|m| m.token.data.as_ref()).collect();
    let whole = put(disk, offset, &parts).await;
    let alone = whole.is_err() && run.len() > 1;
    let mut mine = None;
    for Member { offset, token: Waiter { answer, data }, .. } in run {
        let outcome = if alone { put(disk, offset, &[&data]).await } else { whole.clone() };
        mine.get_or_insert(outcome.clone());
        // A writer that no longer waits does not want its answer.
        drop(answer.send(Verdict::Done(outcome)));
    }
    mine.unwrap_or(whole)
}

/// Writes parts that follow each other to the allocatable space.
async fn put(disk: &Arc<dyn Disk>, offset: u64, parts: &[&[u8]]) -> Result<(), DiskError> {
    let geometry = disk.geometry();
    let start = offset.wrapping_add(FRONT_BYTES);
    let len: usize = parts.iter().map(|p| p.len()).sum();
    if start.checked_add(len as u64).is_none_or(|end| end > geometry.size_bytes) {
        let size_bytes = geometry.size_bytes;
        return Err(DiskError::OutOfRange { op: Op::Write, offset: start, len: len as u64, size_bytes });
    }
    let mut buf = disk.buffer(len);
    let mut rest = buf.as_mut();
    for part in parts {
        let (front, tail) = std::mem::take(&mut rest).split_at_mut(part.len());
        front.copy_from_slice(part);
        rest = tail;
    }
    disk.write(start, buf).await.map(drop)
}
