//! Metaslabs whose space maps cannot be read: space is allocated elsewhere, or the pool is suspended until they can.

use crate::store::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use weir_blocks::alloc::Summary;
use weir_blocks::suspension::FailMode;
use weir_blocks::{BlockError, Blocks, Class, MetaslabSource, SourceError, VdevGrid, VdevKind};
use weir_machine::Request;
use weir_sim::Timing;

const METASLAB_BYTES: u64 = 1 << 18;

/// Space maps of empty metaslabs; some cannot be read.
#[derive(Clone, Default)]
struct Maps {
    unreadable: Arc<Mutex<BTreeSet<u64>>>,
    failures: Arc<Mutex<Vec<u64>>>,
}

impl MetaslabSource for Maps {
    fn free_ranges(&self, _: u32, metaslab: u64) -> BoxFuture<'static, Result<Vec<Range<u64>>, SourceError>> {
        let is_unreadable = self.unreadable.lock().unwrap().contains(&metaslab);
        let whole = metaslab * METASLAB_BYTES..(metaslab + 1) * METASLAB_BYTES;
        Box::pin(async move { if is_unreadable { Err("input/output error".into()) } else { Ok(vec![whole]) } })
    }

    fn load_failed(&self, _: u32, metaslab: u64, _: &SourceError) {
        self.failures.lock().unwrap().push(metaslab);
    }
}

/// A pool with two metaslabs that are not loaded; the map of each is readable unless it is named.
fn pool_with(bench: &Bench, unreadable: &[u64]) -> (Arc<Blocks>, Maps) {
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 12, bench.leaves(0..1, &[]))]);
    blocks.tree().set_writable(true);
    let grid = VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: 18, metaslab_count: 2, non_allocating: false };
    blocks.add_vdev(&grid).unwrap();
    for metaslab in 0..2 {
        let summary = Summary { free_bytes: METASLAB_BYTES, histogram: None };
        blocks.metaslabs().summarize(0, metaslab, summary).unwrap();
    }
    let maps = Maps::default();
    maps.unreadable.lock().unwrap().extend(unreadable);
    blocks.metaslabs().set_source(Arc::new(maps.clone()), 0).unwrap();
    (blocks, maps)
}

#[test]
fn space_is_allocated_elsewhere_if_a_space_map_cannot_be_read() {
    for unreadable in 0..2 {
        let bench = Bench::new(unreadable, 1, Timing::Nvme);
        let (blocks, maps) = pool_with(&bench, &[unreadable]);
        let request = Request::internal("test");
        for seed in 0..2 {
            let written = bench.world.run(blocks.write(&request, pattern(8192, seed).into(), &options())).unwrap();
            assert_eq!(written.unwrap().dva(0).offset_bytes / METASLAB_BYTES, 1 - unreadable);
        }
        assert!(maps.failures.lock().unwrap().iter().all(|metaslab| *metaslab == unreadable));
        assert_eq!(blocks.metaslabs().stats().loads, 1);
    }
}

#[test]
fn a_pool_without_a_readable_space_map_is_suspended_until_it_has_one() {
    let bench = Bench::new(7, 1, Timing::Nvme);
    let (blocks, maps) = pool_with(&bench, &[0, 1]);
    let request = Request::internal("test");
    let options = options();
    let refused = bench.world.run(blocks.write(&request, pattern(8192, 1).into(), &options)).unwrap();
    assert_eq!(refused, Err(BlockError::NoSpace { psize_bytes: 8192 }), "failmode=panic");

    blocks.tree().suspension().set_mode(FailMode::Wait);
    let written = bench.world.run(async {
        let mut write = Box::pin(blocks.write(&request, pattern(8192, 1).into(), &options));
        while blocks.tree().suspension().reason().is_none() {
            assert!((&mut write).now_or_never().is_none(), "the write ends though there is no space");
            bench.world.machine().clock.sleep(std::time::Duration::from_millis(1)).await;
        }
        let why = blocks.tree().suspension().reason();
        assert!(why.is_some_and(|why| why.contains("space maps of metaslabs cannot be read")));
        // Resumed too early, it is suspended again.
        assert!(blocks.tree().suspension().resume());
        while blocks.tree().suspension().reason().is_none() {
            assert!((&mut write).now_or_never().is_none());
            bench.world.machine().clock.sleep(std::time::Duration::from_millis(1)).await;
        }
        maps.unreadable.lock().unwrap().clear();
        assert!(blocks.tree().suspension().resume());
        write.await
    });
    let pointer = written.unwrap().unwrap();
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), pattern(8192, 1));
}
