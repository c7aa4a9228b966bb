//! Cuts the power below a server, and counts what was lost of what it had acknowledged.
//!
//! ```text
//!   writers ── records ──▶ server (a process of its own) ──▶ layer: a disk with a volatile cache
//!      │  each acknowledgement is noted, with what it promised      │
//!      ▼                                                            │ at a time chosen by the seed: answer nothing any more,
//!   ledger                                                          │ kill the server, drop what was not flushed
//!      ▲                                                            ▼
//!      └──── compare ◀── records ◀── server, started again ◀── layer: what is left
//! ```
//!
//! Nothing of the server takes part: [`layer`] is a file below it in a FUSE mount, so that any program can be tested. The order of a cut is that of a
//! machine whose power fails: the disk answers nothing, then the program is gone, then the disk's cache is empty. What a writer is
//! answered until the program is gone counts as acknowledged.
//!
//! A record that was promised ([`ledger`]) must be there. One that was only acknowledged may be missing: how many are, and of how many
//! seconds, is the price of a write cache. Writers that flush ([`Flushes::Often`]) test the promise up to the last moment; writers that
//! do not show what a cache holds.
//!
//! Rejected: an engine with simulated disks, which `weir-sim` has: here the released program is tested, through the
//! kernel, over its protocols, and beside its peers.

pub mod client;
pub mod disk;
mod files;
pub mod layer;
pub mod ledger;
mod nbd;
pub mod server;

use crate::clock::{self, Stopwatch};
use crate::error::LabError;
use crate::fio::Monitor;
use crate::native::Recorder;
use crate::result::{Round, Workload};
use crate::statistics::Seeded;
use client::{Address, Client, Way};
use layer::Layer;
use ledger::{Ledger, Losses, Writer};
use server::{Places, Server, ServerKind};
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pattern of the loads in results.
pub const PATTERN: &str = "powercut";

/// Size of a record.
pub const RECORD_BYTES: usize = 4096;

/// Smallest disk: a pool with its volume.
pub const MIN_DISK_BYTES: u64 = 256 << 20;

/// Records between two flushes of a writer that flushes.
const FLUSH_INTERVAL: u64 = 8;

/// Records from one that a writer which flushes writes to be stable at once to the next such one.
const STABLE_INTERVAL: u64 = 16;

/// Bytes of a read when records are looked for.
const READ_BYTES: usize = 64 << 10;

const POLL: Duration = Duration::from_millis(20);

/// When writers flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushes {
    /// After every eighth record; besides, every sixteenth is written to be stable at once.
    Often,
    /// Never.
    Never,
}

/// A server, a way to it, and writers, until a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowercutLoad {
    /// Server.
    pub server: ServerKind,
    /// Way of the writers to it.
    pub way: Way,
    /// When writers flush.
    pub flushes: Flushes,
    /// Writers at the same time, each with records of its own.
    pub writers: u32,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// Longest time until the cut, in seconds; the seed chooses one from a third of it on.
    pub seconds: u64,
    /// Seed of the records, of the time of each cut, and of what survives.
    pub seed: u64,
    /// Percent of the cached sectors that reach the medium nevertheless.
    pub survive_percent: u32,
}

/// Result of a writer.
struct Written {
    ledger: Ledger,
    recorder: Recorder,
    /// Why it ended before the cut; `None` if its range was full.
    error: Option<io::Error>,
}

/// State of a cut that was made.
struct Cut {
    /// Seconds since the writers began.
    at: f64,
    written: Vec<Written>,
    /// Bytes that were in the cache and are lost.
    dropped_bytes: u64,
}

impl PowercutLoad {
    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload {
            pattern: PATTERN.to_owned(),
            block_bytes: RECORD_BYTES as u64,
            workers: self.writers,
            depth: 1,
            sync: self.flushes == Flushes::Often,
            size_bytes: self.disk_bytes,
            ..Workload::default()
        }
    }

    /// Seconds until the latest cut.
    #[must_use]
    pub fn expected_seconds(&self) -> f64 {
        self.seconds as f64
    }

    /// Size of the volume, and of the records of all writers, in bytes.
    fn records_bytes(&self) -> u64 {
        self.disk_bytes / 4
    }

    /// Bytes of the records of one writer: whole reads of them.
    fn range_bytes(&self) -> u64 {
        self.records_bytes() / u64::from(self.writers) / READ_BYTES as u64 * READ_BYTES as u64
    }

    /// Makes the `round`-th cut and counts the losses. `None` if the monitor stopped it. If the server cannot be read after the
    /// cut, all is lost, and the reason is written to the file `complaint`.
    ///
    /// # Errors
    /// If there is no FUSE, a server cannot be started before the cut, or refuses a write before it.
    pub fn run(
        &self,
        directory: &Path,
        round: u64,
        complaint: &Path,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<Round>, LabError> {
        let places = Places::make(directory)?;
        let medium = directory.join(format!("{}.medium", crate::load::FILE_PREFIX));
        let layer = Layer::mount(&medium, self.disk_bytes, &places.folder.join("layer"))?;
        self.server.prepare(&layer, &places, self.records_bytes())?;
        let seed = self.seed.wrapping_add(round);
        let mut server = self.server.start(&layer, &places, self.way)?;
        let cut = self.write_until_cut(&layer, &mut server, seed, monitor)?;
        drop(server);
        let Some(cut) = cut else { return Ok(None) };
        layer.power_on();
        let watch = Stopwatch::start();
        let restarted = self.server.start(&layer, &places, self.way);
        let restart_seconds = watch.seconds();
        let mut losses = Losses::default();
        let mut error = None;
        for (number, written) in (0..).zip(&cut.written) {
            if !monitor.poll(watch.seconds()) {
                return Ok(None);
            }
            let found = match &restarted {
                Ok(server) => self.records(server, number, written.ledger.sent()),
                Err(error) => Err(io::Error::other(error.to_string())),
            };
            // What cannot be read is lost.
            let found = found.unwrap_or_else(|why| {
                error = Some(why);
                Vec::new()
            });
            losses.add(&written.ledger.check(Writer { seed, number }, RECORD_BYTES, &found, cut.at));
        }
        let is_served = error.is_none();
        if let Some(error) = error {
            let text = format!("{}, {}, after the cut of round {round}: {error}\n", self.server, self.way);
            std::fs::write(complaint, text).map_err(LabError::io(complaint))?;
        }
        restarted.into_iter().for_each(Server::stop);
        Ok(Some(self.round(cut, &losses, seed, restart_seconds, is_served)))
    }

    fn round(&self, cut: Cut, losses: &Losses, seed: u64, restart_seconds: f64, is_served: bool) -> Round {
        let recorders = cut.written.into_iter().map(|written| written.recorder);
        let mut round = recorders.fold(Recorder::default(), Recorder::join).round(cut.at);
        let bytes = |records: u64| (records * RECORD_BYTES as u64) as f64;
        for (name, value) in [
            ("acknowledged_records", losses.acknowledged as f64),
            ("promised_records", losses.promised as f64),
            ("lost_promised_records", losses.lost_promised as f64),
            ("lost_promised_bytes", bytes(losses.lost_promised)),
            ("lost_promised_seconds", losses.promised_seconds),
            ("lost_acknowledged_records", losses.lost_acknowledged as f64),
            ("lost_acknowledged_bytes", bytes(losses.lost_acknowledged)),
            ("lost_acknowledged_seconds", losses.acknowledged_seconds),
            ("damaged_records", losses.damaged as f64),
            ("dropped_bytes", cut.dropped_bytes as f64),
            ("restart_seconds", restart_seconds),
            ("served_after_cut", f64::from(u8::from(is_served))),
            ("seed", seed as f64),
        ] {
            round.figures.insert(name.to_owned(), value);
        }
        round
    }

    /// Seconds until the cut.
    fn cut_after(&self, seed: u64) -> f64 {
        self.seconds as f64 * (1.0 + 2.0 * Seeded::new(seed).unit()) / 3.0
    }

    /// Writes records until the time of the cut, or until the writers' ranges are full, and cuts. `None` if the monitor stopped it.
    fn write_until_cut(
        &self,
        layer: &Layer,
        server: &mut Server,
        seed: u64,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<Cut>, LabError> {
        let address = server.address.clone().ok_or_else(|| LabError::Target("the server has no address".to_owned()))?;
        let clients = (0..self.writers).map(|number| address.connect(number)).collect::<io::Result<Vec<_>>>();
        let clients = clients.map_err(|error| self.refused(&error))?;
        let is_cut = AtomicBool::new(false);
        let cut_after = self.cut_after(seed);
        let mut survival = Seeded::new(seed ^ u64::from(self.survive_percent));
        let survive = f64::from(self.survive_percent) / 100.0;
        let watch = Stopwatch::start();
        let mut is_stopped = false;
        let (at, dropped, written) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(clients)
                .map(|(number, client)| {
                    let address = &address;
                    let is_cut = &is_cut;
                    scope.spawn(move || self.write(Writer { seed, number }, client, address, is_cut, watch))
                })
                .collect();
            while watch.seconds() < cut_after && !threads.iter().any(|thread| thread.is_finished()) && !is_stopped {
                is_stopped = !monitor.poll(watch.seconds());
                clock::sleep(POLL);
            }
            is_cut.store(true, Ordering::SeqCst);
            layer.freeze();
            server.kill();
            let at = watch.seconds();
            let dropped = layer.cut(|| survival.unit() < survive);
            server.wait();
            let written = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            let written: Vec<_> = written.collect();
            (at, dropped, written)
        });
        if is_stopped {
            return Ok(None);
        }
        let dropped_bytes = dropped?;
        match written.iter().find_map(|written| written.error.as_ref()) {
            Some(error) => Err(self.refused(error)),
            None => Ok(Some(Cut { at, written, dropped_bytes })),
        }
    }

    fn refused(&self, error: &io::Error) -> LabError {
        LabError::Target(format!("{}, {}: before the cut: {error}", self.server, self.way))
    }

    /// Place of a writer's records.
    fn range_begin(&self, number: u32, address: &Address) -> u64 {
        if address.is_shared() { u64::from(number) * self.range_bytes() } else { 0 }
    }

    /// Writes records until the range is full, or until the server is gone.
    fn write(
        &self,
        writer: Writer,
        mut client: Box<dyn Client>,
        address: &Address,
        is_cut: &AtomicBool,
        watch: Stopwatch,
    ) -> Written {
        let begin = self.range_begin(writer.number, address);
        let mut ledger = Ledger::default();
        let mut recorder = Recorder::default();
        let error = loop {
            if (ledger.sent() + 1) * RECORD_BYTES as u64 > self.range_bytes() {
                break None;
            }
            let number = ledger.send();
            let often = self.flushes == Flushes::Often;
            let is_stable = often && number % STABLE_INTERVAL == STABLE_INTERVAL / 2;
            let content = writer.content(number, RECORD_BYTES);
            let sent_at = watch.seconds();
            match client.write(begin + number * RECORD_BYTES as u64, &content, is_stable) {
                Ok(is_promised) => {
                    let at = watch.seconds();
                    ledger.acknowledge(at, is_promised || self.server.promises_each_write());
                    recorder.record(at, at - sent_at, 0, RECORD_BYTES as u64);
                }
                Err(error) => break Some(error),
            }
            if often && (number + 1) % FLUSH_INTERVAL == 0 {
                match client.flush() {
                    Ok(()) => ledger.flush(watch.seconds()),
                    Err(error) => break Some(error),
                }
            }
        };
        // After the cut every error is one of a server that is gone.
        Written { ledger, recorder, error: error.filter(|_| !is_cut.load(Ordering::SeqCst)) }
    }

    /// Reads the places of a writer's first `sent` records.
    fn records(&self, server: &Server, number: u32, sent: u64) -> io::Result<Vec<u8>> {
        let address = server.address.as_ref().ok_or_else(|| io::Error::other("the server has no address"))?;
        let mut client = address.connect(number)?;
        let begin = self.range_begin(number, address);
        let mut found = vec![0; (sent as usize * RECORD_BYTES).next_multiple_of(READ_BYTES)];
        for (place, chunk) in found.chunks_mut(READ_BYTES).enumerate() {
            client.read(begin + (place * READ_BYTES) as u64, chunk)?;
        }
        Ok(found)
    }
}

impl Places {
    /// Makes the directories of a run. Sockets have short paths, so they are not in the target.
    fn make(directory: &Path) -> Result<Self, LabError> {
        let folder = std::env::temp_dir().join(format!("weir-powercut-{}", std::process::id()));
        let files = directory.join(format!("{}.files", crate::load::FILE_PREFIX));
        for path in [folder.join("layer"), folder.join("state"), folder.join("run"), files.clone()] {
            std::fs::create_dir_all(&path).map_err(LabError::io(&path))?;
        }
        Ok(Self { folder, files })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_come_at_times_that_the_seed_chooses_and_ranges_do_not_overlap() {
        let load = PowercutLoad {
            server: ServerKind::Tgt { write_cache: true },
            way: Way::Iscsi,
            flushes: Flushes::Often,
            writers: 3,
            disk_bytes: MIN_DISK_BYTES,
            seconds: 6,
            seed: 1,
            survive_percent: 0,
        };
        let times: Vec<f64> = (0..50).map(|seed| load.cut_after(seed)).collect();
        assert!(times.iter().all(|time| (2.0..6.0).contains(time)), "{times:?}");
        assert!(times.iter().any(|time| *time < 3.0) && times.iter().any(|time| *time > 5.0));
        assert_eq!(load.cut_after(7).to_bits(), load.cut_after(7).to_bits());
        let shared = Address::Nbd(std::net::SocketAddr::from(([127, 0, 0, 1], 1)), String::new());
        let last = load.range_begin(2, &shared) + load.range_bytes();
        assert!(last <= load.records_bytes() && load.range_bytes().is_multiple_of(READ_BYTES as u64));
        assert_eq!(load.range_begin(1, &shared), load.range_bytes());
        assert_eq!(load.range_begin(2, &Address::Mount("files".into())), 0);
    }
}
