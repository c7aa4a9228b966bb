//! Log records that cannot be replayed: the objects that they change, and the decision whether to keep the log for
//! them.

use std::collections::BTreeSet;
use std::fmt;
use weir_blocks::BlockError;
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::object_set::ObjectSet;
use weir_format::zil::{LogBody, LogRecord};
use weir_format::{ObjectId, Txg};

/// Maximum number of objects that [`GivenUp`] names.
pub const MAX_OBJECTS: usize = 10_000;

/// Policy for records that cannot be replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GiveUp {
    /// Give them up only if neither a missing device, nor free space, nor other software could bring them back.
    #[default]
    IfLost,
    /// Give them up in any case (`zpool import -m`).
    Always,
}

/// The first record that cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRecord {
    /// Sequence number in the log.
    pub seq: u64,
    /// Txg in which the change was first made.
    pub txg: Txg,
    /// Name of the record type, such as `TX_WRITE`.
    pub kind: &'static str,
    /// Object that the record changes; for a change of names, the directory. 0 if the record cannot be decoded.
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
    /// First of the records; `None` if it is in a log block that cannot be read.
    pub record: Option<FailedRecord>,
    /// Reason why it cannot be replayed.
    pub why: String,
    /// Block that cannot be read, or object that cannot be changed; `None` if there is no such location.
    pub place: Option<ErrorLocation>,
    /// Number of readable records that are given up.
    pub records: u64,
    /// Objects that these records change, at most [`MAX_OBJECTS`].
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

/// Objects that a record changes; for a change of names, the directories.
fn concerned(body: &LogBody<'_>) -> [Option<ObjectId>; 2] {
    match body {
        LogBody::Create(create) => [Some(create.dir), None],
        LogBody::Remove { dir, .. } | LogBody::Link { dir, .. } => [Some(*dir), None],
        LogBody::Rename { source_dir, target_dir, .. } => [Some(*source_dir), Some(*target_dir)],
        body => [object_of(body), None],
    }
}

/// Object of a record that changes only that object.
pub fn object_of(body: &LogBody<'_>) -> Option<ObjectId> {
    match body {
        LogBody::Write(write) | LogBody::Write2(write) => Some(write.object),
        LogBody::Truncate { object, .. }
        | LogBody::SetAttr { object, .. }
        | LogBody::AclV0 { object, .. }
        | LogBody::Acl { object, .. }
        | LogBody::SetSaXattr { object, .. }
        | LogBody::CloneRange { object, .. } => Some(*object),
        _ => None,
    }
}

/// Decision on a log that has a record that cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Give up the records.
    GiveUp,
    /// Keep the log until an administrator removes the cause.
    Keep {
        /// Instruction how to do that.
        remedy: String,
    },
    /// Keep the log, because the cause is not in its records.
    NotNow,
}

impl Verdict {
    /// Decides on a record of `set` that failed with `error`.
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

/// Devices of the pool that are missing or failed a write. The block may be intact on one of them.
fn missing_devices(set: &ObjectSet, error: &ObjectError) -> Vec<String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    if let ObjectError::Block { error: BlockError::Missing { devices, .. }, .. } = error {
        names.extend(devices.iter().cloned());
    }
    let health = set.cache().blocks().tree().health();
    names.extend(health.into_iter().filter(|leaf| !leaf.present || leaf.counts.write_errors > 0).map(|leaf| leaf.name));
    names.into_iter().collect()
}
