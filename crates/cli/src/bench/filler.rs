//! Files that fill a pool and fragment its free space while it is measured.

use super::prepare::Whole;
use super::progress::Terminal;
use crate::failure::Failure;
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::Engine;
use weir_files::{Cred, FileError, FileSystem, New, NewKind, Space, WriteAt};
use weir_format::ObjectId;
use weir_lab::clock::Stopwatch;
use weir_lab::statistics::Seeded;
use weir_lab::text;
use weir_machine::Request;
use weir_pool::PoolError;

/// Name of the dataset below the pool's root.
const FILLER: &str = "weir-bench-filler";
/// Parts of a pool's size that one bulk file has.
const PARTS: u64 = 256;
/// Most bytes of a file: files are removed as a whole.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Bytes of a write.
const PIECE_BYTES: u64 = 1 << 20;
/// Operations in flight.
const IN_FLIGHT: u64 = 8;
/// Bytes of random data, of which each write is a part. The dataset neither compresses nor deduplicates.
const VARIETY_BYTES: usize = 4 << 20;
/// Txgs until freed space is free: frees are deferred for two.
const SETTLING_TXGS: usize = 4;
/// Most entries of the directory.
const MAX_FILES: usize = 100_000;

/// A file of the filler.
#[derive(Clone, Debug)]
struct FillerFile {
    name: String,
    object: ObjectId,
    bytes: u64,
}

/// The filler of a pool.
pub struct Filler {
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    record_bytes: u64,
    bulk: Vec<FillerFile>,
    made: u64,
    random: Seeded,
    content: Bytes,
}

/// Name of the dataset in a pool.
pub fn name_in(engine: &Engine) -> String {
    format!("{}/{FILLER}", engine.name())
}

fn failed(error: FileError) -> Failure {
    Failure::failed(format!("weir bench: the files that fill the pool: {error}"))
}

/// Destroys the filler, if there is one. Its space is free some txgs later.
///
/// # Errors
/// If it cannot be destroyed.
pub async fn destroy(engine: &Engine) -> Result<(), PoolError> {
    let name = name_in(engine);
    let rq = &Request::internal("filler");
    if engine.synced().dsl_of(rq, &name).await?.find(rq, &name).await.is_err() {
        return Ok(());
    }
    engine.destroy_dataset(name).await
}

/// `recordsize` of the filler that an earlier benchmark left.
async fn found_record_bytes(engine: &Arc<Engine>) -> Result<Option<u64>, PoolError> {
    let rq = &Request::internal("filler");
    let name = name_in(engine);
    let dsl = engine.synced().dsl_of(rq, &name).await?;
    let Ok(dataset) = dsl.find(rq, &name).await else { return Ok(None) };
    let properties = dsl.properties(rq, &dataset, &engine.facts()).await?;
    let size = properties.iter().find(|property| property.name == "recordsize");
    Ok(Some(size.and_then(|size| size.text(true).parse().ok()).unwrap_or(0)))
}

/// Waits until freed space is free.
///
/// # Errors
/// If the pool fails.
pub async fn settle(engine: &Engine) -> Result<(), PoolError> {
    for _ in 0..SETTLING_TXGS {
        engine.sync().await?;
    }
    Ok(())
}

impl Filler {
    /// Opens the filler that an earlier benchmark left, or makes one without files. One with other records is destroyed first: its
    /// blocks are not those that this preparation makes.
    ///
    /// # Errors
    /// If the dataset cannot be made or read.
    pub async fn open(engine: &Arc<Engine>, record_bytes: u64) -> Result<Self, Failure> {
        let rq = &Request::internal("filler");
        let name = name_in(engine);
        if found_record_bytes(engine).await?.is_some_and(|found| found != record_bytes) {
            destroy(engine).await?;
            settle(engine).await?;
        }
        if found_record_bytes(engine).await?.is_none() {
            let number = |name: &str, value| (name.to_owned(), Value::Number(value));
            // compression, checksum and dedup: 2 is off, 7 fletcher4; primarycache: 1 is metadata.
            let properties = vec![
                number("recordsize", record_bytes),
                number("compression", 2),
                number("dedup", 2),
                number("primarycache", 1),
                number("atime", 0),
            ];
            let new = NewDataset { name: name.clone(), kind: Kind::FileSystem(FileSystemSpec::default()), properties };
            engine.create_dataset(new).await?;
        }
        let files = engine.file_system(rq, &name).await?;
        let mut content = vec![0; VARIETY_BYTES];
        let mut random = Seeded::new(engine.shown().config.guid);
        random.fill(&mut content);
        let mut bulk = Vec::new();
        let entries = files.directories().read_dir(rq, files.root(), 0, MAX_FILES).await.map_err(failed)?;
        let made = entries.len() as u64;
        for entry in entries.into_iter().filter(|entry| entry.name.starts_with(b"bulk.")) {
            let object = files.directories().lookup(rq, files.root(), &entry.name).await.map_err(failed)?;
            let bytes = files.attrs().get(rq, object).await.map_err(failed)?.size_bytes;
            bulk.push(FillerFile { name: String::from_utf8_lossy(&entry.name).into_owned(), object, bytes });
        }
        let content = Bytes::from(content);
        Ok(Self { engine: engine.clone(), files, record_bytes, bulk, made, random, content })
    }

    /// Bytes of the files that fill.
    pub fn bulk_bytes(&self) -> u64 {
        self.bulk.iter().map(|file| file.bytes).sum()
    }

    /// Bytes of a file: a whole number of pieces.
    fn file_bytes(&self) -> u64 {
        let size = self.engine.cache.blocks().space(weir_pool::Class::Normal).size_bytes;
        (size / PARTS).clamp(PIECE_BYTES, MAX_FILE_BYTES) / PIECE_BYTES * PIECE_BYTES
    }

    /// Data for a write; each write has other ones.
    fn data(&mut self, len: u64) -> Bytes {
        let len = len as usize;
        let from = self.random.below(VARIETY_BYTES - len + 1);
        let mut data = self.content.slice(from..from + len).to_vec();
        let number = self.random.next_u64().to_le_bytes();
        data.iter_mut().zip(number).for_each(|(byte, new)| *byte = new);
        Bytes::from(data)
    }

    /// Writes a file; `None` if the user stopped it.
    async fn write_file(
        &mut self,
        kind: &str,
        bytes: u64,
        done: u64,
        whole: &Whole,
        terminal: &mut Terminal<'_>,
    ) -> Result<Option<FillerFile>, Failure> {
        let rq = &Request::internal("filler");
        let name = format!("{kind}.{:07}", self.made);
        self.made += 1;
        let new = New::of(NewKind::Regular, 0o600);
        let root = self.files.root();
        let made = self.files.names().create(rq, &Cred::root(), root, name.as_bytes(), &new).await.map_err(failed)?;
        for from in (0..bytes).step_by((PIECE_BYTES * IN_FLIGHT) as usize) {
            if !whole.shows(done + from, terminal) {
                return Ok(None);
            }
            let end = bytes.min(from + PIECE_BYTES * IN_FLIGHT);
            let pieces: Vec<(u64, Bytes)> = (from..end)
                .step_by(PIECE_BYTES as usize)
                .map(|offset| (offset, self.data(PIECE_BYTES.min(end - offset))))
                .collect();
            let files = &self.files;
            let writes = pieces.into_iter().map(|(offset, data)| async move {
                files.contents().write(rq, &Cred::root(), made.object, WriteAt::Offset(offset), data).await
            });
            try_join_all(writes).await.map_err(failed)?;
        }
        Ok(Some(FillerFile { name, object: made.object, bytes }))
    }

    /// Writes bulk files; `false` if the user stopped it.
    ///
    /// # Errors
    /// If the pool fails or is full.
    pub async fn fill(&mut self, bytes: u64, what: &str, terminal: &mut Terminal<'_>) -> Result<bool, Failure> {
        let whole = Whole::new(what, bytes);
        let each = self.file_bytes();
        let mut done = 0;
        while done < bytes {
            let size = each.min(bytes - done).next_multiple_of(self.record_bytes);
            let Some(file) = self.write_file("bulk", size, done, &whole, terminal).await? else { return Ok(false) };
            self.bulk.push(file);
            done += size;
        }
        debug_assert!(done >= bytes, "all bytes are written");
        Ok(true)
    }

    /// Removes bulk files until this many bytes are removed; the last one may be cut.
    ///
    /// # Errors
    /// If the pool fails.
    pub async fn empty(&mut self, bytes: u64) -> Result<(), Failure> {
        let rq = &Request::internal("filler");
        let mut left = bytes;
        while left > 0 {
            let Some(file) = self.bulk.pop() else { break };
            if file.bytes > left {
                let range = file.bytes - left..file.bytes;
                let cut = self.files.contents().allocate(rq, &Cred::root(), file.object, range, Space::Punch).await;
                cut.map_err(failed)?;
                self.bulk.push(FillerFile { bytes: file.bytes - left, ..file });
                break;
            }
            let root = self.files.root();
            let removed = self.files.names().remove(rq, &Cred::root(), root, file.name.as_bytes()).await;
            removed.map_err(failed)?;
            left -= file.bytes;
        }
        Ok(())
    }

    /// Writes files and frees every second record of them, `bytes` in all; `false` if the user stopped it.
    ///
    /// # Errors
    /// If the pool fails or is full.
    pub async fn hole(&mut self, bytes: u64, what: &str, terminal: &mut Terminal<'_>) -> Result<bool, Failure> {
        let bytes = bytes.next_multiple_of(self.record_bytes);
        // Two bytes are written for each that is freed; a punch counts as its bytes.
        let whole = Whole::new(what, bytes * 3);
        let each = self.file_bytes();
        let mut written = Vec::new();
        let mut done = 0;
        while done < bytes * 2 {
            let size = each.min(bytes * 2 - done).next_multiple_of(self.record_bytes * 2);
            let Some(file) = self.write_file("holed", size, done, &whole, terminal).await? else { return Ok(false) };
            written.push(file);
            done += size;
        }
        // What is not on disk yet would never be allocated.
        self.engine.sync().await?;
        let rq = &Request::internal("filler");
        let record = self.record_bytes;
        for file in written {
            let holes: Vec<u64> = (0..file.bytes).step_by(2 * record as usize).collect();
            for some in holes.chunks(IN_FLIGHT as usize) {
                if !whole.shows(done, terminal) {
                    return Ok(false);
                }
                let files = &self.files;
                let punches = some.iter().map(|&from| async move {
                    files.contents().allocate(rq, &Cred::root(), file.object, from..from + record, Space::Punch).await
                });
                try_join_all(punches).await.map_err(failed)?;
                done += record * some.len() as u64;
            }
        }
        Ok(true)
    }

    /// Overwrites random records of the bulk files for a time. Returns the sentence about it for the result, `None` if the user stopped
    /// it.
    ///
    /// # Errors
    /// If the pool fails.
    pub async fn age(&mut self, seconds: u64, terminal: &mut Terminal<'_>) -> Result<Option<String>, Failure> {
        let rq = &Request::internal("filler");
        let record = self.record_bytes;
        let watch = Stopwatch::start();
        let mut overwritten = 0;
        while watch.seconds() < seconds as f64 && !self.bulk.is_empty() {
            let share = watch.seconds() / seconds as f64;
            if !terminal.shows("overwrite random records", share, Some(seconds as f64 - watch.seconds())) {
                return Ok(None);
            }
            let mut writes = Vec::new();
            for _ in 0..IN_FLIGHT {
                let number = self.random.below(self.bulk.len());
                let Some(file) = self.bulk.get(number).cloned() else { continue };
                let records = usize::try_from(file.bytes / record).unwrap_or(usize::MAX).max(1);
                let at = WriteAt::Offset(self.random.below(records) as u64 * record);
                writes.push((file.object, at, self.data(record)));
            }
            let files = &self.files;
            let writes = writes.into_iter().map(|(object, at, data)| async move {
                files.contents().write(rq, &Cred::root(), object, at, data).await
            });
            try_join_all(writes).await.map_err(failed)?;
            overwritten += record * IN_FLIGHT;
        }
        debug_assert!(overwritten.is_multiple_of(record), "whole records");
        let overwritten = text::bytes(overwritten as f64);
        Ok(Some(format!("{seconds} s: {overwritten} overwritten in random records of {}", text::block(record))))
    }
}
