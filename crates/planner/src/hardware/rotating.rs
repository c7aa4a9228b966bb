//! Disks: seek, rotation, zones, command queue, volatile write cache and read-ahead.
//!
//! The angle of the platter follows from the time, and that of a sector from its place on the track, so a read that continues
//! the last one costs no rotation, and one that comes too late costs nearly a whole one. The drive chooses the command with
//! the shortest positioning time among those in its queue (NCQ), but none waits for seconds. Writes are acknowledged
//! when they are in the cache; a flush waits until those before it are on the platters, and reads wait for the flush.

use super::drive::Command;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use weir_machine::Op;

/// Commands that the drive chooses among (the depth of SATA's NCQ).
const QUEUE: usize = 32;
/// Bytes that the drive reads ahead into its cache.
const AHEAD_BYTES: u64 = 4 << 20;
/// Longest run of cached writes that is written in one go.
const RUN_BYTES: u64 = 2 << 20;
/// A command that has waited this long in the drive is served next, so that none starves.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A disk as its data sheet describes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotatingSpec {
    /// Revolutions a minute.
    pub rpm: f64,
    /// Seek to the next track, in milliseconds.
    pub track_seek_ms: f64,
    /// Average seek, in milliseconds: over a third of the tracks.
    pub average_seek_ms: f64,
    /// Rate of the outer tracks in MB/s.
    pub outer_mb_s: f64,
    /// Rate of the inner tracks in MB/s.
    pub inner_mb_s: f64,
    /// Rate of the interface in MB/s.
    pub interface_mb_s: f64,
    /// Volatile write cache in MiB.
    pub cache_mib: u64,
    /// Writes are not aligned to the sectors of 4 KiB behind emulated ones of 512 bytes: the drive reads the sectors at both
    /// ends of a run, and writes the run one revolution later.
    #[serde(default)]
    pub unaligned: bool,
}

impl RotatingSpec {
    /// 7,200 rpm.
    pub const RPM_7K: RotatingSpec = RotatingSpec {
        rpm: 7200.0,
        track_seek_ms: 0.6,
        average_seek_ms: 8.5,
        outer_mb_s: 205.0,
        inner_mb_s: 95.0,
        interface_mb_s: 550.0,
        cache_mib: 128,
        unaligned: false,
    };
    /// A green disk.
    pub const GREEN: RotatingSpec = RotatingSpec {
        rpm: 5400.0,
        track_seek_ms: 1.2,
        average_seek_ms: 15.0,
        outer_mb_s: 125.0,
        inner_mb_s: 60.0,
        interface_mb_s: 280.0,
        cache_mib: 64,
        unaligned: false,
    };
    /// 10,000 rpm.
    pub const RPM_10K: RotatingSpec = RotatingSpec {
        rpm: 10_000.0,
        track_seek_ms: 0.4,
        average_seek_ms: 4.2,
        outer_mb_s: 200.0,
        inner_mb_s: 120.0,
        interface_mb_s: 550.0,
        cache_mib: 64,
        unaligned: false,
    };
    /// 15,000 rpm.
    pub const RPM_15K: RotatingSpec = RotatingSpec {
        rpm: 15_000.0,
        track_seek_ms: 0.2,
        average_seek_ms: 3.5,
        outer_mb_s: 165.0,
        inner_mb_s: 100.0,
        interface_mb_s: 300.0,
        cache_mib: 16,
        unaligned: false,
    };

    /// Time of one revolution in milliseconds.
    pub fn rotation_ms(&self) -> f64 {
        60_000.0 / self.rpm
    }

    /// Rate in MB/s at a distance from the outermost track, as a share of the size.
    pub fn rate_mb_s(&self, share: f64) -> f64 {
        self.outer_mb_s - (self.outer_mb_s - self.inner_mb_s) * share
    }

    fn rotation_ns(&self) -> f64 {
        self.rotation_ms() * 1e6
    }

    /// Seek over a share of the tracks: grows with the square root of the distance.
    fn seek_ns(&self, share: f64) -> f64 {
        let slope = (self.average_seek_ms - self.track_seek_ms) / (1.0f64 / 3.0).sqrt();
        (self.track_seek_ms + slope * share.clamp(0.0, 1.0).sqrt()) * 1e6
    }
}

/// A cached write that is not on the platters.
#[derive(Clone, Copy, Debug)]
struct Cached {
    len: u64,
    /// Number of the newest write in it.
    number: u64,
}

/// Work of the arm.
#[derive(Clone, Copy, Debug)]
enum Work {
    Read(u64),
    /// Writes that were cached: bytes.
    Write(u64),
}

/// A disk in use.
pub struct Rotating {
    spec: RotatingSpec,
    size_bytes: u64,
    /// Reads, with the time of their arrival.
    reads: VecDeque<(Command, u64)>,
    /// Writes for which the cache has no room.
    writes: VecDeque<Command>,
    cached: BTreeMap<u64, Cached>,
    cached_bytes: u64,
    next_write: u64,
    /// Flushes, with the last write that each covers.
    flushes: VecDeque<(u64, u64)>,
    arm: u64,
    /// When the head was at `arm`.
    arm_ns: u64,
    work: Option<(u64, Work)>,
    /// Where the drive reads ahead, and since when.
    ahead: Option<(u64, u64)>,
    interface_free_ns: u64,
    /// Commands whose completion time is known.
    done: BTreeMap<(u64, u64), ()>,
    busy_ns: u64,
}

impl Rotating {
    /// An idle disk with its arm at the first track.
    pub fn new(spec: RotatingSpec, size_bytes: u64) -> Self {
        Rotating {
            spec,
            size_bytes: size_bytes.max(1),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            cached: BTreeMap::new(),
            cached_bytes: 0,
            next_write: 0,
            flushes: VecDeque::new(),
            arm: 0,
            arm_ns: 0,
            work: None,
            ahead: None,
            interface_free_ns: 0,
            done: BTreeMap::new(),
            busy_ns: 0,
        }
    }

    /// Time in which the arm was at work.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Rate in bytes per nanosecond at `offset`: the tracks are as long as their radius allows.
    fn rate(&self, offset: u64) -> f64 {
        self.spec.rate_mb_s(offset as f64 / self.size_bytes as f64) / 1e3
    }

    fn media_ns(&self, offset: u64, len: u64) -> f64 {
        len as f64 / self.rate(offset)
    }

    /// Time from `now_ns` until the head is over `offset`.
    fn position_ns(&self, now_ns: u64, offset: u64) -> f64 {
        if offset == self.arm && now_ns == self.arm_ns {
            return 0.0;
        }
        let track_bytes = self.rate(offset) * self.spec.rotation_ns();
        let distance = offset.abs_diff(self.arm) as f64;
        let seek = if distance < track_bytes { 0.0 } else { self.spec.seek_ns(distance / self.size_bytes as f64) };
        let arrives = (now_ns as f64 + seek) / self.spec.rotation_ns();
        let angle = offset as f64 / track_bytes;
        seek + (angle - arrives).rem_euclid(1.0) * self.spec.rotation_ns()
    }

    /// Accepts a command.
    pub fn submit(&mut self, now_ns: u64, command: Command) {
        match command.op {
            Op::Read => self.reads.push_back((command, now_ns)),
            Op::Write => self.writes.push_back(command),
            Op::Flush => self.flushes.push_back((command.id, self.next_write + self.writes.len() as u64)),
            Op::Discard => _ = self.done.insert((now_ns + 100_000, command.id), ()),
        }
        self.take_writes(now_ns);
        self.start(now_ns);
    }

    /// Moves writes into the cache while it has room.
    fn take_writes(&mut self, now_ns: u64) {
        while let Some(write) = self.writes.front().copied() {
            if self.cached_bytes > 0 && self.cached_bytes + write.len > self.spec.cache_mib << 20 {
                return;
            }
            self.writes.pop_front();
            self.cache(write);
            let done = self.interface_free_ns.max(now_ns) + (write.len as f64 * 1e3 / self.spec.interface_mb_s) as u64;
            self.interface_free_ns = done;
            self.done.insert((done + 50_000, write.id), ());
        }
    }

    fn cache(&mut self, write: Command) {
        self.next_write += 1;
        let number = self.next_write;
        let Command { offset, len, .. } = write;
        // A rewrite of what is cached replaces it; exact ranges suffice, because the pool rewrites only labels.
        if let Some(old) = self.cached.remove(&offset) {
            self.cached_bytes -= old.len;
        }
        self.cached_bytes += len;
        let flushed = self.flushes.back().map_or(0, |(_, covers)| *covers);
        if let Some((_, before)) = self
            .cached
            .range_mut(..offset)
            .next_back()
            .filter(|(at, held)| **at + held.len == offset && held.len + len <= RUN_BYTES && held.number > flushed)
        {
            before.len += len;
            before.number = number;
            return;
        }
        self.cached.insert(offset, Cached { len, number });
    }

    /// Starts the arm's next piece of work if it is idle.
    fn start(&mut self, now_ns: u64) {
        self.finish_flushes(now_ns);
        if self.work.is_some() {
            return;
        }
        let read = self.best_read(now_ns);
        let write = self.best_write(now_ns);
        // Reads are waited for; cached writes only if the cache fills. During a flush, the drive only writes.
        let is_full = self.cached_bytes > (self.spec.cache_mib << 20) / 2;
        let patience = if is_full { 0.0 } else { self.spec.rotation_ns() };
        let reads_first = |write: f64, read: f64| self.flushes.is_empty() && read <= write + patience;
        match (read, write) {
            (Some((at, cost)), write) if write.is_none_or(|(_, other)| reads_first(other, cost)) => {
                let Some((command, _)) = self.reads.remove(at) else { return };
                if self
                    .ahead_ns(now_ns, &command)
                    .is_some_and(|ahead| ahead <= self.position_ns(now_ns, command.offset))
                {
                    self.read_from_ahead(now_ns, command);
                } else {
                    self.occupy(now_ns, command.offset, command.len, Work::Read(command.id));
                }
            }
            (_, Some((offset, _))) => {
                let Some(cached) = self.cached.remove(&offset) else { return };
                self.occupy(now_ns, offset, cached.len, Work::Write(cached.len));
            }
            (_, None) => {}
        }
    }

    /// Time from `now_ns` until the drive, which reads ahead, has the command's first byte; none if it is too far ahead.
    fn ahead_ns(&self, now_ns: u64, command: &Command) -> Option<f64> {
        let (from, since_ns) = self.ahead?;
        let within = (from..from + AHEAD_BYTES).contains(&command.offset);
        let at_ns = since_ns as f64 + self.media_ns(from, command.offset.saturating_sub(from));
        within.then(|| (at_ns - now_ns as f64).max(0.0))
    }

    /// Serves a read that continues what the drive reads ahead.
    fn read_from_ahead(&mut self, now_ns: u64, command: Command) {
        let Some((from, since_ns)) = self.ahead else { return };
        let end = command.offset + command.len;
        let read_ns = since_ns as f64 + self.media_ns(from, end - from);
        let done_ns = (read_ns as u64).max(now_ns);
        self.busy_ns += done_ns - now_ns;
        self.arm = end;
        self.arm_ns = done_ns;
        self.work = Some((done_ns, Work::Read(command.id)));
        // The drive does not read ahead further than its cache.
        let kept_since = (read_ns as u64).max(now_ns.saturating_sub(self.media_ns(end, AHEAD_BYTES) as u64));
        self.ahead = Some((end, kept_since));
    }

    fn best_read(&self, now_ns: u64) -> Option<(usize, f64)> {
        let cost = |(at, (command, arrived)): (usize, &(Command, u64))| {
            let due = now_ns - arrived > PATIENCE_NS;
            let position = self.position_ns(now_ns, command.offset);
            (at, if due { 0.0 } else { self.ahead_ns(now_ns, command).map_or(position, |ahead| ahead.min(position)) })
        };
        self.reads.iter().take(QUEUE).enumerate().map(cost).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The cached write that the head reaches first, among those next to it. During a flush, only those that it covers.
    fn best_write(&self, now_ns: u64) -> Option<(u64, f64)> {
        let covers = self.flushes.front().map_or(u64::MAX, |(_, covers)| *covers);
        let due = |(_, cached): &(&u64, &Cached)| cached.number <= covers;
        let after = self.cached.range(self.arm..).filter(due).take(QUEUE);
        let before = self.cached.range(..self.arm).rev().filter(due).take(4);
        let first = self.cached.iter().filter(due).take(1);
        let cost = |(offset, _): (&u64, &Cached)| (*offset, self.position_ns(now_ns, *offset));
        after.chain(before).chain(first).map(cost).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn occupy(&mut self, now_ns: u64, offset: u64, len: u64, work: Work) {
        let rewrite_ns = match work {
            Work::Write(_) if self.spec.unaligned => self.spec.rotation_ns(),
            Work::Write(_) | Work::Read(_) => 0.0,
        };
        let busy_ns = (self.position_ns(now_ns, offset) + rewrite_ns + self.media_ns(offset, len)) as u64;
        let done_ns = now_ns + busy_ns;
        self.busy_ns += busy_ns;
        self.arm = offset + len;
        self.arm_ns = done_ns;
        self.ahead = matches!(work, Work::Read(_)).then_some((offset + len, done_ns));
        self.work = Some((done_ns, work));
    }

    fn finish_flushes(&mut self, now_ns: u64) {
        while let Some(&(id, covers)) = self.flushes.front() {
            let writing = matches!(self.work, Some((_, Work::Write(_))));
            let due = self.writes.is_empty() || self.next_write >= covers;
            let cached = self.cached.values().any(|cached| cached.number <= covers);
            if writing || cached || !due {
                return;
            }
            self.flushes.pop_front();
            self.done.insert((now_ns + 50_000, id), ());
        }
    }

    /// Works until `now_ns`.
    pub fn advance(&mut self, now_ns: u64) -> Vec<u64> {
        while let Some((done_ns, work)) = self.work.filter(|(done_ns, _)| *done_ns <= now_ns) {
            self.work = None;
            match work {
                Work::Read(id) => _ = self.done.insert((done_ns, id), ()),
                Work::Write(bytes) => self.cached_bytes = self.cached_bytes.saturating_sub(bytes),
            }
            self.take_writes(done_ns);
            self.start(done_ns);
        }
        let later = self.done.split_off(&(now_ns + 1, 0));
        std::mem::replace(&mut self.done, later).into_keys().map(|(_, id)| id).collect()
    }

    /// Time of the next completion or of the end of the arm's work.
    pub fn next_ns(&self) -> Option<u64> {
        let done = self.done.keys().next().map(|(done_ns, _)| *done_ns);
        let work = self.work.map(|(done_ns, _)| done_ns);
        done.into_iter().chain(work).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time at which an idle disk has done a write of 128 KiB and the flush after it.
    fn written_ns(unaligned: bool) -> u64 {
        let spec = RotatingSpec { unaligned, ..RotatingSpec::GREEN };
        let mut disk = Rotating::new(spec, 1 << 40);
        disk.submit(0, Command { id: 1, op: Op::Write, offset: 1 << 30, len: 128 << 10 });
        disk.submit(0, Command { id: 2, op: Op::Flush, offset: 0, len: 0 });
        let mut done = Vec::new();
        while let Some(next_ns) = disk.next_ns() {
            done.extend(disk.advance(next_ns));
            if done.contains(&2) {
                return next_ns;
            }
        }
        panic!("the flush is not done: {done:?}");
    }

    #[test]
    fn a_flush_does_not_wait_for_later_writes() {
        let mut disk = Rotating::new(RotatingSpec::RPM_7K, 1 << 40);
        let write = |id: u64| Command { id, op: Op::Write, offset: (1 << 30) + (id << 20), len: 1 << 20 };
        (10..20).for_each(|id| disk.submit(0, write(id)));
        disk.submit(0, Command { id: 1, op: Op::Write, offset: 1 << 39, len: 128 << 10 });
        disk.submit(0, Command { id: 2, op: Op::Flush, offset: 0, len: 0 });
        let mut next = 20;
        while let Some(next_ns) = disk.next_ns().filter(|next_ns| *next_ns < 500_000_000) {
            if disk.advance(next_ns).contains(&2) {
                return;
            }
            // They continue what is in the cache.
            disk.submit(next_ns, write(next));
            next += 1;
        }
        panic!("the flush is not done after half a second and {next} writes");
    }

    #[test]
    fn a_flush_does_not_wait_for_reads() {
        let mut disk = Rotating::new(RotatingSpec::RPM_7K, 1 << 40);
        let read = |id: u64| Command { id, op: Op::Read, offset: (1 << 30) + (id << 20), len: 1 << 20 };
        (10..14).for_each(|id| disk.submit(0, read(id)));
        disk.submit(0, Command { id: 1, op: Op::Write, offset: 1 << 39, len: 128 << 10 });
        disk.submit(0, Command { id: 2, op: Op::Flush, offset: 0, len: 0 });
        let mut next = 14;
        while let Some(next_ns) = disk.next_ns().filter(|next_ns| *next_ns < 500_000_000) {
            let done = disk.advance(next_ns);
            if done.contains(&2) {
                return;
            }
            // Each further read continues the one before, so the drive prefers it to a seek.
            for _ in done.into_iter().filter(|id| *id >= 10) {
                disk.submit(next_ns, read(next));
                next += 1;
            }
        }
        panic!("the flush is not done after half a second and {next} reads");
    }

    #[test]
    fn an_unaligned_write_takes_one_revolution_more() {
        let more_ns = written_ns(true) - written_ns(false);
        let revolution_ns = RotatingSpec::GREEN.rotation_ns() as u64;
        assert!(more_ns.abs_diff(revolution_ns) < 10, "{more_ns} ns, a revolution is {revolution_ns} ns");
    }
}
