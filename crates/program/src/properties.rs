//! Properties of datasets as `zfs.get_prop` returns them: numbers as such, names of index values, and the dataset in which a value
//! is set as its source.
//!
//! Source: OpenZFS `module/zfs/zcp_get.c` (`get_special_prop`, `get_zap_prop`, `prop_valid_for_ds`).

use crate::asked::Word;
use std::sync::Arc;
use weir_admin::AccountProperty;
use weir_dmu::{ObjectError, ObjectSet};
use weir_dsl::props::{DatasetKind, NATIVES, Native, Property, Rule, Shape, Source, Value, ZfsProp, native_named};
use weir_dsl::{Dataset, Dir, Dsl};
use weir_engine::ProgramTxg;
use weir_format::dsl::dataset_field;
use weir_format::{DslDataset, ObjsetKind};
use weir_pool::PoolError;

/// Properties that `zfs get` does not show, and `name`.
const HIDDEN: [&str; 8] =
    ["name", "unique", "useraccounting", "inconsistent", "prevsnap", "numclones", "ivsetguid", "iscsioptions"];
/// OpenZFS's source of a received value (`ZPROP_SOURCE_VAL_RECVD`).
const RECEIVED: &str = "$recvd";

/// Value and source of a property.
type Found = Option<(Word, Option<String>)>;

/// Whether there is a property of this name on some kind of dataset.
pub fn is_known(property: &str) -> bool {
    let is_special = property.contains(':') || property.starts_with("written@");
    is_special
        || HIDDEN.contains(&property)
        || AccountProperty::parse(property).is_some()
        || native_named(property).is_some()
}

/// Whether `zfs inherit` clears a property: a user property, or one that datasets inherit.
pub fn is_inheritable(property: &str) -> bool {
    property.contains(':') || native_named(property).is_some_and(|native| native.rule == Rule::Inherit)
}

/// The source of a property: where it is set; `None` for what cannot be set.
pub fn source_of(property: &Property, dataset: &str) -> Option<String> {
    match &property.source {
        Source::None => None,
        Source::Default => Some("default".into()),
        Source::Local => Some(dataset.to_owned()),
        Source::Inherited(from) => Some(from.clone()),
        Source::Received => Some(RECEIVED.into()),
    }
}

/// The kind of a dataset.
///
/// # Errors
/// Errors of reading its object set.
pub async fn kind_of(txg: &ProgramTxg<'_, '_>, dsl: &Dsl, dataset: &Dataset) -> Result<DatasetKind, PoolError> {
    let missing = || ObjectError::NoName { what: "dataset", name: dataset.name.clone() };
    let dir = dsl.dir(dataset.dir).ok_or_else(missing)?;
    Ok(match (dataset.is_snapshot(), dsl.kind(txg.rq(), dir).await?) {
        (true, _) => DatasetKind::Snapshot,
        (false, ObjsetKind::Zvol) => DatasetKind::Volume,
        (false, _) => DatasetKind::Filesystem,
    })
}

/// Names of the native properties that a dataset of a directory has.
pub fn names_of(kind: DatasetKind, dir: &Dir) -> Vec<String> {
    let has = |native: &&Native| match native.prop {
        ZfsProp::Mounted => false,
        ZfsProp::Origin if dir.phys.origin.0 == 0 => false,
        _ => native.kinds.contains(&kind),
    };
    NATIVES.iter().filter(has).map(|native| native.prop.name().to_owned()).collect()
}

/// Reads a property; `None` if the dataset does not have it.
///
/// # Errors
/// Errors of reading the dataset.
pub async fn read(
    txg: &ProgramTxg<'_, '_>,
    dsl: &Arc<Dsl>,
    dataset: &Dataset,
    property: &str,
) -> Result<Found, PoolError> {
    if let Some(account) = AccountProperty::parse(property) {
        return read_account(txg, dsl, dataset, property, &account).await;
    }
    if HIDDEN.contains(&property) {
        return read_hidden(txg, dsl, dataset, property).await;
    }
    let Some(native) = native_named(property) else {
        let found = dsl.property(txg.rq(), dataset, &txg.facts(), property).await?;
        return Ok(found.map(|found| {
            let source = source_of(&found, &dataset.name);
            (word(&found, None), source)
        }));
    };
    if native.prop == ZfsProp::Mounted {
        return Ok(None);
    }
    if native.prop == ZfsProp::Clones {
        let has_list = dataset.is_snapshot() && dataset.phys.next_clones.0 != 0;
        let clones = dsl.clones(txg.rq(), dataset).await?;
        return Ok(has_list.then_some((Word::List(clones), None)));
    }
    let found = dsl.property(txg.rq(), dataset, &txg.facts(), native.prop.name()).await?;
    let Some(found) = found else { return Ok(None) };
    // A count that nothing has started is no value.
    let is_count = matches!(native.prop, ZfsProp::FilesystemCount | ZfsProp::SnapshotCount);
    if is_count && found.value == Value::Number(u64::MAX) {
        return Ok(None);
    }
    let source = match native.prop {
        ZfsProp::VolSize => Some(dataset.name.clone()),
        _ if is_count || matches!(native.rule, Rule::ReadOnly | Rule::OneTime) => None,
        _ => source_of(&found, &dataset.name).or_else(|| Some("default".into())),
    };
    Ok(Some((word(&found, Some(native)), source)))
}

/// A value as a script sees it.
fn word(property: &Property, native: Option<&Native>) -> Word {
    let is_named = native.is_some_and(|native| {
        matches!(native.shape, Shape::Index(_) | Shape::YesNo) || native.prop == ZfsProp::Version
    });
    match &property.value {
        Value::Text(text) => Word::Text(text.clone()),
        Value::Number(_) if is_named => Word::Text(property.text(true)),
        Value::Number(number) => Word::Number(*number as i64),
    }
}

/// Use or quota of a user, group or project. A quota of 0 is none.
async fn read_account(
    txg: &ProgramTxg<'_, '_>,
    dsl: &Arc<Dsl>,
    dataset: &Dataset,
    property: &str,
    account: &AccountProperty,
) -> Result<Found, PoolError> {
    if kind_of(txg, dsl, dataset).await? == DatasetKind::Volume {
        return Ok(None);
    }
    let set = open(txg, dsl, dataset).await?;
    let found = account.value(txg.rq(), &set, property).await?;
    let found = (word(&found, None), Some(dataset.name.clone()));
    Ok(Some(found).filter(|(value, _)| !account.is_quota || *value != Word::Number(0)))
}

async fn open(txg: &ProgramTxg<'_, '_>, dsl: &Dsl, dataset: &Dataset) -> Result<Arc<ObjectSet>, PoolError> {
    Ok(dsl.open_set(txg.rq(), dataset, txg.key(dsl, dataset.dir)).await?)
}

async fn read_hidden(
    txg: &ProgramTxg<'_, '_>,
    dsl: &Arc<Dsl>,
    dataset: &Dataset,
    property: &str,
) -> Result<Found, PoolError> {
    let phys = &dataset.phys;
    let number = |number: u64| Some((Word::Number(number as i64), None));
    Ok(match property {
        "name" => Some((Word::Text(dataset.name.clone()), None)),
        "unique" => number(phys.unique_bytes),
        "inconsistent" => number(u64::from(phys.flags & DslDataset::INCONSISTENT != 0)),
        "numclones" if dataset.is_snapshot() => number(phys.children.saturating_sub(1)),
        "useraccounting" => {
            let flags = open(txg, dsl, dataset).await?.root().header.flags;
            number(flags & USERACCOUNTING_COMPLETE)
        }
        "prevsnap" if !dataset.is_snapshot() && phys.prev_snapshot.0 != 0 => {
            let name = dsl.snapshot_name(txg.rq(), phys.prev_snapshot).await?;
            name.map(|name| (Word::Text(name), None))
        }
        "ivsetguid" if dataset.is_snapshot() => {
            let fields = dsl.dataset_fields(txg.rq(), dataset).await?;
            fields.get(dataset_field::IVSET_GUID).and_then(|value| value.first()).and_then(number)
        }
        _ => None,
    })
}

/// Flag of an object set: the space of users is accounted (`OBJSET_FLAG_USERACCOUNTING_COMPLETE`).
const USERACCOUNTING_COMPLETE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_properties_are_known() {
        for known in ["used", "a:b", "written@s", "userquota@12", "prevsnap", "version", "compress"] {
            assert!(is_known(known), "{known}");
        }
        for unknown in ["notaprop", "userquota@joe", ""] {
            assert!(!is_known(unknown), "{unknown}");
        }
        assert!(is_inheritable("compression") && is_inheritable("a:b"));
        assert!(!is_inheritable("quota") && !is_inheritable("used") && !is_inheritable("nothing"));
    }

    #[test]
    fn sources_are_datasets() {
        let of = |source| Property { name: "x".into(), value: Value::Number(1), source, received: None };
        assert_eq!(source_of(&of(Source::Local), "p/a").as_deref(), Some("p/a"));
        assert_eq!(source_of(&of(Source::Inherited("p".into())), "p/a").as_deref(), Some("p"));
        assert_eq!(source_of(&of(Source::Default), "p/a").as_deref(), Some("default"));
        assert_eq!(source_of(&of(Source::Received), "p/a").as_deref(), Some("$recvd"));
        assert_eq!(source_of(&of(Source::None), "p/a"), None);
        let native = native_named("compression");
        let of = |value| Property { name: "compression".into(), value, source: Source::Local, received: None };
        assert_eq!(word(&of(Value::Number(15)), native), Word::Text("lz4".into()));
        assert_eq!(word(&of(Value::Number(u64::MAX)), None), Word::Number(-1));
    }
}
