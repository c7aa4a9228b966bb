//! The log of a program that keeps a pool open (`daemon`, `serve`, `mount`, `demo`): lines on standard error.
//!
//! `WEIR_LOG` selects what is logged, in the syntax of `tracing_subscriber::EnvFilter`: a level (`error`, `warn`,
//! `info`, `debug`, `trace`) or levels of single crates, such as `warn,weir_nfs=debug`. The default is `warn`; of the daemon it
//! is what its configuration says, else `info`.
//!
//! Lines have a time stamp. If systemd's journal reads them (`JOURNAL_STREAM` names the device and inode of standard error),
//! they have a priority instead, because the journal has the time: `<4>pool 'tank': io /dev/sda (3 times)`.

use rustix::fs::fstat;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;
use weir_machine::lock::Mutex;

/// Environment variable that selects what is logged.
const FILTER_VARIABLE: &str = "WEIR_LOG";

/// Last lines that are kept for the page.
const KEPT_LINES: usize = 500;
/// Lines that wait to be kept; more at once are written to standard error alone.
const WAITING_LINES: usize = 256;
/// Longest line that is kept, in bytes.
const MAX_LINE_BYTES: usize = 2048;

/// The last lines, kept by a thread of their own: a line is written while any lock may be held, so that none can be taken then.
struct LastLines {
    lines: Mutex<VecDeque<String>>,
    to: SyncSender<String>,
}

static LAST_LINES: OnceLock<LastLines> = OnceLock::new();

/// The last lines of the log, the oldest first.
pub fn last_lines() -> Vec<String> {
    LAST_LINES.get().map(|last| last.lines.lock().iter().cloned().collect()).unwrap_or_default()
}

/// Begins to keep the last lines.
#[allow(clippy::disallowed_methods, reason = "a log is written before there is a machine")]
fn keep_lines() {
    let (to, from) = sync_channel::<String>(WAITING_LINES);
    let is_first = LAST_LINES.set(LastLines { lines: Mutex::default(), to }).is_ok();
    let keep = move || {
        for line in from {
            let Some(last) = LAST_LINES.get() else { continue };
            let mut lines = last.lines.lock();
            if lines.len() == KEPT_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
            debug_assert!(lines.len() <= KEPT_LINES, "kept lines are bounded");
        }
    };
    if is_first {
        drop(std::thread::spawn(keep));
    }
}

/// Standard error, whose lines are kept, too.
struct KeptStderr;

impl Write for KeptStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(last) = LAST_LINES.get() {
            // A burst of more lines than wait is kept in part.
            let _kept = last.to.try_send(plain(&bytes[..bytes.len().min(MAX_LINE_BYTES)]));
        }
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A line without its end and without the colours of a terminal.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut parts = text.trim_end().split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// Starts logging to standard error. Later calls change nothing.
pub fn start() {
    start_with("warn");
}

/// Starts the log of the daemon, which logs what `usual` says unless `WEIR_LOG` is set.
pub fn start_daemon(usual: &str) {
    start_with(usual);
}

fn start_with(usual: &str) {
    let given = std::env::var(FILTER_VARIABLE).ok().filter(|given| !given.is_empty());
    let given = given.filter(|given| match check(given) {
        Ok(()) => true,
        Err(why) => {
            eprintln!("{FILTER_VARIABLE}: {why}; '{usual}' is used");
            false
        }
    });
    keep_lines();
    let filter = EnvFilter::new(given.as_deref().unwrap_or(usual));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| KeptStderr);
    // Each fails only if logging was started before.
    let _started = match is_journal() {
        true => lines.event_format(JournalFormat).try_init(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
}

/// Whether systemd's journal reads standard error.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr()).is_ok_and(|stat| format!("{}:{}", stat.st_dev, stat.st_ino) == stream)
}

/// Lines for the journal: the priority of syslog, then the message and its fields.
struct JournalFormat;

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Words that stand for a level in a filter.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks the filter of a log. The library takes a word that is no level for a part of the program, and then logs nothing else;
/// here it must be one of Weir's.
///
/// # Errors
/// The first directive that is wrong.
pub fn check(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let is_known = |word: &str| {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        let is_number = word.len() == 1 && word.bytes().all(|digit| matches!(digit, b'0'..=b'5'));
        is_level || is_number || word.starts_with("weir") || word.contains(['=', '['])
    };
    match filter.split(',').map(str::trim).find(|word| !is_known(word)) {
        Some(word) => Err(format!("'{word}' is no level (off, error, warn, info, debug, trace)")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{check, plain};

    #[test]
    fn kept_lines_have_no_colours() {
        assert_eq!(plain(b"\x1b[2m12:00\x1b[0m \x1b[33mWARN\x1b[0m a\xff\n"), "12:00 WARN a\u{fffd}");
        assert_eq!(plain(b""), "");
    }

    #[test]
    fn words_of_a_filter_are_levels() {
        for good in ["info", "WARN", "3", "info,weir_daemon=debug", "weir_nfs,off", "weir_engine[sync]=trace"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for wrong in ["infoo", "", "info,verbose", "info,", "6"] {
            assert!(check(wrong).unwrap_err().contains("is no level"), "{wrong}");
        }
        assert!(check("bogus=bogus").is_err());
    }
}
