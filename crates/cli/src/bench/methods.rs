//! Command lines of the methods, and how each becomes a plan.

use super::progress::Terminal;
use super::subject::Subject;
use super::{BenchArgs, BenchCommand, Common, failed, mixes, powercut, results, seconds, size};
use crate::args::CommandLine;
use crate::failure::{Failure, INTERRUPTED};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_lab::environment::Disk;
use weir_lab::methods::{self, Grid, bonnie, device, filebench, icf};
use weir_lab::native::frames::{FORMATS, RESOLUTIONS};
use weir_lab::native::services::Sample;
use weir_lab::plan::Plan;
use weir_lab::result::RunResult;
use weir_lab::session::{Options, Session};
use weir_lab::target::Target;
use weir_lab::{LabError, clock, run};

/// Smallest amount of test data by default.
const DEFAULT_BYTES: u64 = 1 << 30;

/// An overview in a minute: streams, random access, synchronous writes.
#[derive(Debug, Parser)]
#[command(name = "quick", override_usage = "weir bench quick TARGET [OPTION]…")]
pub struct QuickArgs {
    /// Directory, file, block device, dataset, nbd://…, iscsi://… or nfs://…; what holds data is only read, unless --overwrite
    target: String,
    /// Bytes of test data [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "7s", value_parser = seconds)]
    time: u64,
    #[command(flatten)]
    common: Common,
}

/// Streams of several clients with several threads each.
#[derive(Debug, Parser)]
#[command(name = "stream", override_usage = "weir bench stream TARGET [OPTION]…")]
pub struct StreamArgs {
    /// Directory, file, block device, dataset, nbd://…, iscsi://…, nfs://… or smb://…
    target: String,
    /// Clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    clients: u32,
    /// Threads of each client
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u32,
    /// Size of an operation
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = size)]
    block: u64,
    /// Write instead of reading
    #[arg(long)]
    write: bool,
    /// Bytes of test data over all threads [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Length of the measurement
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = seconds)]
    time: u64,
    #[command(flatten)]
    common: Common,
}

/// One user beside several, reading and writing streams.
#[derive(Debug, Parser)]
#[command(name = "users", override_usage = "weir bench users TARGET [OPTION]…")]
pub struct UsersArgs {
    /// Directory, file, block device, dataset, nbd://…, iscsi://…, nfs://… or smb://…
    target: String,
    /// Users at the same time
    #[arg(long, value_name = "N", default_value_t = 6)]
    users: u32,
    /// Bytes of test data over all users [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = seconds)]
    time: u64,
    #[command(flatten)]
    common: Common,
}

/// Block sizes by access patterns by queue depths, as IOMeter does.
#[derive(Debug, Parser)]
#[command(name = "grid", override_usage = "weir bench grid TARGET [OPTION]…")]
pub struct GridArgs {
    /// Directory, file, block device, dataset, nbd://…, iscsi://… or nfs://…; what holds data is only read, unless --overwrite
    target: String,
    /// Block sizes, separated by commas [default: 4K,8K,16K,32K]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    blocks: Vec<u64>,
    /// Operations in flight, separated by commas [default: 1,2,4,8,16,24,32]
    #[arg(long, value_name = "DEPTHS", value_delimiter = ',')]
    depths: Vec<u32>,
    /// Take patterns, times and depths from an access specification of IOMeter
    #[arg(long, value_name = "FILE")]
    icf: Option<PathBuf>,
    /// Bytes of test data [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Length of each point [default: 10s, or that of the access specification]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    time: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// GoBonnieGo's cycle: sequential write, sequential read, random operations.
#[derive(Debug, Parser)]
#[command(name = "loop", override_usage = "weir bench loop TARGET [OPTION]…")]
pub struct LoopArgs {
    /// Directory, dataset, file, block device, nbd://…, iscsi://… or nfs://…
    target: String,
    /// Bytes of test data [default: twice the memory, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Length of the random operations
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = seconds)]
    iops_time: u64,
    /// Print GoBonnieGo's JSON
    #[arg(long)]
    pub gobonniego_json: bool,
    #[command(flatten)]
    common: Common,
}

/// One thread that reads or writes pieces of 1 MiB; filebench's IO Summary.
#[derive(Debug, Parser)]
#[command(name = "singlestream", override_usage = "weir bench singlestream TARGET [OPTION]…")]
pub struct SinglestreamArgs {
    /// Directory, file, block device, dataset, nbd://…, iscsi://…, nfs://… or smb://…
    target: String,
    /// Write instead of reading
    #[arg(long)]
    write: bool,
    /// Flush after each write
    #[arg(long, requires = "write")]
    sync: bool,
    /// Bytes of test data [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Length of the measurement
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = seconds)]
    time: u64,
    #[command(flatten)]
    common: Common,
}

/// Film frames, one file each: written, then read.
#[derive(Debug, Parser)]
#[command(name = "frames", override_usage = "weir bench frames TARGET [OPTION]…")]
pub struct FramesArgs {
    /// Directory, or dataset
    target: String,
    /// Resolution: ntsc, pal, 720p, 1080p, 2k, 2k-full, uhd, 4k, 4k-full or 8k
    #[arg(long, value_name = "NAME", default_value = "1080p")]
    resolution: String,
    /// Pixel format: yuv8, yuv10, rgba8, rgb10, rgb12, rgb16 or rgba16
    #[arg(long, value_name = "NAME", default_value = "yuv10")]
    format: String,
    /// Bytes of all frames [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Listing of a directory with many entries and their attributes.
#[derive(Debug, Parser)]
#[command(name = "list", override_usage = "weir bench list DIRECTORY [OPTION]…")]
pub struct ListArgs {
    /// Directory
    target: String,
    /// Entries
    #[arg(long, value_name = "N", default_value_t = 4500, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Listings in each round
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    listings: u64,
    #[command(flatten)]
    common: Common,
}

/// Fitness of a disk as data, log or cache device. Writes over it.
#[derive(Debug, Parser)]
#[command(name = "device", override_usage = "weir bench device TARGET [OPTION]…")]
pub struct DeviceArgs {
    /// Block device, file, nbd://… or iscsi://…, with --overwrite; or a directory on it
    target: String,
    /// Bytes of test data [default: 1G, or a quarter of the room]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Length of each short measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds)]
    time: u64,
    /// Length of the sustained write
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = seconds)]
    sustained: u64,
    #[command(flatten)]
    common: Common,
}

/// Ratio and speed of compression, encryption and dedup on a sample of your data.
#[derive(Debug, Parser)]
#[command(name = "services", override_usage = "weir bench services SAMPLE [OPTION]…")]
pub struct ServicesArgs {
    /// File, or directory with files; it is only read
    target: String,
    /// Record size
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = size)]
    record: u64,
    /// Bytes of the sample at most
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    size: u64,
    #[command(flatten)]
    common: Common,
}

/// Runs a method.
pub fn run(args: &BenchArgs, words: &[String]) -> Result<u8, Failure> {
    let (target, common) = parts(&args.command)?;
    if let Some(folder) = &common.output {
        refuse_result(folder)?;
    }
    let subject = Subject::open(target, &common.pool)?;
    run_on(subject, args, words, None)
}

/// Measures a target, from the beginning or the rounds that a `former` run lacks, and closes it.
pub fn run_on(
    mut subject: Subject,
    args: &BenchArgs,
    words: &[String],
    former: Option<RunResult>,
) -> Result<u8, Failure> {
    let keeps = parts(&args.command)?.1.keep;
    let done = measure(args, words, &mut subject, former);
    // The target is closed whether it was measured or not; its first error counts.
    let closed = subject.close(keeps);
    let code = done?;
    closed.map(|()| code)
}

/// Measures an open target and prints the result.
fn measure(
    args: &BenchArgs,
    words: &[String],
    subject: &mut Subject,
    former: Option<RunResult>,
) -> Result<u8, Failure> {
    let (_, common) = parts(&args.command)?;
    let is_new = former.is_none();
    let words = former.as_ref().map_or(words, |former| &former.command).to_vec();
    let mut server = subject.server();
    let mut terminal = Terminal::new(0, 0, 0, &mut server)?;
    if !subject.prepare(&mut terminal)? {
        terminal.end();
        return Ok(INTERRUPTED);
    }
    let mut session = session(args, &words, subject)?;
    if let Some(former) = former {
        session.resume(former);
    }
    terminal.expect(common.rounds * session.steps());
    let complete = run::run(std::slice::from_mut(&mut session), common.rounds, &mut terminal).map_err(failed)?;
    terminal.end();
    results::print(&args.command, session.result(), &folder_of(&session), common.json && is_new)?;
    Ok(exit_code(session.result(), complete))
}

/// Refuses a directory that holds a result, which a new run would replace.
pub fn refuse_result(folder: &Path) -> Result<(), Failure> {
    let file = folder.join("result.json");
    if file.symlink_metadata().is_err() {
        return Ok(());
    }
    let folder = folder.display();
    let instead = match RunResult::read(&file) {
        Ok(result) if !result.complete => format!("'weir bench resume {folder}' measures what it lacks; "),
        _ => String::new(),
    };
    let text = format!("weir bench: {folder} holds a result: {instead}name another directory with -o, or remove it");
    Err(Failure::usage(text))
}

/// Exit code of a measurement: 130 if it was stopped, 1 if a server lost what it had promised.
pub fn exit_code(result: &RunResult, complete: bool) -> u8 {
    match complete {
        false => INTERRUPTED,
        true => u8::from(methods::powercut::has_broken_promise(result)),
    }
}

/// Opens the target of a method's command line.
pub fn subject(args: &BenchArgs) -> Result<Subject, Failure> {
    let (target, common) = parts(&args.command)?;
    Subject::open(target, &common.pool)
}

/// Prepares the session of a method's command line.
fn session(args: &BenchArgs, words: &[String], subject: &Subject) -> Result<Session, Failure> {
    let (target, common) = parts(&args.command)?;
    if common.rounds == 0 {
        return Err(BenchArgs::misused("--rounds begins at 1"));
    }
    let plan = plan(&args.command, common, target, &subject.target)?;
    let folder = common.output.clone().unwrap_or_else(|| default_folder(plan.method));
    open(plan, target, subject, common, folder, words)
}

/// Prepares a session.
pub fn open(
    plan: Plan,
    word: &str,
    subject: &Subject,
    common: &Common,
    folder: PathBuf,
    words: &[String],
) -> Result<Session, Failure> {
    let mut facts = subject.facts.clone();
    let holds_data = subject.target.holds_data();
    facts.insert(
        "content".to_owned(),
        if holds_data && !common.overwrite { "as found" } else { "incompressible, of this run" }.to_owned(),
    );
    let options = Options {
        folder,
        command: words.to_vec(),
        may_overwrite: common.overwrite,
        keeps_files: common.keep,
        measures_ceilings: !common.no_ceilings,
        facts,
    };
    Session::of_target(plan, word, subject.target.clone(), options).map_err(failed)
}

/// Directory of a session's results.
pub fn folder_of(session: &Session) -> PathBuf {
    session.folder().to_path_buf()
}

/// Target and common options of a method.
fn parts(command: &BenchCommand) -> Result<(&str, &Common), Failure> {
    if let Some(parts) = mixes::parts(command) {
        return Ok(parts);
    }
    Ok(match command {
        BenchCommand::Quick(args) => (&args.target, &args.common),
        BenchCommand::Stream(args) => (&args.target, &args.common),
        BenchCommand::Users(args) => (&args.target, &args.common),
        BenchCommand::Grid(args) => (&args.target, &args.common),
        BenchCommand::Loop(args) => (&args.target, &args.common),
        BenchCommand::Singlestream(args) => (&args.target, &args.common),
        BenchCommand::Frames(args) => (&args.target, &args.common),
        BenchCommand::List(args) => (&args.target, &args.common),
        BenchCommand::Device(args) => (&args.target, &args.common),
        BenchCommand::Services(args) => (&args.target, &args.common),
        BenchCommand::Powercut(args) => (&args.target, &args.common),
        _ => return Err(BenchArgs::misused("this command is no method")),
    })
}

/// The plan that a command line asks for.
fn plan(command: &BenchCommand, common: &Common, word: &str, target: &Target) -> Result<Plan, Failure> {
    if let Some(plan) = mixes::plan(command)? {
        return Ok(plan);
    }
    let room = target.room_bytes().map_err(failed)?;
    let reads_only = target.holds_data() && !common.overwrite;
    let bytes =
        |given: Option<u64>, wanted: u64| given.unwrap_or_else(|| room.map_or(wanted, |room| wanted.min(room / 4)));
    Ok(match command {
        BenchCommand::Quick(args) => methods::quick(bytes(args.size, DEFAULT_BYTES), args.time, reads_only),
        BenchCommand::Stream(args) => {
            let size = bytes(args.size, DEFAULT_BYTES);
            methods::stream(args.clients, args.threads, args.block, args.write, size, args.time).map_err(failed)?
        }
        BenchCommand::Users(args) => {
            methods::users(args.users, bytes(args.size, DEFAULT_BYTES), args.time).map_err(failed)?
        }
        BenchCommand::Grid(args) => {
            methods::grid(&grid(args)?, bytes(args.size, DEFAULT_BYTES), reads_only).map_err(failed)?
        }
        BenchCommand::Loop(args) => {
            let processors =
                std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
            bonnie::cycle(&bonnie::Cycle {
                size_bytes: bytes(
                    args.size,
                    weir_lab::environment::memory_bytes().unwrap_or(DEFAULT_BYTES).saturating_mul(2),
                ),
                threads: args.threads.unwrap_or(processors).max(1),
                iops_seconds: args.iops_time,
                operation_bytes: Disk::below(target)
                    .and_then(|disk| disk.logical_block_bytes())
                    .unwrap_or(512)
                    .max(512),
            })
        }
        BenchCommand::Singlestream(args) => {
            filebench::singlestream(args.write, args.sync, bytes(args.size, DEFAULT_BYTES), args.time)
        }
        BenchCommand::Frames(args) => {
            let frame_bytes = frame_bytes(args)?;
            methods::frames(frame_bytes, (bytes(args.size, DEFAULT_BYTES) / frame_bytes).max(2))
        }
        BenchCommand::List(args) => methods::list(args.entries.max(1), args.listings),
        BenchCommand::Device(args) => device::device(bytes(args.size, DEFAULT_BYTES), args.time, args.sustained),
        BenchCommand::Services(args) => {
            let record = usize::try_from(args.record)
                .ok()
                .filter(|bytes| (512..=16 << 20).contains(bytes) && bytes.is_power_of_two());
            let record = record.ok_or_else(|| ServicesArgs::misused("--record is a power of two from 512 to 16M"))?;
            let path = target.path().unwrap_or(Path::new(word));
            methods::services(&Arc::new(Sample::read(path, record, args.size).map_err(failed)?))
        }
        BenchCommand::Powercut(args) => powercut::plan(args)?,
        _ => return Err(BenchArgs::misused("this command is no method")),
    })
}

fn grid(args: &GridArgs) -> Result<Grid, Failure> {
    let mut grid = match &args.icf {
        Some(path) => {
            let text = std::fs::read(path).map_err(LabError::io(path)).map_err(failed)?;
            icf::parse(&path.display().to_string(), &String::from_utf8_lossy(&text)).map_err(failed)?
        }
        None => Grid::default(),
    };
    if !args.blocks.is_empty() {
        grid.blocks.clone_from(&args.blocks);
    }
    if !args.depths.is_empty() {
        grid.depths.clone_from(&args.depths);
    }
    grid.seconds = args.time.unwrap_or(grid.seconds);
    Ok(grid)
}

fn frame_bytes(args: &FramesArgs) -> Result<u64, Failure> {
    let resolution = RESOLUTIONS.iter().find(|(name, ..)| *name == args.resolution);
    let (_, width, height) =
        resolution.ok_or_else(|| FramesArgs::misused(&format!("unknown resolution '{}'", args.resolution)))?;
    let format = FORMATS.iter().find(|(name, _)| *name == args.format);
    let (_, format) = format.ok_or_else(|| FramesArgs::misused(&format!("unknown pixel format '{}'", args.format)))?;
    Ok(format.frame_bytes(*width, *height))
}

/// Name for a directory of results, in the working directory.
pub fn default_folder(method: &str) -> PathBuf {
    let time: String = clock::rfc3339(clock::unix_seconds()).chars().filter(char::is_ascii_alphanumeric).collect();
    PathBuf::from(format!("weir-bench-{method}-{time}"))
}
