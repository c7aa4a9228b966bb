//! Fuzz targets: each must return for any input, in time and memory bounded by the input's length.

use crate::handshake::{Handshake, Negotiated, NextAction, OPTION_HEADER_BYTES, TlsMode};
use crate::transmission;
use crate::wire::RequestHeader;
use bytes::Bytes;
use futures_util::FutureExt;
use std::sync::Arc;
use weir_front::memory::{MemoryDevice, MemoryExports};
use weir_machine::Request;

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("nbd_handshake", handshake_target), ("nbd_request", request_target)];

/// Two small read-only devices in memory, for the fuzz targets and the tests.
pub fn small_exports() -> MemoryExports {
    let mut bytes = vec![0; 64 << 10];
    for (at, byte) in bytes.iter_mut().enumerate().skip(8192).take(20_000) {
        *byte = (at % 251) as u8 + 1;
    }
    let mut exports = MemoryExports::default();
    let bad = MemoryDevice::new(vec![1; 5000]).with_bad_byte(4500);
    exports.0.insert("p/v".into(), Arc::new(MemoryDevice::new(bytes)));
    exports.0.insert("p/w".into(), Arc::new(bad));
    exports
}

fn handshake_target(data: &[u8]) {
    let exports = small_exports();
    let tls = [TlsMode::Off, TlsMode::Allowed, TlsMode::Required][data.len() % 3];
    let (mut handshake, mut step) = Handshake::begin(tls);
    let mut rest = data;
    loop {
        assert!(step.send.len() < 1 << 20);
        let len = match step.next {
            NextAction::Read(len) => len,
            NextAction::Skip(len) => len as usize,
            NextAction::StartTls => OPTION_HEADER_BYTES,
            NextAction::Serve(_) | NextAction::Close => return,
        };
        let Some((now, later)) = rest.split_at_checked(len) else { return };
        step = handshake.receive(&exports, now);
        rest = later;
    }
}

fn request_target(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut bytes = crate::wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(rest);
    let Some(header) = RequestHeader::decode(&bytes) else { return };
    let writable = first & 4 != 0;
    let device = MemoryDevice::new(vec![1; 5000]).with_bad_byte(4500).with_writing(writable);
    let negotiated =
        Negotiated { export: "p/w".into(), structured: first & 1 != 0, allocation: first & 2 != 0, writable };
    let plan = transmission::plan(&header, 5000, &negotiated);
    let payload =
        if matches!(plan, transmission::CommandPlan::Write { .. }) { vec![9; header.length as usize] } else { vec![] };
    let rq = Request::internal("fuzz");
    let reply = transmission::answer(&device, &rq, &negotiated, &header, plan, payload.into()).now_or_never();
    assert!(reply.is_some_and(|pieces| pieces.iter().map(Bytes::len).sum::<usize>() < 1 << 20));
}
