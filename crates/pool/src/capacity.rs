//! How much a pool holds: raw, deflated, less the slop (OpenZFS `module/zfs/spa_misc.c`, `dsl_pool.c`).
//!
//! *Deflated* space counts what a 128 KiB block costs on its vdev, so that RAID-Z's parity is not sold twice. The *slop*
//! is kept back so that a full pool can still be cleaned up: a 32nd, at least 128 MiB but never more than half, at most
//! 128 GiB.

use crate::config::{Class, VdevConfig, VdevKind};
use crate::dedup::{self, Shared};
use crate::mos::Mos;
use crate::space::{Metaslab, Space, VdevSpace};
use weir_dmu::ObjectError;
use weir_format::dsl::Bpobj;
use weir_format::dsl::pool as names;
use weir_machine::Request;

const SLOP_SHIFT: u32 = 5;
const MIN_SLOP_BYTES: u64 = 128 << 20;
const MAX_SLOP_BYTES: u64 = 128 << 30;
/// The block that deflation reckons with.
const TYPICAL_BLOCK_BYTES: u64 = 128 << 10;

/// A pool's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Raw bytes of all classes but log: `size`.
    pub size_bytes: u64,
    /// Raw bytes allocated of the same: `allocated`.
    pub allocated_bytes: u64,
    /// Deflated bytes that datasets can share, less the slop.
    pub usable_bytes: u64,
    /// Bytes that only the checkpoint holds.
    pub checkpoint_bytes: u64,
    /// Blocks that are referenced more than once, by deduplication or by clones.
    pub shared: Shared,
    /// Bytes waiting to be given back (`freeing`).
    pub freeing_bytes: u64,
    /// Bytes that were lost when something could not be freed (`leaked`).
    pub leaked_bytes: u64,
    /// How scattered free space is, 0 to 100; `None` where no map has a histogram.
    pub fragmentation: Option<u64>,
}

/// Bytes that a block of `psize` bytes takes on a vdev.
pub fn allocated_for(top: &VdevConfig, psize: u64) -> u64 {
    allocated_on(top, top.ashift.min(16) as u32, psize)
}

fn allocated_on(top: &VdevConfig, ashift: u32, psize: u64) -> u64 {
    let sectors = psize.max(1).div_ceil(1 << ashift);
    match top.kind {
        // Of the sides of a mirror the one that needs most: they may be RAID-Z in pools of ztest.
        VdevKind::Mirror => {
            let sides = top.children.iter().map(|side| allocated_on(side, ashift, psize));
            sides.max().unwrap_or(0).max(sectors << ashift)
        }
        VdevKind::Raidz { parity } => {
            // A widened vdev goes on reckoning with its first width.
            let widened = top.raidz_expand_txgs.len() as u64 + u64::from(top.raidz_expanding);
            let columns = (top.children.len() as u64).saturating_sub(widened);
            let parity = u64::from(parity);
            let data = columns.saturating_sub(parity).max(1);
            let all = sectors + parity * sectors.div_ceil(data);
            all.next_multiple_of(parity + 1) << ashift
        }
        VdevKind::Draid { parity, data, .. } => {
            let rows = sectors.div_ceil(u64::from(data).max(1));
            (rows * (u64::from(data) + u64::from(parity))) << ashift
        }
        _ => sectors << ashift,
    }
}

/// Deflated bytes for raw ones on a vdev.
pub fn deflate(top: &VdevConfig, bytes: u64) -> u64 {
    let ratio = TYPICAL_BLOCK_BYTES / (allocated_for(top, TYPICAL_BLOCK_BYTES) >> 9).max(1);
    (bytes >> 9).saturating_mul(ratio)
}

/// Deflated bytes of the metaslab that a large vdev sets aside for the intent log.
fn embedded_log(top: &VdevConfig, v: &VdevSpace) -> u64 {
    v.embedded_log().map_or(0, |_| deflate(top, 1u64.checked_shl(v.metaslab_shift).unwrap_or(0)))
}

/// What is kept back of `normal` bytes; what is set aside for the intent log is part of it.
pub fn slop(normal: u64, embedded_log: u64) -> u64 {
    let slop = (normal >> SLOP_SHIFT).min(MAX_SLOP_BYTES);
    let slop = slop - embedded_log.min(slop >> 1);
    slop.max((normal >> 1).min(MIN_SLOP_BYTES))
}

/// Reckons up a pool.
pub async fn compute_space(rq: &Request, mos: &Mos, tree: &VdevConfig, space: &Space) -> Result<Capacity, ObjectError> {
    let mut out = Capacity::default();
    let (mut normal, mut others, mut embedded) = (0u64, 0u64, 0u64);
    for (top, v) in tree.children.iter().zip(&space.vdevs).filter(|(_, v)| v.concrete) {
        let allocated = v.allocated_bytes();
        let log = embedded_log(top, v);
        embedded += log;
        match v.class {
            Class::Log => continue,
            Class::Normal if top.non_allocating => {}
            Class::Normal => normal += deflate(top, v.space_bytes()).saturating_sub(log),
            Class::Special | Class::Dedup => others += deflate(top, allocated),
        }
        out.size_bytes += v.space_bytes();
        out.allocated_bytes += allocated;
        out.checkpoint_bytes += deflate(top, v.checkpoint_bytes);
    }
    out.shared = dedup::shared(rq, mos, &tree.children).await?;
    let deferred = bpobj_bytes(rq, mos, names::SYNC_BPOBJ).await?;
    out.freeing_bytes = bpobj_bytes(rq, mos, names::FREE_BPOBJ).await?;
    let slop = slop(normal, embedded);
    let dspace = normal.saturating_add(others).saturating_add(out.shared.saved());
    out.usable_bytes = dspace.saturating_sub(out.checkpoint_bytes).saturating_sub(deferred).saturating_sub(slop);
    out.fragmentation = fragmentation(space);
    Ok(out)
}

async fn bpobj_bytes(rq: &Request, mos: &Mos, name: &str) -> Result<u64, ObjectError> {
    let Some(id) = mos.named(rq, name).await? else { return Ok(0) };
    let object = mos.set.object(rq, id).await?;
    Ok(Bpobj::decode(object.dnode.bonus(), object.dnode.endian).map_or(0, |b| b.bytes))
}

/// How bad free segments of `512 << i` bytes are, in percent (OpenZFS `module/zfs/metaslab.c`, `zfs_frag_table`).
const BADNESS: [u64; 21] = [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Of the normal class: the vdevs' fragmentation, weighed by their size.
fn fragmentation(space: &Space) -> Option<u64> {
    let (mut sum, mut bytes) = (0u128, 0u128);
    for v in space.vdevs.iter().filter(|v| v.concrete && v.class == Class::Normal) {
        sum += u128::from(vdev_fragmentation(v)?) * u128::from(v.space_bytes());
        bytes += u128::from(v.space_bytes());
    }
    sum.checked_div(bytes).map(|f| f as u64)
}

/// The metaslabs' fragmentation, weighed by what is free in them; `None` if most have no histogram.
pub fn vdev_fragmentation(v: &VdevSpace) -> Option<u64> {
    let (mut sum, mut free, mut valid) = (0u128, 0u128, 0usize);

    for m in &v.metaslabs {
        let Some(fragmentation) = metaslab_fragmentation(m, v.ashift) else { continue };
        valid += 1;
        let free_bytes = u128::from(m.size_bytes.saturating_sub(m.allocated_bytes) >> 9);
        free += free_bytes;
        sum += u128::from(fragmentation) * free_bytes;
    }
    if valid < v.metaslabs.len().div_ceil(2) { None } else { sum.checked_div(free).map(|f| f as u64) }
}

fn metaslab_fragmentation(m: &Metaslab, ashift: u32) -> Option<u64> {
    if m.space_map == 0 {
        return Some(0);
    }
    let (mut bad, mut all) = (0u64, 0u64);
    for (i, count) in m.histogram?.iter().enumerate().filter(|(_, n)| **n > 0) {
        let shift = i as u32 + ashift;
        let bytes = count.saturating_mul(1u64.checked_shl(shift).unwrap_or(0));
        let index = (shift.saturating_sub(9) as usize).min(BADNESS.len() - 1);
        all = all.saturating_add(bytes);
        bad = bad.saturating_add(bytes.saturating_mul(BADNESS.get(index).copied().unwrap_or(0)));
    }
    Some(bad.checked_div(all).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_is_a_32nd_within_bounds() {
        for (normal, expected) in
            [(200 << 20, 100 << 20), (2 << 30, 128 << 20), (1 << 40, 32 << 30), (100 << 40, 128 << 30)]
        {
            assert_eq!(slop(normal, 0), expected);
        }
        assert_eq!(slop(1 << 40, 8 << 30), 24 << 30, "the embedded log is part of it");
        assert_eq!(slop(1 << 40, 20 << 30), 16 << 30, "up to its half");
    }
}
