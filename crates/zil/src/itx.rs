//! Intent log transactions (itx) in memory, until they are written to the log or have synced (OpenZFS `itxg_t`).
//!
//! Each txg has one list in the order of logging, which every commit writes, and one list per object of changes to that
//! object alone (`TX_OOO`), which only a commit of that object or of all objects writes. So a commit of one file does
//! not write the data of another. A commit appends such a list to the common one, because the record that created the
//! object is already there.
//!
//! *Gaps.* Some changes have no log record. Later records may depend on them: a name in a directory whose creation has
//! no record could not be replayed. So the records after such a change are withheld until its txg has synced.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::zil::{LogBody, NewRecord, WriteBody};
use weir_format::{BlockPointer, Endian, ObjectId, Txg};
use weir_machine::Origin;

/// Byte order of everything that this program writes.
pub(crate) const ENDIAN: Endian = Endian::Little;

/// Contents of an itx.
#[derive(Clone, Debug)]
pub(crate) enum LogPayload {
    /// A complete record except for its sequence number.
    Record(Vec<u8>),
    /// A write, whose record is built when the writer knows how much of it fits a block.
    Write {
        offset: u64,
        length: u64,
        /// Data of the write; if `None`, the commit reads it from the object.
        data: Option<Bytes>,
        /// Block size of the object in bytes, if the data goes to its final location (`WR_INDIRECT`).
        in_place: Option<u64>,
    },
}

/// A logged change (`itx_t`).
#[derive(Clone, Debug)]
pub(crate) struct Itx {
    pub txg: Txg,
    /// Origin of the change.
    pub writer: Origin,
    pub object: ObjectId,
    pub payload: LogPayload,
}

impl Itx {
    /// Bytes of the record, and bytes of its data, which may be split.
    pub fn sizes(&self) -> (u64, u64) {
        match &self.payload {
            LogPayload::Record(bytes) => (bytes.len() as u64, 0),
            LogPayload::Write { length, .. } => (WriteBody::RECORD_BYTES as u64, *length),
        }
    }
}

/// Record, without its sequence number, of a write to one block that is already in its final location.
pub(crate) fn placed_record(object: ObjectId, txg: Txg, offset: u64, length: u64, pointer: BlockPointer) -> Vec<u8> {
    let body = LogBody::Write(WriteBody { object, offset, length, block_offset: 0, pointer, data: None });
    NewRecord { body: &body, ignore_case: false, txg, seq: 0 }.encode(ENDIAN)
}

/// Record of a part of a write.
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

/// Itxs of one txg.
#[derive(Clone, Debug, Default)]
struct TxgItxs {
    common: Vec<Itx>,
    objects: BTreeMap<ObjectId, Vec<Itx>>,
    /// Changes without a record: of an object, or (`None`) of any kind.
    unlogged: BTreeSet<Option<ObjectId>>,
    /// Number of `common` itxs before the first change of any kind without a record.
    logged_before_gap: Option<usize>,
}

/// Itxs of all txgs that have not synced.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItxLists(BTreeMap<Txg, TxgItxs>);

impl ItxLists {
    /// Adds a change that every commit writes.
    pub fn push_common(&mut self, itx: Itx) {
        self.0.entry(itx.txg).or_default().common.push(itx);
    }

    /// Adds a change to one object alone.
    pub fn push_of_object(&mut self, itx: Itx) {
        self.0.entry(itx.txg).or_default().objects.entry(itx.object).or_default().push(itx);
    }

    /// Adds a change without a record.
    pub fn push_unlogged(&mut self, txg: Txg, object: Option<ObjectId>) {
        let itxs = self.0.entry(txg).or_default();
        itxs.unlogged.insert(object);
        if object.is_none() {
            itxs.logged_before_gap.get_or_insert(itxs.common.len());
        }
    }

    /// Orders the changes of this object logged so far before all names logged later.
    pub fn order_before_names(&mut self, object: ObjectId) {
        let unlogged = |itxs: &TxgItxs| itxs.unlogged.contains(&Some(object));
        let txgs: Vec<Txg> = self.0.iter().filter(|(_, itxs)| unlogged(itxs)).map(|(txg, _)| *txg).collect();
        txgs.into_iter().for_each(|txg| self.push_unlogged(txg, None));
        self.promote(Some(object));
    }

    /// Whether a change without a record may be needed by later records.
    pub fn has_gap(&self) -> bool {
        self.0.values().any(|itxs| itxs.logged_before_gap.is_some())
    }

    /// Moves the changes of this object, or of all, to the common lists, which the next commit writes.
    pub fn promote(&mut self, object: Option<ObjectId>) {
        for itxs in self.0.values_mut() {
            match object {
                Some(object) => itxs.common.extend(itxs.objects.remove(&object).unwrap_or_default()),
                None => itxs.common.extend(std::mem::take(&mut itxs.objects).into_values().flatten()),
            }
        }
    }

    /// Newest txg with a change that a commit of this object, or of all, cannot write.
    pub fn last_unlogged(&self, object: Option<ObjectId>) -> Option<Txg> {
        let concerns = |itxs: &TxgItxs| match object {
            Some(_) => itxs.unlogged.contains(&None) || itxs.unlogged.contains(&object),
            None => !itxs.unlogged.is_empty(),
        };
        self.0.iter().rev().find(|(_, itxs)| concerns(itxs)).map(|(txg, _)| *txg)
    }

    /// Drops the changes to an object that is gone, because its number may be reused.
    pub fn remove_async(&mut self, object: ObjectId) {
        for itxs in self.0.values_mut() {
            itxs.objects.remove(&object);
        }
    }

    /// Takes all itxs to be written, in the order of txgs.
    pub fn take(&mut self) -> Vec<Itx> {
        let mut out = Vec::new();
        for itxs in self.0.values_mut() {
            let Some(before) = &mut itxs.logged_before_gap else {
                out.append(&mut itxs.common);
                continue;
            };
            out.extend(itxs.common.drain(..std::mem::take(before)));
            break;
        }
        out
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        for itxs in self.0.values() {
            match itxs.logged_before_gap {
                Some(before) => return before == 0,
                None if !itxs.common.is_empty() => return false,
                None => {}
            }
        }
        true
    }

    /// Whether nothing is listed, not even changes that are not logged.
    pub fn has_no_txg(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops the itxs of the txgs up to `txg`, which have synced.
    pub fn synced(&mut self, txg: Txg) {
        self.0 = self.0.split_off(&Txg(txg.0 + 1));
    }
}
