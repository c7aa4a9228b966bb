//! Space of a pool: raw, deflated ([`VdevConfig::deflate`]), without slop space (OpenZFS `module/zfs/spa_misc.c`,
//! `dsl_pool.c`).
//!
//! *Slop* space is reserved so that a full pool can be cleaned up: 1/32, at least 128 MiB but no more than half, at most
//! 128 GiB.

use crate::config::{Class, VdevConfig};
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

/// Space of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Raw bytes of all classes but log: `size`.
    pub size_bytes: u64,
    /// Allocated bytes of these classes: `allocated`.
    pub allocated_bytes: u64,
    /// Deflated bytes for datasets, without slop space.
    pub usable_bytes: u64,
    /// Bytes that only the checkpoint holds.
    pub checkpoint_bytes: u64,
    /// Blocks with several references from deduplication or block cloning.
    pub shared: Shared,
    /// Bytes that are still to be freed (`freeing`).
    pub freeing_bytes: u64,
    /// Bytes that could not be freed (`leaked`).
    pub leaked_bytes: u64,
    /// Fragmentation of free space, 0 to 100; `None` if no space map has a histogram.
    pub fragmentation: Option<u64>,
}

/// Deflated bytes of the metaslab that a large vdev reserves for the intent log.
fn embedded_log(top: &VdevConfig, v: &VdevSpace) -> u64 {
    v.embedded_log().map_or(0, |_| top.deflate(1u64.checked_shl(v.metaslab_shift).unwrap_or(0)))
}

/// Slop space of `normal` bytes; it includes the space that is reserved for the intent log.
pub fn slop(normal: u64, embedded_log: u64) -> u64 {
    let slop = (normal >> SLOP_SHIFT).min(MAX_SLOP_BYTES);
    let slop = slop - embedded_log.min(slop >> 1);
    slop.max((normal >> 1).min(MIN_SLOP_BYTES))
}

/// Computes the space of a pool.
pub async fn compute_space(rq: &Request, mos: &Mos, tree: &VdevConfig, space: &Space) -> Result<Capacity, ObjectError> {
    let mut out = Capacity::default();
    let mut normal = 0u64;
    let mut others = 0u64;
    let mut embedded = 0u64;
    for (top, v) in tree.children.iter().zip(&space.vdevs).filter(|(_, v)| v.concrete) {
        let allocated = v.allocated_bytes();
        let log = embedded_log(top, v);
        embedded += log;
        match v.class {
            Class::Log => continue,
            Class::Normal if top.non_allocating => {}
            Class::Normal => normal += top.deflate(v.space_bytes()).saturating_sub(log),
            Class::Special | Class::Dedup => others += top.deflate(allocated),
        }
        out.size_bytes += v.space_bytes();
        out.allocated_bytes += allocated;
        out.checkpoint_bytes += top.deflate(v.checkpoint_bytes);
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

/// Fragmentation, in percent, of free segments of `512 << i` bytes (OpenZFS `module/zfs/metaslab.c`, `zfs_frag_table`).
const FRAGMENTATION_PERCENT: [u64; 21] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Fragmentation, in percent, of free space in segments of this size.
pub fn segment_fragmentation(segment_bytes: u64) -> u64 {
    let index = (segment_bytes.max(512).ilog2() as usize - 9).min(FRAGMENTATION_PERCENT.len() - 1);
    FRAGMENTATION_PERCENT.get(index).copied().unwrap_or(0)
}

/// Fragmentation of the normal class: average over its vdevs, weighted by their size.
pub fn fragmentation(space: &Space) -> Option<u64> {
    let mut sum = 0u128;
    let mut bytes = 0u128;
    for v in space.vdevs.iter().filter(|v| v.concrete && v.class == Class::Normal) {
        sum += u128::from(vdev_fragmentation(v)?) * u128::from(v.space_bytes());
        bytes += u128::from(v.space_bytes());
    }
    sum.checked_div(bytes).map(|f| f as u64)
}

/// Fragmentation of a vdev: average over its metaslabs, weighted by free space; `None` if most have no histogram.
pub fn vdev_fragmentation(v: &VdevSpace) -> Option<u64> {
    let mut sum = 0u128;
    let mut free = 0u128;
    let mut valid = 0usize;

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
    let mut bad = 0u64;
    let mut all = 0u64;
    for (i, count) in m.histogram?.iter().enumerate().filter(|(_, n)| **n > 0) {
        let shift = i as u32 + ashift;
        let bytes = count.saturating_mul(1u64.checked_shl(shift).unwrap_or(0));
        let index = (shift.saturating_sub(9) as usize).min(FRAGMENTATION_PERCENT.len() - 1);
        all = all.saturating_add(bytes);
        bad = bad.saturating_add(bytes.saturating_mul(FRAGMENTATION_PERCENT.get(index).copied().unwrap_or(0)));
    }
    Some(bad.checked_div(all).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_segments_are_more_fragmented() {
        let sizes = [512, 16 << 10, 128 << 10, 1 << 20, (1 << 20) + 1, 512 << 20, 1 << 40];
        assert_eq!(sizes.map(segment_fragmentation), [100, 83, 64, 43, 43, 0, 0]);
        assert_eq!(segment_fragmentation(0), 100);
    }

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
