//! filebench's personality `oltp`: readers of a database, its writers, and its log.
//!
//! Parameters of `workloads/oltp.f`: 10 data files of 10 MiB; 200 readers, each of which reads 2 KiB at a random place of the next file, computes
//! (`hog`, 200,000 turns), and posts to the log and to every writer; 10 writers, each of which writes 2 KiB a hundred times at random places
//! (`dsync`), computes (10,000 turns), and waits for 1,000 posts; one log writer, which writes 256 KiB at a random place of a file of
//! 10 MiB (`dsync`) and waits for 3,200 posts.
//!
//! Posts beyond 1,000 for the log, and 2,000 for a writer, that no thread waits for stop the readers (`highwater`). One thing differs: filebench has a
//! writer's hundred writes in flight at once, which the C library carries out with threads; here a writer writes one after the other.

use super::{Done, MixLoad, Recorder, Times, run_threads};
use crate::clock;
use crate::error::LabError;
use crate::fio::Monitor;
use crate::result::Round;
use crate::statistics::Seeded;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_machine::lock::Mutex;

/// Readers as published.
pub const READERS: u32 = 200;
/// Writers of data.
const WRITERS: u32 = 10;
/// Size of a data file, and of the log.
pub const FILE_BYTES: u64 = 10 << 20;
/// Size of a read and of a write of data.
const IO_BYTES: usize = 2 << 10;
/// Size of a write of the log.
const LOG_BYTES: usize = 256 << 10;
/// Writes of a writer between two waits.
const WRITES: u32 = 100;
/// Posts that a writer, and the log, waits for.
const WRITER_POSTS: u64 = 1000;
const LOG_POSTS: u64 = 3200;
/// Posts that may be pending while nothing waits for them.
const WRITER_HIGHWATER: u64 = 2000;
const LOG_HIGHWATER: u64 = 1000;
/// Turns of the loops that stand for the work of the database.
const READER_TURNS: u64 = 200_000;
const WRITER_TURNS: u64 = 10_000;
/// Pause of a thread that waits for posts.
const PAUSE: Duration = Duration::from_micros(200);

/// A semaphore that readers post to and one thread waits for, as filebench's `sempost` and `semblock` do: a post takes a place, of which
/// there are `highwater` at first; a wait adds places for as many posts as it waits for, and then takes the posts.
struct Posts {
    wanted: u64,
    /// Posts, and places for more.
    state: Mutex<(u64, u64)>,
}

impl Posts {
    fn new(wanted: u64, highwater: u64) -> Self {
        Self { wanted, state: Mutex::new((0, highwater)) }
    }

    /// Posts; waits for a place. False if the run ended.
    fn post(&self, times: &Times) -> bool {
        wait(times, || {
            let mut state = self.state.lock();
            let has_place = state.1 > 0;
            if has_place {
                *state = (state.0 + 1, state.1 - 1);
            }
            has_place
        })
    }

    /// Waits for enough posts and takes them. False if the run ended.
    fn take(&self, times: &Times) -> bool {
        self.state.lock().1 += self.wanted;
        wait(times, || {
            let mut state = self.state.lock();
            let has_enough = state.0 >= self.wanted;
            if has_enough {
                state.0 -= self.wanted;
            }
            has_enough
        })
    }
}

/// Waits until something is done, or the run ends: then false.
fn wait(times: &Times, mut is_done: impl FnMut() -> bool) -> bool {
    while !is_done() {
        if times.is_over() {
            return false;
        }
        clock::sleep(PAUSE);
    }
    true
}

fn compute(turns: u64) {
    for turn in 0..turns {
        std::hint::black_box(turn);
    }
}

/// Writes a file of random bytes.
fn make(path: &Path, number: u64) -> Result<(), LabError> {
    let mut content = vec![0; FILE_BYTES as usize];
    Seeded::new(number).fill(&mut content);
    std::fs::write(path, content).map_err(LabError::io(path))
}

/// The database: its files and its counters.
struct Database {
    files: Vec<PathBuf>,
    log: PathBuf,
    log_posts: Posts,
    writer_posts: Vec<Posts>,
}

/// Makes the files and runs the threads: the readers, then the writers, then the log. `None` if the monitor stopped it.
///
/// # Errors
/// If a file cannot be made, read or written.
pub fn run(load: &MixLoad, folder: &Path, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
    std::fs::create_dir_all(folder).map_err(LabError::io(folder))?;
    let files: Vec<PathBuf> = (0..load.shape().files).map(|number| folder.join(format!("data{number:03}"))).collect();
    let making = clock::Stopwatch::start();
    let log = folder.join("log");
    for (number, path) in (0..).zip(files.iter().chain([&log])) {
        if !monitor.poll(making.seconds()) {
            return Ok(None);
        }
        make(path, number)?;
    }
    let writer_posts = (0..WRITERS).map(|_| Posts::new(WRITER_POSTS, WRITER_HIGHWATER)).collect();
    let database = Database { files, log, log_posts: Posts::new(LOG_POSTS, LOG_HIGHWATER), writer_posts };
    let thread = |number: u32, times: &Times| match number {
        number if number < load.threads => database.read(number, times),
        number if number < load.threads + WRITERS => database.write(number - load.threads, times),
        _ => database.write_log(times),
    };
    run_threads(load.threads + WRITERS + 1, load.seconds, &thread, monitor)
}

impl Database {
    fn open(&self, flags: OFlags) -> Result<Vec<File>, LabError> {
        let open = |path: &PathBuf| open(path, flags);
        self.files.iter().map(open).collect()
    }

    fn read(&self, number: u32, times: &Times) -> Result<Recorder, LabError> {
        let files = self.open(OFlags::empty())?;
        let mut random = Seeded::new(u64::from(number) + 1);
        let mut recorder = Recorder::default();
        let mut buffer = [0; IO_BYTES];
        for turn in number as usize.. {
            if times.is_over() {
                break;
            }
            let place = turn % files.len();
            let begun = times.seconds();
            let offset = random.below(FILE_BYTES as usize / IO_BYTES) * IO_BYTES;
            files[place].read_exact_at(&mut buffer, offset as u64).map_err(LabError::io(&self.files[place]))?;
            Done { begun, read_bytes: IO_BYTES as u64, written_bytes: 0 }.record(&mut recorder, times);
            compute(READER_TURNS);
            let mut all = std::iter::once(&self.log_posts).chain(&self.writer_posts);
            if !all.all(|posts| posts.post(times)) {
                break;
            }
        }
        Ok(recorder)
    }

    fn write(&self, number: u32, times: &Times) -> Result<Recorder, LabError> {
        let files = self.open(OFlags::DSYNC)?;
        let mut random = Seeded::new(u64::from(number) << 32);
        let mut recorder = Recorder::default();
        let mut buffer = [0; IO_BYTES];
        let mut turn = number as usize;
        while !times.is_over() {
            for _ in 0..WRITES {
                let place = turn % files.len();
                turn += 1;
                random.fill(&mut buffer);
                let begun = times.seconds();
                let offset = random.below(FILE_BYTES as usize / IO_BYTES) * IO_BYTES;
                files[place].write_all_at(&buffer, offset as u64).map_err(LabError::io(&self.files[place]))?;
                Done { begun, read_bytes: 0, written_bytes: IO_BYTES as u64 }.record(&mut recorder, times);
                if times.is_over() {
                    return Ok(recorder);
                }
            }
            compute(WRITER_TURNS);
            if !self.writer_posts[number as usize].take(times) {
                break;
            }
        }
        Ok(recorder)
    }

    fn write_log(&self, times: &Times) -> Result<Recorder, LabError> {
        let log = open(&self.log, OFlags::DSYNC)?;
        let mut random = Seeded::new(0);
        let mut recorder = Recorder::default();
        let mut buffer = vec![0; LOG_BYTES];
        while !times.is_over() {
            random.fill(&mut buffer);
            let begun = times.seconds();
            let offset = random.below(FILE_BYTES as usize / LOG_BYTES) * LOG_BYTES;
            log.write_all_at(&buffer, offset as u64).map_err(LabError::io(&self.log))?;
            Done { begun, read_bytes: 0, written_bytes: LOG_BYTES as u64 }.record(&mut recorder, times);
            if !self.log_posts.take(times) {
                break;
            }
        }
        Ok(recorder)
    }
}

fn open(path: &Path, flags: OFlags) -> Result<File, LabError> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    options.open(path).map_err(LabError::io(path))
}

#[cfg(test)]
mod tests {
    use super::super::Personality;
    use super::*;
    use crate::native::NeverStops;

    #[test]
    fn readers_writers_and_the_log_depend_on_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let load = MixLoad { personality: Personality::Oltp, scale_percent: 20, threads: 4, seconds: 2 };
        let round = load.run(directory.path(), &mut NeverStops).unwrap().unwrap();
        assert!(round.read.operations > 0, "{round:?}");
        assert_eq!(round.read.bytes, round.read.operations * IO_BYTES as u64);
        // Before its first wait each writer writes a hundred times, then so often for every thousand reads, of which some are in the ramp.
        let most = u64::from(WRITERS * WRITES) * (2 + round.read.operations * 3 / WRITER_POSTS) + 8;
        assert!(round.written.operations <= most, "{round:?}");
        assert_eq!(std::fs::read_dir(directory.path().join("weir-bench.oltp")).unwrap().count(), 3);
    }

    #[test]
    fn a_writer_waits_for_its_posts_and_posts_wait_for_the_writer() {
        let times = Times { watch: clock::Stopwatch::start(), is_over: true.into() };
        let posts = Posts::new(3, 2);
        assert!(posts.post(&times) && posts.post(&times) && !posts.post(&times), "two places");
        // The wait makes room for three more posts; the two that are there do not suffice.
        assert!(!posts.take(&times));
        assert!((0..3).all(|_| posts.post(&times)) && !posts.post(&times));
        assert!(posts.take(&times) && posts.post(&times));
    }
}
