//! Writing: from a range of a top-level vdev down to disks.
//!
//! ```text
//!  mirror   all present children concurrently    succeeds if one child succeeded
//!  raidz    parity, then all columns              succeeds if in each row at most as many columns failed, or are missing,
//!           concurrently                          as there are parities
//!  draid    as raidz, with all columns padded with zeros to whole rows
//!  dspare   the child that has its space there   succeeds if that does ([`super::distributed_spare`])
//!  leaf     its queue ([`super::leaf_write`]), its disk
//! ```
//!
//! If a leaf is missing or a write to it fails, the block's txg is added to the leaf's DTL ([`super::dtl`]). The leaf is
//! then read last for blocks born in that txg, and the engine writes the DTL to the MOS ([`super::Tree::dtls`]).
//!
//! *Flush* ([`super::flush`]) reaches the leaves that were written to since their last flush. A block is lost if its write
//! failed on one leaf and the flush failed on the other. Therefore a leaf whose DTL has a txg that a failing leaf may have
//! lost counts as failing too.

use super::canary::DeviceBug;
use super::distributed_spare::SpareVdev;
use super::flush::TxgRange;
use super::kept::KeptWrite;
use super::leaf::{Leaf, on_device};
use super::leaf_write::{WriteHolds, WritePlug};
use super::reflow::Layouts;
use super::tree::Tops;
use super::{Body, Dtl, Place, Tree, Vdev, VdevRead};
use crate::error::{BlockError, note};
use crate::fault_observer::{BlockContext, FaultKind};
use crate::raidz::{Column, Map, Shadow};
use crate::reads::ReadHold;
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_codec::parity;
use weir_format::Txg;
use weir_format::label::FRONT_BYTES;
use weir_machine::accounts::{Content, Redundancy, Shares, WriteCost};
use weir_machine::lock::{Mutex, order};
use weir_machine::{Buf, BufPool, Clock, DiskError, Priority, Request};

/// Parameters of a write to the tree.
pub(crate) struct WriteJob<'a> {
    pub request: &'a Request,
    pub clock: &'a Clock,
    pub pool: &'a BufPool,
    /// Txg in which the block is allocated.
    pub txg: Txg,
    /// The write repairs an existing block; a failure loses no new data.
    pub repair: bool,
    /// The batch of writes that this one belongs to.
    pub plug: Option<&'a WritePlug>,
    /// Only one device is written to, and the calling thread may block for the transfer.
    pub here: bool,
    /// The block that is written.
    pub about: BlockContext,
    /// Delays the reuse of the space until the disks have answered, even if the write is dropped before.
    pub hold: Option<Arc<ReadHold>>,
    /// Layouts of a RAID-Z vdev in expansion that the write uses.
    pub layouts: Layouts,
    /// The leaves that are written.
    pub recipients: Recipients,
    /// Leaves whose writes failed. They are recorded in the DTLs only if the block exists in the end: one that could not be
    /// written anywhere is written again, or is no block of the pool. `None`: they are recorded at once.
    pub failed: Option<FailedLeaves>,
    /// Account of the bytes that the devices write.
    pub cost: WriteCost<'a>,
}

/// The leaves that a write reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipients {
    /// All.
    All,
    /// Those in service whose DTL has the txg of the block (a resilver).
    Lacking,
    /// Those in service that lack blocks of any txg. A device removal copied the range in a later txg than that of the block, so
    /// the birth txg does not say whether the leaf has it.
    Behind,
}

/// Leaves that could not write a part of a block, and the bytes that others wrote.
#[derive(Default)]
pub(crate) struct FailedLeaves {
    guids: Mutex<SmallVec<[u64; 2]>, { order::FAILED_LEAVES }>,
    written_bytes: AtomicU64,
}

impl FailedLeaves {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.guids.lock().is_empty()
    }

    /// Bytes that leaves wrote.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    fn add(&self, guid: u64) {
        self.guids.lock().push(guid);
    }
}

/// Reason for a part of a block's write, for its account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portion {
    pub redundancy: Redundancy,
    /// Number of bytes at the end that are zeros up to whole sectors or rows.
    pub padding: u64,
    /// A resilver writes it although the device has it: the space of a distributed spare that lacks it.
    pub to_all: bool,
}

impl Portion {
    pub fn new(redundancy: Redundancy, padding: usize) -> Self {
        Portion { redundancy, padding: padding as u64, to_all: false }
    }
}

impl<'a> WriteJob<'a> {
    /// The write of a verified block of `job` to these leaves. Its hold keeps the block from being allocated again, so the
    /// caller checks afterwards that it is still there. `None` if the pool is not open for writing.
    pub fn repair(job: &VdevRead<'a>, tree: &'a Tree, recipients: Recipients) -> Option<Self> {
        let VdevRead { request, clock, pool, birth: txg, about, .. } = *job;
        let hold = Some(Arc::new(job.freshness?.hold()));
        let cost = tree.accounts().write_cost(Content::Repair, txg.0, 0, Shares::new());
        Some(WriteJob {
            request,
            clock,
            pool,
            txg,
            repair: true,
            plug: None,
            here: false,
            about,
            hold,
            layouts: Layouts::default(),
            recipients,
            failed: None,
            cost,
        })
    }

    /// The write that repairs wrong bytes that a read found at `place`; `None` if they must not be repaired.
    pub async fn repairing(job: &VdevRead<'a>, tree: &'a Tree, place: Place) -> Option<Self> {
        job.settle(place).await;
        let repair = Self::repair(job, tree, Recipients::All)?;
        job.repairs(tree, place).then_some(repair)
    }
}

impl Tree {
    /// Writes `data`, padded with zeros to whole sectors, at `place`, with the redundancy of its vdev. `copy` is
    /// [`Redundancy::First`] for the first DVA of a block.
    pub(crate) async fn write(
        &self,
        job: &WriteJob<'_>,
        copy: Redundancy,
        place: Place,
        data: Bytes,
    ) -> Result<(), BlockError> {
        let _operation = self.begin()?;
        let tops = self.version();
        let (top, whole) = tops.check(place, data.len() as u64)?;
        let portion = Portion { padding: whole - data.len() as u64, ..Portion::new(copy, 0) };
        let data = if whole == data.len() as u64 {
            data
        } else {
            let mut padded = data.to_vec();
            padded.resize(whole as usize, 0);
            Bytes::from(padded)
        };
        let lock = job.lock_range(self, place, whole).await;
        let done = top.vdev.write(&tops, job, portion, place, place.offset, data).await;
        lock.iter().for_each(|lock| job.layouts.remove_range(lock));
        done
    }

    /// Adds `txg` to the DTLs of the leaves that failed to write their part of a block.
    pub(crate) fn record_failed(&self, failed: &FailedLeaves, txg: Txg) {
        for guid in failed.guids.lock().drain(..) {
            // A leaf that was detached meanwhile has no DTL any more.
            if let Ok(leaf) = self.leaf(guid) {
                leaf.dirty_dtl(txg);
            }
        }
    }

    /// Flushes all leaves that have completed writes since their last flush.
    ///
    /// # Errors
    /// [`BlockError::Device`] if more leaves of a vdev failed than its redundancy tolerates; the writes may then be lost.
    pub async fn flush(&self) -> Result<(), BlockError> {
        self.flush_if(|_| true, false).await?;
        self.settle_flushes();
        Ok(())
    }

    /// Flushes the wanted top-level vdevs only. With `here`, the calling thread may block if only one device is flushed.
    pub(crate) async fn flush_if(&self, wanted: impl Fn(u32) -> bool, here: bool) -> Result<(), BlockError> {
        self.check_writable()?;
        let mut worst = None;
        let tops = self.version();
        let wanted: Vec<_> = tops.iter().enumerate().filter(|(i, _)| wanted(*i as u32)).collect();
        let here = here && wanted.iter().map(|(_, top)| top.vdev.unstable_leaves()).sum::<usize>() <= 1;
        let flushes = wanted.into_iter().map(|(i, top)| top.vdev.flush(Place::new(i as u32, 0), here));
        for error in join_all(flushes).await.into_iter().filter_map(Result::err) {
            note(&mut worst, error);
        }
        worst.map_or(Ok(()), Err)
    }

    /// Discards a range of top-level vdev `vdev` on its disks, as far as it covers whole sectors. Returns the bytes that
    /// disks discarded. Errors are ignored, because a discard is a hint.
    pub(crate) async fn discard(&self, vdev: u32, range: Range<u64>) -> u64 {
        let tops = self.version();
        match (tops.get(vdev), self.begin()) {
            (Some(top), Ok(_operation)) => top.vdev.discard(range).await,
            _ => 0,
        }
    }

    /// Begins an operation that changes devices.
    pub(super) fn begin(&self) -> Result<OperationGuard<'_>, BlockError> {
        self.in_progress.fetch_add(1, Ordering::SeqCst);
        // Increment before check (SeqCst), mirrored by forbid-then-read in `close`: at least one side observes the other.
        let operation = OperationGuard(self);
        self.check_writable().map(|()| operation)
    }

    /// Forbids writing, and waits until no write and no discard is in progress.
    pub async fn close(&self, clock: &Clock) {
        self.set_writable(false);
        while self.in_progress.load(Ordering::SeqCst) > 0 {
            clock.sleep(CLOSE_POLL_INTERVAL).await;
        }
    }
}

/// Interval at which [`Tree::close`] checks for operations in progress.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// An operation in progress that changes devices.
pub(super) struct OperationGuard<'a>(&'a Tree);

impl Drop for OperationGuard<'_> {
    fn drop(&mut self) {
        let before = self.0.in_progress.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "an operation ended twice");
    }
}

impl Vdev {
    /// Writes `data` at `offset` of this vdev; errors name `place`, the address in the top-level vdev.
    pub(super) fn write<'a>(
        &'a self,
        tops: &'a Tops,
        job: &'a WriteJob<'a>,
        portion: Portion,
        place: Place,
        offset: u64,
        data: Bytes,
    ) -> BoxFuture<'a, Result<(), BlockError>> {
        Box::pin(async move {
            match &self.body {
                Body::Leaf(leaf) => leaf.write(job, portion, place, offset, data).await,
                Body::Mirror(children) => write_mirror(tops, children, job, portion, place, offset, data).await,
                Body::Raidz(vdev) => vdev.write(tops, job, portion, place, offset, data).await,
                Body::Draid { map, children } => {
                    let map = Map::of_draid(map, offset, data.len() as u64);
                    if map.len != data.len() {
                        return Err(refused(place, "an offset beyond its dRAID group"));
                    }
                    write_rows((tops, children), job, portion, place, (&map, &[]), &data, true).await
                }
                Body::DraidSpare(spare) => spare.write(tops, job, portion, place, (offset, data)).await,
                Body::Indirect(_) => Err(refused(place, "a removed vdev")),
                Body::Unsupported(what) => Err(refused(place, what)),
            }
        })
    }

    /// Whether a device here can store new blocks. The DTL of earlier txgs does not matter.
    pub(super) fn is_writable(&self) -> bool {
        match &self.body {
            Body::Leaf(leaf) | Body::DraidSpare(SpareVdev { leaf, .. }) => leaf.present(),
            Body::Mirror(children) => children.iter().any(Vdev::is_writable),
            _ => true,
        }
    }

    /// Whether writes of these txgs, since the pool was opened, are missing here.
    fn lacks(&self, txgs: &Dtl) -> bool {
        match &self.body {
            Body::Leaf(leaf) | Body::DraidSpare(SpareVdev { leaf, .. }) => {
                leaf.writes().dtl().failed().intersects(txgs)
            }
            Body::Mirror(children) => children.iter().filter(|c| c.is_writable()).all(|c| c.lacks(txgs)),
            _ => self.children().iter().any(|c| c.lacks(txgs)),
        }
    }

    /// Whether enough devices are present to store new writes.
    pub(super) fn can_keep(&self) -> bool {
        match &self.body {
            Body::Leaf(_) | Body::DraidSpare(_) | Body::Mirror(_) => self.is_writable(),
            Body::Raidz(v) => v.children.iter().filter(|c| !c.can_keep()).count() as u64 <= v.nparity,
            Body::Draid { map, children } => {
                children.iter().filter(|c| !c.can_keep()).count() as u64 <= map.layout().nparity
            }
            _ => false,
        }
    }

    /// Number of leaves that have completed writes which no flush covers yet.
    fn unstable_leaves(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => usize::from(!leaf.writes().flusher.is_clean()),
            _ => self.children().iter().map(Vdev::unstable_leaves).sum(),
        }
    }

    fn flush(&self, place: Place, here: bool) -> BoxFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let (children, nparity) = match &self.body {
                Body::Leaf(leaf) => return leaf.flush(place, here).await,
                Body::Mirror(children) => (children, children.len().saturating_sub(1)),
                Body::Raidz(vdev) => (&vdev.children, vdev.nparity as usize),
                Body::Draid { map, children } => (children, map.layout().nparity as usize),
                _ => return Ok(()),
            };
            let answers = join_all(children.iter().map(|c| c.flush(place, here))).await;
            let mut worst = None;
            let mut lost = Dtl::default();
            let failed: Vec<bool> = answers.iter().map(Result::is_err).collect();
            for (child, error) in children.iter().zip(answers).filter_map(|(c, answer)| Some((c, answer.err()?))) {
                child.collect_failed(&mut lost);
                note(&mut worst, error);
            }
            let is_intact = |(child, failed): &(&Vdev, bool)| child.is_writable() && !failed && !child.lacks(&lost);
            let failing = children.len() - children.iter().zip(failed).filter(is_intact).count();
            worst.filter(|_| failing > nparity).map_or(Ok(()), Err)
        })
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'_, u64> {
        Box::pin(async move {
            match &self.body {
                Body::Leaf(leaf) => leaf.discard(range).await,
                Body::Mirror(children) => {
                    let all = join_all(children.iter().map(|c| c.discard(range.clone()))).await;
                    all.into_iter().sum()
                }
                // The places of sectors change.
                Body::Raidz(vdev) if vdev.reflow.is_some() => 0,
                Body::Raidz(vdev) => {
                    let children = vdev.children.iter().enumerate();
                    let all = join_all(children.map(|(i, c)| c.discard(vdev.part_of(i as u64, &range)))).await;
                    all.into_iter().sum()
                }
                _ => 0,
            }
        })
    }
}

async fn write_mirror(
    tops: &Tops,
    children: &[Vdev],
    job: &WriteJob<'_>,
    portion: Portion,
    place: Place,
    offset: u64,
    data: Bytes,
) -> Result<(), BlockError> {
    let first = children.iter().position(Vdev::is_writable).unwrap_or(0);
    let writes = children.iter().enumerate().map(|(n, child)| {
        let redundancy = if n == first { portion.redundancy } else { Redundancy::Copy };
        child.write(tops, job, Portion { redundancy, ..portion }, place, offset, data.clone())
    });
    let answers = join_all(writes).await;
    let mut worst = None;
    let mut is_stored = false;
    for (child, answer) in children.iter().zip(answers) {
        match answer {
            Ok(()) => is_stored |= child.is_writable(),
            Err(error) => note(&mut worst, error),
        }
    }
    if is_stored {
        return Ok(());
    }
    Err(worst.unwrap_or(refused(place, "a mirror whose children are all missing")))
}

/// Writes all columns of all rows concurrently. With `padded`, all columns of a row are padded to the longest. Each row
/// tolerates as many failed or missing columns as it has parities; so do its copies that an expansion has made.
pub(super) async fn write_rows(
    (tops, children): (&Tops, &[Vdev]),
    job: &WriteJob<'_>,
    portion: Portion,
    place: Place,
    (map, shadows): (&Map, &[Shadow]),
    data: &Bytes,
    padded: bool,
) -> Result<(), BlockError> {
    let used = data.len() - (portion.padding as usize).min(data.len());
    let mut columns = Vec::new();
    for (number, row) in map.rows.iter().enumerate() {
        let longest = row.columns.iter().map(|c| c.size_bytes).max().unwrap_or(0);
        let piece = |column: &Column| {
            let bytes = data.slice(column.at..column.at + column.size_bytes);
            if !padded || bytes.len() == longest {
                return bytes;
            }
            let mut bytes = bytes.to_vec();
            bytes.resize(longest, 0);
            Bytes::from(bytes)
        };
        let pieces: Vec<Bytes> = row.columns.iter().skip(map.nparity).map(piece).collect();
        let slices: Vec<&[u8]> = pieces.iter().map(|p| p.as_ref()).collect();
        let sizes = row.columns.iter().take(map.nparity).map(|c| c.size_bytes);
        let mut memory = job.pool.take(sizes.clone().sum());
        let mut parities: Vec<Buf> = sizes.map(|size| memory.split_to(size)).collect();
        let mut outs: Vec<&mut [u8]> = parities.iter_mut().map(AsMut::as_mut).collect();
        if let Err(fault) = job.request.compute(job.clock, || parity::generate(&slices, &mut outs)) {
            let Place { vdev, offset, .. } = place;
            return Err(BlockError::Corrupt { vdev, offset, fault });
        }
        let parities = parities
            .into_iter()
            .map(|buf| (Portion { redundancy: Redundancy::Parity, padding: 0, ..portion }, buf.into_bytes()));
        let data = row.columns.iter().skip(map.nparity).zip(pieces).map(|(column, bytes)| {
            let padding = bytes.len() - used.saturating_sub(column.at).min(column.size_bytes);
            (Portion { padding: padding as u64, ..portion }, bytes)
        });
        let pieces: Vec<(Portion, Bytes)> = parities.chain(data).collect();
        // They have the order of the rows.
        let from = shadows.partition_point(|shadow| shadow.row < number);
        for shadow in shadows.iter().skip(from).take_while(|shadow| shadow.row == number) {
            let Some((portion, bytes)) = pieces.get(shadow.column).cloned() else { continue };
            let portion = Portion { redundancy: Redundancy::Copy, ..portion };
            columns.push((
                number,
                1 + usize::from(shadow.scratch),
                (shadow.child, shadow.offset_bytes),
                portion,
                bytes,
            ));
        }
        let nonempty = row.columns.iter().zip(pieces).filter(|(_, (_, bytes))| !bytes.is_empty());
        columns.extend(
            nonempty.map(|(column, (portion, bytes))| (number, 0, (column.child, column.offset_bytes), portion, bytes)),
        );
    }
    let writes = columns.into_iter().map(|(number, copy, (child, offset), portion, bytes)| async move {
        match children.get(child) {
            Some(child) => {
                let answer = child.write(tops, job, portion, place, offset, bytes).await;
                (number, copy, child.is_writable(), answer)
            }
            None => (number, copy, false, Err(refused(place, "a child that is not there"))),
        }
    });
    // Of each row: its columns, their copies in the new layout, their copies in the scratch area.
    let mut lost = vec![[0; 3]; map.rows.len()];
    let mut worst = None;
    for (number, copy, is_writable, answer) in join_all(writes).await {
        lost[number][copy] += usize::from(!is_writable || answer.is_err());
        answer.err().into_iter().for_each(|error| note(&mut worst, error));
    }
    if lost.into_iter().flatten().all(|columns| columns <= map.nparity) {
        return Ok(());
    }
    Err(worst.unwrap_or(refused(place, "a vdev with too many missing children")))
}

impl Leaf {
    /// Writes at `offset` of the allocatable space.
    async fn write(
        &self,
        job: &WriteJob<'_>,
        portion: Portion,
        place: Place,
        offset: u64,
        data: Bytes,
    ) -> Result<(), BlockError> {
        if job.recipients != Recipients::All
            && self.writes().canary.has(DeviceBug::SkipsResilver)
            && job.txg.0.is_multiple_of(2)
        {
            return Ok(());
        }
        let has_it = match job.recipients {
            Recipients::All => false,
            Recipients::Lacking => !self.is_stale(job.txg),
            Recipients::Behind => !self.is_behind(),
        };
        if has_it && !portion.to_all {
            return Ok(());
        }
        let Some(disk) = self.disk() else {
            self.writes().dtl().dirty(job.txg, job.txg, false);
            let devices = vec![self.name.clone()];
            return Err(BlockError::Missing { vdev: place.vdev, offset: place.offset, devices });
        };
        let len = data.len() as u64;
        let started = job.clock.now();
        let class = job.request.priority;
        let writers = &self.writes().writers;
        let write = KeptWrite { offset, data: data.clone() };
        let holds = WriteHolds::new(job.hold.clone(), job.layouts.all());
        let (answer, queued_ns) = writers.write(disk, class, (offset, data), job.plug, job.here, holds).await;
        job.request.record_device(job.clock.now().ns_since(started), queued_ns);
        let is_out = !self.present();
        if self.writes().record(len, answer.is_ok(), is_out, Some(job.txg), write) {
            // A failure is found again by the flush that ends the txg.
            let _unkept = self.flush(place, false).await;
        }
        if answer.is_ok() {
            if let Some(failed) = &job.failed {
                failed.written_bytes.fetch_add(len, Ordering::Relaxed);
            }
            job.cost.wrote(portion.redundancy, len, portion.padding.min(len));
        }
        if job.repair && answer.is_ok() {
            self.writes().repaired_bytes.fetch_add(len, Ordering::Relaxed);
        }
        answer.map_err(|error| {
            // A scrub continues as after a repair, so the DTL has to record the failure; another reader detects the wrong
            // bytes again.
            let scrub = job.repair && class == Priority::Scrub;
            match &job.failed {
                Some(failed) => failed.add(self.guid()),
                None if !job.repair || scrub => self.writes().dtl().dirty(job.txg, job.txg, scrub),
                None => {}
            }
            if !is_out {
                self.report(FaultKind::Write(&error), (on_device(offset), len), job.about, class);
            }
            self.error(place, error)
        })
    }

    pub(super) async fn flush(&self, place: Place, here: bool) -> Result<(), BlockError> {
        let Some(disk) = self.disk() else { return Ok(()) };
        let flushed = self.writes().flusher.flush(disk, here, self.lost()).await;
        flushed.map_err(|error| self.error(place, error))
    }

    pub(super) fn error(&self, place: Place, error: DiskError) -> BlockError {
        BlockError::Device { vdev: place.vdev, offset: place.offset, device: self.name.clone(), error }
    }

    /// Adds the txgs whose writes the device may have dropped to the DTL, and reports the first failed flush.
    pub(super) fn lost(&self) -> impl Fn(TxgRange, Option<&DiskError>) {
        move |(first, last), first_error| {
            match self.writes().flusher.can_repeat() {
                true => self.writes().dtl().dirty_unstable(first, last),
                false => self.writes().dtl().dirty(first, last, false),
            }
            if let Some(error) = first_error.filter(|_| self.present()) {
                self.writes().write_errors.fetch_add(1, Ordering::Relaxed);
                self.report(FaultKind::Flush(error), (0, 0), BlockContext::default(), Priority::Sync);
            }
        }
    }

    /// Discards a range on the disk; returns the bytes that it discarded.
    pub(super) async fn discard(&self, range: Range<u64>) -> u64 {
        let Some(disk) = self.disk() else { return 0 };
        let sector = u64::from(disk.geometry().sector_bytes.max(1));
        let start = (range.start + FRONT_BYTES).next_multiple_of(sector);
        let end = (range.end + FRONT_BYTES) / sector * sector;
        if start >= end {
            return 0;
        }
        disk.discard(start, end - start).await.map_or(0, |()| end - start)
    }
}

fn refused(place: Place, what: &'static str) -> BlockError {
    BlockError::NotWritable { vdev: place.vdev, offset: place.offset, what }
}
