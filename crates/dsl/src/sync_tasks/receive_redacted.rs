//! Redacted streams that are received (OpenZFS `module/zfs/dmu_recv.c`, `redact_check`).
//!
//! A redacted dataset has the feature `redacted_datasets`, with the GUIDs of the snapshots that it is redacted for. Where its
//! blocks were left out it has holes: what may be received on top of it must bring all of them that it does not change.
//!
//! ```text
//!   stream                                      received on a snapshot that is redacted for R
//!   full                                        always
//!   relative to something redacted for F        if F is a part of R
//!   redacted for S                              if S is a part of R
//!   of the snapshot s, with all its blocks      if s is in R
//! ```

use super::receive::Receive;
use super::{DslError, DslSyncContext, features};
use weir_dmu::zap::Value;
use weir_format::ObjectId;
use weir_format::features::Feature;
use weir_machine::invariant;

/// The redactions of a stream: GUIDs of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamRedaction {
    /// The snapshots that the stream is redacted for; `None` if it is not redacted.
    pub redacted_for: Option<Vec<u64>>,
    /// Those that its origin is redacted for; `None` if it is relative to none, or to one that is not redacted.
    pub from_redacted_for: Option<Vec<u64>>,
}

/// Whether all of these snapshots are among the others.
fn is_part(of: &[u64], whole: &[u64]) -> bool {
    of.len() <= whole.len() && of.iter().all(|guid| whole.contains(guid))
}

/// Whether a stream brings what a snapshot redacted for `origin` lacks.
fn fits(receive: &Receive, origin: &[u64]) -> bool {
    let StreamRedaction { redacted_for, from_redacted_for } = &receive.redaction;
    match (receive.from_guid, from_redacted_for, redacted_for) {
        (0, ..) => true,
        (_, Some(from), _) => is_part(from, origin),
        (_, None, Some(stream)) => is_part(stream, origin),
        (_, None, None) => origin.contains(&receive.to_guid),
    }
}

/// Checks that a stream may be received on top of a snapshot.
///
/// # Errors
/// [`DslError::Stream`].
pub(super) async fn check_origin(
    cx: &mut DslSyncContext<'_>,
    receive: &Receive,
    origin: ObjectId,
) -> Result<(), DslError> {
    match features::redaction_of(cx, origin).await? {
        Some(guids) if !fits(receive, &guids) => {
            let why = "the origin is redacted, and the stream is none of those that can be received on top of it";
            Err(DslError::stream(receive.names().0, why.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Checks that the rest of a stream is redacted for the same snapshots as what was received of it.
///
/// # Errors
/// [`DslError::Stream`].
pub(super) async fn check_continued(
    cx: &mut DslSyncContext<'_>,
    receive: &Receive,
    dataset: ObjectId,
) -> Result<(), DslError> {
    let present = features::redaction_of(cx, dataset).await?;
    let is_same = match (&present, &receive.redaction.redacted_for) {
        (Some(present), Some(stream)) => is_part(present, stream) && is_part(stream, present),
        (None, None) => true,
        _ => false,
    };
    if is_same {
        return Ok(());
    }
    let why = "the stream is redacted for other snapshots than the one that was interrupted";
    Err(DslError::stream(receive.names().0, why.to_owned()))
}

/// Records that a new dataset is redacted as the stream is, whatever its origin is redacted for.
pub(super) async fn begin(cx: &mut DslSyncContext<'_>, receive: &Receive, dataset: ObjectId) -> Result<(), DslError> {
    features::deactivate(cx, dataset, Feature::REDACTED_DATASETS).await?;
    if let Some(guids) = &receive.redaction.redacted_for {
        let value = Value { int_size: 8, words: guids.clone() };
        features::activate_with(cx, dataset, Feature::REDACTED_DATASETS, value).await?;
    }
    let now = features::redaction_of(cx, dataset).await?;
    invariant!(now == receive.redaction.redacted_for, "a received dataset is redacted as its stream is");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync_tasks::receive::Resume;
    use crate::sync_tasks::receive_properties::ReceivedProperties;
    use weir_format::ObjsetKind;

    #[test]
    fn streams_bring_what_a_redacted_origin_lacks() {
        let receive = |from_guid, redacted_for: Option<&[u64]>, from_redacted_for: Option<&[u64]>| Receive {
            snapshot: "p/a@s".into(),
            to_guid: 7,
            from_guid,
            creation_time_s: 0,
            ignores_case: false,
            kind: ObjsetKind::Zfs,
            origin: None,
            force: false,
            properties: ReceivedProperties::default(),
            resume: Resume::Never,
            raw: None,
            features: Vec::new(),
            redaction: StreamRedaction {
                redacted_for: redacted_for.map(<[u64]>::to_vec),
                from_redacted_for: from_redacted_for.map(<[u64]>::to_vec),
            },
        };
        for (from, stream, of_from, origin, expected) in [
            (0, None, None, &[1, 2][..], true),
            (5, None, None, &[1, 2], false),
            (5, None, None, &[1, 7], true),
            (5, Some(&[1][..]), None, &[1, 2], true),
            (5, Some(&[1, 3]), None, &[1, 2], false),
            (5, Some(&[3]), Some(&[2][..]), &[1, 2], true),
            (5, None, Some(&[2, 3]), &[1, 2], false),
        ] {
            let receive = receive(from, stream, of_from);
            assert_eq!(fits(&receive, origin), expected, "{:?} on {origin:?}", receive.redaction);
        }
    }
}
