//! Lists the datasets and snapshots of a package, with their properties and holds (OpenZFS
//! `lib/libzfs/libzfs_sendrecv.c`, `send_iterate_fs`, `send_iterate_snap`, `send_iterate_prop`).

use crate::error::SendError;
use crate::package::{PackagedDataset, PackagedSnapshot, Values};
use std::collections::BTreeMap;
use weir_dmu::ObjectError;
use weir_dsl::props::{self, Rule, Stored, ZfsProp};
use weir_dsl::{Dataset, Dir, Dsl, Scope, keys};
use weir_format::ObjectId;
use weir_machine::Request;

/// The contents of a package.
#[derive(Clone, Debug, Default)]
pub struct Gathering {
    /// Name after the `@` of the snapshot that the streams begin with.
    pub from: Option<String>,
    /// Name after the `@` of the snapshot that the streams end with; `None`: all snapshots.
    pub to: Option<String>,
    /// The datasets below the first as well (`-R`).
    pub recursive: bool,
    /// The snapshots between the two (`-I`).
    pub all: bool,
    /// Datasets without the last snapshot are left out (`-s`).
    pub skip_missing: bool,
    /// Received values instead of effective ones (`-b`).
    pub received: bool,
    /// Holds (`-h`).
    pub holds: bool,
    /// Properties of the datasets (`-p`).
    pub properties: bool,
    /// Encrypted datasets may be part of it: the streams are raw, or decrypt the blocks (`-w`, `-U`).
    pub encrypted: bool,
    /// Datasets that are left out, with those below (`-X`).
    pub excluded: Vec<String>,
}

/// State that a dataset's children begin with.
#[derive(Clone, Copy, Debug, Default)]
struct Above {
    from_guid: u64,
    to_txg: u64,
}

/// Lists the dataset `top`, and those below if that is wanted. `warn` gets the lines about what is left out.
///
/// # Errors
/// [`SendError::Refused`] if a dataset lacks the last snapshot, or is encrypted; errors of reading.
pub async fn gather(
    rq: &Request,
    dsl: &Dsl,
    top: &str,
    wanted: &Gathering,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<Vec<PackagedDataset>, SendError> {
    let mut out = Vec::new();
    let mut above: BTreeMap<ObjectId, Above> = BTreeMap::new();
    let scope = Scope::Subtree(top);
    for dir in dsl.visible_dirs().into_iter().filter(|dir| scope.contains(&dir.name)) {
        let is_top = dir.name == top;
        let inherited = match above.get(&dir.phys.parent) {
            _ if is_top => Above::default(),
            Some(above) if wanted.recursive => *above,
            // The parent was left out, and what is below it.
            _ => continue,
        };
        if wanted.excluded.contains(&dir.name) {
            continue;
        }
        if let Some((dataset, below)) = one(rq, dsl, (top, dir), wanted, inherited, warn).await? {
            out.push(dataset);
            above.insert(dir.id, below);
        }
    }
    Ok(out)
}

async fn one(
    rq: &Request,
    dsl: &Dsl,
    (top, dir): (&str, &Dir),
    wanted: &Gathering,
    inherited: Above,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<Option<(PackagedDataset, Above)>, SendError> {
    let head = dsl.head(rq, dir).await?;
    let list = dsl.snapshots(rq, dir).await?;
    let txg_of = |name: &Option<String>| {
        let found = list.snapshots.iter().find(|s| name.as_deref() == s.snapshot_name());
        found.map(|s| s.phys.creation_txg.0)
    };
    let from_txg = txg_of(&wanted.from);
    let own_to_txg = txg_of(&wanted.to);
    let to_txg = own_to_txg.unwrap_or(inherited.to_txg);
    if let (Some(to), None) = (&wanted.to, own_to_txg) {
        let name = &dir.name;
        let is_later = to_txg != 0 && head.phys.creation_txg.0 > to_txg;
        return match (is_later, wanted.skip_missing) {
            (true, _) => Ok(None),
            (false, true) => {
                warn(format!("WARNING: skipping dataset {name} and its children: snapshot {to} does not exist"));
                Ok(None)
            }
            (false, false) => {
                let how = if wanted.recursive { " recursively" } else { "" };
                Err(SendError::Whole(format!(
                    "cannot send {top}@{to}{how}: snapshot {name}@{to} does not exist\nwarning: cannot send '{top}@{to}': backup failed"
                )))
            }
        };
    }
    let is_encrypted = dir.crypto_key().is_some();
    if is_encrypted && !wanted.encrypted {
        let to = wanted.to.as_deref().unwrap_or_default();
        return Err(SendError::Whole(format!(
            "cannot send {top}@{to}: encrypted dataset {} may not be sent with properties without the raw flag or no-preserve-encryption flag",
            dir.name
        )));
    }
    let mut dataset = PackagedDataset {
        head_guid: head.phys.guid,
        name: dir.name.clone(),
        parent_from_guid: inherited.from_guid,
        origin_guid: origin_guid(rq, dsl, dir).await?,
        is_encryption_root: keys::encryption_root(dsl, rq, dir).await?.is_some_and(|root| root == dir.name),
        properties: None,
        snapshots: Vec::new(),
    };
    if wanted.properties || wanted.received || wanted.recursive {
        dataset.properties = Some(settings(&*dsl.stored(rq, dir).await?, wanted.received, true));
    }
    let range = match (wanted.recursive || wanted.to.is_none(), wanted.all) {
        (true, _) => 0..=if to_txg == 0 { u64::MAX } else { to_txg },
        (false, true) => from_txg.unwrap_or(0)..=to_txg,
        (false, false) => to_txg..=to_txg,
    };
    let mut below = Above { from_guid: 0, to_txg };
    for snapshot in list.snapshots.iter().filter(|s| range.contains(&s.phys.creation_txg.0)) {
        let name = snapshot.snapshot_name();
        let is_from = wanted.from.is_some() && wanted.from.as_deref() == name;
        if is_from || below.from_guid == 0 && wanted.to.is_some() && wanted.to.as_deref() == name {
            below.from_guid = snapshot.phys.guid;
        }
        // Where not all snapshots are listed, the first one is known to the receiver.
        let in_full = wanted.recursive || !is_from;
        dataset.snapshots.push(packaged(rq, dsl, snapshot, wanted, in_full).await?);
    }
    Ok(Some((dataset, below)))
}

/// GUID of the snapshot that a dataset is a clone of.
async fn origin_guid(rq: &Request, dsl: &Dsl, dir: &Dir) -> Result<Option<u64>, ObjectError> {
    if dir.phys.origin.0 == 0 {
        return Ok(None);
    }
    // The empty snapshot that all datasets begin with has no name.
    let Some(name) = dsl.snapshot_name(rq, dir.phys.origin).await? else { return Ok(None) };
    Ok(Some(dsl.dataset(rq, dir.phys.origin, name).await?.phys.guid))
}

async fn packaged(
    rq: &Request,
    dsl: &Dsl,
    snapshot: &Dataset,
    wanted: &Gathering,
    in_full: bool,
) -> Result<PackagedSnapshot, ObjectError> {
    let properties = match in_full {
        true => Some(settings(&dsl.stored_of(rq, snapshot).await?, wanted.received, false)),
        false => None,
    };
    let holds = if in_full && wanted.holds { Some(dsl.holds(rq, snapshot).await?) } else { None };
    let name = snapshot.snapshot_name().unwrap_or_default().to_owned();
    Ok(PackagedSnapshot { name, guid: snapshot.phys.guid, properties, holds })
}

/// The properties in a property ZAP that can be set elsewhere: the effective values, or the received ones.
pub fn settings(stored: &Stored, received: bool, of_head: bool) -> Values {
    let mut names: Vec<&str> = stored.keys().map(|key| key.split('$').next().unwrap_or(key)).collect();
    names.sort_unstable();
    names.dedup();
    let value_of = |name: &str| match received {
        true => stored.get(&format!("{name}$recvd")),
        false => props::stored_value(stored, name).map(|(value, _)| value),
    };
    let kept = names.into_iter().filter(|name| is_settable(name, of_head));
    kept.filter_map(|name| Some((name.to_owned(), value_of(name)?.clone()))).collect()
}

/// Whether a property is part of packages.
fn is_settable(name: &str, of_head: bool) -> bool {
    match props::native_named(name) {
        _ if name.contains(':') => true,
        Some(native) if native.prop.is_space_limit() => of_head,
        Some(native) if matches!(native.prop, ZfsProp::VolSize) => false,
        Some(native) => matches!(native.rule, Rule::Inherit | Rule::Own) && native.prop.name() == name,
        None => false,
    }
}
