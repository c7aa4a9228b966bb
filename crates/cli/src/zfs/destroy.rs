//! `zfs destroy`: datasets, snapshots and bookmarks go.

use super::target::{self, PLACES, below, words};
use crate::args::{Args, Spec};
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::operations::Operation;
use crate::writable::dsl;
use std::collections::BTreeSet;
use std::ffi::OsString;
use weir_dsl::Dsl;
use weir_engine::Engine;
use weir_format::ObjectId;
use weir_machine::Request;
use weir_pool::PoolError;

const SPEC: Spec = Spec {
    command: "zfs destroy",
    letters: "dfnpRrvD:K:",
    long: &PLACES,
    usage: "zfs destroy [-fnpRrv] FILESYSTEM|VOLUME\n       \
            zfs destroy [-dnpRrv] FILESYSTEM|VOLUME@SNAPSHOT[%SNAPSHOT][,…]\n       \
            zfs destroy FILESYSTEM|VOLUME#BOOKMARK",
};

/// Datasets to destroy in order: snapshots, then their file system or volume.
#[derive(Debug, Default)]
struct DestroyPlan(Vec<(Vec<String>, Option<String>)>);

/// Runs the command.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let name = words(&SPEC, &args, 1..=1, "missing dataset argument")?.remove(0);
    let doing = format!("cannot destroy '{name}'");
    if !name.contains(['/', '@', '#']) {
        return Err(Failure::failed(format!(
            "{doing}: operation does not apply to pools\nuse 'zfs destroy -r {name}' to destroy all datasets in the \
             pool\nuse 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    if name.contains('#') {
        return target::once(call, &args, &name, &doing, Operation::DestroyBookmarks(vec![name.clone()]));
    }
    target::open(call, &args, &name)?.with(async |engine| {
        let rq = Request::internal("destroy");
        let plan = {
            let dsl = dsl(engine, &rq).await?;
            match name.split_once('@') {
                Some((of, list)) => named_snapshots(&rq, &dsl, (of, list), args.has('r') || args.has('R')).await?,
                None => tree(&rq, &dsl, &name, &args, &doing).await?,
            }
        };
        show(call, &plan, &args);
        if args.has('n') { Ok(()) } else { carry_out(call, engine, plan, &doing, args.has('d')).await }
    })?;
    Ok(0)
}

fn show(call: &Call, plan: &DestroyPlan, args: &Args) {
    if !args.has('v') && !args.has('n') {
        return;
    }
    for name in plan.0.iter().flat_map(|(snapshots, head)| snapshots.iter().chain(head)) {
        match (args.has('p'), args.has('n')) {
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
            target::run(call, engine, doing, Operation::DestroySnapshots(snapshots, defer)).await?;
        }
        if let Some(head) = head {
            target::run(call, engine, doing, Operation::Destroy(head)).await?;
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

/// A dataset with what depends on it, as far as `-r` and `-R` allow.
async fn tree(rq: &Request, dsl: &Dsl, name: &str, args: &Args, doing: &str) -> Result<DestroyPlan, Failure> {
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
            tops.extend(clones(dsl, &ids).filter(|_| args.has('R')).map(str::to_owned));
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
    if !args.has('r') && !args.has('R') && !more.is_empty() {
        return Err(dependents(doing, "filesystem has children", "-r", &more));
    }
    in_order(heads)
        .ok_or_else(|| Failure::failed(format!("{doing}: a parent is a clone of its own child; promote it first")))
}

/// Children go before their parents, and clones before the snapshots that they are of; `None` if that is a circle.
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
