//! A command as it was called: its words, and the place where they were typed. The same command runs in the process that
//! was called, or in one that has the pool open ([`crate::admin`]): what it needs of the world it gets from here.

use crate::admin::Held;
use crate::failure::Failure;
use crate::locks;
use std::ffi::OsString;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use weir_daemon::admin::Caller;
use weir_machine::Machine;
use weir_pool::FoundPool;

/// What a command tells whoever called it.
pub enum Said {
    /// To standard output.
    Out(Vec<u8>),
    /// To standard error.
    Err(Vec<u8>),
    /// Something is wanted from standard input; where it goes.
    Ask(Input, Sender<Vec<u8>>),
}

/// What is wanted from standard input.
pub enum Input {
    /// A line, after this prompt.
    Line(String),
    /// All that there is, at most so many bytes; nothing where that is a terminal.
    Bytes(u32),
}

impl Input {
    /// Reads it from this process's own; empty if there is none.
    pub fn read(&self) -> Vec<u8> {
        match self {
            Input::Line(prompt) => secret(prompt),
            Input::Bytes(most) => secret_bytes(*most),
        }
    }
}

impl Said {
    /// Bytes of output.
    pub fn bytes(&self) -> usize {
        match self {
            Said::Out(bytes) | Said::Err(bytes) => bytes.len(),
            Said::Ask(..) => 0,
        }
    }
}

/// Where output goes.
enum Outlet {
    /// This process's own; kept back until it is sure that the command is done here.
    Own(Mutex<Option<Vec<Said>>>),
    /// A client's, and how many bytes wait to be sent to it.
    Client(UnboundedSender<Said>, Arc<AtomicUsize>),
}

/// Bytes that may wait for a client before a command with much to say waits itself.
const MOST_WAITING: usize = 1 << 20;
/// How often it looks whether they still do.
const LOOK: Duration = Duration::from_millis(5);

/// A command that is carried out.
pub struct Call {
    /// Who called.
    pub caller: Caller,
    outlet: Outlet,
    machine: OnceLock<Machine>,
    held: Option<Arc<Held>>,
    gone: Arc<AtomicBool>,
    noted: AtomicBool,
}

/// Says a line on the caller's standard output.
macro_rules! say {
    ($call:expr) => { $call.say(format_args!("\n")) };
    ($call:expr, $($text:tt)*) => { $call.say(format_args!("{}\n", format_args!($($text)*))) };
}

/// Says a line on the caller's standard error.
macro_rules! complain {
    ($call:expr, $($text:tt)*) => { $call.complain(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {complain, say};

/// Whose a pool is now.
pub enum Whose {
    /// Nobody's, or that of somebody who cannot be asked.
    Free,
    /// This process's.
    Ours(Arc<Held>),
    /// Another process's, which can be asked.
    Theirs(crate::admin::Elsewhere),
}

impl Call {
    /// A command that was called as this process.
    pub fn own(program: &str, words: Vec<OsString>) -> Self {
        let caller = Caller {
            program: program.to_owned(),
            words,
            folder: std::env::current_dir().unwrap_or_default(),
            dirs: std::env::var_os(crate::pools::DIRS_VARIABLE),
            ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            terminal: std::io::IsTerminal::is_terminal(&std::io::stderr()),
        };
        Call {
            caller,
            outlet: Outlet::Own(Mutex::new(Some(Vec::new()))),
            machine: OnceLock::new(),
            held: None,
            gone: Arc::default(),
            noted: AtomicBool::new(false),
        }
    }

    /// A client's command, to be carried out in this process. `gone` says that the client left.
    /// `waiting` counts the bytes that it said: whoever sends them on takes them off again.
    pub fn of_client(
        caller: Caller,
        held: Arc<Held>,
        to: UnboundedSender<Said>,
        gone: Arc<AtomicBool>,
        waiting: Arc<AtomicUsize>,
    ) -> Self {
        let machine = OnceLock::from(held.machine.clone());
        Call {
            caller,
            outlet: Outlet::Client(to, waiting),
            machine,
            held: Some(held),
            gone,
            noted: AtomicBool::new(false),
        }
    }

    /// What it runs on.
    pub fn machine(&self) -> Result<&Machine, Failure> {
        if self.machine.get().is_none() {
            // Another thread cannot be there: a call is one thread's.
            let _ = self.machine.set(weir_linux::machine()?);
        }
        self.machine.get().ok_or_else(|| Failure::failed("no machine"))
    }

    /// The pool that this process has open, if it has one.
    pub fn held(&self) -> Option<&Arc<Held>> {
        self.held.as_ref()
    }

    /// Whether the client left: what goes on for long ends then.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The command line, for the pool's history; empty after it was noted once.
    pub fn note(&self) -> String {
        if self.noted.load(Ordering::Relaxed) { String::new() } else { self.line() }
    }

    /// The line is in the history now.
    pub fn noted(&self) {
        self.noted.store(true, Ordering::Relaxed);
    }

    /// The command line, for the pool's history: keys in it are left out.
    pub fn line(&self) -> String {
        let words = self.caller.words.iter().map(|word| without_key(&word.to_string_lossy()));
        std::iter::once(self.caller.program.clone()).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// A path, as the caller means it.
    pub fn path(&self, given: impl AsRef<Path>) -> PathBuf {
        self.caller.folder.join(given)
    }

    /// Writes to the caller's standard output.
    pub fn say(&self, text: std::fmt::Arguments<'_>) {
        self.tell(Said::Out(text.to_string().into_bytes()));
    }

    /// Writes to the caller's standard error.
    pub fn complain(&self, text: std::fmt::Arguments<'_>) {
        self.tell(Said::Err(text.to_string().into_bytes()));
    }

    /// Writes bytes to the caller's standard output.
    pub fn write(&self, bytes: Vec<u8>) {
        self.tell(Said::Out(bytes));
    }

    /// Waits until the caller has taken most of what was said, or left: for commands whose output has no bound.
    pub async fn room(&self) {
        let (Outlet::Client(_, waiting), Some(machine)) = (&self.outlet, self.machine.get()) else { return };
        while waiting.load(Ordering::Relaxed) > MOST_WAITING && !self.is_gone() {
            machine.clock.sleep(LOOK).await;
        }
    }

    /// Asks the caller for a secret, without showing it where it is typed; `None` if there is none.
    pub fn ask(&self, input: Input) -> Option<Vec<u8>> {
        let (to, from) = channel();
        self.tell(Said::Ask(input, to));
        from.recv().ok().filter(|secret| !secret.is_empty())
    }

    fn tell(&self, said: Said) {
        match &self.outlet {
            // A client that left hears nothing more.
            Outlet::Client(to, waiting) => {
                waiting.fetch_add(said.bytes(), Ordering::Relaxed);
                drop(to.send(said));
            }
            Outlet::Own(kept) => match &mut *kept.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(kept) if !matches!(said, Said::Ask(..)) => kept.push(said),
                _ => show(&said),
            },
        }
    }

    /// From here on the command is done in this process: what was kept back is shown, and all that follows at once.
    pub fn begin(&self) {
        if let Outlet::Own(kept) = &self.outlet {
            let kept = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
            kept.into_iter().flatten().for_each(|said| show(&said));
        }
    }

    /// Whether something was done already.
    pub fn has_begun(&self) -> bool {
        match &self.outlet {
            Outlet::Own(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).is_none(),
            Outlet::Client(..) => true,
        }
    }

    /// Whose a pool is that was found.
    pub fn whose(&self, found: &FoundPool) -> Whose {
        if let Some(held) = &self.held {
            return if held.has(found) { Whose::Ours(held.clone()) } else { Whose::Free };
        }
        let holder = found.leaves().find_map(|device| locks::holder_of(&device.path));
        match holder.and_then(crate::admin::elsewhere) {
            Some(elsewhere) if !self.has_begun() => Whose::Theirs(elsewhere),
            _ => Whose::Free,
        }
    }
}

/// Shows what was said as this process's own.
pub fn show(said: &Said) {
    match said {
        Said::Out(bytes) => match std::io::stdout().write_all(bytes) {
            // As other programs end when their reader did.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
            _ => drop(std::io::stdout().flush()),
        },
        Said::Err(bytes) => drop(std::io::stderr().write_all(bytes)),
        // Whoever asked may have ended.
        Said::Ask(input, to) => drop(to.send(input.read())),
    }
}

/// At most so many bytes of standard input, if that is no terminal.
fn secret_bytes(most: u32) -> Vec<u8> {
    let (input, mut bytes) = (std::io::stdin(), Vec::new());
    if input.is_terminal() || input.lock().take(most.into()).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    bytes
}

/// A line of standard input without its end; nothing of it is shown where it is typed. Empty if there is none.
fn secret(prompt: &str) -> Vec<u8> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let input = std::io::stdin();
    let before = if input.is_terminal() { tcgetattr(&input).ok() } else { None };
    if let Some(before) = &before {
        eprint!("{prompt}");
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // A terminal that cannot be quiet is told the key all the same.
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

/// A word of a command line, with `…` in place of a key in hexadecimal digits (`--key DATASET=HEX`): the history is stored
/// unencrypted in the pool.
fn without_key(word: &str) -> String {
    match word.rsplit_once('=') {
        Some((option, value)) if is_hex_key(value) => format!("{option}=…"),
        _ => word.to_owned(),
    }
}

/// Whether a text is a key of 32 bytes in hexadecimal digits.
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
