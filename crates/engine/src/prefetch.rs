//! Tables of shared blocks that are read into the ARC ahead of the writes and frees that look up entries in them
//! (`zpool prefetch`).
//!
//! The blocks are read in the order of the tables, from the MOS of the last synced txg, and stay in the ARC as other metadata
//! does: a table that is larger than the ARC leaves only its end there.
//!
//! Source: OpenZFS `module/zfs/ddt.c` (`ddt_prefetch_all`), `module/zfs/brt.c` (`brt_prefetch_all`).

use super::Engine;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dmu::ddt_brt_reader::dedup_tables;
use weir_format::brt::{BrtVdev, table_name};
use weir_format::{ObjectId, Txg};
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;

/// Bytes that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// Kind of table (`zpool_prefetch_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchType {
    /// Dedup tables.
    Ddt,
    /// Block reference tables.
    Brt,
}

/// Reads the tables of a kind into the ARC. Returns their size in bytes, uncompressed.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn prefetch(engine: &Engine, kind: PrefetchType) -> Result<u64, PoolError> {
    let rq = &Request::internal("prefetch");
    let state = engine.synced().state(rq).await?;
    let mut objects = Vec::new();
    match kind {
        PrefetchType::Ddt => objects.extend(dedup_tables(rq, &state.mos).await?.iter().map(|table| table.object)),
        PrefetchType::Brt => {
            let mos = Mos { set: state.mos.clone() };
            for vdev in 0..engine.shown().config.tops().len() as u64 {
                let Some(id) = mos.named(rq, &table_name(vdev)).await? else { continue };
                let object = mos.set.object(rq, id).await?;
                let header = BrtVdev::decode(object.dnode.bonus(), object.dnode.endian);
                let what = || format!("the block reference table of vdev {vdev}");
                let header = header.map_err(|source| PoolError::Decode { what: what(), source })?;
                objects.extend([id, header.entries]);
            }
        }
    }
    let mut bytes = 0;
    for object in objects.into_iter().filter(|id| id.0 != 0) {
        bytes += read_whole(rq, &state.mos, object).await?;
    }
    invariant!(state.uberblock.txg > Txg(0), "a pool without a synced txg has tables");
    Ok(bytes)
}

/// Reads an object through the cache. Returns its size in bytes.
async fn read_whole(rq: &Request, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<u64, PoolError> {
    let object = mos.object(rq, id).await?;
    let size = object.span_bytes();
    let mut at = 0;
    while at < size {
        let len = READ_BYTES.min(size - at);
        let read = mos.reader().read(rq, &object, at, len as usize, size).await?;
        if read.is_empty() {
            break;
        }
        at += read.len() as u64;
    }
    Ok(at)
}
