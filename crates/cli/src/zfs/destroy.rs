//! `zfs destroy`: datasets, snapshots and bookmarks go.

use super::target::{self, below, words};
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::Places;
use crate::writable::dsl;
use clap::Parser;
use std::collections::BTreeSet;
use weir_admin::Change;
use weir_dsl::{Dsl, Scope};
use weir_engine::Engine;
use weir_format::ObjectId;
use weir_machine::Request;
use weir_pool::PoolError;

/// Destroy a dataset, snapshots or a bookmark.
#[derive(Debug, Parser)]
#[command(
    name = "zfs destroy",
    override_usage = "zfs destroy [-fnpRrv] [--dir DIR]… FILESYSTEM|VOLUME\n       zfs destroy [-dnpRrv] [--dir DIR]… FILESYSTEM|VOLUME@SNAPSHOT[%SNAPSHOT][,…]\n       zfs destroy [--dir DIR]… FILESYSTEM|VOLUME#BOOKMARK"
)]
pub struct DestroyArgs {
    /// Destroy also everything below the dataset, or the snapshots of that name below it
    #[arg(short)]
    recursive: bool,
    /// Like -r, and destroy also clones outside of the dataset
    #[arg(short = 'R')]
    dependents: bool,
    /// Show what would be destroyed and destroy nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Print what is destroyed
    #[arg(short)]
    verbose: bool,
    /// Print the result in columns separated by tabs
    #[arg(short)]
    parsable: bool,
    /// Destroy held and cloned snapshots later, when no hold and no clone is left
    #[arg(short)]
    defer: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'f')]
    _force: bool,
    #[command(flatten)]
    places: Places,
    /// Dataset, snapshots or bookmark
    #[arg(value_name = "NAME")]
    words: Vec<String>,
}

/// Datasets to destroy in order: snapshots, then their file system or volume.
#[derive(Debug, Default)]
struct DestroyPlan(Vec<(Vec<String>, Option<String>)>);

/// Runs the command.
pub fn run(call: &Call, args: &DestroyArgs) -> Result<u8, Failure> {
    let name = words::<DestroyArgs>(&args.words, 1..=1, "missing dataset argument")?.remove(0);
    let doing = format!("cannot destroy '{name}'");
    if !name.contains(['/', '@', '#']) {
        return Err(Failure::failed(format!(
            "{doing}: operation does not apply to pools\nuse 'zfs destroy -r {name}' to destroy all datasets in the \
             pool\nuse 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    if name.contains('#') {
        let change = Change::DestroyBookmarks { bookmarks: vec![name.clone()] };
        return target::once(call, &args.places, &name, &doing, change);
    }
    target::open(call, &args.places, &name)?.with(async |engine| {
        let rq = Request::internal("destroy");
        let plan = {
            match name.split_once('@') {
                Some((of, list)) => {
                    let dsl = dsl(engine, &rq, Scope::Subtree(of)).await?;
                    named_snapshots(&rq, &dsl, (of, list), args.recursive || args.dependents).await?
                }
                None => {
                    let mut datasets = dsl(engine, &rq, Scope::Subtree(&name)).await?;
                    if has_clones(&rq, &datasets, &name).await? {
                        // The clones may be anywhere.
                        datasets = dsl(engine, &rq, Scope::All).await?;
                    }
                    tree(&rq, &datasets, &name, args, &doing).await?
                }
            }
        };
        show(call, &plan, args);
        if args.dry_run { Ok(()) } else { carry_out(call, engine, plan, &doing, args.defer).await }
    })?;
    Ok(0)
}

fn show(call: &Call, plan: &DestroyPlan, args: &DestroyArgs) {
    if !args.verbose && !args.dry_run {
        return;
    }
    for name in plan.0.iter().flat_map(|(snapshots, head)| snapshots.iter().chain(head)) {
        match (args.parsable, args.dry_run) {
            (true, _) => outln!(call, "destroy\t{name}"),
            (false, true) => outln!(call, "would destroy {name}"),
            (false, false) => outln!(call, "will destroy {name}"),
        }
    }
}

async fn carry_out(call: &Call, engine: &Engine, plan: DestroyPlan, doing: &str, defer: bool) -> Result<(), Failure> {
    let rq = &Request::internal("destroy");
    for head in plan.0.iter().filter_map(|(_, head)| head.as_ref()) {
        // Before anything of it is gone.
        if engine.is_used(rq, head).await? {
            return Err(Failure::failed(format!("{doing}: '{head}' is busy: clients use it")));
        }
    }
    for (snapshots, head) in plan.0 {
        if !snapshots.is_empty() {
            target::run(call, engine, doing, Change::DestroySnapshots { snapshots, defer }).await?;
        }
        if let Some(head) = head {
            target::run(call, engine, doing, Change::Destroy { name: head }).await?;
        }
    }
    Ok(())
}

/// The snapshots that `of@a,b%c` names; with `recursive` those of the same names below as well.
async fn named_snapshots(
    rq: &Request,
    dsl: &Dsl,
    (of, list): (&str, &str),
    recursive: bool,
) -> Result<DestroyPlan, Failure> {
    let mut plan = Vec::new();
    for dir in below(dsl, of).into_iter().filter(|dir| recursive || dir.name == of) {
        let there = target::snapshots(dsl, rq, dir).await?;
        plan.extend(chosen(&there, list).into_iter().map(|s| format!("{}@{s}", dir.name)));
    }
    if plan.is_empty() {
        return Err(Failure::failed("could not find any snapshots to destroy; check snapshot names."));
    }
    Ok(DestroyPlan(vec![(plan, None)]))
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

/// A file system or volume that is to go.
struct Head {
    name: String,
    snapshots: Vec<String>,
    /// The objects of its snapshots.
    ids: BTreeSet<ObjectId>,
    /// The snapshot that it is a clone of.
    origin: ObjectId,
}

/// A dataset and its dependents, as far as `-r` and `-R` include them.
async fn tree(rq: &Request, dsl: &Dsl, name: &str, args: &DestroyArgs, doing: &str) -> Result<DestroyPlan, Failure> {
    target::must_exist(dsl, doing, name).await?;
    let mut tops = vec![name.to_owned()];
    let mut heads: Vec<Head> = Vec::new();
    while let Some(top) = tops.pop() {
        for dir in below(dsl, &top) {
            if heads.iter().any(|head| head.name == dir.name) {
                continue;
            }
            let list = dsl.snapshots(rq, dir).await.map_err(PoolError::from)?;
            let ids: BTreeSet<ObjectId> = list.snapshots.iter().map(|s| s.id).collect();
            tops.extend(clones(dsl, &ids).filter(|_| args.dependents).map(str::to_owned));
            let snapshots = list.snapshots.iter().map(|s| s.name.clone()).collect();
            heads.push(Head { name: dir.name.clone(), snapshots, ids, origin: dir.phys.origin });
        }
    }
    let all: BTreeSet<ObjectId> = heads.iter().flat_map(|head| &head.ids).copied().collect();
    let is_doomed = |name: &str| heads.iter().any(|head| head.name == name);
    let strangers: Vec<&str> = clones(dsl, &all).filter(|clone| !is_doomed(clone)).collect();
    if !strangers.is_empty() {
        return Err(dependents(doing, "filesystem has dependent clones", "-R", &strangers));
    }
    let snapshots = heads.iter().flat_map(|head| &head.snapshots);
    let more: Vec<&str> = heads.iter().skip(1).map(|head| &head.name).chain(snapshots).map(String::as_str).collect();
    if !args.recursive && !args.dependents && !more.is_empty() {
        return Err(dependents(doing, "filesystem has children", "-r", &more));
    }
    in_order(heads)
        .ok_or_else(|| Failure::failed(format!("{doing}: a parent is a clone of its own child; promote it first")))
}

/// Whether a snapshot of a dataset or its descendants has clones.
async fn has_clones(rq: &Request, dsl: &Dsl, top: &str) -> Result<bool, Failure> {
    for dir in below(dsl, top) {
        let list = dsl.snapshots(rq, dir).await.map_err(PoolError::from)?;
        // The first child is the next snapshot or the head.
        if list.snapshots.iter().any(|snapshot| snapshot.phys.children > 1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sorts datasets so that children precede their parents and clones their origins; `None` if there is no such order.
fn in_order(mut heads: Vec<Head>) -> Option<DestroyPlan> {
    let mut out = DestroyPlan::default();
    while !heads.is_empty() {
        let is_needed = |one: &Head| {
            let child = |other: &Head| other.name.strip_prefix(&one.name).is_some_and(|rest| rest.starts_with('/'));
            heads.iter().any(|other| child(other) || one.ids.contains(&other.origin))
        };
        let next = heads.iter().rposition(|head| !is_needed(head))?;
        let head = heads.remove(next);
        out.0.push((head.snapshots, Some(head.name)));
    }
    Some(out)
}

fn dependents(doing: &str, what: &str, option: &str, names: &[&str]) -> Failure {
    let names = names.join("\n");
    Failure::failed(format!("{doing}: {what}\nuse '{option}' to destroy the following datasets:\n{names}"))
}

/// The datasets whose origin is one of these snapshots.
fn clones<'a>(dsl: &'a Dsl, snapshots: &'a BTreeSet<ObjectId>) -> impl Iterator<Item = &'a str> {
    dsl.dirs().into_iter().filter(|dir| snapshots.contains(&dir.phys.origin)).map(|dir| dir.name.as_str())
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
        let order = |heads| in_order(heads).map(|d| d.0.into_iter().filter_map(|(_, head)| head).collect::<Vec<_>>());
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
