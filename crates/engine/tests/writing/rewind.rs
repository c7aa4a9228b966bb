//! Going back past states that cannot be read (`zpool import -F`).

use crate::real::{folder, pool_of};
use crate::{goldens, work, zdb};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weir_dmu::live::SpaceReserve;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::dsl::pool as names;
use weir_format::{ObjectId, Txg};
use weir_machine::Request;
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, Rewind};
use weir_sim::{SimWorld, Timing};

/// The newest log space map that has entries: its txg, and the offset of its first block on the device.
async fn newest_log(pool: &Pool) -> (Txg, Vec<u64>) {
    let rq = &Request::internal("test");
    let zap = pool.mos.named(rq, names::LOG_SPACEMAP).await.unwrap().unwrap();
    let logs = pool.mos.numbers(rq, zap).await.unwrap();
    let mut logs: Vec<_> = logs.into_iter().map(|(txg, id)| (u64::from_str_radix(&txg, 16).unwrap(), id)).collect();
    logs.sort_unstable();
    for (txg, id) in logs.into_iter().rev() {
        let object = pool.mos.set.object(rq, ObjectId(id)).await.unwrap();
        if let Some(pointer) = pool.mos.set.pointers().at(rq, &object, 0, 0).await.unwrap().filter(|p| !p.is_hole()) {
            return (Txg(txg), pointer.dvas().map(|dva| (4 << 20) + dva.offset_bytes).collect());
        }
    }
    panic!("no log says anything");
}

fn options(dir: &Path, rewind: Rewind) -> OpenOptions {
    OpenOptions { rewind, ..OpenOptions::new(vec![dir.to_owned()], "tank") }
}

#[test]
fn a_state_whose_space_maps_cannot_be_read_is_left_for_an_older_one() {
    let dir = folder("rewind-maps");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.stop().await.unwrap();
        let (bad, places) = newest_log(&Pool::open(&machine, &options(&dir, Rewind::No)).await.unwrap()).await;
        let device = File::options().write(true).open(dir.join("a0")).unwrap();
        places.iter().for_each(|at| device.write_all_at(&[0xe7; 512], *at).unwrap());

        Pool::open(&machine, &options(&dir, Rewind::No)).await.unwrap_err();
        let found = Pool::open(&machine, &options(&dir, Rewind::Auto)).await.unwrap();
        assert!(found.uberblock.txg < bad && found.newest_txg >= bad, "{found:?}, {bad}");
        drop(found);
        Engine::import(&machine, &ImportOptions::new(options(&dir, Rewind::No))).await.unwrap_err();
        let engine = Engine::import(&machine, &ImportOptions::new(options(&dir, Rewind::Auto))).await.unwrap();
        work::write_object(&engine, "tank", 20, 9).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_checkpoint_is_opened_though_the_newest_state_is_bad() {
    let Some(goldens) = goldens::goldens() else { return };
    let dir = goldens::unpack(&goldens, "checkpoint");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let options = |checkpoint| OpenOptions { checkpoint, ..OpenOptions::new(vec![dir.clone()], "g-checkpoint") };
        let pool = Pool::open(&machine, &options(false)).await.unwrap();
        let (_, places) = newest_log(&pool).await;
        for device in pool.devices.values() {
            let device = File::options().write(true).open(&device.path).unwrap();
            places.iter().for_each(|at| device.write_all_at(&[0xe7; 512], *at).unwrap());
        }
        drop(pool);
        Pool::open(&machine, &options(false)).await.unwrap_err();
        let old = Pool::open(&machine, &options(true)).await.unwrap();
        assert!(old.uberblock.txg < old.newest_txg);
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Txgs that change nothing write no uberblock: freed space that the last uberblocks need is not reused after them.
#[test]
fn idle_txgs_end_no_deferral_of_frees() {
    let world = SimWorld::new(21);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::Nvme);
    let machine = world.machine();
    let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let run = world.run(async {
        let rq = &Request::internal("test");
        let engine = Engine::create(&machine, &CreateOptions::new("tank", vec![top])).await.unwrap();
        let id = work::write_object(&engine, "tank", 64, 1).await.unwrap();
        engine.sync().await.unwrap();
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        let tx = set.begin(rq, 16 << 10, SpaceReserve::NetFree).await.unwrap();
        set.frees().remove(rq, &tx, ObjectId(id)).await.unwrap();
        drop(tx);
        engine.sync().await.unwrap();
        let committed = engine.shown().uberblock.txg;
        let deferred = || engine.cache.blocks().vdev_space(0).deferred_bytes;
        let before = deferred();
        assert!(before > 512 << 10, "{before} bytes are deferred");
        let idle = engine.txgs().last_synced();
        machine.clock.sleep(std::time::Duration::from_secs(60)).await;
        assert!(engine.txgs().last_synced() > Txg(idle.0 + 4), "no txgs");
        assert_eq!((engine.shown().uberblock.txg, deferred()), (committed, before), "an idle txg was committed");
        for seed in [2, 3] {
            assert!(deferred() > before / 2, "{} of {before} bytes are deferred before two more commits", deferred());
            work::write_object(&engine, "tank", 1, seed).await.unwrap();
            engine.sync().await.unwrap();
        }
        assert!(deferred() < before / 2, "{} of {before} bytes are deferred after two more commits", deferred());
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new("/sim"), "tank").await;
    });
    run.unwrap();
}
