//! Recordings: a history at the disks, to be cut at any of its moments without running it again.
//!
//! The problem: a power cut at each of a thousand writes costs a thousand runs up to the cut, if each is run anew. What
//! the cut depends on is little: which writes had begun, which were answered, which flushes.
//!
//! ```text
//!   run once ─► events: begin, complete, flush …      walk along them once ─► at any moment: copy the media, cut
//! ```
//!
//! Cuts that left the same bytes can be told by their fingerprints, and need to be opened only once.
//!
//! A moment is a number of events: those before it have happened, the others have not. Copies of a medium share its
//! sectors, so that a cut costs as much as what is in the caches.
//!
//! [`Recording::drop_flushes`] plants a bug: the history of a program that left these flushes out.

use crate::disk::SimDisk;
use crate::medium::Medium;
use crate::readings::Readings;
use crate::rng::Rng;
use crate::timing::Timing;
use crate::world::SimWorld;
use std::path::PathBuf;
use std::sync::Arc;
use weir_machine::Geometry;

/// What happened at a disk.
#[derive(Clone)]
pub(crate) enum Event {
    /// A write was asked for.
    Begin { disk: u64, id: u64, offset: u64, data: Arc<[u8]> },
    /// It was answered.
    Complete { disk: u64, id: u64 },
    /// A flush was asked for.
    AskFlush { disk: u64 },
    /// It was answered: what was complete when it was asked for is durable.
    Flush { disk: u64, watermark: u64 },
}

/// An event, as who plants bugs sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A write begins.
    Write {
        /// The disk's number.
        disk: u64,
        /// Its place.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A flush is answered.
    Flush {
        /// The disk's number.
        disk: u64,
    },
    /// Something else.
    Other,
}

#[derive(Clone)]
struct Place {
    path: PathBuf,
    number: u64,
    geometry: Geometry,
    timing: Timing,
    medium: Medium,
}

/// The disks as they were when a recording began.
#[derive(Clone)]
pub struct Start(Vec<Place>);

impl Start {
    pub(crate) fn of(disks: &[Arc<SimDisk>]) -> Self {
        let place = |disk: &Arc<SimDisk>| Place {
            path: disk.path().into(),
            number: disk.number(),
            geometry: disk.geometry(),
            timing: disk.timing(),
            medium: disk.medium(),
        };
        Start(disks.iter().map(place).collect())
    }
}

/// What happened at the disks of a world.
#[derive(Clone)]
pub struct Recording {
    pub(crate) start: Start,
    pub(crate) events: Vec<Event>,
}

impl Recording {
    /// Events: its moments are the numbers up to this one.
    pub fn len(&self) -> u64 {
        self.events.len() as u64
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events.
    pub fn moments(&self) -> impl DoubleEndedIterator<Item = Moment> + ExactSizeIterator {
        self.events.iter().map(|event| match event {
            Event::Begin { disk, offset, data, .. } => {
                Moment::Write { disk: *disk, offset: *offset, len: data.len() as u64 }
            }
            Event::Flush { disk, .. } => Moment::Flush { disk: *disk },
            Event::Complete { .. } | Event::AskFlush { .. } => Moment::Other,
        })
    }

    /// Leaves out the flushes whose events have these numbers: they were answered and did nothing.
    pub fn drop_flushes(&mut self, numbers: &[usize]) {
        for number in numbers {
            if let Some(event @ Event::Flush { .. }) = self.events.get_mut(*number)
                && let Event::Flush { disk, .. } = *event
            {
                *event = Event::AskFlush { disk };
            }
        }
    }
}

/// A walk along a recording.
pub struct Replay<'a> {
    recording: &'a Recording,
    places: Vec<Place>,
    at: usize,
}

impl<'a> Replay<'a> {
    /// From the start.
    pub fn new(recording: &'a Recording) -> Self {
        let mut places = recording.start.0.clone();
        places.iter_mut().for_each(|place| place.medium.keep_fingerprint(true));
        Replay { recording, places, at: 0 }
    }

    /// Goes on to a moment, which is not before the present one.
    pub fn advance(&mut self, moment: u64) {
        let until = (moment as usize).min(self.recording.events.len());
        for event in self.recording.events.get(self.at..until).unwrap_or_default() {
            let (Event::Begin { disk, .. }
            | Event::Complete { disk, .. }
            | Event::AskFlush { disk }
            | Event::Flush { disk, .. }) = event;
            let Some(place) = self.places.iter_mut().find(|place| place.number == *disk) else { continue };
            match event {
                Event::Begin { id, offset, data, .. } => place.medium.begin_write(*id, *offset, data.clone()),
                Event::Complete { id, .. } => place.medium.complete_write(*id, None),
                Event::Flush { watermark, .. } => place.medium.make_durable(*watermark),
                Event::AskFlush { .. } => {}
            }
        }
        self.at = self.at.max(until);
    }

    /// The disks after a power failure at the present moment: `seed` says what survived.
    pub fn cut(&self, seed: u64) -> Cut {
        let (mut rng, mut places) = (Rng::new(seed).fork(), self.places.clone());
        places.iter_mut().for_each(|place| place.medium.power_cut(&mut rng));
        Cut { seed, places }
    }
}

/// Disks after a power failure.
pub struct Cut {
    seed: u64,
    places: Vec<Place>,
}

impl Cut {
    /// What tells it from other cuts of the recording: those that are alike left the same bytes on all disks.
    pub fn fingerprint(&self) -> Vec<u64> {
        self.places.iter().filter_map(|place| place.medium.fingerprint()).collect()
    }

    /// Whether worlds with these disks and with the other's come to the same, if one of them read no more than this.
    pub fn is_alike(&self, other: &Cut, readings: &Readings) -> bool {
        let sizes = [self.places.len(), other.places.len(), readings.0.len()];
        let mut places = self.places.iter().zip(&other.places).zip(&readings.0);
        sizes.iter().all(|size| *size == sizes[0])
            && places.all(|((one, two), read)| one.path == two.path && one.medium.is_alike(&two.medium, read))
    }

    /// A world with these disks, in which the seed of the cut rules what comes.
    pub fn world(&self) -> SimWorld {
        let world = SimWorld::new(self.seed);
        world.trace_no_bytes();
        for place in &self.places {
            let mut medium = place.medium.clone();
            medium.keep_fingerprint(false);
            world.add_medium(&place.path, place.geometry, place.timing, medium);
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

    /// How many of the writes are there, whole, and how many in part.
    fn found(world: &SimWorld) -> (u64, u64) {
        let disk = &world.disks()[0];
        let sectors = |n: u64| {
            let bytes = disk.peek(n * 4 * SECTOR as u64, 4 * SECTOR);
            bytes.chunks(SECTOR).filter(|sector| sector.iter().all(|b| *b == n as u8 + 1)).count()
        };
        let count = |of: std::ops::RangeInclusive<usize>| (0..20).filter(|n| of.contains(&sectors(*n))).count() as u64;
        (count(4..=4), count(1..=3))
    }

    /// What a world finds at a place, where it has written before: that is not read of what the cut left.
    async fn look(machine: Machine, at: u64, own: u64) -> Vec<u8> {
        let disk = machine.disks.open(Path::new("/sim/a"), Access::ReadWrite).unwrap();
        disk.write(own, Buf::copy_from(&[99; SECTOR])).await.unwrap();
        let mut bytes = disk.read(own, SECTOR).await.unwrap().as_ref().to_vec();
        bytes.extend_from_slice(disk.read(at, 2 * SECTOR).await.unwrap().as_ref());
        bytes
    }

    fn reads_alike_only_where_bytes_are_alike(recording: &Recording) {
        let mut replay = Replay::new(recording);
        let (at, own) = (17 * 4 * SECTOR as u64, 18 * 4 * SECTOR as u64);
        let (mut cuts, mut alike) = (Vec::new(), 0);
        for moment in 0..=recording.len() {
            replay.advance(moment);
            let cut = replay.cut(moment);
            let world = cut.world();
            world.keep_readings();
            let found = world.run(look(world.machine(), at, own)).unwrap();
            cuts.push((cut, world.take_readings(), found));
        }
        for (one, readings, found) in &cuts {
            for (two, _, other) in &cuts {
                assert_eq!(one.is_alike(two, readings), found == other);
                alike += u64::from(found == other && one.fingerprint() != two.fingerprint());
            }
        }
        assert!(alike > 0 && cuts.iter().any(|(.., found)| *found != cuts[0].2));
    }

    #[test]
    fn a_cut_keeps_what_was_flushed_and_nothing_of_what_comes_later() {
        let world = SimWorld::new(5);
        world.add_disk("/sim/a", 1 << 20, SECTOR as u32, Timing::Chaos);
        let start = world.record();
        world.run(work(world.machine())).unwrap();
        let recording = world.recording(start);
        let kinds: Vec<Moment> = recording.moments().collect();
        let (mut replay, mut torn) = (Replay::new(&recording), 0);
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
        let (mut last, mut alike) = (None::<(Vec<u64>, Vec<u8>)>, 0);
        let mut replay = Replay::new(&recording);
        for moment in 0..=recording.len() {
            replay.advance(moment);
            let cut = replay.cut(moment);
            let (print, bytes) = (cut.fingerprint(), cut.world().disks()[0].peek(0, 1 << 20));
            if let Some((print_before, bytes_before)) = last {
                assert_eq!(print == print_before, bytes == bytes_before, "moment {moment}");
                alike += u64::from(bytes == bytes_before);
            }
            last = Some((print, bytes));
        }
        assert!(alike > 0 && alike < recording.len());
        reads_alike_only_where_bytes_are_alike(&recording);
        let flushes: Vec<usize> =
            kinds.iter().zip(0..).filter(|(m, _)| matches!(m, Moment::Flush { .. })).map(|(_, n)| n).collect();
        let mut without = recording.clone();
        without.drop_flushes(&flushes);
        let mut replay = Replay::new(&without);
        replay.advance(recording.len());
        assert!((0..20).any(|seed| found(&replay.cut(seed).world()).0 < 10), "without a flush all may be lost");
    }
}
