//! `zdb -r DATASET PATH DEST`: copies a file out of the pool.

use super::select::walk;
use crate::failure::Failure;
use std::io::Write;
use weir_machine::{Machine, Request};
use weir_pool::Pool;

/// Bytes read at a time.
const PIECE: usize = 4 << 20;

/// Copies the file at `path` of `dataset` to `dest`. Its holes are written as zeros.
pub fn run(machine: &Machine, pool: &Pool, dataset: &str, path: &str, dest: &str) -> Result<u8, Failure> {
    let rq = Request::internal("zdb");
    let failed = |e: &dyn std::fmt::Display| Failure::failed(format!("{dataset}: {path}: {e}"));
    let fs = machine.block_on(pool.file_system(&rq, dataset))?;
    let object = machine.block_on(walk(&rq, &fs, path)).map_err(|e| failed(&e))?;
    let size = machine.block_on(fs.attrs().get(&rq, object)).map_err(|e| failed(&e))?.size_bytes;
    let mut out = std::fs::File::create(dest).map_err(|e| Failure::failed(format!("{dest}: {e}")))?;
    println!("Copying {size} bytes of {dataset}/{} to {dest}", path.trim_start_matches('/'));
    let mut at = 0;
    while at < size {
        let bytes = machine.block_on(fs.contents().read(&rq, object, at, PIECE)).map_err(|e| failed(&e))?;
        if bytes.is_empty() {
            return Err(failed(&format!("the file ends at {at} instead of {size}")));
        }
        out.write_all(&bytes).map_err(|e| Failure::failed(format!("{dest}: {e}")))?;
        at += bytes.len() as u64;
    }
    Ok(0)
}
