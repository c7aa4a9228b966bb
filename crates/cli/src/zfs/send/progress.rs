//! What `zfs send` says of its streams: estimated sizes before, progress meanwhile (OpenZFS
//! `lib/libzfs/libzfs_sendrecv.c`, `send_print_verbose`, `send_progress_thread`).

use crate::call::{Call, errln, outln};
use crate::times;
use crate::zstream::token_text;
use futures_util::future::BoxFuture;
use std::time::{Duration, UNIX_EPOCH};
use weir_dsl::ResumeState;
use weir_dsl::props::human_size;
use weir_machine::{Machine, Nanos};
use weir_send::{Output, SendError};

/// Interval of the lines of progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Prints the estimates of a command.
pub struct Announcer<'a> {
    pub call: &'a Call,
    /// Exact numbers, separated by tabs (`-P`).
    pub parsable: bool,
    /// On standard output, since no stream follows (`-n`).
    pub to_output: bool,
}

impl Announcer<'_> {
    fn line(&self, text: &str) {
        if self.to_output { outln!(self.call, "{text}") } else { errln!(self.call, "{text}") }
    }

    /// Says what a stream is: full, or relative to `from`, and its estimated size.
    pub fn stream(&self, from: Option<&str>, to: &str, bytes: u64) {
        let text = match (from, self.parsable) {
            (Some(from), true) => format!("incremental\t{from}\t{to}\t{bytes}"),
            (None, true) => format!("full\t{to}\t{bytes}"),
            (from, false) => {
                let what = match from {
                    Some(from) if !from.contains(['@', '#']) => format!("send from @{from} to {to}"),
                    Some(from) => format!("send from {from} to {to}"),
                    None => format!("full send of {to}"),
                };
                if bytes == 0 { what } else { format!("{what} estimated size is {}", human_size(bytes)) }
            }
        };
        self.line(&text);
    }

    /// Says what a token holds.
    pub fn token(&self, state: &ResumeState) {
        token_text(state).lines().for_each(|line| self.line(line));
    }

    /// Says the size of all streams.
    pub fn total(&self, bytes: u64) {
        self.line(&match self.parsable {
            true => format!("size\t{bytes}"),
            false => format!("total estimated size is {}", human_size(bytes)),
        });
    }
}

/// The standard output of a command, with lines of progress on standard error.
pub struct CallOutput<'a> {
    call: &'a Call,
    machine: &'a Machine,
    progress: Option<Progress>,
}

/// Progress of one stream.
struct Progress {
    parsable: bool,
    snapshot: String,
    sent_bytes: u64,
    next: Nanos,
}

impl<'a> CallOutput<'a> {
    /// The output of `call`.
    pub fn new(call: &'a Call, machine: &'a Machine) -> Self {
        CallOutput { call, machine, progress: None }
    }

    /// Begins the lines of progress of the stream of a snapshot.
    pub fn begin(&mut self, snapshot: &str, parsable: bool) {
        if !parsable {
            errln!(self.call, "TIME        SENT   SNAPSHOT {snapshot}");
        }
        let next = self.machine.clock.now() + INTERVAL;
        self.progress = Some(Progress { parsable, snapshot: snapshot.to_owned(), sent_bytes: 0, next });
    }

    fn note(&mut self, bytes: usize) {
        let Some(progress) = &mut self.progress else { return };
        progress.sent_bytes += bytes as u64;
        if self.machine.clock.now() < progress.next {
            return;
        }
        progress.next = self.machine.clock.now() + INTERVAL;
        let since_1970 = self.machine.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = times::of_day(since_1970.as_secs());
        let Progress { snapshot, sent_bytes, .. } = progress;
        match progress.parsable {
            true => errln!(self.call, "{time}\t{sent_bytes}\t{snapshot}"),
            false => errln!(self.call, "{time}   {:>5}   {snapshot}", human_size(*sent_bytes)),
        }
    }
}

impl Output for CallOutput<'_> {
    fn put(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async move {
            self.note(bytes.len());
            self.call.write(bytes);
            self.call.wait_for_output().await;
            if self.call.is_gone() { Err(SendError::ReaderGone) } else { Ok(()) }
        })
    }
}

/// An output that counts bytes.
#[derive(Debug, Default)]
pub struct Counter {
    /// Bytes so far.
    pub bytes: u64,
}

impl Output for Counter {
    fn put(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SendError>> {
        self.bytes += bytes.len() as u64;
        Box::pin(async { Ok(()) })
    }
}
