//! Loops of file operations by many threads, which fio cannot carry: create, append, read, delete, stat and `fsync` of whole files.
//!
//! The loops and their parameters are those of filebench's personalities (`workloads/*.f` of github.com/filebench/filebench): numbers of
//! files, directories and threads, sizes, and the order of operations. filebench draws sizes from a gamma distribution of shape 1.5
//! (`cvar-gamma`), and the length of an append evenly up to its parameter (`appendfilerand`).
//!
//! | | files | mean size | files in a directory | exist | threads | loop |
//! |---|---|---|---|---|---|---|
//! | fileserver | 10,000 | 128K | 20 | 80 % | 50 | create and write; open and append; open and read; delete; stat |
//! | varmail | 1,000 | 16K | all | 80 % | 16 | delete; create, append, `fsync`; open, read, append, `fsync`; open and read |
//! | webserver | 1,000 | 16K | 20 | all | 100 | ten times open and read; append to a log |
//! | oltp | 10 | 10M | all | all | 211 | [`oltp`] |

pub mod file_set;
pub mod oltp;

use super::Recorder;
use crate::clock::{self, Stopwatch};
use crate::error::LabError;
use crate::fio::Monitor;
use crate::result::{Round, Workload};
use crate::statistics::Seeded;
use file_set::{FileSet, FileSetShape};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Largest read or write of a whole file (`iosize`).
const IO_BYTES: usize = 1 << 20;
/// Longest append (`meanappendsize`).
const APPEND_BYTES: usize = 16 << 10;
/// Load before the measurement.
const RAMP_SECONDS: f64 = 1.0;
const POLL: Duration = Duration::from_millis(100);
/// Pause of a thread that finds no free file.
const NO_FILE: Duration = Duration::from_millis(1);

/// A personality of filebench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Personality {
    /// Users' home directories.
    Fileserver,
    /// A mail server with a file for each message.
    Varmail,
    /// A web server with its log.
    Webserver,
    /// A database.
    Oltp,
}

/// An operation of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Makes a file that does not exist, and opens it.
    Create,
    /// Opens a file that exists.
    Open,
    /// Writes as much as the file's size.
    WriteWhole,
    /// Reads to the end.
    ReadWhole,
    /// Appends a random amount.
    Append,
    Fsync,
    Close,
    /// Removes a file that exists.
    Delete,
    /// Reads the attributes of a file that exists.
    Stat,
    /// Appends to the log.
    Log,
}

use Step::{Append, Close, Create, Delete, Fsync, Log, Open, ReadWhole, Stat, WriteWhole};

const FILESERVER: &[Step] = &[Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat];
const VARMAIL: &[Step] =
    &[Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open, ReadWhole, Close];
/// Ten files are read for each line of the log.
const WEBSERVER: &[Step] = &[
    Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole,
    Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
    ReadWhole, Close, Log,
];

impl Personality {
    /// Name of the personality.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Varmail => "varmail",
            Self::Webserver => "webserver",
            Self::Oltp => "oltp",
        }
    }

    /// Threads as published; of oltp the readers.
    #[must_use]
    pub fn threads(self) -> u32 {
        match self {
            Self::Fileserver => 50,
            Self::Varmail => 16,
            Self::Webserver => 100,
            Self::Oltp => oltp::READERS,
        }
    }

    /// Files as published, without logs.
    #[must_use]
    pub fn shape(self) -> FileSetShape {
        match self {
            Self::Fileserver => FileSetShape { files: 10_000, existing_percent: 80, width: 20, mean_bytes: 128 << 10 },
            Self::Varmail => FileSetShape { files: 1000, existing_percent: 80, width: 1_000_000, mean_bytes: 16 << 10 },
            Self::Webserver => FileSetShape { files: 1000, existing_percent: 100, width: 20, mean_bytes: 16 << 10 },
            Self::Oltp => FileSetShape { files: 10, existing_percent: 100, width: 1024, mean_bytes: oltp::FILE_BYTES },
        }
    }

    fn steps(self) -> &'static [Step] {
        match self {
            Self::Fileserver => FILESERVER,
            Self::Varmail => VARMAIL,
            Self::Webserver => WEBSERVER,
            Self::Oltp => &[],
        }
    }
}

/// A mix for some seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixLoad {
    /// Personality.
    pub personality: Personality,
    /// Files, in percent of the published number.
    pub scale_percent: u64,
    /// Threads, or readers of oltp.
    pub threads: u32,
    /// Seconds of measurement.
    pub seconds: u64,
}

impl MixLoad {
    /// Parameters of the files: the published ones, scaled.
    #[must_use]
    pub fn shape(&self) -> FileSetShape {
        let shape = self.personality.shape();
        FileSetShape { files: (shape.files * self.scale_percent / 100).max(1), ..shape }
    }

    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload {
            pattern: format!("mix {}", self.personality.name()),
            // What decides is that some reads and some writes move the data.
            read_percent: 50,
            workers: self.threads,
            depth: 1,
            size_bytes: self.shape().mean_total_bytes(),
            seconds: self.seconds,
            ..Workload::default()
        }
    }

    /// Seconds that the load takes, without the making of its files.
    #[must_use]
    pub fn expected_seconds(&self) -> f64 {
        self.seconds as f64 + RAMP_SECONDS
    }

    /// Makes the files and runs the loops. `None` if the monitor stopped it.
    ///
    /// # Errors
    /// If a file cannot be made, written or read.
    pub fn run(&self, directory: &Path, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let folder = directory.join(format!("{}.{}", crate::load::FILE_PREFIX, self.personality.name()));
        if self.personality == Personality::Oltp {
            return oltp::run(self, &folder, monitor);
        }
        let set = FileSet::new(&folder.join("files"), self.shape(), 1);
        let making = Stopwatch::start();
        if !set.make(|| monitor.poll(making.seconds()))? {
            return Ok(None);
        }
        let log = folder.join("log");
        std::fs::create_dir_all(&folder).map_err(LabError::io(&folder))?;
        let steps = self.personality.steps();
        let thread = |number: u32, times: &Times| {
            let mut worker = Worker { set: &set, log: &log, random: Seeded::new(u64::from(number) + 1), open: None };
            let mut recorder = Recorder::default();
            let mut buffer = vec![0; IO_BYTES];
            worker.random.fill(&mut buffer);
            while !times.is_over() {
                for step in steps {
                    let Some(done) = worker.timed(*step, &mut buffer, times)? else { return Ok(recorder) };
                    done.record(&mut recorder, times);
                }
            }
            Ok(recorder)
        };
        run_threads(self.threads, self.seconds, &thread, monitor)
    }
}

/// Times of a run that its threads share.
pub struct Times {
    watch: Stopwatch,
    is_over: AtomicBool,
}

impl Times {
    /// Whether the threads are to end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Seconds since the threads began.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.watch.seconds()
    }
}

/// An operation that ended.
pub struct Done {
    /// Seconds from the beginning of the threads.
    pub begun: f64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl Done {
    /// Records the operation, if it began after the ramp.
    pub fn record(&self, recorder: &mut Recorder, times: &Times) {
        let now = times.seconds();
        let begun = self.begun - RAMP_SECONDS;
        if begun < 0.0 {
            return;
        }
        match (self.read_bytes, self.written_bytes) {
            (0, 0) => recorder.record_other(now - self.begun),
            (read, written) => recorder.record(now - RAMP_SECONDS, now - self.begun, read, written),
        }
    }
}

/// Runs threads for some seconds after the ramp, and joins what they recorded. `None` if the monitor stopped it.
///
/// # Errors
/// The first error of a thread.
pub fn run_threads(
    threads: u32,
    seconds: u64,
    thread: &(dyn Fn(u32, &Times) -> Result<Recorder, LabError> + Sync),
    monitor: &mut dyn Monitor,
) -> Result<Option<Round>, LabError> {
    let times = Times { watch: Stopwatch::start(), is_over: AtomicBool::new(false) };
    let all = RAMP_SECONDS + seconds as f64;
    let mut cpu_seconds = clock::cpu_seconds();
    let mut is_in_ramp = true;
    let mut is_stopped = false;
    let (recorded, measured) = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn({
                    let times = &times;
                    move || thread(number, times)
                })
            })
            .collect();
        while times.seconds() < all && !is_stopped && !running.iter().all(|thread| thread.is_finished()) {
            is_stopped = !monitor.poll(times.seconds());
            if is_in_ramp && times.seconds() >= RAMP_SECONDS {
                cpu_seconds = clock::cpu_seconds();
                is_in_ramp = false;
            }
            clock::sleep(POLL);
        }
        let measured = (times.seconds() - RAMP_SECONDS).max(0.0);
        times.is_over.store(true, Ordering::Relaxed);
        let join =
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (join.collect::<Vec<_>>(), measured)
    });
    let cpu_seconds = clock::cpu_seconds().zip(cpu_seconds).map(|(now, then)| now - then);
    let recorders = recorded.into_iter().collect::<Result<Vec<_>, _>>()?;
    if is_stopped {
        return Ok(None);
    }
    let mut round = recorders.into_iter().fold(Recorder::default(), Recorder::join).round(measured);
    round.client_cpu_seconds = cpu_seconds;
    Ok(Some(round))
}

/// A thread with the file that it has open.
struct Worker<'a> {
    set: &'a FileSet,
    log: &'a Path,
    random: Seeded,
    open: Option<(u64, File)>,
}

impl Worker<'_> {
    /// Carries out a step. `None` if the run ended while no file was free.
    fn timed(&mut self, step: Step, buffer: &mut [u8], times: &Times) -> Result<Option<Done>, LabError> {
        let taken = match step {
            Create | Open | Delete | Stat => match self.wait_for_file(step != Create, times) {
                Some(number) => number,
                None => return Ok(None),
            },
            _ => 0,
        };
        let begun = times.seconds();
        let mut read_bytes = 0;
        let mut written_bytes = 0;
        let path = self.set.path(taken);
        let of_path = LabError::io(&path);
        match step {
            Create => self.open = Some((taken, File::create(&path).map_err(of_path)?)),
            Open => {
                let file = File::options().read(true).append(true).open(&path).map_err(of_path)?;
                self.open = Some((taken, file));
            }
            Delete => {
                std::fs::remove_file(&path).map_err(of_path)?;
                self.set.give_back(taken, false);
            }
            Stat => {
                std::fs::metadata(&path).map_err(of_path)?;
                self.set.give_back(taken, true);
            }
            Log => {
                let file = File::options().append(true).create(true).open(self.log);
                let mut file = file.map_err(LabError::io(self.log))?;
                written_bytes = append(&mut file, &mut self.random, buffer).map_err(LabError::io(self.log))?;
            }
            WriteWhole | ReadWhole | Append | Fsync => {
                let Some((number, file)) = &mut self.open else {
                    return Ok(Some(Done { begun, read_bytes, written_bytes }));
                };
                let done = match step {
                    WriteWhole => write_whole(file, self.set.size(*number), &mut self.random, buffer),
                    Append => append(file, &mut self.random, buffer),
                    Fsync => file.sync_all().map(|()| 0),
                    _ => read_whole(file, buffer),
                };
                let bytes = done.map_err(LabError::io(&self.set.path(*number)))?;
                *(if step == ReadWhole { &mut read_bytes } else { &mut written_bytes }) = bytes;
            }
            Close => {
                if let Some((number, file)) = self.open.take() {
                    drop(file);
                    self.set.give_back(number, true);
                }
            }
        }
        Ok(Some(Done { begun, read_bytes, written_bytes }))
    }

    /// Takes a file; waits while all are in use.
    fn wait_for_file(&self, exists: bool, times: &Times) -> Option<u64> {
        loop {
            match self.set.take(exists) {
                Some(number) => return Some(number),
                None if times.is_over() => return None,
                None => clock::sleep(NO_FILE),
            }
        }
    }
}

/// Makes the content of a buffer differ from what it was, so that files do not deduplicate.
fn renew(random: &mut Seeded, buffer: &mut [u8]) {
    for block in buffer.chunks_mut(4096) {
        let len = block.len().min(8);
        random.fill(&mut block[..len]);
    }
}

fn write_whole(file: &mut File, bytes: u64, random: &mut Seeded, buffer: &mut [u8]) -> std::io::Result<u64> {
    let mut left = bytes;
    while left > 0 {
        let part = left.min(buffer.len() as u64) as usize;
        renew(random, &mut buffer[..part]);
        file.write_all(&buffer[..part])?;
        left -= part as u64;
    }
    Ok(bytes)
}

fn append(file: &mut File, random: &mut Seeded, buffer: &mut [u8]) -> std::io::Result<u64> {
    let bytes = 1 + random.below(APPEND_BYTES.min(buffer.len()));
    renew(random, &mut buffer[..bytes]);
    file.write_all(&buffer[..bytes])?;
    Ok(bytes as u64)
}

fn read_whole(file: &mut File, buffer: &mut [u8]) -> std::io::Result<u64> {
    let mut total = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::NeverStops;

    fn load(personality: Personality) -> MixLoad {
        MixLoad { personality, scale_percent: 2, threads: 3, seconds: 1 }
    }

    #[test]
    fn loops_have_the_published_operations() {
        let count = |steps: &[Step], wanted: Step| steps.iter().filter(|step| **step == wanted).count();
        assert_eq!((FILESERVER.len(), VARMAIL.len(), WEBSERVER.len()), (11, 13, 31));
        assert_eq!((count(VARMAIL, Fsync), count(WEBSERVER, ReadWhole), count(FILESERVER, Close)), (2, 10, 3));
        // Each file that is opened is closed before the next one, or the thread would leave it in use.
        for steps in [FILESERVER, VARMAIL, WEBSERVER] {
            let mut is_open = false;
            for step in steps {
                match step {
                    Create | Open => assert!(!std::mem::replace(&mut is_open, true)),
                    Close => assert!(std::mem::replace(&mut is_open, false)),
                    WriteWhole | ReadWhole | Append | Fsync => assert!(is_open),
                    Delete | Stat | Log => {}
                }
            }
            assert!(!is_open);
        }
    }

    #[test]
    fn mixes_read_write_and_do_the_rest_in_the_shares_of_their_loops() {
        for personality in [Personality::Fileserver, Personality::Varmail, Personality::Webserver] {
            let directory = tempfile::tempdir().unwrap();
            let round = load(personality).run(directory.path(), &mut NeverStops).unwrap().unwrap();
            let (read, written, other) = (round.read, round.written, round.other_operations);
            assert!(read.operations > 100 && written.operations > 10, "{personality:?}: {round:?}");
            let ratio = other as f64 / (read.operations + written.operations) as f64;
            // Operations without data: 8 of 11, 9 of 13, 20 of 31; loops that were cut off shift that a little.
            let steps = personality.steps();
            let with_data = steps.iter().filter(|step| matches!(step, ReadWhole | WriteWhole | Append | Log)).count();
            let expected = (steps.len() - with_data) as f64 / with_data as f64;
            assert!((ratio / expected - 1.0).abs() < 0.2, "{personality:?}: {ratio}, expected {expected}");
            assert!(round.client_cpu_seconds.unwrap() > 0.0 && round.latency.unwrap().mean_ns > 0.0);
        }
    }
}
