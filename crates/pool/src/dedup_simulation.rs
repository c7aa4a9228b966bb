//! Simulated deduplication: the dedup tables that a pool would have if all its data had been written with `dedup=on`.
//!
//! Blocks of data are compared by their checksums and sizes, whatever the checksum. That of a dataset with `dedup` unset is
//! usually fletcher4, which is too weak to rely on, and strong enough for an estimate.
//!
//! Source: OpenZFS `cmd/zdb/zdb.c` (`dump_simulated_ddt`, `zdb_ddt_add_cb`).

use crate::Pool;
use crate::dedup::DedupTables;
use crate::roots;
use crate::walk::{Claim, Prove, Visit, VisitPosition, Walk};
use std::collections::BTreeMap;
use weir_blocks::{BlockError, Blocks};
use weir_dmu::ObjectError;
use weir_format::ddt::DdtHistogram;
use weir_format::{BlockPointer, Txg};
use weir_machine::Request;

/// Bytes that an entry of a dedup table takes on the devices and in memory. Tables of 25,600 and of 64,000 entries were measured: 255
/// and 245 bytes on one disk, 165 and 132 in memory. The larger numbers are used, because a table grows in steps.
const ENTRY_DISK_BYTES: u64 = 255;
const ENTRY_MEMORY_BYTES: u64 = 165;
/// Bits of a pointer's properties by which blocks differ: compression, and both sizes.
const KINDS: u64 = (1 << 40) - 1;

/// Checksum, and compression and sizes.
type Key = ([u64; 4], u64);

/// Blocks with the same key: their number, and logical, physical and allocated bytes of one.
struct Entry {
    references: u64,
    sizes: [u64; 3],
}

/// The result.
pub struct Simulation {
    /// The tables, with their predicted size.
    pub tables: DedupTables,
    /// Blocks of pointers that could not be read; what is below them is not counted.
    pub unreadable: u64,
}

struct Simulator<'a> {
    blocks: &'a Blocks,
    entries: BTreeMap<Key, Entry>,
    unreadable: u64,
    met_bytes: u64,
    show: &'a mut (dyn FnMut(u64) + Send),
}

impl Visit for Simulator<'_> {
    fn block(&mut self, at: &VisitPosition, bp: &BlockPointer) -> bool {
        let allocated = self.blocks.dsize_bytes(bp);
        self.met_bytes = self.met_bytes.saturating_add(allocated);
        if at.level == 0 && !bp.is_embedded() && !bp.object_type().is_metadata() {
            let key = (bp.checksum(), bp.words()[6] & KINDS);
            let sizes = [bp.lsize_bytes(), bp.psize_bytes(), allocated];
            let entry = self.entries.entry(key).or_insert(Entry { references: 0, sizes });
            entry.references += 1;
        }
        false
    }

    fn claim(&mut self, _: &VisitPosition, _: &BlockPointer, _: Claim) {}

    fn unreadable(&mut self, _: &VisitPosition, _: &BlockPointer, _: &BlockError) {
        self.unreadable += 1;
    }

    fn tick(&mut self) {
        (self.show)(self.met_bytes);
    }
}

/// Simulates deduplication. One entry of about 100 bytes is kept in memory for each different block. `show` receives the allocated
/// bytes of the blocks that were met.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn simulate(
    rq: &Request,
    pool: &Pool,
    show: &mut (dyn FnMut(u64) + Send),
) -> Result<Simulation, ObjectError> {
    let walk = Walk {
        machine: pool.machine.clone(),
        blocks: pool.blocks.clone(),
        prove: Prove::Nothing,
        log_before: Txg(pool.uberblock.txg.0.saturating_add(1)),
    };
    let (roots, bad) = roots::roots(rq, &pool.mos).await?;
    let mut simulator =
        Simulator { blocks: &pool.blocks, entries: BTreeMap::new(), unreadable: bad, met_bytes: 0, show };
    walk.run(roots, &mut simulator).await;
    let entries = simulator.entries.len() as u64;
    let tables = DedupTables {
        histogram: histogram(simulator.entries.values()),
        disk_bytes: entries.saturating_mul(ENTRY_DISK_BYTES),
        memory_bytes: entries.saturating_mul(ENTRY_MEMORY_BYTES),
    };
    Ok(Simulation { tables, unreadable: simulator.unreadable })
}

/// The entries by number of references.
fn histogram<'a>(entries: impl Iterator<Item = &'a Entry>) -> DdtHistogram {
    let mut out = DdtHistogram::default();
    for Entry { references, sizes: [logical, physical, allocated] } in entries {
        debug_assert!(*references > 0, "an entry has the block that made it");
        let Some(row) = out.rows.get_mut(references.checked_ilog2().unwrap_or(0) as usize) else { continue };
        let once = [1, *logical, *physical, *allocated];
        let all = once.into_iter().chain(once.map(|n| n.saturating_mul(*references)));
        row.iter_mut().zip(all).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_by_their_references() {
        let entry = |references| Entry { references, sizes: [4096, 2048, 1024] };
        let found = histogram([entry(1), entry(1), entry(3), entry(2)].iter());
        assert_eq!(found.rows[0], [2, 8192, 4096, 2048, 2, 8192, 4096, 2048]);
        assert_eq!(found.rows[1], [2, 8192, 4096, 2048, 5, 20480, 10240, 5120]);
        assert!(found.rows[2..].iter().flatten().all(|n| *n == 0));
    }
}
