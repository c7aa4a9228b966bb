//! `zfs destroy` of datasets and snapshots: what goes, in which order, and what prevents it.

use crate::change::Author;
use crate::mounting::{MountChange, MountEffect};
use crate::refusal::{Refusal, RefusalKind};
use crate::selection::{below, snapshots};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weir_dsl::{Dir, Dsl, Scope};
use weir_engine::Engine;
use weir_format::{ObjectId, ObjsetKind};
use weir_machine::Request;
use weir_pool::PoolError;

/// Datasets or snapshots to destroy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Destruction {
    /// A file system or volume.
    Dataset {
        /// Full name.
        name: String,
        /// Whether its snapshots and descendants go with it.
        recursive: bool,
        /// Whether also the clones of their snapshots go.
        dependents: bool,
        /// Whether snapshots that are held or cloned are destroyed later.
        defer: bool,
    },
    /// Snapshots of a dataset.
    Snapshots {
        /// Full name of the dataset.
        name: String,
        /// Names and ranges of snapshots: `a,b%d,%f,g%`.
        snapshots: String,
        /// Whether those of the same names of the descendants go with them.
        recursive: bool,
        /// Whether their clones go with them, and what is below those.
        #[serde(default)]
        dependents: bool,
        /// Whether those that are held or cloned are destroyed later.
        defer: bool,
    },
}

/// How often a destruction of a tree is planned, if other commands create or destroy in it.
const MAX_PLANS: u32 = 16;

/// Snapshots that go together, and then their file system or volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestroyStep {
    /// Full names of the snapshots.
    pub snapshots: Vec<String>,
    /// Full name of the dataset.
    pub head: Option<String>,
}

impl DestroyStep {
    /// Number of its snapshots and datasets.
    pub(crate) fn parts(&self) -> usize {
        self.snapshots.len() + usize::from(self.head.is_some())
    }
}

impl Destruction {
    /// Everything that is destroyed, in order.
    ///
    /// # Errors
    /// Refusals because of clones, children or missing names; errors of reading the pool.
    pub async fn plan(&self, engine: &Engine) -> Result<Vec<DestroyStep>, Refusal> {
        let rq = &Request::internal("destroy");
        match self {
            Destruction::Snapshots { name, snapshots, recursive, dependents, .. } => {
                // The clones may be anywhere.
                let scope = if *dependents { Scope::All } else { Scope::Subtree(name) };
                let dsl = engine.synced().dsl_in(rq, scope).await?;
                let step = named_snapshots(rq, &dsl, name, snapshots, *recursive).await?;
                let mut plan = if *dependents { clones_of(rq, &dsl, &step.snapshots).await? } else { Vec::new() };
                plan.push(step);
                Ok(plan)
            }
            Destruction::Dataset { name, recursive, dependents, .. } => {
                let mut dsl = engine.synced().dsl_in(rq, Scope::Subtree(name)).await?;
                if has_clones(rq, &dsl, name).await? {
                    // The clones may be anywhere.
                    dsl = engine.synced().dsl_in(rq, Scope::All).await?;
                }
                tree(rq, &dsl, name, *recursive, *dependents).await
            }
        }
    }

    /// Bytes that are freed with the snapshots that are destroyed; `None` if whole datasets are.
    ///
    /// # Errors
    /// Errors of [`Destruction::plan`].
    pub async fn reclaimed_bytes(&self, engine: &Engine) -> Result<Option<u64>, Refusal> {
        let Destruction::Snapshots { name, snapshots, recursive, .. } = self else { return Ok(None) };
        let rq = &Request::internal("destroy");
        let dsl = engine.synced().dsl_in(rq, Scope::Subtree(name)).await?;
        let step = named_snapshots(rq, &dsl, name, snapshots, *recursive).await?;
        let chosen: BTreeSet<&str> = step.snapshots.iter().map(String::as_str).collect();
        let mut bytes = 0u64;
        for dir in below(&dsl, name).into_iter().filter(|dir| *recursive || dir.name == *name) {
            let list = dsl.snapshots(rq, dir).await.map_err(PoolError::from)?;
            // What several in a row free together is more than the sum of what each frees alone.
            for row in list.snapshots.split(|snapshot| !chosen.contains(snapshot.name.as_str())) {
                if let (Some(first), Some(last)) = (row.first(), row.last()) {
                    let freed = weir_dsl::space::freed_with(&dsl, rq, first, last).await.map_err(PoolError::from)?;
                    bytes = bytes.saturating_add(freed);
                }
            }
        }
        Ok(Some(bytes))
    }

    /// Destroys everything that the plan contains.
    ///
    /// If other commands create or destroy datasets in a tree meanwhile, the rest of it is planned again, at most [`MAX_PLANS`]
    /// times. The author's monitor has the progress, and can end the destruction between two steps.
    ///
    /// # Errors
    /// Errors of [`Destruction::plan`], and of the checks that each sync task makes before it changes anything;
    /// [`RefusalKind::Canceled`].
    pub(crate) async fn run(&self, engine: &Engine, author: &mut Author) -> Result<(), Refusal> {
        let (Destruction::Dataset { defer, .. } | Destruction::Snapshots { defer, .. }) = self;
        let mut left = if self.is_tree() { MAX_PLANS } else { 1 };
        loop {
            author.monitor.check()?;
            let plan = match self.plan(engine).await {
                // Another command has destroyed the rest.
                Err(refusal) if self.is_tree() && left < MAX_PLANS && refusal.kind == RefusalKind::Missing => {
                    return Ok(());
                }
                plan => plan?,
            };
            check_unused(engine, &plan).await?;
            author.monitor.plan(plan.iter().map(DestroyStep::parts).sum());
            left -= 1;
            let Err(mut refusal) = destroy_steps(engine, author, plan, *defer).await else { return Ok(()) };
            if !self.is_tree() || !matches!(refusal.kind, RefusalKind::HasChildren | RefusalKind::Missing) {
                return Err(refusal);
            }
            if left == 0 {
                refusal.why += "; other commands create or destroy there all the time, and a part of it is destroyed";
                return Err(refusal);
            }
        }
    }

    /// The effect on mounts: as in OpenZFS, a mount that is in use, if only as a working directory, prevents the destruction.
    /// `None` if no dataset is destroyed.
    ///
    /// # Errors
    /// Errors of [`Destruction::plan`], and [`RefusalKind::Busy`] if clients use a dataset.
    pub(crate) async fn mount_effect(&self, engine: &Engine) -> Result<Option<MountEffect>, Refusal> {
        let Destruction::Dataset { name, .. } = self else { return Ok(None) };
        let plan = self.plan(engine).await?;
        check_unused(engine, &plan).await?;
        let names = plan.into_iter().filter_map(|step| step.head).collect();
        let change = MountChange::Destroyed { names };
        Ok(Some(MountEffect { name: name.clone(), recursive: true, change, force: false }))
    }

    /// Whether a dataset goes with all that is below it.
    fn is_tree(&self) -> bool {
        matches!(self, Destruction::Dataset { recursive, dependents, .. } if *recursive || *dependents)
    }
}

/// Fails if clients use a dataset of a plan. This is checked before any of it is destroyed.
pub(crate) async fn check_unused(engine: &Engine, plan: &[DestroyStep]) -> Result<(), Refusal> {
    let rq = &Request::internal("destroy");
    for head in plan.iter().filter_map(|step| step.head.as_ref()) {
        if engine.is_used(rq, head).await? {
            return Err(Refusal::new(RefusalKind::Busy, format!("dataset is busy: clients use '{head}'")));
        }
    }
    Ok(())
}

/// Destroys what a plan contains; with `defer`, snapshots that are held or cloned go later. The author's monitor has the number
/// of its parts.
pub(crate) async fn destroy_steps(
    engine: &Engine,
    author: &mut Author,
    plan: Vec<DestroyStep>,
    defer: bool,
) -> Result<(), Refusal> {
    for step in plan {
        author.monitor.check()?;
        let parts = step.parts();
        if let Some(head) = &step.head {
            // Of a stream that was interrupted, nothing is left: it is a hidden clone of the last snapshot.
            engine.receives().discard(head, true).await?;
        }
        if !step.snapshots.is_empty() {
            engine.destroy_snapshots(step.snapshots, defer).await?;
            author.record(engine)?;
        }
        if let Some(head) = step.head {
            engine.destroy_dataset(head).await?;
            author.record(engine)?;
        }
        author.monitor.advance(parts);
    }
    Ok(())
}

/// Whether a snapshot of a dataset or its descendants has clones.
async fn has_clones(rq: &Request, dsl: &Dsl, top: &str) -> Result<bool, PoolError> {
    for dir in below(dsl, top) {
        // The first child is the next snapshot or the head.
        if dsl.snapshots(rq, dir).await?.snapshots.iter().any(|snapshot| snapshot.phys.children > 1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The snapshots that a list of names and ranges means; with `recursive` those of the same names below as well.
async fn named_snapshots(
    rq: &Request,
    dsl: &Dsl,
    of: &str,
    list: &str,
    recursive: bool,
) -> Result<DestroyStep, Refusal> {
    let mut found = Vec::new();
    for dir in below(dsl, of).into_iter().filter(|dir| recursive || dir.name == of) {
        let there = snapshots(rq, dsl, dir).await?;
        found.extend(chosen(&there, list).into_iter().map(|s| format!("{}@{s}", dir.name)));
    }
    if found.is_empty() {
        let why = "could not find any snapshots to destroy; check snapshot names.";
        return Err(Refusal::new(RefusalKind::NoSnapshots, why));
    }
    Ok(DestroyStep { snapshots: found, head: None })
}

/// The clones of snapshots with all that depends on them.
pub(crate) async fn clones_of(rq: &Request, dsl: &Dsl, snapshots: &[String]) -> Result<Vec<DestroyStep>, Refusal> {
    let mut ids = BTreeSet::new();
    for name in snapshots {
        ids.insert(dsl.find(rq, name).await.map_err(PoolError::from)?.id);
    }
    let tops = clones(dsl, &ids).map(str::to_owned).collect();
    let heads = gather(rq, dsl, tops, true).await?;
    if heads.iter().any(|head| !head.ids.is_disjoint(&ids)) {
        return Err(Refusal::new(RefusalKind::HasClones, "a parent is a clone of its own child; promote it first"));
    }
    ordered(heads)
}

/// Those of the snapshots (oldest first) that a list of names and ranges means: `a,b%d,%f,g%`.
fn chosen<'a>(there: &'a [String], list: &str) -> Vec<&'a str> {
    let at = |name: &str| there.iter().position(|s| s == name);
    let mut out = BTreeSet::new();
    for part in list.split(',') {
        match part.split_once('%') {
            None => out.extend(at(part)),
            Some((first, last)) => {
                let first = if first.is_empty() { Some(0) } else { at(first) };
                let last = if last.is_empty() { there.len().checked_sub(1) } else { at(last) };
                if let (Some(first), Some(last)) = (first, last) {
                    out.extend(first..=last);
                }
            }
        }
    }
    out.into_iter().filter_map(|i| there.get(i)).map(String::as_str).collect()
}

/// A file system or volume to destroy.
struct Head {
    name: String,
    snapshots: Vec<String>,
    /// The objects of its snapshots.
    ids: BTreeSet<ObjectId>,
    /// The snapshot that it is a clone of.
    origin: ObjectId,
}

/// A dataset and its dependents, as far as `recursive` and `dependents` include them.
async fn tree(
    rq: &Request,
    dsl: &Dsl,
    name: &str,
    recursive: bool,
    dependents: bool,
) -> Result<Vec<DestroyStep>, Refusal> {
    let dir = dsl.dir_named(name).ok_or_else(Refusal::missing)?;
    let heads = gather(rq, dsl, vec![name.to_owned()], dependents).await?;
    let all: BTreeSet<ObjectId> = heads.iter().flat_map(|head| &head.ids).copied().collect();
    let goes = |name: &str| heads.iter().any(|head| head.name == name);
    // As in OpenZFS, clones are named to those who destroy the snapshots.
    let snapshots = heads.iter().flat_map(|head| &head.snapshots);
    let more: Vec<String> = heads.iter().skip(1).map(|head| &head.name).chain(snapshots).cloned().collect();
    if !recursive && !dependents && !more.is_empty() {
        let why = format!("{} has children", kind_name(rq, dsl, dir).await?);
        return Err(Refusal::because_of(RefusalKind::HasChildren, why, more));
    }
    let others: Vec<String> = clones(dsl, &all).filter(|clone| !goes(clone)).map(str::to_owned).collect();
    if !others.is_empty() {
        let why = format!("{} has dependent clones", kind_name(rq, dsl, dir).await?);
        return Err(Refusal::because_of(RefusalKind::HasClones, why, others));
    }
    ordered(heads)
}

/// Name of a dataset's kind in messages.
async fn kind_name(rq: &Request, dsl: &Dsl, dir: &Dir) -> Result<&'static str, Refusal> {
    Ok(match dsl.kind(rq, dir).await.map_err(PoolError::from)? {
        ObjsetKind::Zvol => "volume",
        _ => "filesystem",
    })
}

/// The datasets `tops` and those below; with `dependents` also the clones of their snapshots.
async fn gather(rq: &Request, dsl: &Dsl, mut tops: Vec<String>, dependents: bool) -> Result<Vec<Head>, Refusal> {
    let mut heads: Vec<Head> = Vec::new();
    while let Some(top) = tops.pop() {
        for dir in below(dsl, &top) {
            if heads.iter().any(|head| head.name == dir.name) {
                continue;
            }
            let list = dsl.snapshots(rq, dir).await.map_err(PoolError::from)?;
            let ids: BTreeSet<ObjectId> = list.snapshots.iter().map(|s| s.id).collect();
            tops.extend(clones(dsl, &ids).filter(|_| dependents).map(str::to_owned));
            let snapshots = list.snapshots.iter().map(|s| s.name.clone()).collect();
            heads.push(Head { name: dir.name.clone(), snapshots, ids, origin: dir.phys.origin });
        }
    }
    Ok(heads)
}

fn ordered(heads: Vec<Head>) -> Result<Vec<DestroyStep>, Refusal> {
    let circle = "a parent is a clone of its own child; promote it first";
    in_order(heads).ok_or_else(|| Refusal::new(RefusalKind::HasClones, circle))
}

/// Sorts datasets so that children precede their parents and clones their origins; `None` if there is no such order.
fn in_order(mut heads: Vec<Head>) -> Option<Vec<DestroyStep>> {
    let mut out = Vec::new();
    while !heads.is_empty() {
        let is_needed = |one: &Head| {
            let child = |other: &Head| other.name.strip_prefix(&one.name).is_some_and(|rest| rest.starts_with('/'));
            heads.iter().any(|other| child(other) || one.ids.contains(&other.origin))
        };
        let next = heads.iter().rposition(|head| !is_needed(head))?;
        let head = heads.remove(next);
        // The root file system of a pool goes with the pool alone.
        out.push(DestroyStep { snapshots: head.snapshots, head: Some(head.name).filter(|name| name.contains('/')) });
    }
    Some(out)
}

/// The datasets whose origin is one of these snapshots.
fn clones<'a>(dsl: &'a Dsl, snapshots: &'a BTreeSet<ObjectId>) -> impl Iterator<Item = &'a str> {
    dsl.visible_dirs().into_iter().filter(|dir| snapshots.contains(&dir.phys.origin)).map(|dir| dir.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &str, snapshot: u64, origin: u64) -> Head {
        let (snapshots, ids) = match snapshot {
            0 => Default::default(),
            id => (vec![format!("{name}@{id}")], BTreeSet::from([ObjectId(id)])),
        };
        Head { name: name.into(), snapshots, ids, origin: ObjectId(origin) }
    }

    #[test]
    fn children_and_clones_go_first() {
        let order = |heads| in_order(heads).map(|d| d.into_iter().filter_map(|step| step.head).collect::<Vec<_>>());
        let heads = vec![head("p/a", 5, 0), head("p/a/b", 6, 0), head("p/a/c", 0, 6), head("p/x", 0, 5)];
        assert_eq!(order(heads).unwrap(), ["p/x", "p/a/c", "p/a/b", "p/a"]);
        assert_eq!(order(vec![head("p/a", 0, 6), head("p/a/b", 6, 0)]), None);
    }

    #[test]
    fn lists_and_ranges_of_snapshots() {
        let there: Vec<String> = ["a", "b", "c", "d", "e"].map(String::from).to_vec();
        for (list, wanted) in [
            ("c", &["c"][..]),
            ("e,a,x", &["a", "e"]),
            ("b%d", &["b", "c", "d"]),
            ("%b", &["a", "b"]),
            ("d%,a", &["a", "d", "e"]),
            ("%", &["a", "b", "c", "d", "e"]),
            ("d%b", &[]),
            ("x%d", &[]),
        ] {
            assert_eq!(chosen(&there, list), wanted, "{list}");
        }
    }
}
