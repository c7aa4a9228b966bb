//! Pools with the property multihost that another machine has.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::Tree;
use weir_blocks::vdev::VdevSpec;
use weir_engine::labels::{Leaf, commit};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{Host, ImportOptions};
use weir_format::uberblock::Mmp;
use weir_format::{Txg, Uberblock};
use weir_machine::{Access, Machine};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{SimWorld, Timing};

const SEARCH: &str = "/sim";
const DISK: &str = "/sim/d0";

/// Takes the pool over by force.
async fn force(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![SEARCH.into()], "tank"));
    options.host = Host { id: 8, name: "here".into() };
    options.force = true;
    Engine::import(machine, &options).await
}

/// Writes the heartbeat of the other machine.
async fn beat(machine: &Machine, leaf: &Leaf, uberblock: &mut Uberblock) {
    uberblock.timestamp_s += 1;
    let spec = VdevSpec::leaf(0, leaf.guid, "d0", Some(leaf.disk.clone())).top(leaf.ashift as u32, 0);
    let tree = Tree::new(vec![spec], &machine.clock).unwrap();
    commit(&tree, std::slice::from_ref(leaf), None, uberblock, Txg(uberblock.txg.0)).await.unwrap();
    machine.clock.sleep(Duration::from_secs(1)).await;
}

#[test]
fn what_another_machine_writes_is_not_taken_by_force() {
    let world = SimWorld::new(5);
    world.add_disk(DISK, 64 << 20, 512, Timing::Nvme);
    let machine = world.machine();
    let run = world.run(async {
        let leaf = NewLeaf { path: DISK.into(), is_file: true };
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
        let mut options = CreateOptions::new("tank", vec![top]);
        options.host = Host { id: 7, name: "there".into() };
        Engine::create(&machine, &options).await.unwrap().stop().await.unwrap();
        let pool = Pool::open(&machine, &OpenOptions::new(vec![SEARCH.into()], "tank")).await.unwrap();
        let vdev = pool.tree.children.first().unwrap();
        let disk = machine.disks.open(Path::new(DISK), Access::ReadWrite).unwrap();
        let guid = vdev.guid;
        let ashift = vdev.ashift;
        let leaf = Leaf { guid, top: 0, ashift, is_log: false, path: DISK.into(), disk };
        let mut uberblock = pool.uberblock.clone();
        // Once a second; after ten times without success it would stop.
        uberblock.mmp = Some(Mmp { delay_ns: 1_000_000_000, config: 10 << 48 | 1000 << 8 | 5 });
        beat(&machine, &leaf, &mut uberblock).await;
        let there = machine.tasks.spawn({
            let machine = machine.clone();
            async move {
                for _ in 0..60 {
                    beat(&machine, &leaf, &mut uberblock).await;
                }
            }
        });
        let error = force(&machine).await.unwrap_err();
        assert!(error.to_string().contains("there is writing to it"), "{error}");
        there.await.unwrap();
        // It is silent: it lost the pool, or its power.
        force(&machine).await.unwrap().export().await.unwrap();
    });
    run.unwrap();
}
