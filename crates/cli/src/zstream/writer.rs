//! Writes the records of a converted stream.

use std::io::Write;
use weir_format::Endian;
use weir_format::stream::{CHECKED_BYTES, RECORD_BYTES, Record, RunningChecksum};
use weir_send::RunningFletcher4;

/// Writes records with checksums that are computed again.
pub(super) struct Writer<'a, W> {
    output: &'a mut W,
    sum: RunningFletcher4,
    endian: Endian,
}

impl<'a, W: Write> Writer<'a, W> {
    /// For a stream of this byte order.
    pub(super) fn new(output: &'a mut W, endian: Endian) -> Self {
        Writer { output, sum: RunningFletcher4::default(), endian }
    }

    pub(super) fn endian(&self) -> Endian {
        self.endian
    }

    pub(super) fn flush(&mut self) -> Result<(), String> {
        self.output.flush().map_err(|error| error.to_string())
    }

    /// Writes a record; `has_checksum` unless it has none of its own, as those of old senders.
    pub(super) fn write(&mut self, mut record: Record, payload: &[u8], has_checksum: bool) -> Result<(), String> {
        if let Record::End { checksum, .. } = &mut record {
            *checksum = self.sum.value();
        }
        let mut bytes = record.encode(self.endian, [0; 4]);
        debug_assert_eq!(bytes.len(), RECORD_BYTES, "records have one size");
        debug_assert_eq!(record.payload_len().ok(), Some(payload.len()), "the record says how long its payload is");
        let (checked, tail) = bytes.split_at_mut(CHECKED_BYTES);
        self.sum.update(checked, self.endian);
        // The name of BEGIN reaches into the checksum's place.
        if has_checksum && !matches!(record, Record::Begin(_)) {
            for (to, word) in tail.chunks_exact_mut(8).zip(self.sum.value()) {
                to.copy_from_slice(&match self.endian {
                    Endian::Little => word.to_le_bytes(),
                    Endian::Big => word.to_be_bytes(),
                });
            }
        }
        self.sum.update(tail, self.endian);
        self.sum.update(payload, self.endian);
        if matches!(record, Record::End { .. }) {
            self.sum.reset();
        }
        let written = self.output.write_all(&bytes).and_then(|()| self.output.write_all(payload));
        written.map_err(|error| error.to_string())
    }
}
