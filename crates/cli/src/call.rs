//! An invocation of a command: its words, working directory, user, input and output.
//!
//! The same command runs in the process that was called or in the process that has the pool open ([`crate::admin`]).
//! Commands therefore reach the caller's standard streams and paths only through [`Call`].

use crate::admin::{Permit, ServedPool};
use crate::colors::Colors;
use crate::failure::Failure;
use crate::locks;
use crate::process::PoolProcess;
use crate::remote::RemoteProcess;
use futures_util::future::{Either, select};
use std::ffi::OsString;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use weir_daemon::admin::Caller;
use weir_machine::lock::Mutex;
use weir_machine::{Clock, Machine};
use weir_pool::FoundPool;

/// Environment variable with the places to look for pools if `-d` is missing: paths separated by colons.
pub const DIRS_VARIABLE: &str = "WEIR_POOL_DIRS";

/// One output of a command, or a request for input, for the command's caller.
pub enum Line {
    /// To standard output.
    Out(Vec<u8>),
    /// To standard error.
    Err(Vec<u8>),
    /// Request for input from standard input, and the channel for the answer.
    Ask(Input, Sender<Vec<u8>>),
}

/// Input requested from standard input.
pub enum Input {
    /// One line, after this prompt.
    Line(String),
    /// All bytes up to this maximum; none if standard input is a terminal.
    Bytes(u32),
}

impl Input {
    /// Reads the input from this process's standard input; empty if there is none.
    pub fn read(&self) -> Vec<u8> {
        match self {
            Input::Line(prompt) => secret(prompt),
            Input::Bytes(most) => secret_bytes(*most),
        }
    }
}

impl Line {
    /// Number of bytes of output.
    pub fn bytes(&self) -> usize {
        match self {
            Line::Out(bytes) | Line::Err(bytes) => bytes.len(),
            Line::Ask(..) => 0,
        }
    }
}

/// Destination of a command's output.
enum OutputSink {
    /// This process's standard streams. Output is buffered until it is certain that the command runs in this process.
    Own(Mutex<Option<Vec<Line>>>),
    /// A client's standard streams, and the number of bytes that wait to be sent to it.
    Client(UnboundedSender<Line>, Arc<AtomicUsize>),
}

/// Maximum number of bytes that wait for a client before [`Call::wait_for_output`] blocks.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Interval at which [`Call::wait_for_output`] checks the waiting bytes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which a command that waits checks whether its client disconnected.
const GONE_INTERVAL: Duration = Duration::from_millis(200);

/// A running command and its caller.
pub struct Call {
    /// Words, folder, user and environment of the caller.
    pub caller: Caller,
    sink: OutputSink,
    machine: OnceLock<Machine>,
    process: Option<Arc<PoolProcess>>,
    gone: Arc<AtomicBool>,
    output_lost: AtomicU8,
    noted: AtomicBool,
    sent: AtomicBool,
    /// The permit of a client's command.
    permit: Option<Arc<Permit>>,
}

/// Exit code of a program that SIGPIPE ended.
pub const READER_GONE: u8 = 141;

/// Prints a line on the caller's standard output.
macro_rules! outln {
    ($call:expr) => { $call.print(format_args!("\n")) };
    ($call:expr, $($text:tt)*) => { $call.print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line on the caller's standard error.
macro_rules! errln {
    ($call:expr, $($text:tt)*) => { $call.eprint(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {errln, outln};

/// The process that has a pool open.
pub enum PoolOwner {
    /// No process, or one that does not accept commands.
    Free,
    /// This process.
    Ours(Arc<ServedPool>),
    /// Another process, which accepts commands.
    Theirs(RemoteProcess),
}

impl Call {
    /// A command that a user called as this process.
    pub fn own(program: &str, words: Vec<OsString>) -> Self {
        let caller = Caller {
            program: program.to_owned(),
            words,
            folder: std::env::current_dir().unwrap_or_default(),
            dirs: std::env::var_os(DIRS_VARIABLE),
            ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            terminal: std::io::IsTerminal::is_terminal(&std::io::stderr()),
            colors: Colors::wanted().0,
        };
        Call {
            caller,
            sink: OutputSink::Own(Mutex::new(Some(Vec::new()))),
            machine: OnceLock::new(),
            process: None,
            gone: Arc::default(),
            output_lost: AtomicU8::new(0),
            noted: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            permit: None,
        }
    }

    /// A client's command that this process runs. `gone` is set when the client disconnects.
    /// `waiting` counts the bytes of output: the task that sends them subtracts them again.
    pub fn of_client(
        caller: Caller,
        process: Arc<PoolProcess>,
        to: UnboundedSender<Line>,
        gone: Arc<AtomicBool>,
        waiting: Arc<AtomicUsize>,
    ) -> Self {
        let machine = OnceLock::from(process.machine.clone());
        Call {
            caller,
            sink: OutputSink::Client(to, waiting),
            machine,
            process: Some(process),
            gone,
            output_lost: AtomicU8::new(0),
            noted: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            permit: None,
        }
    }

    /// This command, with a permit of the process that carries it out.
    pub fn with_permit(self, permit: Arc<Permit>) -> Self {
        Call { permit: Some(permit), ..self }
    }

    /// From here on the command waits: another one may run in its place.
    ///
    /// # Errors
    /// If the process that has the pool open has as many waiting commands as it allows.
    pub fn waits(&self) -> Result<(), Failure> {
        self.permit.as_ref().map_or(Ok(()), |permit| permit.waits())
    }

    /// Machine on which the command runs.
    pub fn machine(&self) -> Result<&Machine, Failure> {
        if self.machine.get().is_none() {
            // Setting it cannot race: a call is used by one thread.
            let _ = self.machine.set(crate::stores::machine()?);
        }
        self.machine.get().ok_or_else(|| Failure::failed("no machine"))
    }

    /// This process, if it has pools open and runs the command for another one.
    pub fn process(&self) -> Option<&Arc<PoolProcess>> {
        self.process.as_ref()
    }

    /// The pool of that name or GUID, if this process has it open.
    pub fn served_pool(&self, name: &str) -> Option<Arc<ServedPool>> {
        self.process.as_ref()?.named(name)
    }

    /// The pools that this process has open.
    pub fn served_pools(&self) -> Vec<Arc<ServedPool>> {
        self.process.as_ref().map(|process| process.all()).unwrap_or_default()
    }

    /// Whether the client disconnected. Commands that run until they are interrupted end then.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Runs `work` to its end. `None` if the client disconnects before: `work` is dropped, and the command can end, which
    /// releases its permit of the process that serves the pool.
    pub async fn unless_gone<T>(&self, clock: &Clock, work: impl Future<Output = T>) -> Option<T> {
        let gone = async {
            while !self.is_gone() {
                clock.sleep(GONE_INTERVAL).await;
            }
        };
        match select(pin!(work), pin!(gone)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    /// Records that another process has begun to carry out a part of the command.
    pub fn set_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// Whether a part of the command has been carried out, so that the command cannot be tried again from its beginning.
    pub fn has_effect(&self) -> bool {
        self.has_begun() || self.sent.load(Ordering::Relaxed)
    }

    /// Command line for the pool's history; empty after [`Call::noted`].
    pub fn note(&self) -> String {
        if self.noted.load(Ordering::Relaxed) { String::new() } else { self.line() }
    }

    /// Records that the command line is in the pool's history.
    pub fn noted(&self) {
        self.noted.store(true, Ordering::Relaxed);
    }

    /// Command line for the pool's history, without the keys in it.
    pub fn line(&self) -> String {
        let words = self.caller.words.iter().map(|word| without_key(&word.to_string_lossy()));
        std::iter::once(self.caller.program.clone()).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Resolves a path relative to the caller's working directory, without the components `.`.
    pub fn path(&self, given: impl AsRef<Path>) -> PathBuf {
        if weir_object_store::is_url_path(given.as_ref()) {
            return given.as_ref().to_owned();
        }
        self.caller.folder.join(given).components().collect()
    }

    /// Writes to the caller's standard output.
    pub fn print(&self, text: std::fmt::Arguments<'_>) {
        self.tell(Line::Out(text.to_string().into_bytes()));
    }

    /// Writes to the caller's standard error.
    pub fn eprint(&self, text: std::fmt::Arguments<'_>) {
        self.tell(Line::Err(text.to_string().into_bytes()));
    }

    /// Writes to the caller's standard error, also while other output is buffered.
    pub fn eprint_now(&self, text: std::fmt::Arguments<'_>) {
        let line = Line::Err(text.to_string().into_bytes());
        match &self.sink {
            OutputSink::Own(_) => show(&line),
            OutputSink::Client(..) => self.tell(line),
        }
    }

    /// Writes bytes to the caller's standard output. After an error [`Call::is_gone`] is true.
    pub fn write(&self, bytes: Vec<u8>) {
        if !matches!(self.sink, OutputSink::Own(_)) || !self.has_begun() {
            return self.tell(Line::Out(bytes));
        }
        // The command ends by itself: it has a pool open, which it must close.
        if !self.is_gone()
            && let Err(error) = put(&bytes)
        {
            self.output_lost.store(lost(&error), Ordering::Relaxed);
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Exit code of a command whose output could not be written; 0 if it was.
    pub fn output_lost(&self) -> u8 {
        self.output_lost.load(Ordering::Relaxed)
    }

    /// Waits until the caller has read most of the output or disconnected, for commands with unbounded output.
    pub async fn wait_for_output(&self) {
        let (OutputSink::Client(_, waiting), Some(machine)) = (&self.sink, self.machine.get()) else { return };
        while waiting.load(Ordering::Relaxed) > MAX_WAITING_BYTES && !self.is_gone() {
            machine.clock.sleep(POLL_INTERVAL).await;
        }
    }

    /// Asks the caller for a secret, without echo on a terminal; `None` if the caller enters nothing.
    pub fn ask(&self, input: Input) -> Option<Vec<u8>> {
        let (to, from) = channel();
        self.tell(Line::Ask(input, to));
        from.recv().ok().filter(|secret| !secret.is_empty())
    }

    fn tell(&self, line: Line) {
        match &self.sink {
            // Sending fails if the client disconnected, and the output is dropped.
            OutputSink::Client(to, waiting) => {
                waiting.fetch_add(line.bytes(), Ordering::Relaxed);
                drop(to.send(line));
            }
            OutputSink::Own(buffered) => match &mut *buffered.lock() {
                Some(buffered) if !matches!(line, Line::Ask(..)) => buffered.push(line),
                _ => show(&line),
            },
        }
    }

    /// Marks that the command runs in this process: prints the buffered output, and prints all further output directly.
    pub fn begin(&self) {
        if let OutputSink::Own(buffered) = &self.sink {
            let buffered = buffered.lock().take();
            buffered.into_iter().flatten().for_each(|line| show(&line));
        }
    }

    /// Drops the buffered output of a command that has not begun to run in this process.
    pub fn forget_output(&self) {
        if let OutputSink::Own(buffered) = &self.sink
            && let Some(lines) = &mut *buffered.lock()
        {
            lines.clear();
        }
    }

    /// Whether the command has begun to run in this process.
    pub fn has_begun(&self) -> bool {
        match &self.sink {
            OutputSink::Own(buffered) => buffered.lock().is_none(),
            OutputSink::Client(..) => true,
        }
    }

    /// Finds the process that runs a command about a scanned pool: another one only before the command has begun here.
    pub fn owner_of(&self, found: &FoundPool) -> PoolOwner {
        match self.holder_of(found) {
            PoolOwner::Theirs(_) if self.has_begun() => PoolOwner::Free,
            owner => owner,
        }
    }

    /// Finds the process that has a scanned pool open.
    pub fn holder_of(&self, found: &FoundPool) -> PoolOwner {
        if let Some(process) = &self.process {
            return process.find(found).map_or(PoolOwner::Free, PoolOwner::Ours);
        }
        let holder = found.leaves().find_map(|device| locks::holder_of(&device.path));
        holder.and_then(crate::admin::remote_process).map_or(PoolOwner::Free, PoolOwner::Theirs)
    }
}

/// Prints output on this process's standard streams, or answers a request for input from standard input.
pub fn show(line: &Line) {
    match line {
        Line::Out(bytes) => {
            if let Err(error) = put(bytes) {
                std::process::exit(lost(&error).into());
            }
        }
        Line::Err(bytes) => drop(std::io::stderr().write_all(bytes)),
        // The receiver is closed if the command ended meanwhile.
        Line::Ask(input, to) => drop(to.send(input.read())),
    }
}

fn put(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Says why standard output cannot be written, unless its reader has closed it. Returns the exit code.
fn lost(error: &std::io::Error) -> u8 {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        return READER_GONE;
    }
    eprintln!("cannot write to standard output: {error}");
    1
}

/// At most `most` bytes of standard input; empty if it is a terminal.
fn secret_bytes(most: u32) -> Vec<u8> {
    let input = std::io::stdin();
    let mut bytes = Vec::new();
    if input.is_terminal() || input.lock().take(most.into()).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    bytes
}

/// A line of standard input without its line end, read without echo on a terminal. Empty if there is none.
fn secret(prompt: &str) -> Vec<u8> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let input = std::io::stdin();
    let before = if input.is_terminal() { tcgetattr(&input).ok() } else { None };
    if let Some(before) = &before {
        eprint!("{prompt}");
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // If echo cannot be switched off, the key is read with echo.
        let _ = tcsetattr(&input, OptionalActions::Flush, &quiet);
    }
    let mut line = Vec::new();
    let read = input.lock().read_until(b'\n', &mut line);
    if let Some(before) = &before {
        let _ = tcsetattr(&input, OptionalActions::Flush, before);
        eprintln!();
    }
    if read.is_err() {
        return Vec::new();
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    line
}

/// A word of a command line, with `…` in place of a key in hexadecimal digits (`--key DATASET=HEX`): the history is
/// stored unencrypted in the pool.
fn without_key(word: &str) -> String {
    match word.rsplit_once('=') {
        Some((option, value)) if is_hex_key(value) => format!("{option}=…"),
        _ => word.to_owned(),
    }
}

/// Whether a text is a 32-byte key in hexadecimal digits.
pub fn is_hex_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_holds_no_keys() {
        let hex = "0123456789abcdef".repeat(4);
        let apart = format!("tank/a={hex}");
        let glued = format!("--key=tank/b={hex}");
        let words = ["snapshot", "--key", &apart, &glued, "-o", "a:b=c", "tank/a@s"];
        let call = Call::own("zfs", words.map(OsString::from).to_vec());
        assert_eq!(call.line(), "zfs snapshot --key tank/a=… --key=tank/b=… -o a:b=c tank/a@s");
    }
}
