//! Changes in memory until they are written to the log or have synced (OpenZFS `itxg_t`).
//!
//! Per group there is one list in the order of logging, which every commit writes, and a list per object of changes to
//! that object alone (`TX_OOO`), which only a commit of that object or of all writes: whoever makes one file stable does
//! not pay for the data of another. A commit moves such lists behind the common one: the object has been created by then.
//!
//! *What no record says.* After a change of whatever kind that was not logged, any record may need it: one of a name in a
//! directory that no record makes could not be replayed. So nothing that was logged behind it is handed out until its
//! group has synced.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::zil::{LogBody, NewRecord, WriteBody};
use weir_format::{BlockPointer, Endian, ObjectId, Txg};

/// The byte order of what this program writes.
pub(crate) const ENDIAN: Endian = Endian::Little;

/// What a change says.
#[derive(Clone, Debug)]
pub(crate) enum LogPayload {
    /// A whole record, but for its number.
    Record(Vec<u8>),
    /// A write, whose record is made when it is known how much fits.
    Write {
        offset: u64,
        length: u64,
        /// The data; read from the object when it is committed, if not kept.
        data: Option<Bytes>,
        /// The bytes of the object's blocks, if they are to go to their final place.
        in_place: Option<u64>,
    },
}

/// A change.
#[derive(Clone, Debug)]
pub(crate) struct Itx {
    pub txg: Txg,
    pub object: ObjectId,
    pub said: LogPayload,
}

impl Itx {
    /// Bytes of its record, and of its data, which may be parted.
    pub fn sizes(&self) -> (u64, u64) {
        match &self.said {
            LogPayload::Record(bytes) => (bytes.len() as u64, 0),
            LogPayload::Write { length, .. } => (WriteBody::RECORD_BYTES as u64, *length),
        }
    }
}

/// The record of a write to one block that lies in its final place; without its number.
pub(crate) fn placed_record(object: ObjectId, txg: Txg, offset: u64, length: u64, pointer: BlockPointer) -> Vec<u8> {
    let body = LogBody::Write(WriteBody { object, offset, length, block_offset: 0, pointer, data: None });
    NewRecord { body: &body, ignore_case: false, txg, seq: 0 }.encode(ENDIAN)
}

/// The record of a part of a write.
pub(crate) fn write_record(object: ObjectId, txg: Txg, seq: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let body = LogBody::Write(WriteBody {
        object,
        offset,
        length: data.len() as u64,
        block_offset: 0,
        pointer: BlockPointer::HOLE,
        data: Some(data),
    });
    NewRecord { body: &body, ignore_case: false, txg, seq }.encode(ENDIAN)
}

/// The changes of one group.
#[derive(Clone, Debug, Default)]
struct TxgItxs {
    common: Vec<Itx>,
    objects: BTreeMap<ObjectId, Vec<Itx>>,
    /// Something was changed that no record says: of an object, or (`None`) of whatever.
    unsaid: BTreeSet<Option<ObjectId>>,
    /// So many of `common` were there before the first change of whatever kind that no record says.
    before_unsaid: Option<usize>,
}

/// The changes of all groups that have not synced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists(BTreeMap<Txg, TxgItxs>);

impl Lists {
    /// A change that every commit writes.
    pub fn push_common(&mut self, entry: Itx) {
        self.0.entry(entry.txg).or_default().common.push(entry);
    }

    /// A change to one object alone.
    pub fn push_of_object(&mut self, entry: Itx) {
        self.0.entry(entry.txg).or_default().objects.entry(entry.object).or_default().push(entry);
    }

    /// A change that no record says.
    pub fn push_unsaid(&mut self, txg: Txg, object: Option<ObjectId>) {
        let group = self.0.entry(txg).or_default();
        group.unsaid.insert(object);
        if object.is_none() {
            group.before_unsaid.get_or_insert(group.common.len());
        }
    }

    /// The changes of this object that were logged so far are due with the names that are logged.
    pub fn settle(&mut self, object: ObjectId) {
        let unsaid = |group: &TxgItxs| group.unsaid.contains(&Some(object));
        let txgs: Vec<Txg> = self.0.iter().filter(|(_, group)| unsaid(group)).map(|(txg, _)| *txg).collect();
        txgs.into_iter().for_each(|txg| self.push_unsaid(txg, None));
        self.promote(Some(object));
    }

    /// Whether something is not logged that records may need.
    pub fn lacks(&self) -> bool {
        self.0.values().any(|group| group.before_unsaid.is_some())
    }

    /// The next commit writes the changes of this object, or of all.
    pub fn promote(&mut self, object: Option<ObjectId>) {
        for group in self.0.values_mut() {
            match object {
                Some(object) => group.common.extend(group.objects.remove(&object).unwrap_or_default()),
                None => group.common.extend(std::mem::take(&mut group.objects).into_values().flatten()),
            }
        }
    }

    /// The youngest group with a change that a commit of this object, or of all, cannot write.
    pub fn unsaid(&self, object: Option<ObjectId>) -> Option<Txg> {
        let concerns = |group: &TxgItxs| match object {
            Some(_) => group.unsaid.contains(&None) || group.unsaid.contains(&object),
            None => !group.unsaid.is_empty(),
        };
        self.0.iter().rev().find(|(_, group)| concerns(group)).map(|(txg, _)| *txg)
    }

    /// The changes to an object that is gone: its number may soon be another's.
    pub fn forget(&mut self, object: ObjectId) {
        for group in self.0.values_mut() {
            group.objects.remove(&object);
        }
    }

    /// All that is to be written, group by group.
    pub fn take(&mut self) -> Vec<Itx> {
        let mut out = Vec::new();
        for group in self.0.values_mut() {
            let Some(before) = &mut group.before_unsaid else {
                out.append(&mut group.common);
                continue;
            };
            out.extend(group.common.drain(..std::mem::take(before)));
            break;
        }
        out
    }

    /// Whether something is to be written.
    pub fn is_empty(&self) -> bool {
        for group in self.0.values() {
            match group.before_unsaid {
                Some(before) => return before == 0,
                None if !group.common.is_empty() => return false,
                None => {}
            }
        }
        true
    }

    /// The groups up to `txg` have synced.
    pub fn synced(&mut self, txg: Txg) {
        self.0 = self.0.split_off(&Txg(txg.0 + 1));
    }
}
