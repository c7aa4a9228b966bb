//! Fuzz targets: each must return for any input, in time and memory bounded by the input's length. The target of whole calls is
//! in the crate that serves files over this protocol.

use crate::record::Assembler;
use crate::rpc;

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("nfs_record", record_target), ("nfs_rpc", rpc_target)];

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
}
