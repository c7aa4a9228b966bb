//! Log records that cannot be replayed: the objects that they change, and the decision whether the log is kept for them.

use super::replay::object_of;
use std::collections::BTreeSet;
use std::fmt;
use weir_blocks::BlockError;
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::object_set::ObjectSet;
use weir_format::zil::{LogBody, LogRecord};
use weir_format::{ObjectId, Txg};

/// Most objects that [`GivenUp`] names.
pub const MAX_OBJECTS: usize = 10_000;

/// When records that cannot be replayed are given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GiveUp {
    /// If neither a missing device, nor free space, nor other software could bring them back.
    #[default]
    IfLost,
    /// In any case (`zpool import -m`).
    Always,
}

/// The first record that cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRecord {
    /// Its sequence number in the log.
    pub seq: u64,
    /// The txg in which the change was made first.
    pub txg: Txg,
    /// The name of its type: `TX_WRITE`.
    pub kind: &'static str,
    /// The object that it changes; of a change of names, the directory. 0 if the record cannot be decoded.
    pub object: ObjectId,
}

impl FailedRecord {
    pub(super) fn of(record: &LogRecord<'_>, body: Option<&LogBody<'_>>) -> Self {
        let object = body.and_then(|body| concerned(body).into_iter().flatten().next()).unwrap_or_default();
        FailedRecord { seq: record.seq, txg: record.txg, kind: record.tx_type.name(), object }
    }
}

/// Records of a log that are given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The first of them; `None` if it is in a log block that cannot be read.
    pub record: Option<FailedRecord>,
    /// Why it cannot be replayed.
    pub why: String,
    /// The block that cannot be read, or the object that cannot be changed; `None` if there is no such place.
    pub place: Option<ErrorLocation>,
    /// Number of records given up, of those that can be read.
    pub records: u64,
    /// The objects that these records change, at most [`MAX_OBJECTS`].
    pub objects: BTreeSet<ObjectId>,
}

impl GivenUp {
    pub(super) fn new(record: Option<FailedRecord>, error: &ObjectError) -> Self {
        GivenUp { record, why: error.to_string(), place: error.place(), records: 0, objects: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, body: &LogBody<'_>) {
        self.records += 1;
        for object in concerned(body).into_iter().flatten() {
            if self.objects.len() < MAX_OBJECTS {
                self.objects.insert(object);
            }
        }
    }
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.record {
            Some(FailedRecord { seq, txg, kind, object }) => {
                write!(f, "record {seq} ({kind}, object {object}, txg {txg}): {}", self.why)
            }
            None => f.write_str(&self.why),
        }
    }
}

/// The objects that a record changes; of a change of names, the directories.
fn concerned(body: &LogBody<'_>) -> [Option<ObjectId>; 2] {
    match body {
        LogBody::Create(create) => [Some(create.dir), None],
        LogBody::Remove { dir, .. } | LogBody::Link { dir, .. } => [Some(*dir), None],
        LogBody::Rename { source_dir, target_dir, .. } => [Some(*source_dir), Some(*target_dir)],
        body => [object_of(body), None],
    }
}

/// The decision on a log of which a record cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The records are given up.
    GiveUp,
    /// The log is kept until an administrator removes the cause.
    Keep {
        /// How to do that.
        remedy: String,
    },
    /// The log is kept, for this is no matter of its records.
    NotNow,
}

impl Verdict {
    /// The verdict on a record of `set` that failed with `error`.
    pub(super) fn on(error: &ObjectError, set: &ObjectSet, give_up: GiveUp) -> Verdict {
        const OTHERWISE: &str = "or give up these changes with 'zpool import -m'";
        let keep = |remedy: String| match give_up {
            GiveUp::IfLost => Verdict::Keep { remedy: format!("{remedy}, {OTHERWISE}") },
            GiveUp::Always => Verdict::GiveUp,
        };
        match error {
            ObjectError::NoKey { .. }
            | ObjectError::Key { .. }
            | ObjectError::Closed { .. }
            | ObjectError::ReadOnly { .. }
            | ObjectError::Suspended { .. }
            | ObjectError::Block { error: BlockError::ReadOnly | BlockError::ComputeLost, .. } => Verdict::NotNow,
            ObjectError::NoSpace { .. } | ObjectError::Quota { .. } => {
                keep("free space and open the dataset again".to_owned())
            }
            ObjectError::Block { error: BlockError::NoSpace { .. }, .. } => {
                keep("free space and open the dataset again".to_owned())
            }
            ObjectError::Unsupported { .. } | ObjectError::Block { error: BlockError::Unsupported { .. }, .. } => {
                keep("import the pool with OpenZFS, which can replay it".to_owned())
            }
            ObjectError::Block { .. }
            | ObjectError::Decode { .. }
            | ObjectError::Corrupt { .. }
            | ObjectError::Replay { unreadable: true, .. } => {
                let missing = missing_devices(set, error);
                if missing.is_empty() {
                    return Verdict::GiveUp;
                }
                let missing = missing.join(", ");
                keep(format!(
                    "devices are missing or cannot be written ({missing}): bring them back and import the pool again"
                ))
            }
            _ => Verdict::GiveUp,
        }
    }
}

/// The devices of the pool that do not answer. The block may be whole on one of them.
fn missing_devices(set: &ObjectSet, error: &ObjectError) -> Vec<String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    if let ObjectError::Block { error: BlockError::Missing { devices, .. }, .. } = error {
        names.extend(devices.iter().cloned());
    }
    let health = set.cache().blocks().tree().health();
    names.extend(health.into_iter().filter(|leaf| !leaf.present || leaf.counts.write_errors > 0).map(|leaf| leaf.name));
    names.into_iter().collect()
}
