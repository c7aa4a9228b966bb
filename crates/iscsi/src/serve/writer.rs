//! Writes units to a connection: headers and data of several units with one vectored write.

use crate::session::{Numbers, Pdu, StatSn};
use crate::wire::bhs::padding;
use crate::wire::digest::{self, DIGEST_BYTES};
use crate::wire::{BHS_BYTES, Digests};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use weir_front::Writer;

/// Number of pieces after which no further unit joins a write.
const BATCH_PIECES: usize = 48;
/// Number of bytes after which no further unit joins a write.
const BATCH_BYTES: usize = 512 << 10;
const ZEROS: Bytes = Bytes::from_static(&[0; 3]);

/// Units to be sent, and what is released when they have been.
pub struct Outgoing {
    /// The units, in order.
    pub pdus: SmallVec<[Pdu; 2]>,
    /// Permits and guards.
    pub held: Box<dyn Send>,
}

/// Encodes units in the order in which they are sent.
pub struct Encoder {
    numbers: Arc<Numbers>,
    digests: Digests,
    stat_sn: u32,
    heads: BytesMut,
}

impl Encoder {
    /// Begins with this status number.
    pub fn new(numbers: Arc<Numbers>, digests: Digests, stat_sn: u32) -> Self {
        Encoder { numbers, digests, stat_sn, heads: BytesMut::new() }
    }

    /// Appends the pieces of a unit. Returns their length in bytes.
    pub fn encode(&mut self, pdu: Pdu, pieces: &mut Vec<Bytes>) -> usize {
        let Pdu { mut bhs, data, stat_sn, frees_slot } = pdu;
        if frees_slot {
            self.numbers.answered();
        }
        if stat_sn != StatSn::Without {
            bhs.set_word(24, self.stat_sn);
        }
        if stat_sn == StatSn::Next {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
        bhs.set_word(28, self.numbers.exp_cmd_sn.load(Ordering::Relaxed));
        bhs.set_word(32, self.numbers.max_cmd_sn.load(Ordering::Relaxed));
        self.heads.reserve(BHS_BYTES + 2 * DIGEST_BYTES);
        self.heads.extend_from_slice(&bhs.0);
        if self.digests.header {
            self.heads.extend_from_slice(&digest::of([&bhs.0[..]]));
        }
        pieces.push(self.heads.split().freeze());
        let len = bhs.data_bytes();
        debug_assert_eq!(data.iter().map(Bytes::len).sum::<usize>(), len);
        if len == 0 {
            return BHS_BYTES;
        }
        let padding = ZEROS.slice(..padding(len));
        let digest = self.digests.data.then(|| digest::of_data(&data, &padding));
        pieces.extend(data);
        if !padding.is_empty() {
            pieces.push(padding);
        }
        if let Some(digest) = digest {
            self.heads.extend_from_slice(&digest);
            pieces.push(self.heads.split().freeze());
        }
        BHS_BYTES + len
    }
}

/// Writes units until all senders are gone; then closes the connection for writing.
///
/// # Errors
/// Errors of the connection.
pub async fn write(
    mut writer: Writer,
    mut encoder: Encoder,
    mut receiver: mpsc::UnboundedReceiver<Outgoing>,
) -> io::Result<()> {
    let mut pieces = Vec::new();
    let mut held = Vec::new();
    while let Some(first) = receiver.recv().await {
        encoder.heads.reserve(8 * BHS_BYTES);
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(outgoing) = next {
            bytes += outgoing.pdus.into_iter().map(|pdu| encoder.encode(pdu, &mut pieces)).sum::<usize>();
            held.push(outgoing.held);
            let is_full = pieces.len() >= BATCH_PIECES || bytes >= BATCH_BYTES;
            next = if is_full { None } else { receiver.try_recv().ok() };
        }
        writer.write_pieces(&mut pieces).await?;
        pieces.clear();
        held.clear();
    }
    writer.shutdown().await
}
