//! Renames at the target: the replica of a dataset that got another name gets it too.
//!
//! A replica is recognised by the GUIDs of its snapshots, as `zfs receive` of a stream of `zfs send -R` does it (OpenZFS
//! `lib/libzfs/libzfs_sendrecv.c`, `recv_incremental_replication`). Names here are those below the top of a side: empty for the top, else
//! they begin with `/`.

use super::side::Side;
use crate::failure::Failure;
use std::collections::BTreeMap;

/// A snapshot or bookmark in a listing of many datasets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of its dataset below the top.
    pub dataset: String,
    /// GUID: a bookmark has that of its snapshot.
    pub guid: u64,
    /// Txg in which the snapshot was created.
    pub createtxg: u64,
}

/// Another name for a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// Present name below the top.
    pub from: String,
    /// Next name below the top.
    pub to: String,
}

/// Replicas at the target, with the names that they have after the renames so far.
#[derive(Debug, Default)]
pub struct Replicas {
    /// GUIDs of each source's snapshots and bookmarks, the oldest first.
    sources: BTreeMap<String, Vec<u64>>,
    source_of: BTreeMap<u64, String>,
    replicas: Vec<Replica>,
    replica_of: BTreeMap<u64, usize>,
    /// Place of each replica, by its name.
    names: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Replica {
    /// Name before the first rename.
    listed: String,
    name: String,
    /// GUIDs of its snapshots, the oldest first.
    guids: Vec<u64>,
}

fn by_dataset(mut points: Vec<Listed>) -> BTreeMap<String, Vec<u64>> {
    points.sort_by_key(|point| point.createtxg);
    let mut out: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for point in points {
        out.entry(point.dataset).or_default().push(point.guid);
    }
    out
}

/// Whether `name` is `top` or below it.
fn is_within(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Replicas {
    /// Lists both sides; a target that does not exist has no replicas.
    ///
    /// # Errors
    /// If a side cannot be listed.
    pub fn list(source: &Side, target: &Side) -> Result<Self, Failure> {
        let sources = source.listed("snapshot,bookmark")?;
        let names = match target.descendants() {
            Ok(names) => names,
            Err(failure) if failure.line.contains("does not exist") => return Ok(Replicas::default()),
            Err(failure) => return Err(failure),
        };
        let below = |name: String| name.strip_prefix(target.dataset.as_str()).map(str::to_owned);
        Ok(Replicas::new(sources, names.into_iter().filter_map(below).collect(), target.listed("snapshot")?))
    }

    /// From the snapshots and bookmarks of the source, and the datasets and snapshots of the target.
    pub fn new(sources: Vec<Listed>, targets: Vec<String>, snapshots: Vec<Listed>) -> Self {
        let source_of = sources.iter().map(|point| (point.guid, point.dataset.clone())).collect();
        let mut guids = by_dataset(snapshots);
        let replica =
            |name: String| Replica { listed: name.clone(), guids: guids.remove(&name).unwrap_or_default(), name };
        let replicas: Vec<Replica> = targets.into_iter().map(replica).collect();
        let mut names = BTreeMap::new();
        let mut replica_of = BTreeMap::new();
        for (at, replica) in replicas.iter().enumerate() {
            names.insert(replica.name.clone(), at);
            replica_of.extend(replica.guids.iter().map(|guid| (*guid, at)));
        }
        Replicas { sources: by_dataset(sources), source_of, replicas, replica_of, names }
    }

    /// The renames, in their order, after which `name` is free or that of the replica of this source. Sources are asked for with
    /// parents first. A dataset that is the replica of no source keeps its name.
    pub fn place(&mut self, name: &str) -> Vec<Rename> {
        let mut renames = Vec::new();
        let newest = self.sources.get(name).into_iter().flatten().rev().find_map(|guid| self.replica_of.get(guid));
        let replica = newest.copied();
        let other = self.names.get(name).copied().filter(|other| Some(*other) != replica);
        // The top is where the user says that it is.
        if name.is_empty() || replica.is_some_and(|at| self.name_of(at).is_empty()) {
            return renames;
        }
        if let Some(other) = other {
            let Some(to) = self.place_for(other, name) else { return renames };
            renames.push(self.rename(name, &to));
        }
        if let Some(from) = replica.map(|at| self.name_of(at).to_owned()).filter(|from| from != name) {
            renames.push(self.rename(&from, name));
        }
        debug_assert!(replica.is_none_or(|at| self.name_of(at) == name), "{name} is its replica's name");
        renames
    }

    /// Name that the target's dataset of this name had before the first rename; `None` if there is none.
    pub fn listed_name(&self, name: &str) -> Option<&str> {
        let at = self.names.get(name)?;
        self.replicas.get(*at).map(|replica| replica.listed.as_str())
    }

    fn name_of(&self, at: usize) -> &str {
        self.replicas.get(at).map_or("", |replica| replica.name.as_str())
    }

    /// A free name for a replica whose name belongs to another source: that of its source if it can have it already. `None` if it
    /// is the replica of no source.
    fn place_for(&self, at: usize, name: &str) -> Option<String> {
        let guids = &self.replicas.get(at)?.guids;
        let source = guids.iter().rev().find_map(|guid| self.source_of.get(guid)).filter(|source| *source != name)?;
        let parent = source.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !self.names.contains_key(source) && self.names.contains_key(parent) && !is_within(source, name) {
            return Some(source.clone());
        }
        (1..).map(|n| format!("{name}.renamed-{n}")).find(|free| !self.names.contains_key(free))
    }

    /// Renames a dataset, and those below it.
    fn rename(&mut self, from: &str, to: &str) -> Rename {
        debug_assert!(!self.names.contains_key(to), "{to} is free");
        debug_assert!(!is_within(to, from), "{from} does not become one of those below itself");
        let moved: Vec<usize> =
            self.names.iter().filter(|(name, _)| is_within(name, from)).map(|(_, at)| *at).collect();
        for at in moved {
            let Some(replica) = self.replicas.get_mut(at) else { continue };
            self.names.remove(&replica.name);
            replica.name = format!("{to}{}", replica.name.strip_prefix(from).unwrap_or_default());
            self.names.insert(replica.name.clone(), at);
        }
        Rename { from: from.to_owned(), to: to.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides, each dataset with the GUIDs of its snapshots, the oldest first.
    fn replicas(sources: &[(&str, &[u64])], targets: &[(&str, &[u64])]) -> Replicas {
        let listed = |side: &[(&str, &[u64])]| {
            let points = |(name, guids): &(&str, &[u64])| {
                let name = (*name).to_owned();
                guids.iter().map(move |guid| Listed { dataset: name.clone(), guid: *guid, createtxg: *guid }).collect()
            };
            side.iter().flat_map(|dataset| -> Vec<Listed> { points(dataset) }).collect::<Vec<_>>()
        };
        let names = targets.iter().map(|(name, _)| (*name).to_owned()).collect();
        Replicas::new(listed(sources), names, listed(targets))
    }

    /// Renames of a run over all sources, as `FROM>TO`; a source without a replica gets one.
    fn renames(sources: &[(&str, &[u64])], targets: &[(&str, &[u64])]) -> Vec<String> {
        let mut replicas = replicas(sources, targets);
        let mut out = Vec::new();
        for (name, guids) in sources {
            out.extend(replicas.place(name).into_iter().map(|Rename { from, to }| format!("{from}>{to}")));
            if !replicas.names.contains_key(*name) {
                let at = replicas.replicas.len();
                let listed = String::new();
                replicas.replicas.push(Replica { listed, name: (*name).into(), guids: guids.to_vec() });
                replicas.names.insert((*name).to_owned(), at);
            }
        }
        out
    }

    #[test]
    fn replicas_follow_their_sources() {
        // Nothing was renamed; one is new.
        let same: &[(&str, &[u64])] = &[("", &[1]), ("/a", &[2, 3])];
        assert_eq!(renames(&[("", &[1]), ("/a", &[2, 3, 9]), ("/b", &[4])], same), Vec::<String>::new());
        assert_eq!(renames(&[("", &[1]), ("/b", &[3, 9])], same), ["/a>/b"]);
        // The old name belongs to a new dataset.
        assert_eq!(renames(&[("", &[1]), ("/a", &[9]), ("/a2", &[2, 3])], same), ["/a>/a2"]);
        // It became one of those below the new dataset of its old name.
        assert_eq!(
            renames(&[("", &[1]), ("/a", &[9]), ("/a/b", &[3])], same),
            ["/a>/a.renamed-1", "/a.renamed-1>/a/b"]
        );
        // Below a dataset that does not exist at the target yet.
        assert_eq!(
            renames(&[("", &[1]), ("/a", &[9]), ("/n", &[8]), ("/n/b", &[3])], same),
            ["/a>/a.renamed-1", "/a.renamed-1>/n/b"]
        );
    }

    #[test]
    fn names_are_exchanged_and_children_move_with_their_parents() {
        let before: &[(&str, &[u64])] = &[("", &[1]), ("/a", &[2]), ("/a/k", &[3]), ("/b", &[4])];
        let swapped: &[(&str, &[u64])] = &[("", &[1]), ("/a", &[4]), ("/b", &[2]), ("/b/k", &[3])];
        assert_eq!(renames(swapped, before), ["/a>/a.renamed-1", "/b>/a", "/a.renamed-1>/b"]);
        // An interrupted run goes on.
        let between: &[(&str, &[u64])] = &[("", &[1]), ("/a.renamed-1", &[2]), ("/a.renamed-1/k", &[3]), ("/b", &[4])];
        assert_eq!(renames(swapped, between), ["/b>/a", "/a.renamed-1>/b"]);
        let out: &[(&str, &[u64])] = &[("", &[1]), ("/a", &[2]), ("/b", &[4]), ("/b/k", &[3])];
        assert_eq!(renames(out, before), ["/a/k>/b/k"]);
    }

    #[test]
    fn what_is_no_replica_keeps_its_name() {
        // The source of /a was destroyed, and /b got its name.
        let before: &[(&str, &[u64])] = &[("", &[1]), ("/a", &[2]), ("/b", &[4]), ("/own", &[77])];
        assert_eq!(renames(&[("", &[1]), ("/a", &[4])], before), Vec::<String>::new());
        assert_eq!(renames(&[("", &[1]), ("/own", &[4])], before), Vec::<String>::new());
        // A source that was made the child of another one, whose replica is the top of the target.
        assert_eq!(renames(&[("", &[9]), ("/a", &[1])], before), Vec::<String>::new());
    }

    #[test]
    fn the_name_before_the_renames_is_known() {
        let mut replicas = replicas(&[("/a", &[9]), ("/a2", &[2])], &[("", &[1]), ("/a", &[2]), ("/a/k", &[3])]);
        assert_eq!(replicas.place("/a").len(), 1);
        assert_eq!(replicas.listed_name("/a"), None);
        assert_eq!((replicas.listed_name("/a2"), replicas.listed_name("/a2/k")), (Some("/a"), Some("/a/k")));
    }
}
