//! `zfs rollback`: what is later than the snapshot goes first.

use crate::change::Author;
use crate::destroy::{DestroyStep, check_unused, clones_of, destroy_steps};
use crate::refusal::{Refusal, RefusalKind};
use crate::selection::snapshots;
use weir_dsl::Scope;
use weir_engine::Engine;
use weir_machine::Request;
use weir_pool::PoolError;

/// Snapshots and bookmarks of a dataset that are later than a snapshot, and dependents of these.
#[derive(Default)]
struct Later {
    /// Full names of snapshots.
    snapshots: Vec<String>,
    /// Full names of bookmarks.
    bookmarks: Vec<String>,
    /// Clones of the snapshots with their dependents.
    clones: Vec<DestroyStep>,
}

/// Checks a rollback. With `destroy_later` it destroys later snapshots and bookmarks, with `dependents` their clones too.
///
/// # Errors
/// Refusals because of a missing snapshot, later ones, or clients; errors of reading and changing the pool.
pub async fn prepare(
    engine: &Engine,
    author: &mut Author,
    snapshot: &str,
    destroy_later: bool,
    dependents: bool,
) -> Result<(), Refusal> {
    let rq = &Request::internal("rollback");
    let (of, _) = snapshot.split_once('@').ok_or_else(Refusal::missing)?;
    let destroy_later = destroy_later || dependents;
    let Later { snapshots, bookmarks, clones } = later(rq, engine, snapshot, destroy_later).await?;
    if !destroy_later && (!snapshots.is_empty() || !bookmarks.is_empty()) {
        let names = snapshots.into_iter().chain(bookmarks).collect();
        return Err(Refusal::because_of(RefusalKind::HasLater, "more recent snapshots or bookmarks exist", names));
    }
    if !dependents && !clones.is_empty() {
        let names = clones.into_iter().flat_map(|step| step.snapshots.into_iter().chain(step.head)).collect();
        return Err(Refusal::because_of(RefusalKind::HasClones, "clones of previous snapshots exist", names));
    }
    if engine.is_used(rq, of).await? {
        // Checked before anything is destroyed.
        return Err(Refusal::new(RefusalKind::Busy, format!("dataset is busy: clients use '{of}'")));
    }
    check_unused(engine, &clones).await?;
    author.monitor.plan(clones.iter().map(DestroyStep::parts).sum());
    destroy_steps(engine, author, clones, false).await?;
    if !bookmarks.is_empty() {
        engine.destroy_bookmarks(bookmarks).await?;
        author.record(engine)?;
    }
    if !snapshots.is_empty() {
        engine.destroy_snapshots(snapshots, false).await?;
        author.record(engine)?;
    }
    Ok(())
}

/// Finds the snapshots and bookmarks that are newer than a snapshot and, if `with_clones` is set, the clones of these snapshots.
/// Changes of snapshots wait for the next txg, so nothing is held when it returns.
async fn later(rq: &Request, engine: &Engine, snapshot: &str, with_clones: bool) -> Result<Later, Refusal> {
    let (of, short) = snapshot.split_once('@').ok_or_else(Refusal::missing)?;
    // The clones may be anywhere.
    let scope = if with_clones { Scope::All } else { Scope::Path(of) };
    let dsl = engine.synced().dsl_in(rq, scope).await?;
    let dir = dsl.dir_named(of).ok_or_else(Refusal::missing)?;
    let there = snapshots(rq, &dsl, dir).await?;
    let at = there.iter().position(|name| name == short).ok_or_else(Refusal::missing)?;
    let newer: Vec<String> = there.iter().skip(at + 1).map(|name| format!("{of}@{name}")).collect();
    let head = dsl.head(rq, dir).await.map_err(PoolError::from)?;
    let bookmarks = weir_dsl::bookmarks::bookmarks(&dsl, rq, &head).await.map_err(PoolError::from)?;
    let created = dsl.find(rq, snapshot).await.map_err(PoolError::from)?.phys.creation_txg;
    let bookmarks = bookmarks.into_iter().filter(|b| b.bookmark.creation_txg > created).map(|b| b.name).collect();
    let clones = if with_clones { clones_of(rq, &dsl, &newer).await? } else { Vec::new() };
    Ok(Later { snapshots: newer, bookmarks, clones })
}
