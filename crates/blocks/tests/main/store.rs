//! A minimal writer: puts blocks where the format's geometry says.

use bytes::Bytes;
use std::sync::Arc;
use weir_blocks::raidz::Map;
use weir_blocks::vdev::VdevSpec;
use weir_blocks::{BlockError, Blocks, Class, Tree, VdevGrid, VdevKind, WriteOptions};
use weir_codec::{Salt, checksum, parity};
use weir_format::{BlockPointer, ChecksumKind, Endian, ObjectType, Txg};
use weir_machine::{Access, Buf, Disk, Machine, Request};
use weir_sim::{SimDisk, SimWorld, Timing};

pub const FRONT: u64 = 4 << 20;
pub const DISK: u64 = 32 << 20;
pub const ASIZE: u64 = 24 << 20;

/// Disks of one world.
pub struct Bench {
    pub world: SimWorld,
    pub machine: Machine,
    pub disks: Vec<Arc<SimDisk>>,
    handles: Vec<Arc<dyn Disk>>,
}

/// An address: vdev, offset, size.
pub type Address = (u32, u64, u64);

impl Bench {
    pub fn new(seed: u64, disks: usize, timing: Timing) -> Self {
        Bench::over(SimWorld::new(seed), disks, timing)
    }

    pub fn over(world: SimWorld, disks: usize, timing: Timing) -> Self {
        let path = |i: usize| format!("/d{i}");
        let disks: Vec<_> = (0..disks).map(|i| world.add_disk(path(i), DISK, 512, timing)).collect();
        let machine = world.machine();
        let open = |i| machine.disks.open(path(i).as_ref(), Access::ReadWrite).unwrap();
        let handles = (0..disks.len()).map(open).collect();
        Bench { machine, disks, handles, world }
    }

    /// Leaves over the disks `range`; those in `missing` are not there.
    pub fn leaves(&self, range: std::ops::Range<usize>, missing: &[usize]) -> Vec<VdevSpec> {
        let leaf = |(id, i): (usize, usize)| {
            let disk = (!missing.contains(&i)).then(|| self.handles[i].clone());
            VdevSpec::leaf(id as u64, 100 + i as u64, format!("d{i}"), disk)
        };
        range.enumerate().map(leaf).collect()
    }

    pub fn blocks(&self, tops: Vec<VdevSpec>) -> Arc<Blocks> {
        Arc::new(Blocks::new(&self.machine, Tree::new(tops, &self.machine.clock).unwrap(), Salt::none()))
    }

    pub fn write(&self, disk: usize, offset: u64, bytes: &[u8]) {
        let handle = &self.handles[disk];
        self.world.run(handle.write(offset.wrapping_add(FRONT), Buf::copy_from(bytes))).unwrap().unwrap();
    }

    /// Writes a block with its parity.
    pub fn write_rows(&self, map: &Map, data: &[u8]) {
        for row in &map.rows {
            let (front, back) = row.columns.split_at(map.nparity);
            let pieces: Vec<&[u8]> = back.iter().map(|c| &data[c.at..][..c.size_bytes]).collect();
            let mut parities: Vec<Vec<u8>> = front.iter().map(|c| vec![0; c.size_bytes]).collect();
            parity::generate(&pieces, &mut parities.iter_mut().map(|p| &mut p[..]).collect::<Vec<_>>()).unwrap();
            let all = parities.iter().map(|p| &p[..]).chain(pieces);
            for (column, bytes) in row.columns.iter().zip(all).filter(|(c, _)| c.size_bytes > 0) {
                self.write(column.child, column.offset_bytes, bytes);
            }
        }
    }

    pub fn read(&self, blocks: &Blocks, pointer: &BlockPointer) -> Result<Vec<u8>, weir_blocks::BlockError> {
        let request = Request::internal("test");
        let options = Default::default();
        self.world.run(blocks.read(&request, pointer, &options)).unwrap().map(|b| b.to_vec())
    }
}

/// Bytes that differ everywhere.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// A pointer to an uncompressed block with a fletcher4 checksum.
pub fn pointer(addresses: &[Address], gang: bool, data: &[u8]) -> BlockPointer {
    let mut words = [0u64; 16];
    for (i, &(vdev, offset, asize)) in addresses.iter().enumerate() {
        words[2 * i] = u64::from(vdev) << 32 | asize >> 9;
        words[2 * i + 1] = u64::from(gang) << 63 | offset >> 9;
    }
    let sectors = (data.len() as u64 >> 9) - 1;
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 2 << 32 | sectors << 16 | sectors;
    words[10] = 50;
    let sum = checksum(ChecksumKind::Fletcher4, Endian::Little, &Salt::none(), data).unwrap();
    words[12..].copy_from_slice(&sum);
    BlockPointer::from_words(words)
}

pub fn top(id: u64, kind: VdevKind, ashift: u32, children: Vec<VdevSpec>) -> VdevSpec {
    VdevSpec::inner(id, 1000 + id, format!("top-{id}"), kind, children).top(ashift, 0)
}

/// log2 of a metaslab's size in [`open`].
pub const SHIFT: u32 = 20;
/// The transaction group of [`options`].
pub const TXG: Txg = Txg(100);

/// Opens for writing; of vdevs 0 to `count`, 16 metaslabs each are free.
pub fn open(blocks: &Blocks, count: u32) {
    blocks.tree().set_writable(true);
    for vdev in 0..count {
        let grid =
            VdevGrid { vdev, class: Class::Normal, metaslab_shift: SHIFT, metaslab_count: 16, non_allocating: false };
        blocks.add_vdev(&grid).unwrap();
        for i in 0..16 {
            blocks.metaslabs().set_free(vdev, i, std::slice::from_ref(&(i << SHIFT..(i + 1) << SHIFT))).unwrap();
        }
    }
}

/// A pool of one vdev of the given kind over the first `disks`, open for writing.
pub fn pool_of(bench: &Bench, kind: VdevKind, ashift: u32, disks: usize, missing: &[usize]) -> Arc<Blocks> {
    let blocks = bench.blocks(vec![top(0, kind, ashift, bench.leaves(0..disks, missing))]);
    open(&blocks, 1);
    blocks
}

/// A pool of `disks` top-level disks, open for writing.
pub fn stripe_of(bench: &Bench, ashift: u32, disks: usize) -> Arc<Blocks> {
    let leaves = bench.leaves(0..disks, &[]).into_iter();
    let blocks = bench.blocks(leaves.map(|l| l.top(ashift, ASIZE)).collect());
    open(&blocks, disks as u32);
    blocks
}

pub fn options() -> WriteOptions {
    WriteOptions::new(TXG, ObjectType::PLAIN_FILE_CONTENTS)
}

pub fn write(bench: &Bench, blocks: &Blocks, data: &[u8], options: &WriteOptions) -> Result<BlockPointer, BlockError> {
    let request = Request::internal("test");
    bench.world.run(blocks.write(&request, Bytes::copy_from_slice(data), options)).unwrap()
}

/// Bytes that compress to about a third.
pub fn soft(len: usize, seed: u64) -> Vec<u8> {
    let mut data = pattern(len, seed);
    data.chunks_mut(48).for_each(|c| c.iter_mut().skip(16).for_each(|b| *b = 7));
    data
}

pub fn raidz(nparity: u8) -> VdevKind {
    VdevKind::Raidz { nparity }
}

/// Checks that the bytes written by cause add up to the bytes that the disks were given.
pub fn assert_accounts_add_up(bench: &Bench, blocks: &Blocks, context: &str) {
    let given: u64 = bench.disks.iter().map(|disk| disk.stats().write_bytes).sum();
    let written = blocks.tree().accounts().device_bytes();
    assert_eq!(written.total(), given, "{context}: {written:?}");
}
