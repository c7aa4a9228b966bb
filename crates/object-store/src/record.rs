//! The disk's record: the object `weir-disk.json` beside the data, which says how large the disk is and which process may
//! write it.
//!
//! ```text
//!   {"format":1,"size_bytes":…,"object_bytes":…,"conditional_delete":true,"epoch":7,
//!    "holder":{"host":"a","boot":"…","pid":4711,"started":…,"nonce":"…","renewal":12}}
//! ```
//!
//! `epoch` grows each time that a process takes the disk. Readers of the plain layout (nbdkit's S3 plugin) ignore the object.

use crate::url::OBJECT_BYTES;
use serde::{Deserialize, Serialize};

/// Key of the record.
pub const KEY: &str = "weir-disk.json";
/// Version of the format.
const FORMAT: u32 = 1;
/// Most bytes of a record that are decoded.
pub const MAX_BYTES: usize = 4096;

/// The record of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the format.
    pub format: u32,
    /// Size of the disk in bytes: a multiple of `object_bytes`.
    pub size_bytes: u64,
    /// Size of each object in bytes.
    pub object_bytes: u64,
    /// Whether the store deletes objects under a condition.
    pub conditional_delete: bool,
    /// How often a process has taken the disk for writing.
    pub epoch: u64,
    /// The process that may write; `None` if it has given the disk back.
    pub holder: Option<Holder>,
}

/// A process that may write a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Name of its host.
    pub host: String,
    /// Boot id of the host's kernel.
    pub boot: String,
    /// Process id.
    pub pid: u32,
    /// When the process started, in clock ticks since the boot.
    pub started: u64,
    /// Random number of this opening of the disk.
    pub nonce: u64,
    /// Number of renewals: each makes the record, and so its ETag, another one.
    pub renewal: u64,
}

impl Holder {
    /// Host and process, for messages.
    pub fn described(&self) -> String {
        format!("process {} on host '{}'", self.pid, self.host)
    }
}

impl Record {
    /// The record of a new disk, held by no process.
    pub fn new(size_bytes: u64, object_bytes: u64, conditional_delete: bool) -> Self {
        debug_assert!(size_bytes.is_multiple_of(object_bytes));
        Record { format: FORMAT, size_bytes, object_bytes, conditional_delete, epoch: 0, holder: None }
    }

    /// The bytes of the object.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes the object. Accepts nothing that another part of this crate could not work with.
    ///
    /// # Errors
    /// The reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("longer than {MAX_BYTES} bytes"));
        }
        let record: Record = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.format != FORMAT {
            return Err(format!("format {}; this version knows format {FORMAT}", record.format));
        }
        if !OBJECT_BYTES.contains(&record.object_bytes) || !record.object_bytes.is_power_of_two() {
            return Err(format!("objects of {} bytes", record.object_bytes));
        }
        if record.size_bytes == 0
            || record.size_bytes > 1 << 61
            || !record.size_bytes.is_multiple_of(record.object_bytes)
        {
            return Err(format!("a size of {} bytes", record.size_bytes));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_encoding_and_others_are_refused() {
        let mut record = Record::new(1 << 30, 1 << 20, true);
        record.holder =
            Some(Holder { host: "h".into(), boot: "b".into(), pid: 1, started: 2, nonce: u64::MAX, renewal: 3 });
        assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        for (broken, why) in [
            (Record { format: 2, ..record.clone() }, "format 2"),
            (Record { object_bytes: 3, ..record.clone() }, "objects of 3 bytes"),
            (Record { size_bytes: 5 << 10, ..record.clone() }, "a size of"),
            (Record { size_bytes: 0, ..record.clone() }, "a size of"),
        ] {
            assert!(Record::decode(&broken.encode()).unwrap_err().contains(why));
        }
        assert!(Record::decode(&[b' '; MAX_BYTES + 1]).is_err() && Record::decode(b"{}").is_err());
    }
}
