//! Packages of streams: the list of datasets and snapshots at the head of the streams of `zfs send -R`, `-p`, `-b` and
//! `-h` (OpenZFS `lib/libzfs/libzfs_sendrecv.c`, `send_data_t`).
//!
//! ```text
//!   tosnap, fromsnap       names after the @
//!   not_recursive, raw     flags
//!   fss   GUID of a head   name · parentfromsnap · origin · is_encroot
//!                          props      { property: value }             set on the dataset itself
//!                          snaps      { snapshot: GUID }
//!                          snapprops  { snapshot: { property: value } }
//!                          snapholds  { snapshot: { tag: time } }
//! ```
//!
//! A receiver finds its own datasets by the GUIDs of their snapshots, so that it can follow renames and promotions.

use crate::error::ReceiveError;
use std::collections::BTreeMap;
use weir_dsl::props::Value;
use weir_format::nvlist::{NvList, NvPair, NvValue};

/// Maximum size in bytes of the list, packed (`libzfs_max_nvlist`).
pub const MAX_LIST_BYTES: usize = 64 << 20;

/// Properties and their values as stored.
pub type Values = Vec<(String, Value)>;

/// The head of a package of streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// Name after the `@` of the snapshot that all streams begin with.
    pub from: Option<String>,
    /// Name after the `@` of the snapshot that all streams end with.
    pub to: String,
    /// Whether the package has the datasets below the first.
    pub is_recursive: bool,
    /// Whether the streams are raw.
    pub is_raw: bool,
    /// The datasets, a parent before its children.
    pub datasets: Vec<PackagedDataset>,
}

/// A dataset of a package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackagedDataset {
    /// GUID of the head.
    pub head_guid: u64,
    /// Full name at the sender.
    pub name: String,
    /// GUID of the parent's snapshot that the streams begin with, or end with if it has no such one; 0 for none.
    pub parent_from_guid: u64,
    /// GUID of the snapshot that the dataset is a clone of.
    pub origin_guid: Option<u64>,
    /// Whether the dataset is an encryption root.
    pub is_encryption_root: bool,
    /// Properties that are set on the dataset itself.
    pub properties: Option<Values>,
    /// The snapshots, from the oldest to the newest.
    pub snapshots: Vec<PackagedSnapshot>,
}

/// A snapshot of a package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackagedSnapshot {
    /// Name after the `@`.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// Properties of the snapshot itself; `None` if they are not part of the package.
    pub properties: Option<Values>,
    /// Tags and times of holds, in seconds since 1970; `None` if they are not part of the package.
    pub holds: Option<Vec<(String, u64)>>,
}

impl Package {
    /// The list as sent.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(from) = &self.from {
            list.set("fromsnap", from.as_str());
        }
        list.set("tosnap", self.to.as_str());
        if !self.is_recursive {
            list.set("not_recursive", NvValue::Boolean);
        }
        if self.is_raw {
            list.set("raw", NvValue::Boolean);
        }
        let mut datasets = NvList::new();
        for dataset in &self.datasets {
            datasets.set(&format!("{:#x}", dataset.head_guid), dataset.to_list());
        }
        list.set("fss", datasets);
        list
    }

    /// Decodes a received list.
    ///
    /// # Errors
    /// [`ReceiveError::Invalid`] if a field is missing or of another type.
    pub fn from_list(list: &NvList) -> Result<Package, ReceiveError> {
        let datasets = list.get_list("fss").ok_or_else(|| invalid("fss"))?;
        let datasets = datasets.pairs().iter().map(PackagedDataset::from_pair).collect::<Result<_, _>>()?;
        Ok(Package {
            from: list.get_str("fromsnap").map(str::to_owned),
            to: list.get_str("tosnap").unwrap_or_default().to_owned(),
            is_recursive: !list.contains("not_recursive"),
            is_raw: list.contains("raw"),
            datasets,
        })
    }
}

impl PackagedDataset {
    fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        list.set("name", self.name.as_str());
        list.set("parentfromsnap", self.parent_from_guid);
        if let Some(origin) = self.origin_guid {
            list.set("origin", origin);
        }
        if let Some(properties) = &self.properties {
            list.set("props", values_list(properties));
        }
        if self.is_encryption_root {
            list.set("is_encroot", NvValue::Boolean);
        }
        let mut guids = NvList::new();
        let mut properties = NvList::new();
        let mut holds = NvList::new();
        for snapshot in &self.snapshots {
            guids.set(&snapshot.name, snapshot.guid);
            if let Some(values) = &snapshot.properties {
                properties.set(&snapshot.name, values_list(values));
            }
            if let Some(of_snapshot) = &snapshot.holds {
                let mut tags = NvList::new();
                of_snapshot.iter().for_each(|(tag, time)| tags.set(tag, *time));
                holds.set(&snapshot.name, tags);
            }
        }
        list.set("snaps", guids);
        list.set("snapprops", properties);
        if self.snapshots.iter().any(|snapshot| snapshot.holds.is_some()) {
            list.set("snapholds", holds);
        }
        list
    }

    fn from_pair(pair: &NvPair) -> Result<PackagedDataset, ReceiveError> {
        let list = pair.value.as_list().ok_or_else(|| invalid("fss"))?;
        let digits = pair.name_lossy();
        let head_guid = u64::from_str_radix(digits.trim_start_matches("0x"), 16).map_err(|_| invalid("fss"))?;
        let snapshots = list.get_list("snaps").ok_or_else(|| invalid("snaps"))?;
        let properties = list.get_list("snapprops");
        let holds = list.get_list("snapholds");
        let snapshots = snapshots.pairs().iter().map(|pair| PackagedSnapshot::from_pair(pair, properties, holds));
        Ok(PackagedDataset {
            head_guid,
            name: list.get_str("name").ok_or_else(|| invalid("name"))?.to_owned(),
            parent_from_guid: list.get_u64("parentfromsnap").unwrap_or(0),
            origin_guid: list.get_u64("origin").filter(|guid| *guid != 0),
            is_encryption_root: list.contains("is_encroot"),
            properties: list.get_list("props").map(values_of).transpose()?,
            snapshots: snapshots.collect::<Result<_, _>>()?,
        })
    }

    /// The snapshot of this name after the `@`.
    pub fn snapshot(&self, name: &str) -> Option<&PackagedSnapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.name == name)
    }
}

impl PackagedSnapshot {
    fn from_pair(
        pair: &NvPair,
        properties: Option<&NvList>,
        holds: Option<&NvList>,
    ) -> Result<PackagedSnapshot, ReceiveError> {
        let name = String::from_utf8(pair.name.clone()).map_err(|_| invalid("snaps"))?;
        let of = |lists: Option<&NvList>| lists.and_then(|lists| lists.get_list(&name).cloned());
        let holds = of(holds).map(|tags| {
            let held = tags.pairs().iter().map(|tag| (tag.name_lossy().into_owned(), tag.value.as_u64().unwrap_or(0)));
            held.collect()
        });
        Ok(PackagedSnapshot {
            guid: pair.value.as_u64().ok_or_else(|| invalid("snaps"))?,
            properties: of(properties).as_ref().map(values_of).transpose()?,
            holds,
            name,
        })
    }
}

/// Datasets and snapshots by the GUID of the snapshot (`fsavl_create`); of several with one GUID, the first.
pub struct Index<'a>(BTreeMap<u64, (&'a PackagedDataset, &'a PackagedSnapshot)>);

impl<'a> Index<'a> {
    /// Indexes datasets.
    pub fn new(datasets: &'a [PackagedDataset]) -> Self {
        let mut index = BTreeMap::new();
        for dataset in datasets {
            for snapshot in &dataset.snapshots {
                index.entry(snapshot.guid).or_insert((dataset, snapshot));
            }
        }
        Index(index)
    }

    /// The snapshot with this GUID, and its dataset.
    pub fn get(&self, guid: u64) -> Option<(&'a PackagedDataset, &'a PackagedSnapshot)> {
        self.0.get(&guid).copied()
    }
}

fn values_list(values: &Values) -> NvList {
    let mut list = NvList::new();
    for (name, value) in values {
        match value {
            Value::Number(n) => list.set(name, *n),
            Value::Text(text) => list.set(name, text.as_str()),
        }
    }
    list
}

fn values_of(list: &NvList) -> Result<Values, ReceiveError> {
    let value = |pair: &NvPair| {
        let value = match &pair.value {
            NvValue::Uint64(n) => Value::Number(*n),
            NvValue::String(_) => Value::Text(pair.value.as_str().ok_or_else(|| invalid("props"))?.to_owned()),
            _ => return Err(invalid("props")),
        };
        Ok((pair.name_lossy().into_owned(), value))
    };
    list.pairs().iter().map(value).collect()
}

fn invalid(field: &str) -> ReceiveError {
    ReceiveError::Invalid(format!("the field {field} of the package is not valid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_survive_the_stream() {
        let snapshot = |name: &str, guid| PackagedSnapshot { name: name.into(), guid, ..PackagedSnapshot::default() };
        let user = vec![("a:b".to_owned(), Value::Text("x".into()))];
        let dataset = PackagedDataset {
            head_guid: 0xabc,
            name: "tank/a".into(),
            parent_from_guid: 7,
            origin_guid: Some(9),
            is_encryption_root: true,
            properties: Some(vec![("compression".into(), Value::Number(15)), user[0].clone()]),
            snapshots: vec![
                snapshot("s1", 1),
                PackagedSnapshot { properties: Some(user), holds: Some(vec![("tag".into(), 5)]), ..snapshot("s2", 2) },
            ],
        };
        let package = Package {
            from: Some("s1".into()),
            to: "s2".into(),
            is_recursive: true,
            is_raw: true,
            datasets: vec![dataset],
        };
        let list = NvList::decode(&package.to_list().encode_xdr()).unwrap();
        assert_eq!(Package::from_list(&list).unwrap(), package);
        let index = Index::new(&package.datasets);
        assert_eq!(index.get(2).map(|(_, snapshot)| snapshot.name.as_str()), Some("s2"));
        assert_eq!(index.get(3), None);
    }

    #[test]
    fn malformed_packages_are_refused() {
        let mut list = NvList::new();
        assert!(Package::from_list(&list).is_err());
        let mut datasets = NvList::new();
        datasets.set("0x1", 5u64);
        list.set("fss", datasets);
        assert!(Package::from_list(&list).is_err());
    }
}
