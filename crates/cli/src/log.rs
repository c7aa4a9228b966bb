//! The log of a program that keeps a pool open (`daemon`, `serve`, `mount`, `demo`): lines on standard error.
//!
//! `WEIR_LOG` selects what is logged, in the syntax of `tracing_subscriber::EnvFilter`: a level (`error`, `warn`,
//! `info`, `debug`, `trace`) or levels of single crates, such as `warn,weir_nfs=debug`. The default is `warn`; of the daemon it
//! is what its configuration says, else `info`.
//!
//! Lines have a time stamp. If systemd's journal reads them (`JOURNAL_STREAM` names the device and inode of standard error),
//! they have a priority instead, because the journal has the time: `<4>pool 'tank': io /dev/sda (3 times)`.

use rustix::fs::fstat;
use std::fmt;
use std::io::IsTerminal;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable that selects what is logged.
const FILTER_VARIABLE: &str = "WEIR_LOG";

/// Starts logging to standard error. Later calls change nothing.
pub fn start() {
    start_with("warn");
}

/// Starts the log of the daemon, which logs what `usual` says unless `WEIR_LOG` is set.
pub fn start_daemon(usual: &str) {
    start_with(usual);
}

fn start_with(usual: &str) {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
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
