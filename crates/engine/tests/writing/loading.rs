//! Metaslabs are loaded when they are allocated from, few per txg, and unloaded when they are not used.

use crate::{real, work};
use std::ops::Range;
use weir_blocks::Blocks;
use weir_engine::{Engine, Layout};

/// Loads all metaslabs and returns the sum of their free segments.
async fn load_all(blocks: &Blocks) -> u64 {
    let mut free_bytes = 0;
    for metaslab in 0..blocks.metaslabs().stats().metaslabs {
        blocks.metaslabs().load(0, metaslab).await.unwrap();
        let free = blocks.metaslabs().free_segments(0, metaslab).unwrap();
        free_bytes += free.iter().map(|Range { start, end }| end - start).sum::<u64>();
    }
    free_bytes
}

#[test]
fn few_metaslabs_are_loaded_and_unused_ones_unloaded() {
    let dir = real::folder("loading");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &real::pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::write_object(&engine, "tank", 100, 1).await.unwrap();
        engine.export().await.unwrap();
        let engine = real::import(&machine, &dir).await.unwrap();
        let blocks = engine.cache.blocks().clone();
        blocks.metaslabs().limit_loaded(u64::MAX);
        engine.sync().await.unwrap();
        let before = blocks.metaslabs().stats();
        assert!(before.loaded < before.metaslabs, "an import loads {} of {}", before.loaded, before.metaslabs);
        for seed in 0..10 {
            work::write_object(&engine, "tank", 10, seed).await.unwrap();
            engine.sync().await.unwrap();
        }
        let after = blocks.metaslabs().stats();
        // The three copies of the MOS's blocks are in three metaslabs.
        assert!(after.loads - before.loads <= 3, "{} metaslabs were loaded for 10 txgs", after.loads - before.loads);
        assert_eq!(after.unloads, before.unloads);
        assert_eq!(load_all(&blocks).await, blocks.vdev_space(0).free_bytes);
        // Without memory for them, they are unloaded when their changes are stable.
        blocks.metaslabs().limit_loaded(0);
        work::write_object(&engine, "tank", 10, 11).await.unwrap();
        engine.sync().await.unwrap();
        assert_eq!(blocks.metaslabs().stats().loaded, 0);
        // Without a change in between, the loaded segments are exactly the free space.
        assert_eq!(load_all(&blocks).await, blocks.vdev_space(0).free_bytes);
        assert!(blocks.metaslabs().stats().loads >= after.loads + after.metaslabs);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
