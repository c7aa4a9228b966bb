//! Snapshots that a job takes, and those of its own that it destroys.
//!
//! The pool is the only record: the name of a snapshot has the job and the time, `daily-20261128T023000Z`. So a run that was
//! missed is noticed whether the daemon was stopped, killed, or the pool was away, and a snapshot of another name is never
//! destroyed.

use super::author;
use crate::admin::{ServedPool, ServingHost};
use crate::command_target::now;
use crate::snapshot_names::{name_at, time_of};
use std::sync::Arc;
use weir_admin::{Action, Change, Destruction, Refusal, RefusalKind, below, snapshots};
use weir_dsl::Scope;
use weir_machine::Request;

/// Datasets that take part, and how many snapshots stay.
pub struct Rule<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Whether the descendants take part.
    pub recursive: bool,
    /// Number of snapshots that stay of each dataset.
    pub keep: usize,
}

/// Result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of snapshots that were taken.
    pub taken: usize,
    /// Number of snapshots that were destroyed.
    pub destroyed: usize,
    /// Snapshots that should go, with the reason why they stay.
    pub staying: Vec<String>,
}

/// The snapshots of one job of a dataset: names after the `@`, oldest first, with their times.
struct Own {
    dataset: String,
    snapshots: Vec<(i64, String)>,
}

/// Takes a snapshot of a dataset unless it has one taken at `due` or later, then destroys the job's oldest beyond those that
/// stay. Times are seconds since 1970.
///
/// # Errors
/// Why nothing was taken, or which snapshots could not be read. What cannot be destroyed is no error.
pub async fn run(pool: &Arc<ServedPool>, dataset: &str, rule: &Rule<'_>, due: i64) -> Result<Done, String> {
    let host = ServingHost(pool.clone());
    let mut done = Done::default();
    let own = own(pool, dataset, rule).await?;
    let newest =
        own.iter().filter(|of| of.dataset == dataset).flat_map(|of| &of.snapshots).map(|(time, _)| *time).max();
    if newest.is_none_or(|newest| newest < due) {
        let name = format!("{dataset}@{}", name_at(rule.job, now().sec)?);
        let change =
            Change::Snapshot { snapshots: vec![name.clone()], properties: Vec::new(), recursive: rule.recursive };
        let option = if rule.recursive { " -r" } else { "" };
        act(&host, format!("zfs snapshot{option} {name}"), change)
            .await
            .map_err(|refusal| format!("{name}: {}", reason(&refusal)))?;
        done.taken += 1;
    }
    for of in self::own(pool, dataset, rule).await? {
        let beyond = of.snapshots.len().saturating_sub(rule.keep);
        let old: Vec<&str> = of.snapshots.iter().take(beyond).map(|(_, name)| name.as_str()).collect();
        destroy(&host, &of.dataset, &old, &mut done).await;
    }
    Ok(done)
}

/// Destroys snapshots of a dataset, all together if nothing prevents it, otherwise those that can be destroyed.
async fn destroy(host: &ServingHost, dataset: &str, names: &[&str], done: &mut Done) {
    if names.is_empty() {
        return;
    }
    let all = names.join(",");
    if destroy_named(host, dataset, &all).await.is_ok() {
        done.destroyed += names.len();
        return;
    }
    for name in names {
        match destroy_named(host, dataset, name).await {
            Ok(()) => done.destroyed += 1,
            Err(refusal) if refusal.kind == RefusalKind::Missing => {}
            Err(refusal) => done.staying.push(format!("{dataset}@{name}: {}", reason(&refusal))),
        }
    }
}

async fn destroy_named(host: &ServingHost, dataset: &str, snapshots: &str) -> Result<(), Refusal> {
    let what = Destruction::Snapshots {
        name: dataset.to_owned(),
        snapshots: snapshots.to_owned(),
        recursive: false,
        dependents: false,
        defer: false,
    };
    act(host, format!("zfs destroy {dataset}@{snapshots}"), Change::Destroy { what }).await
}

async fn act(host: &ServingHost, command: String, change: Change) -> Result<(), Refusal> {
    Action::Change(change).run(host, &mut author(command)).await.map(drop)
}

/// Why a command was refused, with the names that stand in the way.
pub fn reason(refusal: &Refusal) -> String {
    if refusal.names.is_empty() {
        refusal.why.clone()
    } else {
        format!("{}: {}", refusal.why, refusal.names.join(", "))
    }
}

/// The job's snapshots of a dataset, and of its descendants if they take part.
async fn own(pool: &Arc<ServedPool>, dataset: &str, rule: &Rule<'_>) -> Result<Vec<Own>, String> {
    let rq = &Request::internal("job");
    let failed = |error: weir_pool::PoolError| format!("{dataset}: {error}");
    let dsl = pool.engine.synced().dsl_in(rq, Scope::Subtree(dataset)).await.map_err(failed)?;
    dsl.dir_named(dataset).ok_or_else(|| format!("{dataset}: dataset does not exist"))?;
    let mut found = Vec::new();
    for dir in below(&dsl, dataset).into_iter().filter(|dir| rule.recursive || dir.name == dataset) {
        let names = snapshots(rq, &dsl, dir).await.map_err(failed)?;
        let timed = names.into_iter().filter_map(|name| Some((time_of(rule.job, &name)?, name)));
        let mut snapshots: Vec<(i64, String)> = timed.collect();
        snapshots.sort();
        found.push(Own { dataset: dir.name.clone(), snapshots });
    }
    Ok(found)
}
