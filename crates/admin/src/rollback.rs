//! `zfs rollback`: what is later than the snapshot goes first.

use crate::change::Author;
use crate::refusal::{Refusal, RefusalKind};
use crate::selection::snapshots;
use weir_dsl::Scope;
use weir_engine::Engine;
use weir_machine::Request;
use weir_pool::PoolError;

/// Checks a rollback, and destroys later snapshots and bookmarks if `destroy_later`.
///
/// # Errors
/// Refusals because of a missing snapshot, later ones, or clients; errors of reading and changing the pool.
pub async fn prepare(engine: &Engine, author: &mut Author, snapshot: &str, destroy_later: bool) -> Result<(), Refusal> {
    let rq = &Request::internal("rollback");
    let (of, short) = snapshot.split_once('@').ok_or_else(Refusal::missing)?;
    let (newer, bookmarks) = {
        let dsl = engine.synced().dsl_in(rq, Scope::Path(of)).await?;
        let dir = dsl.dir_named(of).ok_or_else(Refusal::missing)?;
        let there = snapshots(rq, &dsl, dir).await?;
        let at = there.iter().position(|name| name == short).ok_or_else(Refusal::missing)?;
        let newer: Vec<String> = there.iter().skip(at + 1).map(|name| format!("{of}@{name}")).collect();
        let head = dsl.head(rq, dir).await.map_err(PoolError::from)?;
        let bookmarks = weir_dsl::bookmarks::bookmarks(&dsl, rq, &head).await.map_err(PoolError::from)?;
        let created = dsl.find(rq, snapshot).await.map_err(PoolError::from)?.phys.creation_txg;
        let later = bookmarks.into_iter().filter(|b| b.bookmark.creation_txg > created).map(|b| b.name);
        // Changes of snapshots wait for the next txg, so nothing is held here.
        (newer, later.collect::<Vec<String>>())
    };
    if !destroy_later && (!newer.is_empty() || !bookmarks.is_empty()) {
        let names = newer.into_iter().chain(bookmarks).collect();
        return Err(Refusal::because_of(RefusalKind::HasLater, "more recent snapshots or bookmarks exist", names));
    }
    if engine.is_used(rq, of).await? {
        // Checked before anything is destroyed.
        return Err(Refusal::new(RefusalKind::Busy, format!("'{of}' is busy: clients use it")));
    }
    if !bookmarks.is_empty() {
        engine.destroy_bookmarks(bookmarks).await?;
        author.record(engine)?;
    }
    if !newer.is_empty() {
        engine.destroy_snapshots(newer, false).await?;
        author.record(engine)?;
    }
    Ok(())
}
