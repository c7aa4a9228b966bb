//! The load of workers with pipelined clients, with fio's parameters.
//!
//! A worker keeps `depth` operations in flight: as soon as one ends, it sends the next. Only operations that end within the
//! measurement count; the bytes of the others (ramp, and what was in flight at the end) are the figure [`UNMEASURED`], so that all bytes
//! can be compared with the server's counters.

use super::{Operation, Pipeline};
use crate::clock::{self, Stopwatch};
use crate::fio::Monitor;
use crate::load::Load;
use crate::native::Recorder;
use crate::result::Round;
use crate::statistics::Seeded;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Figure of a round: bytes that were moved before and after the measurement.
pub const UNMEASURED: &str = "unmeasured_bytes";

/// How often the monitor is asked, and a worker looks whether it shall stop.
const POLL: Duration = Duration::from_millis(50);
/// Bytes of random data beyond the largest operation, from which each write takes a part.
const VARIETY_BYTES: usize = 1 << 20;
/// Every sector of a write has a number of its own, so that no block occurs twice.
const SECTOR_BYTES: usize = 512;

/// Worker of a load: its client, and its part of the data.
pub struct Worker {
    /// Client with a connection of its own.
    pub client: Box<dyn Pipeline>,
    /// First byte of the worker's part.
    pub begin: u64,
}

/// Time of a load.
struct Times {
    watch: Stopwatch,
    /// Seconds from the beginning to that of the measurement, and to its end.
    ramp: f64,
    end: f64,
    is_stopped: AtomicBool,
}

/// Work of a worker.
#[derive(Default)]
struct Outcome {
    recorder: Recorder,
    unmeasured_bytes: u64,
}

/// Runs a load. `None` if the monitor stopped it.
///
/// # Errors
/// The first error of a worker.
pub fn run(load: &Load, workers: Vec<Worker>, seed: u64, monitor: &mut dyn Monitor) -> io::Result<Option<Round>> {
    let is_timed = load.seconds > 0;
    let ramp = if is_timed { load.ramp_seconds as f64 } else { 0.0 };
    let end = if is_timed { ramp + load.seconds as f64 } else { f64::INFINITY };
    let times = Times { watch: Stopwatch::start(), ramp, end, is_stopped: AtomicBool::new(false) };
    let content = content(load, seed);
    let mut cpu_seconds = clock::cpu_seconds();
    let mut is_in_ramp = true;
    let mut is_cancelled = false;
    let outcomes: Vec<io::Result<Outcome>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0_u64..)
            .zip(workers)
            .map(|(number, worker)| {
                let (times, content) = (&times, &content);
                let random = Seeded::new(seed.wrapping_add(number.wrapping_mul(0x9E37_79B9)));
                scope.spawn(move || {
                    let outcome = Run { load, random, content, times }.work(worker);
                    if outcome.is_err() {
                        times.is_stopped.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            if !is_cancelled && !monitor.poll(times.watch.seconds()) {
                is_cancelled = true;
                times.is_stopped.store(true, Ordering::Relaxed);
            }
            if is_in_ramp && times.watch.seconds() >= ramp {
                cpu_seconds = clock::cpu_seconds();
                is_in_ramp = false;
            }
            clock::sleep(POLL.min(Duration::from_millis(20)));
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let took = if is_timed { load.seconds as f64 } else { times.watch.seconds() };
    let cpu = clock::cpu_seconds().zip(cpu_seconds).map(|(now, then)| now - then);
    let outcomes = outcomes.into_iter().collect::<io::Result<Vec<_>>>()?;
    if is_cancelled {
        return Ok(None);
    }
    let unmeasured: u64 = outcomes.iter().map(|outcome| outcome.unmeasured_bytes).sum();
    let recorder = outcomes.into_iter().map(|outcome| outcome.recorder).fold(Recorder::default(), Recorder::join);
    let mut round = recorder.round(took);
    round.client_cpu_seconds = cpu;
    round.figures.insert(UNMEASURED.to_owned(), unmeasured as f64);
    Ok(Some(round))
}

/// Random bytes for the writes of all workers.
fn content(load: &Load, seed: u64) -> Vec<u8> {
    let bytes = if load.writes() { load.largest_block() as usize + VARIETY_BYTES } else { 0 };
    let mut content = vec![0; bytes];
    Seeded::new(seed).fill(&mut content);
    content
}

/// An operation in flight.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: f64,
    bytes: u64,
    is_write: bool,
}

/// A worker's choice of operations.
struct Run<'a> {
    load: &'a Load,
    random: Seeded,
    content: &'a [u8],
    times: &'a Times,
}

impl Run<'_> {
    fn work(&mut self, mut worker: Worker) -> io::Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut sent: Vec<Option<Sent>> = vec![None; self.load.depth.max(1) as usize];
        let mut free: Vec<u32> = (0..self.load.depth.max(1)).rev().collect();
        let part_bytes = self.load.bytes_per_worker();
        let mut next = 0;
        let mut left = part_bytes;
        let mut buffer = vec![0; if self.load.writes() { self.load.largest_block() as usize } else { 0 }];
        let mut has_written = false;
        loop {
            let now = self.times.watch.seconds();
            let is_over = now >= self.times.end || self.times.is_stopped.load(Ordering::Relaxed);
            while !is_over && (self.load.seconds > 0 || left > 0) {
                let Some(tag) = free.pop() else { break };
                let bytes = self.block_bytes().min(if self.load.seconds > 0 { u64::MAX } else { left });
                let is_write = self.chance(100 - self.load.read_percent.min(100));
                let offset = worker.begin + self.place(&mut next, bytes, part_bytes);
                left = left.saturating_sub(bytes);
                let operation = if is_write {
                    has_written = true;
                    let data = &mut buffer[..bytes as usize];
                    self.write_content(data);
                    Operation::Write { offset, data, is_stable: self.load.sync }
                } else {
                    Operation::Read { offset, len: bytes as usize, keeps_data: false }
                };
                let at = self.times.watch.seconds();
                sent[tag as usize] = Some(Sent { at, bytes, is_write });
                worker.client.submit(tag, operation)?;
            }
            if free.len() == sent.len() {
                break;
            }
            let Some(done) = worker.client.complete(POLL)? else { continue };
            let now = self.times.watch.seconds();
            let slot = sent.get_mut(done.tag as usize).and_then(Option::take);
            let slot = slot.ok_or_else(|| io::Error::other("the end of an unknown operation"))?;
            free.push(done.tag);
            match (self.times.ramp..self.times.end).contains(&now) {
                true => {
                    let (read, written) = if slot.is_write { (0, slot.bytes) } else { (slot.bytes, 0) };
                    outcome.recorder.record(now - self.times.ramp, now - slot.at, read, written);
                }
                false => outcome.unmeasured_bytes += slot.bytes,
            }
        }
        // A pass over the data ends when the data is on stable storage.
        if has_written && self.load.seconds == 0 {
            worker.client.execute(Operation::Flush)?;
        }
        Ok(outcome)
    }

    fn chance(&mut self, percent: u32) -> bool {
        match percent {
            0 => false,
            100.. => true,
            _ => self.random.below(100) < percent as usize,
        }
    }

    /// Size of the next operation in bytes, by the shares of the sizes.
    fn block_bytes(&mut self) -> u64 {
        if let [(bytes, _)] = self.load.blocks[..] {
            return bytes.max(1);
        }
        let mut point = self.random.below(100) as u32;
        for (bytes, share) in &self.load.blocks {
            match point.checked_sub(*share) {
                Some(rest) => point = rest,
                None => return (*bytes).max(1),
            }
        }
        self.load.largest_block().max(1)
    }

    /// Place of the next operation within the worker's part: a multiple of its size if it is random.
    fn place(&mut self, next: &mut u64, bytes: u64, part_bytes: u64) -> u64 {
        let place = if self.chance(self.load.random_percent) {
            let places = usize::try_from(part_bytes / bytes).unwrap_or(usize::MAX).max(1);
            self.random.below(places) as u64 * bytes
        } else if *next + bytes <= part_bytes {
            *next
        } else {
            0
        };
        *next = place + bytes;
        place
    }

    /// New bytes: they neither compress nor occur twice.
    fn write_content(&mut self, data: &mut [u8]) {
        let from = self.random.below(VARIETY_BYTES);
        if let Some(part) = self.content.get(from..from + data.len()) {
            data.copy_from_slice(part);
        }
        let number = self.random.next_u64();
        for (sector, count) in data.chunks_mut(SECTOR_BYTES).zip(0_u64..) {
            if let Some(place) = sector.first_chunk_mut::<8>() {
                *place = number.wrapping_add(count).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::NeverStops;
    use crate::native::network::Completion;
    use std::collections::{BTreeSet, VecDeque};
    use std::sync::{Arc, Mutex};

    /// Operations that a client was given: place, length, whether it writes.
    type Seen = Arc<Mutex<Vec<(u64, usize, bool)>>>;

    /// Ends operations in order, once `depth` are in flight or nothing else comes.
    struct Recorded {
        seen: Seen,
        sectors: BTreeSet<Vec<u8>>,
        waiting: VecDeque<u32>,
        most: usize,
    }

    impl Pipeline for Recorded {
        fn submit(&mut self, tag: u32, operation: Operation<'_>) -> io::Result<()> {
            let seen = match operation {
                Operation::Read { offset, len, .. } => (offset, len, false),
                Operation::Write { offset, data, .. } => {
                    for sector in data.chunks(SECTOR_BYTES) {
                        assert!(self.sectors.insert(sector.to_vec()), "a sector occurs twice");
                    }
                    (offset, data.len(), true)
                }
                Operation::Flush => (0, 0, true),
            };
            self.seen.lock().unwrap().push(seen);
            self.waiting.push_back(tag);
            self.most = self.most.max(self.waiting.len());
            Ok(())
        }

        fn complete(&mut self, _: Duration) -> io::Result<Option<Completion>> {
            Ok(self.waiting.pop_front().map(|tag| Completion { tag, ..Completion::default() }))
        }
    }

    fn done(load: &Load) -> (Round, Vec<(u64, usize, bool)>) {
        let seen = Seen::default();
        let client =
            Box::new(Recorded { seen: seen.clone(), sectors: BTreeSet::new(), waiting: VecDeque::new(), most: 0 });
        let round = run(load, vec![Worker { client, begin: 1 << 30 }], 7, &mut NeverStops).unwrap().unwrap();
        let seen = seen.lock().unwrap().clone();
        (round, seen)
    }

    #[test]
    fn a_pass_touches_each_block_once_and_ends_with_a_flush() {
        let load = Load { depth: 4, size_bytes: 1 << 20, ..Load::sequential(64 << 10, 0) };
        let (round, seen) = done(&load);
        assert_eq!((round.written.bytes, round.written.operations), (1 << 20, 16));
        let places: Vec<u64> = seen[..16].iter().map(|(place, ..)| *place - (1 << 30)).collect();
        assert_eq!(places, (0..16).map(|n| n * (64 << 10)).collect::<Vec<_>>());
        assert_eq!(seen[16..], [(0, 0, true)]);
        assert_eq!(round.figures[UNMEASURED], 0.0);
    }

    #[test]
    fn a_mix_keeps_its_shares_and_stays_in_its_part() {
        let load = Load {
            blocks: vec![(4096, 60), (8192, 40)],
            read_percent: 70,
            random_percent: 50,
            size_bytes: 8 << 20,
            ..Load::random(4096, 70)
        };
        let (round, seen) = done(&load);
        let all = seen.len() as f64;
        let reads = seen.iter().filter(|(_, _, is_write)| !is_write).count() as f64;
        let large = seen.iter().filter(|(_, len, _)| *len == 8192).count() as f64;
        assert!((reads / all - 0.7).abs() < 0.05 && (large / all - 0.4).abs() < 0.05, "{reads} {large} of {all}");
        let within = |place: u64, len: usize| place >= 1 << 30 && place + len as u64 <= (1 << 30) + (8 << 20);
        assert!(seen.iter().all(|(place, len, _)| *len == 0 || within(*place, *len)));
        assert_eq!(round.read.bytes + round.written.bytes, 8 << 20);
    }

    #[test]
    fn a_measurement_has_its_length_and_counts_the_ramp_apart() {
        let load = Load { depth: 2, seconds: 1, ramp_seconds: 1, size_bytes: 1 << 20, ..Load::random(4096, 100) };
        let (round, seen) = done(&load);
        assert!((round.seconds - 1.0).abs() < 1e-9 && round.series.len() == 1);
        let all = round.read.bytes as f64 + round.figures[UNMEASURED];
        assert_eq!(all as usize, seen.len() * 4096);
        assert!(round.figures[UNMEASURED] > 0.0 && round.latency.is_some());
    }
}
