//! Operations of the disk: [`weir_machine::Disk`] over [`Core`].

use crate::core::{Core, State, key};
use crate::disks::Handle;
use crate::object::Known;
use crate::transfer::Failed;
use futures_util::future::join_all;
use std::sync::Arc;
use weir_machine::{Access, Buf, BufPool, Disk, DiskError, Geometry, Io, Op};

/// Bytes at both ends of a device that hold labels, with the boot area (`VDEV_LABEL_START_SIZE`).
const LABEL_AREA_BYTES: u64 = 4 << 20;
/// Reads in sequence after which whole objects are read, and the next one ahead.
const SEQUENTIAL: u32 = 2;

/// A disk that is open, with the access that its opener asked for.
pub struct StoreDisk {
    core: Arc<Core>,
    access: Access,
    /// Memory to read into.
    buffers: BufPool,
    /// Closes the disk when the last one is dropped; `None` if its opener does.
    _handle: Option<Arc<Handle>>,
}

impl StoreDisk {
    /// The disk, with that access, whose readers get buffers of a pool.
    pub fn new(core: Arc<Core>, access: Access, buffers: BufPool, handle: Option<Arc<Handle>>) -> Self {
        StoreDisk { core, access, buffers, _handle: handle }
    }
}

impl Disk for StoreDisk {
    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn submit(&self, io: Io) {
        let core = &self.core;
        if let Err(error) = io.check(&core.geometry, self.access) {
            return io.fail(error);
        }
        core.submit(io);
    }

    fn buffer(&self, len: usize) -> Buf {
        self.buffers.take(len)
    }
}

/// Fails an operation with a reason that names the object.
fn fail(io: Io, why: Failed) {
    let Io { op, offset, len, .. } = io;
    let why = if len == 0 { why } else { format!("{why} ({len} bytes at {offset} of the disk)") };
    io.fail(DiskError::Store { op, why: why.into() });
}

/// A part of a read: a range of an object, and the buffers that it fills.
struct Part<'a> {
    index: u64,
    /// Offset in the object.
    at: u32,
    /// Bytes of all pieces.
    len: usize,
    pieces: Vec<&'a mut [u8]>,
}

impl Part<'_> {
    /// Calls a function with each buffer and its offset in the object.
    fn each(&mut self, mut each: impl FnMut(u32, &mut [u8])) {
        self.all(|at, piece| {
            each(at, piece);
            true
        });
    }

    /// As [`Part::each`] until the function returns `false`; returns whether it did not.
    fn all(&mut self, mut each: impl FnMut(u32, &mut [u8]) -> bool) -> bool {
        let mut at = self.at;
        self.pieces.iter_mut().all(|piece| {
            let begins = at;
            at += piece.len() as u32;
            each(begins, piece)
        })
    }
}

impl Core {
    /// Starts an operation that was checked.
    pub(crate) fn submit(self: &Arc<Self>, mut io: Io) {
        match io.op {
            Op::Read => {
                if self.read_from_memory(&mut io) {
                    return io.succeed();
                }
                let core = self.clone();
                self.tasks.start(async move { core.read(io).await });
            }
            Op::Write => self.write(io),
            Op::Flush => {
                let core = self.clone();
                self.tasks.start(async move {
                    match core.flush().await {
                        Ok(()) => io.succeed(),
                        Err(why) => fail(io, why),
                    }
                });
            }
            Op::Discard => {
                let core = self.clone();
                self.tasks.start(async move {
                    match core.discard(io.offset, io.len).await {
                        Ok(()) => io.succeed(),
                        Err(why) => fail(io, why),
                    }
                });
            }
        }
    }

    /// Fills a read from memory, if all of it is there.
    fn read_from_memory(&self, io: &mut Io) -> bool {
        let mut state = self.state();
        let mut at = io.offset;
        for buf in &mut io.bufs {
            let mut rest = buf.as_mut();
            for (index, within, len) in self.parts(at, rest.len() as u64) {
                let (piece, tail) = rest.split_at_mut(len);
                // A reader does not know for long what is missing.
                let is_read = state.objects.get(&index).is_some_and(|object| object.read(within, piece));
                if !is_read {
                    return false;
                }
                rest = tail;
            }
            at += buf.len() as u64;
        }
        let indices: Vec<u64> = self.parts(io.offset, io.len).map(|(index, ..)| index).collect();
        indices.into_iter().for_each(|index| state.touch(index));
        state.sequence(io.offset, io.offset + io.len);
        true
    }

    async fn read(self: Arc<Self>, mut io: Io) {
        let reads = self.state().sequence(io.offset, io.offset + io.len);
        let is_sequential = reads >= SEQUENTIAL;
        if is_sequential {
            self.read_ahead((io.offset + io.len).div_ceil(self.object_bytes));
        }
        let read = {
            let parts = self.parts_of(&mut io);
            join_all(parts.into_iter().map(|part| self.read_part(part, is_sequential))).await
        };
        match read.into_iter().find_map(Result::err) {
            Some(why) => fail(io, why),
            None => io.succeed(),
        }
    }

    /// The buffers of a read by objects.
    fn parts_of<'a>(&self, io: &'a mut Io) -> Vec<Part<'a>> {
        let parts = self.parts(io.offset, io.len);
        let mut bufs = io.bufs.iter_mut();
        let mut rest: &mut [u8] = &mut [];
        let fill = |(index, at, len): (u64, u32, usize)| {
            let mut part = Part { index, at, len, pieces: Vec::new() };
            let mut missing = len;
            while missing > 0 {
                if rest.is_empty() {
                    let Some(buf) = bufs.next() else { break };
                    rest = buf.as_mut();
                    continue;
                }
                let take = missing.min(rest.len());
                let (piece, tail) = std::mem::take(&mut rest).split_at_mut(take);
                part.pieces.push(piece);
                (rest, missing) = (tail, missing - take);
            }
            debug_assert!(missing == 0, "a read has fewer buffers than bytes");
            part
        };
        parts.map(fill).collect()
    }

    /// Loads the next object of a sequential read in the background. An error is left to the read that needs it.
    fn read_ahead(self: &Arc<Self>, index: u64) {
        let is_there =
            self.state().objects.get(&index).is_some_and(|o| o.base().is_some() || o.known == Known::Missing);
        if is_there || index >= self.geometry.size_bytes / self.object_bytes || !self.may_keep(index) {
            return;
        }
        let core = self.clone();
        drop(self.tasks.spawn(async move {
            let Ok(_permit) = core.reading.acquire().await else { return };
            if let Err(why) = core.load(index).await {
                tracing::debug!(why, "an object could not be read ahead");
            }
        }));
    }

    /// Whether an object may stay in memory. While a disk is only read, another process may write its labels.
    fn may_keep(&self, index: u64) -> bool {
        let start = index * self.object_bytes;
        let back = self.geometry.size_bytes.saturating_sub(LABEL_AREA_BYTES);
        self.lease.is_some() || (start >= LABEL_AREA_BYTES && start + self.object_bytes <= back)
    }

    /// Reads a part of an object into its buffers.
    async fn read_part(&self, mut part: Part<'_>, is_sequential: bool) -> Result<(), Failed> {
        let Part { index, at, len, .. } = part;
        let failed = |why: String| self.at(index, why);
        let wants_whole = (is_sequential || len as u64 * 2 >= self.object_bytes) && self.may_keep(index);
        let mut attempts = self.requests.attempts(self.settings.deadline);
        // Held, so that the object is not forgotten meanwhile.
        let _turns = {
            let mut state = self.state();
            state.shrink(self.clock.now());
            state.turns(index)
        };
        let Ok(permit) = self.reading.acquire().await else { return Err(failed("the disk is closed".into())) };
        loop {
            let version = {
                let mut state = self.state();
                let read = state.change(index, |object| {
                    part.all(|at, piece| object.read(at, piece)).then_some(()).ok_or(object.version)
                });
                match read {
                    Ok(()) => {
                        state.touch(index);
                        return Ok(());
                    }
                    Err(version) => version,
                }
            };
            if wants_whole {
                self.load(index).await?;
                continue;
            }
            let range = u64::from(at)..u64::from(at) + len as u64;
            let got = self.fetch(index, Some(range), &mut attempts).await.map_err(failed)?;
            let found = got.as_ref().map_or(Known::Missing, |got| Known::Is(got.etag.clone()));
            if !self.accept(index, &found, &mut attempts).await.map_err(failed)? {
                continue;
            }
            match &got {
                Some(got) if got.bytes.len() == len => part.each(|from, piece| {
                    let from = (from - at) as usize;
                    piece.copy_from_slice(&got.bytes[from..from + piece.len()]);
                }),
                Some(got) => {
                    let why = format!("ends within a read: {} bytes instead of {len} at {at}", got.bytes.len());
                    return Err(failed(why));
                }
                None => part.each(|_, piece| piece.fill(0)),
            }
            let mut state = self.state();
            let is_current = state.change(index, |object| {
                let is_current = object.version == version;
                if is_current {
                    part.each(|at, piece| object.patches.apply(at, piece));
                    if self.lease.is_some() {
                        object.known = found;
                    }
                }
                is_current
            });
            if is_current {
                drop(permit);
                return Ok(());
            }
        }
    }

    fn write(self: &Arc<Self>, io: Io) {
        if let Some(why) = self.lease.as_ref().and_then(|lease| lease.lost()) {
            return fail(io, why);
        }
        let (done, full, pressed) = {
            let mut state = self.state();
            if state.waiting.is_empty() && self.has_room(&state, io.len) {
                let full = self.gather(&mut state, io.offset, &io.parts);
                (Some(io), full, Vec::new())
            } else {
                state.waiting.push_back(io);
                (None, Vec::new(), self.unscheduled(&mut state))
            }
        };
        if let Some(io) = done {
            io.succeed();
        }
        full.into_iter().chain(pressed).for_each(|index| self.settle_behind(index));
    }

    fn has_room(&self, state: &State, len: u64) -> bool {
        state.gathered_bytes == 0 || state.gathered_bytes + len <= self.settings.gather_bytes
    }

    /// Schedules all dirty objects that no task will write.
    fn unscheduled(&self, state: &mut State) -> Vec<u64> {
        let dirty: Vec<u64> = state.dirty.iter().copied().collect();
        let mut out = Vec::new();
        for index in dirty {
            let is_new = state.change(index, |object| {
                let is_new = !object.is_scheduled && !object.patches.is_empty();
                object.is_scheduled |= is_new;
                is_new
            });
            if is_new {
                out.push(index);
            }
        }
        out
    }

    /// Writes an object in the background, then admits waiting writes.
    fn settle_behind(self: &Arc<Self>, index: u64) {
        let core = self.clone();
        drop(self.tasks.spawn(async move {
            let settled = core.settle(index).await;
            core.admit(settled);
        }));
    }

    /// Gathers waiting writes as far as there is room. If an object could not be written, they fail instead.
    fn admit(self: &Arc<Self>, settled: Result<(), Failed>) {
        let mut done = Vec::new();
        let mut failed = Vec::new();
        let mut behind = Vec::new();
        {
            let mut state = self.state();
            if settled.is_err() {
                failed.extend(std::mem::take(&mut state.waiting));
            }
            while let Some(io) = state.waiting.pop_front() {
                if !self.has_room(&state, io.len) {
                    state.waiting.push_front(io);
                    behind.extend(self.unscheduled(&mut state));
                    break;
                }
                behind.extend(self.gather(&mut state, io.offset, &io.parts));
                done.push(io);
            }
        }
        done.into_iter().for_each(Io::succeed);
        let why = settled.err().unwrap_or_default();
        failed.into_iter().for_each(|io| fail(io, why.clone()));
        behind.into_iter().for_each(|index| self.settle_behind(index));
    }

    /// Returns when the store has all writes that were gathered before.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Failed> {
        if let Some(why) = self.lease.as_ref().and_then(|lease| lease.lost()) {
            return Err(why);
        }
        let dirty: Vec<u64> = self.state().dirty.iter().copied().collect();
        let settled = join_all(dirty.into_iter().map(|index| self.settle(index))).await;
        let first = settled.into_iter().find(Result::is_err).unwrap_or(Ok(()));
        self.admit(first.clone());
        first
    }

    /// Discards a range: objects that are discarded as a whole are deleted.
    async fn discard(self: &Arc<Self>, offset: u64, len: u64) -> Result<(), Failed> {
        let object_bytes = self.object_bytes as u32;
        let mut free = Vec::new();
        {
            let mut state = self.state();
            for (index, at, len) in self.parts(offset, len) {
                let is_free = state.change(index, |object| {
                    object.discarded.add(at, at + len as u32);
                    let is_free = object.discarded.cover(object_bytes);
                    if is_free {
                        // Their contents are no longer needed.
                        object.patches = Default::default();
                        object.version += 1;
                    }
                    is_free
                });
                if is_free {
                    free.push(index);
                }
            }
        }
        if !self.deletes {
            return Ok(());
        }
        let removed = join_all(free.into_iter().map(|index| self.remove(index))).await;
        removed.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Marks the labels after a take-over, so that late writes of the former holder to them do not meet their condition.
    ///
    /// # Errors
    /// The place and the reason.
    pub(crate) async fn mark_labels(self: &Arc<Self>, epoch: u64) -> Result<(), Failed> {
        /// Bytes of a label (`VDEV_LABEL` size) and of a sector.
        const LABEL_BYTES: u64 = 256 << 10;
        /// Offset in a label: within its first 8 KiB, which hold nothing (`vl_pad1`).
        const MARK_OFFSET: u64 = 4096;
        let end = self.geometry.size_bytes / LABEL_BYTES * LABEL_BYTES;
        let labels = [0, LABEL_BYTES, end - 2 * LABEL_BYTES, end - LABEL_BYTES];
        let mut marked = Vec::new();
        for label in labels {
            let index = (label + MARK_OFFSET) / self.object_bytes;
            self.load(index).await?;
            // One that was never written is written too: else the former holder's first write of it could come late.
            let mut mark = vec![0; 512];
            let text = format!("weir: taken over, epoch {epoch}\n");
            mark[..text.len()].copy_from_slice(text.as_bytes());
            let full = self.gather(&mut self.state(), label + MARK_OFFSET, &[mark.into()]);
            marked.extend(full);
        }
        tracing::info!(disk = self.requests.place(&key(0)), epoch, "the labels are marked after a take-over");
        self.flush().await
    }
}
