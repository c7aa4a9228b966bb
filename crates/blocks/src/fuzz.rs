//! Fuzz targets for malformed block pointers and geometries: each must return for any input, in bounded time and memory.
//! The same bodies run in the unit test below, in `cargo xtask fuzz` and under cargo-fuzz.

use crate::draid;
use crate::pipeline::{Blocks, ReadOptions};
use crate::raidz::{Map, Reflowed};
use crate::vdev::{DistributedSpare, Expansion, Reflow, Tree, VdevKind, VdevSpec};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::SystemTime;
use weir_codec::Salt;
use weir_format::indirect::MappingEntry;
use weir_format::{BlockPointer, Cursor, Endian};
use weir_machine::time::{Clock, ClockSource, Nanos};
use weir_machine::{BufPool, Disk, Geometry, Io, Op, Request};

/// Name and body of a fuzz target.
pub type RaidzTarget = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[RaidzTarget] =
    &[("draid_map", draid_target), ("pointer", pointer_target), ("raidz_map", raidz_target)];

/// A clock that always returns 0.
struct FrozenClock;

impl ClockSource for FrozenClock {
    fn now(&self) -> Nanos {
        Nanos(0)
    }
    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
    fn sleep_until(&self, _: Nanos) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A disk that completes synchronously and returns the input repeatedly.
struct Echo(Vec<u8>);

impl Disk for Echo {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: 64 << 20, sector_bytes: 512, rotational: false }
    }
    fn submit(&self, mut io: Io) {
        if io.op == Op::Read && !self.0.is_empty() {
            for (i, b) in io.bufs.iter_mut().flat_map(|buf| buf.as_mut()).enumerate() {
                *b = self.0[(io.offset as usize).wrapping_add(i) % self.0.len()];
            }
        }
        io.succeed();
    }
}

/// Words of the input from an offset on; zeros behind its end.
fn words<const N: usize>(data: &[u8], from: usize) -> [u64; N] {
    let mut bytes = data.get(from..).unwrap_or_default().to_vec();
    bytes.resize(N * 8, 0);
    Cursor::new(&bytes, Endian::Little, "fuzz").words().unwrap_or([0; N])
}

/// Reads a block pointer from a pool with every kind of vdev, some of whose disks are missing.
fn pointer_target(data: &[u8]) {
    let Some(&choice) = data.first() else { return };
    let contents = data.get(129..).unwrap_or_default();
    let disk: Arc<dyn Disk> = Arc::new(Echo(contents.get(..4096.min(contents.len())).unwrap_or_default().to_vec()));
    let leaves = |count: u64| -> Vec<VdevSpec> {
        let there = |i: u64| (choice >> (i % 8) & 1 == 0).then(|| disk.clone());
        (0..count).map(|i| VdevSpec::leaf(i, i, format!("d{i}"), there(i))).collect()
    };
    let reflow = Reflow { offset_bytes: words::<1>(data, 1)[0], scratch: choice & 1 == 1 };
    let expansion = Some(Expansion { txgs: vec![7], reflow: (choice & 2 == 2).then_some(reflow) });
    let draid = VdevKind::Draid { nparity: 1, ndata: 2, nspares: 1, ngroups: 5 };
    let mut with_spare = leaves(6);
    with_spare[usize::from(choice % 6)] = VdevSpec {
        kind: VdevKind::DraidSpare,
        distributed_spare: Some(DistributedSpare { top: 3, spare: 0 }),
        ..VdevSpec::leaf(0, 0, "spare", None)
    };
    let top = |id, kind, children| {
        let space = [0, 60 << 20, 8 << 20, u64::MAX][id as usize % 4];
        VdevSpec::inner(id, id, format!("top-{id}"), kind, children).top(9 + u32::from(choice & 7), space)
    };
    let tops = vec![
        top(0, VdevKind::Mirror, leaves(2)),
        top(1, VdevKind::Raidz { nparity: 1 + (choice & 1) }, leaves(5)),
        VdevSpec { expansion, ..top(2, VdevKind::Raidz { nparity: 1 }, leaves(5)) },
        top(3, draid, with_spare),
        top(4, VdevKind::Indirect, Vec::new()),
        top(5, VdevKind::Hole, Vec::new()),
    ];
    let Ok(tree) = Tree::new(tops, &Clock::new(Arc::new(FrozenClock))) else { return };
    let mut c = Cursor::new(contents, Endian::Little, "fuzz");
    let map: Vec<MappingEntry> = std::iter::from_fn(|| MappingEntry::decode(&mut c).ok()).take(64).collect();
    tree.set_mapping(4, &map);
    let blocks = Blocks::over(Clock::new(Arc::new(FrozenClock)), BufPool::new(0), tree, Salt::none());
    let mut bp = words::<16>(data, 1);
    // Most random numbers name no vdev and no offset: map half of them into the pool.
    if choice & 4 == 4 {
        for i in [0, 2, 4] {
            bp[i] = (bp[i] & 0xff_ffff) | (((bp[i] >> 32) % 6) << 32);
            bp[i + 1] &= 1 << 63 | 0x1_ffc0;
        }
        bp[6] &= !0x00ff_00ff_0000_0000 & !0xf800_f800;
    }
    let bp = BlockPointer::from_words(bp);
    let options = ReadOptions { raw: choice & 8 == 8, ..ReadOptions::default() };
    let read = blocks.read(&Request::internal("fuzz"), &bp, &options).now_or_never();
    if let Some(Ok(bytes)) = read {
        let limit = bp.lsize_bytes().max(bp.psize_bytes());
        assert!(bytes.len() as u64 <= limit, "{} bytes from a block of {limit}", bytes.len());
    }
}

fn raidz_target(data: &[u8]) {
    let [offset, size, shape, moved] = words::<4>(data, 0);
    let nparity = 1 + shape % 3;
    let logical = nparity + 1 + (shape >> 8) % (255 - nparity);
    let ashift = 9 + (shape >> 16) as u32 % 8;
    // The tree passes whole sectors of at most 16 MiB, and offsets within the vdev.
    let size = (1 + size % (16 << 20)).next_multiple_of(1 << ashift);
    let offset = (offset >> 2) & !((1 << ashift) - 1);
    let physical = (logical + (shape >> 24) % 3).min(255);
    let plain = Map::new(offset, size, ashift, logical, nparity);
    let layout = Reflowed {
        physical_width: physical.max(logical + 1),
        logical_width: logical,
        moved_bytes: moved,
        scratch: shape & 1 << 40 != 0,
    };
    let reflowed = Map::expanded(offset, size, ashift, nparity, layout);
    for (map, width) in [(plain, logical), (reflowed, layout.physical_width)] {
        let data_columns = map.rows.iter().flat_map(|r| r.columns.iter().skip(map.nparity));
        let total: usize = data_columns.map(|c| c.size_bytes).sum();
        assert_eq!(total, map.len);
        assert!(map.columns().all(|c| (c.child as u64) < width && c.at + c.size_bytes <= map.len.max(c.size_bytes)));
        assert!(map.suspects(ashift, width..=width).len() as u64 <= width);
    }
}

fn draid_target(data: &[u8]) {
    let [shape, groups, offset, size] = words::<4>(data, 0);
    let part = |shift: u32| shape >> shift & 0xff;
    let layout = draid::Layout {
        ndata: part(0),
        nparity: part(8) % 5,
        nspares: part(16),
        ngroups: groups,
        children: part(24),
        width: part(32),
    };
    let Ok(map) = draid::Map::new(layout, part(40) as u32 % 20) else { return };
    let size = 1 + size % (16 << 20);
    let rows = Map::of_draid(&map, offset, size);
    assert!(rows.columns().all(|c| (c.child as u64) < layout.width));
    assert!(map.spare_child(part(48), offset).is_none_or(|c| (c as u64) < layout.width));
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_panics() {
        weir_sim::fuzz::run_targets(super::TARGETS, 500, 2129);
    }
}
