//! Properties of received datasets (OpenZFS `module/zfs/zfs_ioctl.c`, `zfs_ioc_recv_impl`).
//!
//! ```text
//!   from the stream     property$recvd = v, and $hasrecvd        (-p, -R, -b of zfs send)
//!   -o property=v       property = v
//!   -x property         the local value is removed, and $inherit hides the received one
//! ```
//!
//! The received properties of a stream replace all earlier ones. A new dataset gets them before its blocks are written,
//! an existing one with its new contents, so that a failed stream changes none. A quota that the contents exceed is set
//! at the end, since it may be that of a later snapshot (`extract_delay_props`).

use super::properties::{self, Setting};
use super::{DslError, DslSyncContext, names, number};
use crate::props::{self, Rule, ZfsProp};
use weir_format::dsl::split_property;

/// Entry of a property ZAP: the dataset has received properties.
const HAS_RECEIVED: &str = "$hasrecvd";

/// Properties of a received dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedProperties {
    /// Those of the stream; `None` if it has none.
    pub received: Option<Vec<(String, props::Value)>>,
    /// Those of the command line: values.
    pub local: Vec<(String, props::Value)>,
    /// Those of the command line: left out of the stream's.
    pub inherited: Vec<String>,
}

impl ReceivedProperties {
    /// Whether nothing is set or removed.
    pub fn is_empty(&self) -> bool {
        self.received.is_none() && self.local.is_empty() && self.inherited.is_empty()
    }
}

/// When properties are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The dataset is new and empty.
    New,
    /// The dataset was new, and has its contents now.
    NewComplete,
    /// The dataset existed before.
    Existing,
}

/// A property that could not be set.
pub type PropertyError = (String, DslError);

/// Whether a property is set after the contents are complete.
fn is_late(property: &str) -> bool {
    ZfsProp::of_name(property).is_some_and(|prop| matches!(prop, ZfsProp::RefQuota | ZfsProp::KeyLocation))
}

/// Whether a received property can be removed from a dataset.
fn is_clearable(property: &str) -> bool {
    match props::native_named(property) {
        Some(native) => matches!(native.rule, Rule::Inherit | Rule::Own) && native.prop != ZfsProp::KeyLocation,
        None => property.contains(':'),
    }
}

/// Sets the properties of a received dataset. Returns those that cannot be set: the stream is received without them.
///
/// # Errors
/// Errors of reading and changing the pool.
pub async fn apply(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    wanted: &ReceivedProperties,
    stage: Stage,
) -> Result<Vec<PropertyError>, DslError> {
    let mut settings = Vec::new();
    if let Some(received) = &wanted.received {
        if stage != Stage::NewComplete {
            clear_others(cx, name, received).await?;
        }
        let values = received.iter().map(|(property, value)| (property.clone(), Setting::Received(value.clone())));
        settings.extend(values);
    }
    settings.extend(wanted.local.iter().map(|(property, value)| (property.clone(), Setting::Set(value.clone()))));
    settings.extend(wanted.inherited.iter().map(|property| (property.clone(), Setting::Inherit)));
    let mut failed = Vec::new();
    for (property, setting) in settings {
        let is_due = match stage {
            Stage::New => !is_late(&property),
            Stage::NewComplete => is_late(&property),
            Stage::Existing => true,
        };
        if !is_due {
            continue;
        }
        match properties::set_property(cx, name, &property, &setting).await {
            Ok(()) => {}
            Err(DslError::Object(error)) => return Err(error.into()),
            Err(error) => failed.push((property, error)),
        }
    }
    Ok(failed)
}

/// Removes earlier received properties that a stream does not have. A dataset that never received properties may have
/// received them as local ones, before pools knew the difference: there the local ones are removed.
async fn clear_others(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    received: &[(String, props::Value)],
) -> Result<(), DslError> {
    let zap = names::find_head(cx, name).await?.at.dir.props;
    let has_received = cx.word(zap, HAS_RECEIVED).await?.is_some();
    for (key, _) in cx.entries(zap).await? {
        let (property, _) = split_property(&key);
        let is_meant = if has_received { key.ends_with("$recvd") } else { key == property };
        if !is_meant || !is_clearable(property) {
            continue;
        }
        let is_kept = has_received && received.iter().any(|(of_stream, _)| of_stream == property);
        if !is_kept {
            let setting = if has_received { Setting::Clear } else { Setting::Revert };
            properties::set_property(cx, name, property, &setting).await?;
        }
    }
    cx.put(zap, HAS_RECEIVED, number(0)).await
}
