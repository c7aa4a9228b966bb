//! Loads on a dataset of a pool that this process has open: no protocol, no mount, no kernel in between.
//!
//! ```text
//!   load: a thread for each worker ─▶ client: futures of the worker's operations ─▶ Content: a file, or the volume ─▶ engine
//!         next operation, latencies            polled on the worker's thread                   or none (ceiling)
//! ```
//!
//! The laboratory does not depend on the engine: the program that opens the pool implements [`Dataset`] and [`Content`]. A worker has a
//! file of its own in the root directory of the file system, or a part of the volume. Its operations run on its own thread, as
//! those of one of fio's jobs do; what the engine computes (checksums, compression, parity) runs on the engine's threads. A
//! write is copied once, as a system call copies it. One that is made stable ends when the intent log has it on stable storage.
//!
//! The client's own ceiling is measured with the same code on a content that answers at once and stores nothing.

mod client;

use super::carrier::Carrier;
use super::network::client::{file_name, seed};
use super::network::load::{Worker, run};
use super::network::{Operation, Pipeline};
use crate::error::LabError;
use crate::fio::Monitor;
use crate::load::{FILE_PREFIX, Load};
use crate::native::frames::FrameFiles;
use crate::result::Round;
use bytes::Bytes;
use client::{Client, Nothing};
use futures_util::future::BoxFuture;
use std::fmt;
use std::io;
use std::sync::Arc;
use weir_machine::Machine;

/// Most bytes of a frame in one operation.
const FRAME_PIECE_BYTES: usize = 1 << 20;

/// Result of an operation, when it ends.
pub type Answer<T> = BoxFuture<'static, io::Result<T>>;

/// Data of a worker: a file, or a volume.
pub trait Content: Send + Sync {
    /// Reads `len` bytes; fewer at the end of a file.
    fn read(&self, offset: u64, len: usize) -> Answer<Bytes>;

    /// Writes; if `is_stable`, it ends when the data are on stable storage.
    fn write(&self, offset: u64, data: Bytes, is_stable: bool) -> Answer<()>;

    /// Makes all earlier writes stable.
    fn flush(&self) -> Answer<()>;
}

/// A file system or volume of a pool that this process has open.
pub trait Dataset: fmt::Debug + Send + Sync {
    /// Name, with that of the pool.
    fn name(&self) -> &str;

    /// Machine on which the engine runs.
    fn machine(&self) -> &Machine;

    /// Whether it is a volume, whose data the loads overwrite.
    fn is_volume(&self) -> bool;

    /// Size of the volume, or room for new files, in bytes.
    ///
    /// # Errors
    /// If it cannot be read.
    fn room_bytes(&self) -> io::Result<u64>;

    /// Opens a file of the root directory, and makes it if it is missing and `creates`; of a volume, the volume.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be made.
    fn open(&self, file: &str, creates: bool) -> io::Result<Arc<dyn Content>>;

    /// Removes the files of the root directory whose names begin with `prefix`; none of a volume.
    ///
    /// # Errors
    /// If the directory cannot be read, or a file cannot be removed.
    fn remove_files(&self, prefix: &str) -> io::Result<()>;
}

/// Dataset as the target of a benchmark.
#[derive(Debug, Clone)]
pub struct InProcess(pub Arc<dyn Dataset>);

impl PartialEq for InProcess {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for InProcess {}

impl InProcess {
    fn failed(&self, error: &io::Error) -> LabError {
        LabError::Server { target: self.0.name().to_owned(), what: error.to_string() }
    }

    /// A client for each worker; with `nothing`, of contents that store nothing.
    fn workers(&self, load: &Load, nothing: Option<&Arc<Nothing>>) -> io::Result<Vec<Worker>> {
        let part_bytes = load.bytes_per_worker();
        let has_parts = self.0.is_volume();
        let open = |number: u32| {
            let content = match nothing {
                Some(nothing) => nothing.clone(),
                None => self.0.open(&file_name(number), load.writes())?,
            };
            let begin = if has_parts { u64::from(number) * part_bytes } else { 0 };
            let room = if has_parts && nothing.is_none() { self.0.room_bytes()? } else { u64::MAX };
            if begin.saturating_add(part_bytes) > room {
                let text = format!("the volume has {room} bytes, the load ends at byte {}", begin + part_bytes);
                return Err(io::Error::other(text));
            }
            Ok(Worker { client: Box::new(Client::new(self.0.machine().clone(), content)), begin })
        };
        (0..load.workers).map(open).collect()
    }

    /// The frames of a load, as files of the dataset.
    #[must_use]
    pub fn frames(&self) -> Frames<'_> {
        Frames { dataset: self, written: Vec::new() }
    }
}

impl Carrier for InProcess {
    fn client(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "weir {version}, in process: the engine's own calls, one thread for each worker, no protocol and no kernel in between"
        )
    }

    fn engine(&self) -> &'static str {
        "weir-in-process"
    }

    fn holds_data(&self) -> bool {
        self.0.is_volume()
    }

    fn room_bytes(&self) -> Result<Option<u64>, LabError> {
        self.0.room_bytes().map(Some).map_err(|error| self.failed(&error))
    }

    fn run(&self, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let done = self.workers(load, None).and_then(|workers| run(load, workers, seed(), monitor));
        done.map_err(|error| self.failed(&error))
    }

    fn ceiling_source(&self) -> &'static str {
        "the same client and load, on a content that answers at once and stores nothing"
    }

    fn ceiling(&self, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let nothing = Arc::new(Nothing::new(load.largest_block()));
        let done = self.workers(load, Some(&nothing)).and_then(|workers| run(load, workers, seed(), monitor));
        done.map_err(|error| self.failed(&error))
    }

    fn remove_files(&self) -> Result<(), LabError> {
        self.0.remove_files(&format!("{FILE_PREFIX}.")).map_err(|error| self.failed(&error))
    }
}

/// Frames in the root directory of a file system, written and read in pieces of 1 MiB, one after the other.
pub struct Frames<'a> {
    dataset: &'a InProcess,
    written: Vec<Client>,
}

impl Frames<'_> {
    fn open(&self, number: u64, creates: bool) -> Result<Client, LabError> {
        let name = format!("{FILE_PREFIX}.frame.{number:07}");
        let content = self.dataset.0.open(&name, creates);
        let content = content.map_err(|error| self.failed(number, &error))?;
        Ok(Client::new(self.dataset.0.machine().clone(), content))
    }

    fn failed(&self, number: u64, error: &io::Error) -> LabError {
        self.dataset.failed(&io::Error::new(error.kind(), format!("frame {number}: {error}")))
    }
}

impl FrameFiles for Frames<'_> {
    fn write(&mut self, number: u64, content: &[u8]) -> Result<(), LabError> {
        let mut client = self.open(number, true)?;
        for (piece, data) in (0..).zip(content.chunks(FRAME_PIECE_BYTES)) {
            let offset = piece * FRAME_PIECE_BYTES as u64;
            let done = client.execute(Operation::Write { offset, data, is_stable: false });
            done.map_err(|error| self.failed(number, &error))?;
        }
        self.written.push(client);
        Ok(())
    }

    fn read(&mut self, number: u64, buffer: &mut [u8]) -> Result<(), LabError> {
        let mut client = self.open(number, false)?;
        for (piece, part) in (0..).zip(buffer.chunks_mut(FRAME_PIECE_BYTES)) {
            let offset = piece * FRAME_PIECE_BYTES as u64;
            let done = client.execute(Operation::Read { offset, len: part.len(), keeps_data: true });
            part.copy_from_slice(&done.map_err(|error| self.failed(number, &error))?.data);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LabError> {
        for (number, client) in (0..).zip(&mut std::mem::take(&mut self.written)) {
            client.execute(Operation::Flush).map_err(|error| self.failed(number, &error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
