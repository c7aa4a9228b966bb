//! Recordings of disk operations, for power cuts at every moment without running the history again.
//!
//! Problem: without recordings, a power cut at each of a thousand writes costs a thousand runs. But the disks after a
//! cut depend only on the writes submitted and completed and the flushes completed before it.
//!
//! ```text
//!   run once ─► events: begin, complete, flush …      replay them once ─► at any moment: copy the media, cut
//! ```
//!
//! Cuts that leave the same bytes have the same fingerprints, so only one of them needs to be examined.
//!
//! A moment is a number of events: those before it have happened, the others have not. Copies of a medium share its
//! pages, so the cost of a cut is proportional to the contents of the caches.
//!
//! [`Recording::drop_flushes`] plants a bug: it simulates a program that omits these flushes.

use crate::disk::SimDisk;
use crate::medium::Medium;
use crate::read_set::ReadSet;
use crate::rng::Rng;
use crate::scheduler::DiskEvent;
use crate::timing::Timing;
use crate::world::SimWorld;
use std::path::PathBuf;
use std::sync::Arc;
use weir_machine::Geometry;

/// The public view of an event, for tests that plant bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A write is submitted.
    Write {
        /// The disk's number.
        disk: u64,
        /// Byte offset of the write.
        offset: u64,
        /// Length of the write in bytes.
        len: u64,
    },
    /// A flush completes.
    Flush {
        /// The disk's number.
        disk: u64,
    },
    /// Any other event.
    Other,
}

#[derive(Clone)]
struct DiskSnapshot {
    path: PathBuf,
    number: u64,
    geometry: Geometry,
    timing: Timing,
    medium: Medium,
}

/// The disks at the start of a recording.
#[derive(Clone)]
pub struct Start(Vec<DiskSnapshot>);

impl Start {
    pub(crate) fn of(disks: &[Arc<SimDisk>]) -> Self {
        let snapshot = |disk: &Arc<SimDisk>| DiskSnapshot {
            path: disk.path().into(),
            number: disk.number(),
            geometry: disk.geometry(),
            timing: disk.timing(),
            medium: disk.medium(),
        };
        Start(disks.iter().map(snapshot).collect())
    }

    /// A world of its own with these disks, ruled by `seed`. Nothing that happens there changes them here.
    pub fn world(&self, seed: u64) -> SimWorld {
        let world = SimWorld::new(seed);
        world.trace_no_bytes();
        for place in &self.0 {
            world.add_medium(&place.path, place.geometry, place.timing, place.medium.clone());
        }
        world
    }
}

impl SimWorld {
    /// Starts to record disk events ([`Recording`]). All disks must have been added.
    pub fn record(&self) -> Start {
        self.start_events();
        Start::of(&self.disks())
    }

    /// Ends the recording that was started with `start`.
    pub fn recording(&self, start: Start) -> Recording {
        Recording { start, events: self.take_events() }
    }
}

/// The disk events of a world.
#[derive(Clone)]
pub struct Recording {
    pub(crate) start: Start,
    pub(crate) events: Vec<DiskEvent>,
}

impl Recording {
    /// Number of events; the moments are 0 to this number.
    pub fn len(&self) -> u64 {
        self.events.len() as u64
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events.
    pub fn moments(&self) -> impl DoubleEndedIterator<Item = Moment> + ExactSizeIterator {
        self.events.iter().map(|event| match event {
            DiskEvent::Begin { disk, offset, data, .. } => {
                Moment::Write { disk: *disk, offset: *offset, len: data.len() as u64 }
            }
            DiskEvent::Flush { disk, .. } => Moment::Flush { disk: *disk },
            DiskEvent::Complete { .. } | DiskEvent::AskFlush { .. } => Moment::Other,
        })
    }

    /// Drops the effect of the flushes with these event numbers: they complete without making anything durable.
    pub fn drop_flushes(&mut self, numbers: &[usize]) {
        for number in numbers {
            if let Some(event @ DiskEvent::Flush { .. }) = self.events.get_mut(*number)
                && let DiskEvent::Flush { disk, .. } = *event
            {
                *event = DiskEvent::AskFlush { disk };
            }
        }
    }
}

/// A replay of a recording.
pub struct Replay<'a> {
    recording: &'a Recording,
    disks: Vec<DiskSnapshot>,
    at: usize,
}

impl<'a> Replay<'a> {
    /// A replay at the start of the recording.
    pub fn new(recording: &'a Recording) -> Self {
        let mut disks = recording.start.0.clone();
        disks.iter_mut().for_each(|disk| disk.medium.keep_fingerprint(true));
        Replay { recording, disks, at: 0 }
    }

    /// Advances to a moment; does nothing if it is not later than the current one.
    pub fn advance(&mut self, moment: u64) {
        let until = (moment as usize).min(self.recording.events.len());
        for event in self.recording.events.get(self.at..until).unwrap_or_default() {
            let (DiskEvent::Begin { disk, .. }
            | DiskEvent::Complete { disk, .. }
            | DiskEvent::AskFlush { disk }
            | DiskEvent::Flush { disk, .. }) = event;
            let Some(snapshot) = self.disks.iter_mut().find(|snapshot| snapshot.number == *disk) else { continue };
            match event {
                DiskEvent::Begin { id, offset, data, .. } => snapshot.medium.begin_write(*id, *offset, data.clone()),
                DiskEvent::Complete { id, .. } => snapshot.medium.complete_write(*id, None),
                DiskEvent::Flush { watermark, .. } => snapshot.medium.make_durable(*watermark),
                DiskEvent::AskFlush { .. } => {}
            }
        }
        self.at = self.at.max(until);
    }

    /// The disks after a power failure at the current moment; `seed` determines the writes that survive.
    pub fn cut(&self, seed: u64) -> Cut {
        let mut rng = Rng::new(seed).fork();
        let mut disks = self.disks.clone();
        disks.iter_mut().for_each(|disk| disk.medium.power_cut(&mut rng));
        Cut { seed, disks }
    }
}

/// The disks after a power failure.
pub struct Cut {
    seed: u64,
    disks: Vec<DiskSnapshot>,
}

impl Cut {
    /// Fingerprint of all disks: cuts of one recording with equal fingerprints left the same bytes.
    pub fn fingerprint(&self) -> Vec<u64> {
        self.disks.iter().filter_map(|disk| disk.medium.fingerprint()).collect()
    }

    /// Whether worlds with these disks and with `other`'s have the same history, given the set of sectors that one of
    /// them reads.
    pub fn is_equivalent(&self, other: &Cut, read_set: &ReadSet) -> bool {
        let sizes = [self.disks.len(), other.disks.len(), read_set.0.len()];
        let mut disks = self.disks.iter().zip(&other.disks).zip(&read_set.0);
        sizes.iter().all(|size| *size == sizes[0])
            && disks.all(|((one, two), read)| one.path == two.path && one.medium.is_equivalent(&two.medium, read))
    }

    /// A world with these disks and the seed of the cut.
    pub fn world(&self) -> SimWorld {
        let world = SimWorld::new(self.seed);
        world.trace_no_bytes();
        for disk in &self.disks {
            let mut medium = disk.medium.clone();
            medium.keep_fingerprint(false);
            world.add_medium(&disk.path, disk.geometry, disk.timing, medium);
        }
        world
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use weir_machine::{Access, Buf, Machine};

    const SECTOR: usize = 512;

    fn pattern(n: u64) -> Buf {
        Buf::copy_from(&[n as u8 + 1; 4 * SECTOR])
    }

    async fn work(machine: Machine) {
        let disk = machine.disks.open(Path::new("/sim/a"), Access::ReadWrite).unwrap();
        for n in 0..20 {
            disk.write(n * 4 * SECTOR as u64, pattern(n)).await.unwrap();
            if n % 3 == 0 {
                disk.flush().await.unwrap();
            }
        }
    }

    /// Number of writes that survived completely and partly.
    fn found(world: &SimWorld) -> (u64, u64) {
        let disk = &world.disks()[0];
        let sectors = |n: u64| {
            let bytes = disk.peek(n * 4 * SECTOR as u64, 4 * SECTOR);
            bytes.chunks(SECTOR).filter(|sector| sector.iter().all(|b| *b == n as u8 + 1)).count()
        };
        let count = |of: std::ops::RangeInclusive<usize>| (0..20).filter(|n| of.contains(&sectors(*n))).count() as u64;
        (count(4..=4), count(1..=3))
    }

    /// Reads a range that survived the cut, and a range that this world wrote before reading it.
    async fn look(machine: Machine, at: u64, own: u64) -> Vec<u8> {
        let disk = machine.disks.open(Path::new("/sim/a"), Access::ReadWrite).unwrap();
        disk.write(own, Buf::copy_from(&[99; SECTOR])).await.unwrap();
        let mut bytes = disk.read(own, SECTOR).await.unwrap().as_ref().to_vec();
        bytes.extend_from_slice(disk.read(at, 2 * SECTOR).await.unwrap().as_ref());
        bytes
    }

    fn equivalent_cuts_read_the_same_bytes(recording: &Recording) {
        let mut replay = Replay::new(recording);
        let at = 17 * 4 * SECTOR as u64;
        let own = 18 * 4 * SECTOR as u64;
        let mut cuts = Vec::new();
        let mut equal = 0;
        for moment in 0..=recording.len() {
            replay.advance(moment);
            let cut = replay.cut(moment);
            let world = cut.world();
            world.track_reads();
            let found = world.run(look(world.machine(), at, own)).unwrap();
            cuts.push((cut, world.take_read_set(), found));
        }
        for (one, read_set, found) in &cuts {
            for (two, _, other) in &cuts {
                assert_eq!(one.is_equivalent(two, read_set), found == other);
                equal += u64::from(found == other && one.fingerprint() != two.fingerprint());
            }
        }
        assert!(equal > 0 && cuts.iter().any(|(.., found)| *found != cuts[0].2));
    }

    #[test]
    fn a_cut_keeps_flushed_writes_and_no_later_ones() {
        let world = SimWorld::new(5);
        world.add_disk("/sim/a", 1 << 20, SECTOR as u32, Timing::Chaos);
        let start = world.record();
        world.run(work(world.machine())).unwrap();
        let recording = world.recording(start);
        let kinds: Vec<Moment> = recording.moments().collect();
        let mut replay = Replay::new(&recording);
        let mut torn = 0;
        for moment in 0..=recording.len() {
            replay.advance(moment);
            let before = &kinds[..moment as usize];
            let begun = before.iter().filter(|m| matches!(m, Moment::Write { .. })).count() as u64;
            let flushes = before.iter().filter(|m| matches!(m, Moment::Flush { .. })).count() as u64;
            for seed in 0..4 {
                let (whole, part) = found(&replay.cut(seed).world());
                torn += part;
                assert!(whole + part <= begun, "moment {moment}");
                assert!(flushes == 0 || whole > 3 * (flushes - 1), "moment {moment}: {whole} of {flushes} flushes");
            }
        }
        assert!(torn > 0);
        let mut last = None::<(Vec<u64>, Vec<u8>)>;
        let mut equal = 0;
        let mut replay = Replay::new(&recording);
        for moment in 0..=recording.len() {
            replay.advance(moment);
            let cut = replay.cut(moment);
            let print = cut.fingerprint();
            let bytes = cut.world().disks()[0].peek(0, 1 << 20);
            if let Some((print_before, bytes_before)) = last {
                assert_eq!(print == print_before, bytes == bytes_before, "moment {moment}");
                equal += u64::from(bytes == bytes_before);
            }
            last = Some((print, bytes));
        }
        assert!(equal > 0 && equal < recording.len());
        equivalent_cuts_read_the_same_bytes(&recording);
        let flushes: Vec<usize> =
            kinds.iter().zip(0..).filter(|(m, _)| matches!(m, Moment::Flush { .. })).map(|(_, n)| n).collect();
        let mut without = recording.clone();
        without.drop_flushes(&flushes);
        let mut replay = Replay::new(&without);
        replay.advance(recording.len());
        assert!((0..20).any(|seed| found(&replay.cut(seed).world()).0 < 10), "without flushes all writes may be lost");
    }
}
