//! Encodes the records of one stream: the running checksum, and the joining of adjacent free records.
//!
//! FREE, FREEOBJECTS and REDACT records that continue the one before are joined, as OpenZFS joins them (`dump_free`,
//! `dump_freeobjects`, `dump_redact`), so that equal snapshots give equal streams.

use crate::running::RunningFletcher4;
use weir_format::stream::{
    Begin, CHECKED_BYTES, ObjectRecord, RECORD_BYTES, Record, RunningChecksum, SpillRecord, WriteRecord,
};
use weir_format::{BlockPointer, Endian, ObjectId};

/// Length of a FREE record that reaches to the end of the object (`DMU_OBJECT_END`).
pub const TO_THE_END: u64 = u64::MAX;

/// Encryption parameters of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CryptParameters {
    /// Salt; zero for a block that is authenticated only.
    pub salt: [u8; 8],
    /// IV; zero for a block that is authenticated only.
    pub iv: [u8; 12],
    /// MAC.
    pub mac: [u8; 16],
}

impl CryptParameters {
    /// The parameters in a pointer (`zio_crypt_decode_params_bp`, `zio_crypt_decode_mac_bp`).
    pub fn of(pointer: &BlockPointer) -> Self {
        match pointer.is_encrypted() {
            true => CryptParameters { salt: pointer.crypt_salt(), iv: pointer.crypt_iv(), mac: pointer.crypt_mac() },
            false => CryptParameters { mac: pointer.crypt_mac(), ..CryptParameters::default() },
        }
    }
}

/// Encodes a stream into a buffer, from which the caller takes the bytes.
#[derive(Debug)]
pub struct StreamEncoder {
    out: Vec<u8>,
    sum: RunningFletcher4,
    /// A record that the next one may continue.
    pending: Option<Record>,
    to_guid: u64,
    total_bytes: u64,
}

impl StreamEncoder {
    /// An encoder of a stream of the snapshot with this GUID.
    pub fn new(to_guid: u64) -> Self {
        StreamEncoder { out: Vec::new(), sum: RunningFletcher4::default(), pending: None, to_guid, total_bytes: 0 }
    }

    /// The encoded bytes that have not been taken.
    pub fn waiting_bytes(&self) -> usize {
        self.out.len()
    }

    /// Bytes encoded so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Takes the encoded bytes.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn record(&mut self, record: &Record, payload: &[u8]) {
        let mut bytes = record.encode(Endian::Little, [0; 4]);
        debug_assert_eq!(bytes.len(), RECORD_BYTES, "records have one size");
        debug_assert_eq!(record.payload_len().ok(), Some(payload.len()), "the record says how long its payload is");
        let (checked, tail) = bytes.split_at_mut(CHECKED_BYTES);
        self.sum.update(checked, Endian::Little);
        // The name of BEGIN reaches into the checksum's place.
        if !matches!(record, Record::Begin(_)) {
            tail.iter_mut()
                .zip(self.sum.value().iter().flat_map(|word| word.to_le_bytes()))
                .for_each(|(to, b)| *to = b);
        }
        self.sum.update(tail, Endian::Little);
        self.sum.update(payload, Endian::Little);
        self.total_bytes += (bytes.len() + payload.len()) as u64;
        self.out.append(&mut bytes);
        self.out.extend_from_slice(payload);
    }

    fn flush(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.record(&pending, &[]);
        }
    }

    /// BEGIN with its packed nvlist.
    pub fn begin(&mut self, begin: Begin, list: &[u8]) {
        self.record(&Record::Begin(begin), list);
    }

    /// OBJECT with its bonus area, and the FREE of everything after `end_bytes`.
    pub fn object(&mut self, object: ObjectRecord, bonus: &[u8], end_bytes: u64) {
        self.flush();
        let id = object.object;
        let mut padded = bonus.to_vec();
        padded.resize(bonus.len().next_multiple_of(8), 0);
        self.record(&Record::Object(ObjectRecord { to_guid: self.to_guid, ..object }), &padded);
        self.free(id, end_bytes, TO_THE_END);
    }

    /// WRITE with its block.
    pub fn write(&mut self, write: WriteRecord, block: &[u8]) {
        self.flush();
        self.record(&Record::Write(WriteRecord { to_guid: self.to_guid, ..write }), block);
    }

    /// SPILL with its block.
    pub fn spill(&mut self, spill: SpillRecord, block: &[u8]) {
        self.flush();
        self.record(&Record::Spill(SpillRecord { to_guid: self.to_guid, ..spill }), block);
    }

    /// OBJECT_RANGE: the encryption parameters of a block of dnodes.
    pub fn object_range(&mut self, first: ObjectId, slots: u64, crypt: CryptParameters) {
        self.flush();
        let CryptParameters { salt, iv, mac } = crypt;
        let record = Record::ObjectRange { first, slots, to_guid: self.to_guid, salt, iv, mac, flags: 0 };
        self.record(&record, &[]);
    }

    /// WRITE_EMBEDDED; `record` has the GUID 0.
    pub fn embedded(&mut self, record: Record, payload: &[u8]) {
        self.flush();
        let mut padded = payload.to_vec();
        padded.resize(payload.len().next_multiple_of(8), 0);
        let mut record = record;
        if let Record::WriteEmbedded { to_guid, .. } = &mut record {
            *to_guid = self.to_guid;
        }
        self.record(&record, &padded);
    }

    /// FREE of a range of an object.
    pub fn free(&mut self, object: ObjectId, offset: u64, length: u64) {
        if let Some(Record::Free { object: before, offset: start, length: so_far, .. }) = &mut self.pending
            && *before == object
            && start.checked_add(*so_far) == Some(offset)
        {
            *so_far = match offset.checked_add(length) {
                Some(_) if length != TO_THE_END => *so_far + length,
                _ => TO_THE_END,
            };
            return;
        }
        self.flush();
        let to_end = length == TO_THE_END || offset.checked_add(length).is_none();
        let record =
            Record::Free { object, offset, length: if to_end { TO_THE_END } else { length }, to_guid: self.to_guid };
        if length == TO_THE_END {
            self.record(&record, &[]);
        } else {
            self.pending = Some(record);
        }
    }

    /// REDACT of a range of an object: its data is left out.
    pub fn redact(&mut self, object: ObjectId, offset: u64, length: u64) {
        if let Some(Record::Redact { object: before, offset: start, length: so_far, .. }) = &mut self.pending
            && *before == object
            && start.checked_add(*so_far) == Some(offset)
        {
            *so_far = so_far.saturating_add(length);
            return;
        }
        self.flush();
        self.pending = Some(Record::Redact { object, offset, length, to_guid: self.to_guid });
    }

    /// FREEOBJECTS of a range of object numbers.
    pub fn free_objects(&mut self, first: ObjectId, count: u64) {
        if let Some(Record::FreeObjects { first: start, count: so_far, .. }) = &mut self.pending
            && start.0.checked_add(*so_far) == Some(first.0)
        {
            *so_far = so_far.saturating_add(count);
            return;
        }
        self.flush();
        self.pending = Some(Record::FreeObjects { first, count, to_guid: self.to_guid });
    }

    /// END. The encoder may begin another stream after it.
    pub fn end(&mut self) {
        self.flush();
        let checksum = self.sum.value();
        self.record(&Record::End { checksum, to_guid: self.to_guid }, &[]);
        self.sum.reset();
    }
}

/// The head of a package of streams: BEGIN with its packed nvlist, and an END without a running checksum of its own
/// (`send_prelim_records` in OpenZFS's `lib/libzfs/libzfs_sendrecv.c`).
pub fn package_head(begin: Begin, list: &[u8]) -> Vec<u8> {
    let mut encoder = StreamEncoder::new(0);
    encoder.begin(begin, list);
    let checksum = encoder.sum.value();
    let mut out = encoder.take();
    out.extend(Record::End { checksum, to_guid: 0 }.encode(Endian::Little, [0; 4]));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::stream::StreamReader;

    #[test]
    fn adjacent_records_are_joined() {
        let mut encoder = StreamEncoder::new(7);
        encoder.begin(
            Begin {
                header_type: 1,
                features: 4,
                creation_time_s: 5,
                objset_type: 2,
                flags: 12,
                to_guid: 7,
                from_guid: 0,
                to_name: b"tank@a".to_vec(),
                payload_len: 0,
            },
            &[],
        );
        encoder.free(ObjectId(3), 0, 512);
        encoder.free(ObjectId(3), 512, 1024);
        encoder.free(ObjectId(4), 1536, 512);
        encoder.free_objects(ObjectId(5), 1);
        encoder.free_objects(ObjectId(6), 26);
        encoder.redact(ObjectId(40), 512, 512);
        encoder.redact(ObjectId(40), 1024, 1024);
        encoder.redact(ObjectId(41), 2048, 512);
        encoder.end();
        let bytes = encoder.take();
        let items: Vec<_> =
            StreamReader::new(&bytes, RunningFletcher4::default()).unwrap().map(|i| i.unwrap()).collect();
        assert!(items.iter().all(|item| item.checksum_holds()));
        assert!(items[1..].iter().all(|item| item.stored != [0; 4]));
        let records: Vec<_> = items.into_iter().map(|item| item.record).skip(1).collect();
        assert_eq!(
            records[..5],
            [
                Record::Free { object: ObjectId(3), offset: 0, length: 1536, to_guid: 7 },
                Record::Free { object: ObjectId(4), offset: 1536, length: 512, to_guid: 7 },
                Record::FreeObjects { first: ObjectId(5), count: 27, to_guid: 7 },
                Record::Redact { object: ObjectId(40), offset: 512, length: 1536, to_guid: 7 },
                Record::Redact { object: ObjectId(41), offset: 2048, length: 512, to_guid: 7 },
            ]
        );
        assert_eq!(encoder.total_bytes(), bytes.len() as u64);
    }
}
