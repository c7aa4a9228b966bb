//! Fuzz targets for received streams: reading, verifying and checking records and packages returns for every input, in
//! memory bounded by the input's length.

use crate::check::{check, check_features, redaction_of};
use crate::error::ReceiveError;
use crate::input::{Input, StreamInput};
use crate::package::Package;
use crate::plan::KEY_DATA;
use crate::replicate::order;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use weir_dsl::RawKey;
use weir_format::NvList;
use weir_format::stream::Record;

/// A fuzz target: name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Name and body of each target.
pub const TARGETS: &[Target] = &[("receive", receive_target), ("package", package_target)];

/// Bytes in memory, given in pieces.
struct Pieces<'a>(&'a [u8]);

impl Input for Pieces<'_> {
    fn get(&mut self, wanted: usize) -> BoxFuture<'_, Result<Vec<u8>, ReceiveError>> {
        let (piece, rest) = self.0.split_at(wanted.min(self.0.len()).min(1000));
        self.0 = rest;
        let piece = piece.to_vec();
        Box::pin(async move { Ok(piece) })
    }
}

fn receive_target(data: &[u8]) {
    let mut pieces = Pieces(data);
    let mut input = StreamInput::new(&mut pieces);
    let mut begun = None;
    // The input is in memory, so that no step waits.
    while let Some(Ok(Some(received))) = input.next().now_or_never() {
        match (&received.record, &begun) {
            (Record::Begin(begin), _) => {
                let _ = (check_features(begin), redaction_of(begin, &received.payload));
                let list = NvList::decode(&received.payload);
                let _ = list.ok().and_then(|list| list.get_list(KEY_DATA).map(RawKey::from_list));
                begun = Some(begin.clone());
            }
            (record, Some(begin)) => drop(check(begin, record)),
            _ => {}
        }
    }
}

/// The list at the head of a package: decoded, ordered, and encoded again to one that is decoded as well.
fn package_target(data: &[u8]) {
    let Ok(list) = NvList::decode(data) else { return };
    let Ok(package) = Package::from_list(&list) else { return };
    assert_eq!(order(&package.datasets).len(), package.datasets.len(), "each dataset is sent once");
    let again = NvList::decode(&package.to_list().encode_xdr());
    assert!(again.is_ok_and(|list| Package::from_list(&list).is_ok()), "what is encoded can be decoded");
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_panics() {
        weir_sim::fuzz::run_targets(super::TARGETS, 500, 2500);
    }
}
