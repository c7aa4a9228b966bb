//! Which datasets and snapshots a recursive command means.

use weir_dsl::{Dir, Dsl};
use weir_machine::Request;
use weir_pool::PoolError;

/// Directories at and below a name, a parent before its children.
pub fn below<'a>(dsl: &'a Dsl, top: &str) -> Vec<&'a Dir> {
    dsl.visible_dirs().into_iter().filter(|dir| weir_dsl::Scope::Subtree(top).contains(&dir.name)).collect()
}

/// The snapshots of a directory: names after the `@`, oldest first.
///
/// # Errors
/// Errors of reading the snapshots.
pub async fn snapshots(rq: &Request, dsl: &Dsl, dir: &Dir) -> Result<Vec<String>, PoolError> {
    let list = dsl.snapshots(rq, dir).await?;
    Ok(list.snapshots.iter().filter_map(|s| s.snapshot_name().map(str::to_owned)).collect())
}

/// The snapshots named `snapshot` of a dataset and its descendants: full names.
///
/// # Errors
/// Errors of reading the snapshots.
pub async fn named_below(rq: &Request, dsl: &Dsl, top: &str, snapshot: &str) -> Result<Vec<String>, PoolError> {
    let mut out = Vec::new();
    for dir in below(dsl, top) {
        if snapshots(rq, dsl, dir).await?.iter().any(|name| name == snapshot) {
            out.push(format!("{}@{snapshot}", dir.name));
        }
    }
    Ok(out)
}
