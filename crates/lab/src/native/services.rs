//! Price and gain of data services on a sample of the user's own data: compression, encryption and deduplication.
//!
//! The sample is cut into records as a file system would store it. Each service is applied to all records in memory, by one thread and
//! the code that the pool uses; so the rates are those of one processor, without disks. Sizes are those that ZFS would allocate on
//! disks with sectors of 4 KiB: a compressed record that does not save an eighth is stored as it is, and sizes are rounded up to
//! sectors.

use crate::clock::Stopwatch;
use crate::error::LabError;
use crate::fio::Monitor;
use crate::result::{Flow, Round, Workload};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_codec::compress::ZstdLevel;
use weir_codec::crypt::{BlockCrypt, DatasetKey, IV_BYTES, MAC_BYTES, SALT_BYTES, Suite, WrappedKey, WrappingKey};
use weir_codec::{Salt, checksum, compress, decompress_into};
use weir_format::{ChecksumKind, CompressionKind, Endian, ObjectType};

/// Sector of the disks for which sizes are computed, in bytes.
const SECTOR_BYTES: usize = 4096;

/// Pattern of these loads in results.
pub const SERVICE: &str = "service";

/// Most files of a sample.
const MAX_FILES: usize = 100_000;

/// A data service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Checksum only, which every record gets.
    Off,
    /// Compression.
    Compression(CompressionKind),
    /// Encryption with aes-256-gcm.
    Encryption,
    /// Search for records that occur twice, by sha256.
    Dedup,
}

/// Services and their names, in the order of the method.
pub const SERVICES: [(&str, Service); 9] = [
    ("off", Service::Off),
    ("lz4", Service::Compression(CompressionKind::Lz4)),
    ("lzjb", Service::Compression(CompressionKind::Lzjb)),
    ("gzip-2", Service::Compression(CompressionKind::Gzip(2))),
    ("gzip", Service::Compression(CompressionKind::Gzip(6))),
    ("gzip-9", Service::Compression(CompressionKind::Gzip(9))),
    ("zstd", Service::Compression(CompressionKind::Zstd)),
    ("aes-256-gcm", Service::Encryption),
    ("dedup", Service::Dedup),
];

/// Records of a sample.
#[derive(Debug)]
pub struct Sample {
    records: Vec<Vec<u8>>,
    bytes: u64,
}

impl Sample {
    /// Reads at most `max_bytes` of a file, or of the files below a directory in the order of their names, as records.
    ///
    /// # Errors
    /// If nothing can be read.
    pub fn read(path: &Path, record_bytes: usize, max_bytes: u64) -> Result<Self, LabError> {
        let mut files = Vec::new();
        collect(path, &mut files)?;
        let mut sample = Self { records: Vec::new(), bytes: 0 };
        for path in files {
            // Files that vanish or may not be read are left out.
            let Ok(mut file) = std::fs::File::open(&path) else { continue };
            while sample.bytes < max_bytes {
                let room = record_bytes.min(usize::try_from(max_bytes - sample.bytes).unwrap_or(usize::MAX));
                let mut record = Vec::with_capacity(room);
                let read = file.by_ref().take(room as u64).read_to_end(&mut record);
                if read.is_err() || record.is_empty() {
                    break;
                }
                sample.bytes += record.len() as u64;
                sample.records.push(record);
            }
        }
        match sample.bytes {
            0 => Err(LabError::Target(format!("{}: no data for a sample", path.display()))),
            _ => Ok(sample),
        }
    }

    /// Bytes of the sample.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Files at or below a path, without following links.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), LabError> {
    let kind = std::fs::symlink_metadata(path).map_err(LabError::io(path))?;
    if kind.is_file() {
        files.push(path.to_path_buf());
    }
    if !kind.is_dir() {
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(LabError::io(path))?;
    let mut below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    below.sort();
    for entry in below {
        if files.len() >= MAX_FILES {
            break;
        }
        // A directory that may not be read is left out.
        let _ = collect(&entry, files);
    }
    Ok(())
}

/// Applies a service to a sample.
#[derive(Debug, Clone)]
pub struct ServiceLoad {
    /// Service.
    pub service: Service,
    /// Sample.
    pub sample: Arc<Sample>,
}

/// A stored record, with the code of authentication if it is encrypted.
struct Stored {
    bytes: Vec<u8>,
    is_compressed: bool,
    mac: [u8; MAC_BYTES],
}

impl ServiceLoad {
    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload {
            pattern: SERVICE.to_owned(),
            read_percent: 50,
            workers: 1,
            depth: 1,
            size_bytes: self.sample.bytes,
            ..Workload::default()
        }
    }

    /// Stores all records, then reads them back and compares. Figures: `stored_bytes`, `ratio` (logical to allocated), and bytes a second of each
    /// direction. `None` if the monitor stopped it.
    ///
    /// # Errors
    /// If a record does not come back as it was: the code of the service is defective.
    pub fn run(&self, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let key = dataset_key()?;
        let salt = Salt::none();
        let mut stored = Vec::with_capacity(self.sample.records.len());
        let mut allocated = 0_u64;
        let mut sums = BTreeSet::new();
        let watch = Stopwatch::start();
        for record in &self.sample.records {
            if !monitor.poll(watch.seconds()) {
                return Ok(None);
            }
            let kept = store(self.service, record, &key)?;
            let kind = if self.service == Service::Dedup { ChecksumKind::Sha256 } else { ChecksumKind::Fletcher4 };
            let sum = checksum(kind, Endian::Little, &salt, &kept.bytes).map_err(defect)?;
            let is_new = self.service != Service::Dedup || sums.insert(sum);
            if is_new {
                allocated += kept.bytes.len().next_multiple_of(SECTOR_BYTES) as u64;
            }
            stored.push(kept);
        }
        let write_seconds = watch.seconds();
        let mut buffer = Vec::new();
        for (record, kept) in self.sample.records.iter().zip(&mut stored) {
            if !monitor.poll(watch.seconds()) {
                return Ok(None);
            }
            checksum(ChecksumKind::Fletcher4, Endian::Little, &salt, &kept.bytes).map_err(defect)?;
            if load(self.service, kept, record.len(), &mut buffer, &key)? != record.as_slice() {
                return Err(LabError::Target(
                    "a record differs after it was stored and read: do not use this build".to_owned(),
                ));
            }
        }
        let read_seconds = watch.seconds() - write_seconds;
        let bytes = self.sample.bytes;
        let flow = Flow { bytes, operations: self.sample.records.len() as u64 };
        let mut round = Round { seconds: watch.seconds(), read: flow, written: flow, ..Round::default() };
        let plain: usize = self.sample.records.iter().map(|record| record.len().next_multiple_of(SECTOR_BYTES)).sum();
        round.figures.insert("stored_bytes".to_owned(), allocated as f64);
        round.figures.insert("ratio".to_owned(), plain as f64 / allocated.max(1) as f64);
        round.figures.insert("write_bytes_per_s".to_owned(), bytes as f64 / write_seconds.max(1e-9));
        round.figures.insert("read_bytes_per_s".to_owned(), bytes as f64 / read_seconds.max(1e-9));
        Ok(Some(round))
    }
}

/// The bytes that the pool would write for a record.
fn store(service: Service, record: &[u8], key: &DatasetKey) -> Result<Stored, LabError> {
    let plain = || Stored { bytes: record.to_vec(), is_compressed: false, mac: [0; MAC_BYTES] };
    match service {
        Service::Off | Service::Dedup => Ok(plain()),
        Service::Compression(kind) => {
            // A record that does not save an eighth is stored as it is.
            let mut output = vec![0; record.len() - record.len() / 8];
            let compressed = compress(kind, ZstdLevel::DEFAULT, record, &mut output).map_err(defect)?;
            Ok(compressed.map_or_else(plain, |bytes| {
                output.truncate(bytes);
                Stored { bytes: output, is_compressed: true, mac: [0; MAC_BYTES] }
            }))
        }
        Service::Encryption => {
            let mut kept = plain();
            kept.mac = key.encrypt(&parameters(), &mut kept.bytes).map_err(defect)?;
            Ok(kept)
        }
    }
}

/// A record from the bytes that were stored for it.
fn load<'a>(
    service: Service,
    kept: &'a mut Stored,
    logical_bytes: usize,
    buffer: &'a mut Vec<u8>,
    key: &DatasetKey,
) -> Result<&'a [u8], LabError> {
    match service {
        Service::Compression(kind) if kept.is_compressed => {
            buffer.resize(logical_bytes, 0);
            decompress_into(kind, &kept.bytes, buffer).map_err(defect)?;
            Ok(buffer)
        }
        Service::Encryption => {
            key.decrypt(&parameters(), &kept.mac, &mut kept.bytes).map_err(defect)?;
            Ok(&kept.bytes)
        }
        _ => Ok(&kept.bytes),
    }
}

/// Encryption parameters of every record: only the speed matters here, nothing is stored.
fn parameters() -> BlockCrypt {
    BlockCrypt {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        endian: Endian::Little,
        salt: [1; SALT_BYTES],
        iv: [2; IV_BYTES],
    }
}

fn dataset_key() -> Result<DatasetKey, LabError> {
    let wrapping = WrappingKey::from_raw(&[7; 32]).map_err(defect)?;
    let wrapped =
        WrappedKey::seal(&wrapping, Suite::Aes256Gcm, 1, [3; IV_BYTES], &[4; 32], &[5; 64]).map_err(defect)?;
    DatasetKey::unwrap(&wrapping, &wrapped).map_err(defect)
}

fn defect(error: weir_codec::CodecError) -> LabError {
    LabError::Target(format!("a service failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::NeverStops;
    use crate::statistics::Seeded;

    fn ratio(service: Service, sample: &Arc<Sample>) -> f64 {
        let load = ServiceLoad { service, sample: Arc::clone(sample) };
        load.run(&mut NeverStops).unwrap().unwrap().figures["ratio"]
    }

    #[test]
    fn services_show_their_gain_on_text_repetition_and_noise() {
        let dir = tempfile::tempdir().unwrap();
        let mut noise = vec![0; 512 << 10];
        Seeded::new(3).fill(&mut noise);
        std::fs::write(dir.path().join("a noise"), &noise).unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        std::fs::write(dir.path().join("below/the same noise"), &noise).unwrap();
        let sample = Arc::new(Sample::read(dir.path(), 128 << 10, 1 << 30).unwrap());
        assert_eq!(sample.bytes(), 1 << 20);
        assert_eq!(ratio(Service::Off, &sample), 1.0);
        assert_eq!(ratio(Service::Dedup, &sample), 2.0);
        assert_eq!(ratio(Service::Encryption, &sample), 1.0);
        assert_eq!(ratio(Service::Compression(CompressionKind::Lz4), &sample), 1.0);

        std::fs::write(dir.path().join("below/text"), "subject verb object. ".repeat(100_000)).unwrap();
        let text = Arc::new(Sample::read(&dir.path().join("below/text"), 128 << 10, 1 << 20).unwrap());
        assert_eq!(text.bytes(), 1 << 20);
        for (name, service) in SERVICES.iter().filter(|(_, service)| matches!(service, Service::Compression(_))) {
            assert!(ratio(*service, &text) > 2.0, "{name}");
        }
    }

    #[test]
    fn a_sample_without_data_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Sample::read(dir.path(), 4096, 4096).unwrap_err().to_string().contains("no data"));
    }
}
