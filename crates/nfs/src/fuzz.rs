//! Fuzz targets: each must return for any input, in time and memory bounded by the input's length. The target of whole calls is
//! in the crate that serves files over this protocol.

use crate::nlm::wire::{LockArguments, LockResult, ShareArguments, Status, name_and_state, result};
use crate::nsm::record::Record;
use crate::record::Assembler;
use crate::rpc;
use crate::wire::{Decoder, Encoder};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    ("nfs_record", record_target),
    ("nfs_rpc", rpc_target),
    ("nlm_arguments", lock_arguments_target),
    ("nsm_record", lock_record_target),
];

fn record_target(data: &[u8]) {
    let mut assembler = Assembler::default();
    for piece in data.chunks(7) {
        let mut input = piece;
        while let Ok(Some(message)) = assembler.take(&mut input) {
            assert!(message.len() <= data.len());
        }
    }
}

fn rpc_target(data: &[u8]) {
    let _ = rpc::read(data);
    let _ = rpc::results(data, 1);
}

fn lock_arguments_target(data: &[u8]) {
    let input = Decoder::new(data);
    for decode in [LockArguments::of_lock, LockArguments::of_test, LockArguments::of_cancel, LockArguments::of_unlock] {
        if let Some(arguments) = decode(&mut input.clone()) {
            let lock = arguments.lock();
            assert!(lock.start <= lock.end);
            let mut out = Encoder::default();
            LockResult::new(arguments.cookie, Status::Granted).put(&mut out);
            assert_eq!(result(&mut Decoder::new(&out.bytes)), Some((arguments.cookie, Status::Granted)));
        }
    }
    let _ = ShareArguments::read(&mut input.clone());
    let _ = result(&mut input.clone());
    let _ = name_and_state(&mut input.clone());
}

fn lock_record_target(data: &[u8]) {
    if let Some(record) = Record::decode(data) {
        assert_eq!(Record::decode(&record.encode()), Some(record));
    }
}
