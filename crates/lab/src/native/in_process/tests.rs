//! The client and the frames on contents in memory.

use super::*;
use crate::native::NeverStops;
use crate::native::frames::FrameLoad;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

type Files = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A file system, or a volume, in memory.
struct InMemory {
    machine: Machine,
    files: Files,
    volume_bytes: Option<u64>,
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemory")
    }
}

struct InMemoryFile(Files, String);

impl InMemoryFile {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        work(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(self.1.clone()).or_default())
    }
}

impl Content for InMemoryFile {
    fn read(&self, offset: u64, len: usize) -> Answer<Bytes> {
        let read = self.with(|file| {
            let from = file.len().min(offset as usize);
            Bytes::copy_from_slice(&file[from..file.len().min(from + len)])
        });
        Box::pin(std::future::ready(Ok(read)))
    }

    fn write(&self, offset: u64, data: Bytes, _: bool) -> Answer<()> {
        self.with(|file| {
            let end = offset as usize + data.len();
            file.resize(file.len().max(end), 0);
            file[offset as usize..end].copy_from_slice(&data);
        });
        Box::pin(std::future::ready(Ok(())))
    }

    fn flush(&self) -> Answer<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Dataset for InMemory {
    fn name(&self) -> &str {
        "tank/films"
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn is_volume(&self) -> bool {
        self.volume_bytes.is_some()
    }

    fn room_bytes(&self) -> io::Result<u64> {
        Ok(self.volume_bytes.unwrap_or(1 << 30))
    }

    fn open(&self, file: &str, creates: bool) -> io::Result<Arc<dyn Content>> {
        let is_there = self.files.lock().unwrap().contains_key(file);
        if !is_there && !creates && !self.is_volume() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{file}: not found")));
        }
        let file = InMemoryFile(self.files.clone(), file.to_owned());
        file.with(|_| ());
        Ok(Arc::new(file))
    }

    fn remove_files(&self, prefix: &str) -> io::Result<()> {
        self.files.lock().unwrap().retain(|name, _| !name.starts_with(prefix));
        Ok(())
    }
}

fn in_memory(volume_bytes: Option<u64>) -> (InProcess, Files) {
    let files = Files::default();
    let machine = weir_linux::Production::default().build().unwrap();
    (InProcess(Arc::new(InMemory { machine, files: files.clone(), volume_bytes })), files)
}

#[test]
fn each_worker_has_a_file_which_is_removed_at_the_end() {
    let (dataset, files) = in_memory(None);
    let fill = Load { workers: 2, depth: 4, size_bytes: 2 << 20, ..Load::sequential(64 << 10, 0) };
    let round = dataset.run(&fill, &mut NeverStops).unwrap().unwrap();
    assert_eq!((round.written.bytes, round.written.operations), (2 << 20, 32));
    let sizes: Vec<(String, usize)> = files.lock().unwrap().iter().map(|(name, f)| (name.clone(), f.len())).collect();
    assert_eq!(sizes, [("weir-bench.0".to_owned(), 1 << 20), ("weir-bench.1".to_owned(), 1 << 20)]);
    files.lock().unwrap().insert("other".to_owned(), Vec::new());
    let reads = Load { read_percent: 100, ..fill };
    assert_eq!(dataset.run(&reads, &mut NeverStops).unwrap().unwrap().read.bytes, 2 << 20);
    dataset.remove_files().unwrap();
    assert_eq!(files.lock().unwrap().keys().collect::<Vec<_>>(), ["other"]);
    let text = dataset.run(&reads, &mut NeverStops).unwrap_err().to_string();
    assert_eq!(text, "tank/films: weir-bench.0: not found");
}

#[test]
fn a_file_that_ends_early_is_an_error() {
    let (dataset, files) = in_memory(None);
    files.lock().unwrap().insert("weir-bench.0".to_owned(), vec![1; 100_000]);
    let reads = Load { size_bytes: 256 << 10, ..Load::sequential(64 << 10, 100) };
    let text = dataset.run(&reads, &mut NeverStops).unwrap_err().to_string();
    assert!(text.contains("34464 of 65536 bytes were read at byte 65536"), "{text}");
}

#[test]
fn workers_of_a_volume_have_parts_within_its_size() {
    let (dataset, files) = in_memory(Some(1 << 20));
    let writes = Load { workers: 2, size_bytes: 1 << 20, ..Load::sequential(64 << 10, 0) };
    dataset.run(&writes, &mut NeverStops).unwrap().unwrap();
    assert!(files.lock().unwrap().values().all(|part| part.len() <= 1 << 20));
    assert!(files.lock().unwrap().values().any(|part| part.len() == 1 << 20), "the second part is behind the first");
    let more = Load { size_bytes: 2 << 20, ..writes };
    let text = dataset.run(&more, &mut NeverStops).unwrap_err().to_string();
    assert_eq!(text, "tank/films: the volume has 1048576 bytes, the load ends at byte 2097152");
    assert!(dataset.holds_data() && !in_memory(None).0.holds_data());
}

#[test]
fn the_ceiling_needs_no_data_and_stores_none() {
    let (dataset, files) = in_memory(None);
    for read_percent in [100, 0] {
        let load = Load { depth: 8, seconds: 1, size_bytes: 1 << 30, ..Load::random(4096, read_percent) };
        let round = dataset.ceiling(&load, &mut NeverStops).unwrap().unwrap();
        assert!(round.operations_per_s() > 10_000.0, "{}", round.operations_per_s());
    }
    assert!(files.lock().unwrap().is_empty());
}

#[test]
fn frames_are_files_that_are_written_and_read_as_a_whole() {
    let (dataset, files) = in_memory(None);
    let write = FrameLoad { frame_bytes: (2 << 20) + 5, frames: 3, writes: true };
    let round = write.run_on(&mut dataset.frames(), &mut NeverStops).unwrap().unwrap();
    assert_eq!((round.written.bytes, round.written.operations), (3 * ((2 << 20) + 5), 3));
    assert_eq!(files.lock().unwrap().keys().next().unwrap(), "weir-bench.frame.0000000");
    let read = FrameLoad { writes: false, ..write };
    let round = read.run_on(&mut dataset.frames(), &mut NeverStops).unwrap().unwrap();
    assert_eq!(round.read.operations, 3);
    let more = FrameLoad { frames: 4, ..read };
    let text = more.run_on(&mut dataset.frames(), &mut NeverStops).unwrap_err().to_string();
    assert!(text.contains("frame 3: weir-bench.frame.0000003: not found"), "{text}");
}
