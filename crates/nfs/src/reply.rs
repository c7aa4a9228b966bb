//! Replies: a head of XDR, then pieces of file data that reference the cache, then padding.

use crate::record::LAST;
use crate::status::Status;
use crate::wire::{Encoder, padding};
use bytes::Bytes;
use smallvec::SmallVec;

/// Results of a call that are being encoded.
#[derive(Debug)]
pub struct Results {
    head: Encoder,
    payload: SmallVec<[Bytes; 4]>,
    pad: usize,
}

impl Results {
    /// Starts the results after the reply's head.
    pub(crate) fn new(head: Encoder) -> Self {
        Results { head, payload: SmallVec::new(), pad: 0 }
    }

    /// Encodes the status; returns the encoder for the remaining results.
    pub(crate) fn status(&mut self, status: Status) -> &mut Encoder {
        self.head.u32(status as u32)
    }

    /// The encoder, for results without an NFS status.
    pub(crate) fn encoder(&mut self) -> &mut Encoder {
        &mut self.head
    }

    /// Appends `len` opaque bytes; their length word must already be encoded.
    pub(crate) fn set_payload(&mut self, payload: SmallVec<[Bytes; 4]>, len: usize) {
        self.payload = payload;
        self.pad = padding(len);
    }

    /// Builds the record from its pieces.
    pub(crate) fn finish(self) -> Reply {
        let body = self.head.bytes.len() + self.payload.iter().map(Bytes::len).sum::<usize>() + self.pad;
        let mut head = Vec::with_capacity(4 + self.head.bytes.len());
        head.extend_from_slice(&(LAST | body as u32).to_be_bytes());
        head.extend_from_slice(&self.head.bytes);
        let mut pieces = SmallVec::new();
        pieces.push(Bytes::from(head));
        pieces.extend(self.payload);
        if self.pad != 0 {
            pieces.push(Bytes::from_static(&[0; 3]).slice(..self.pad));
        }
        Reply { pieces }
    }
}

/// An encoded record.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Pieces of the record in order; the first begins with the record mark.
    pub pieces: SmallVec<[Bytes; 6]>,
}

impl Reply {
    /// A record with this body.
    pub(crate) fn of(body: Vec<u8>) -> Self {
        Results::new(Encoder { bytes: body }).finish()
    }

    /// The body without the record mark, in one piece; for tests and fuzzing.
    pub fn body(&self) -> Vec<u8> {
        let mut all = self.pieces.concat();
        all.drain(..4.min(all.len()));
        all
    }
}
