//! Pools whose blocks lie in pieces, judged by Weir's own walk and by OpenZFS's zdb.

use crate::real::{folder, import, top};
use crate::{work, zdb};
use std::path::Path;
use weir_blocks::BlockError;
use weir_dmu::live::SpaceReserve;
use weir_engine::{CreateOptions, Engine, Layout, NewTopLevelVdev};
use weir_format::{BlockPointer, Txg};
use weir_machine::Request;
use weir_pool::config::Class;
use weir_pool::walk::{Claim, Prove, Visit, VisitPosition, Walk};
use weir_pool::{OpenOptions, Pool};

/// Every block above `most` bytes becomes a gang, from the first on, the MOS and its space maps included; then half of
/// them are freed again.
fn judge(name: &str, ashift: u64, most: u64, tops: impl FnOnce(&Path) -> Vec<NewTopLevelVdev>) {
    let dir = folder(&format!("gangs-{name}-{ashift}-{most}"));
    let machine = weir_linux::machine().unwrap();
    let mut options = CreateOptions::new("tank", tops(&dir));
    options.ashift = Some(ashift);
    let rq = &Request::internal("test");
    let freed = machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.cache.blocks().force_gangs_above(Some(most)).unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        let freed = work::write_object(&engine, "tank", 40, 9).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        freed
    });
    let ganged = assert_gangs(&dir);
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.cache.blocks().force_gangs_above(Some(most)).unwrap();
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        {
            let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
            set.frees().remove(rq, &tx, weir_format::ObjectId(freed)).await.unwrap();
        }
        engine.sync().await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    if let (Some(before), Some(after)) = (ganged, assert_gangs(&dir)) {
        assert!(before > 40 && after + 20 <= before, "{before} gangs, then {after}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// How many gangs zdb finds in a pool that is clean; `None` without zdb.
fn assert_gangs(dir: &Path) -> Option<u64> {
    let tools = zdb::tools()?;
    zdb::assert_clean(dir, "tank");
    let (_, text) = zdb::zdb(&tools, dir, &["-bcc", "tank"]);
    let count = text.lines().find_map(|l| l.trim().strip_prefix("ganged count:").map(str::trim));
    Some(count.map_or(0, |c| c.parse().unwrap()))
}

#[test]
fn on_one_device() {
    judge("single", 9, 2048, |dir| vec![top(dir, "a", Class::Normal, Layout::Single, 1)]);
    judge("single", 12, 8192, |dir| vec![top(dir, "a", Class::Normal, Layout::Single, 1)]);
}

#[test]
fn on_mirrors() {
    judge("mirror", 12, 4096, |dir| {
        vec![top(dir, "a", Class::Normal, Layout::Mirror, 2), top(dir, "b", Class::Normal, Layout::Mirror, 2)]
    });
}

#[test]
fn on_raidz() {
    judge("raidz1", 12, 8192, |dir| vec![top(dir, "a", Class::Normal, Layout::Raidz(1), 3)]);
    judge("raidz2", 9, 1024, |dir| vec![top(dir, "a", Class::Normal, Layout::Raidz(2), 5)]);
}

/// One side of each mirror, one child of a RAID-Z, is overwritten with noise behind the pool's back. A verification of
/// the pool, open for writing, puts all of it right: the other devices may go afterwards.
#[test]
fn noise_on_one_device_is_put_right_by_reading_everything() {
    for (name, layout, count) in [("mirror", Layout::Mirror, 2usize), ("raidz1", Layout::Raidz(1), 3)] {
        let dir = folder(&format!("noise-{name}"));
        let machine = weir_linux::machine().unwrap();
        let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, layout, count)]);
        machine.block_on(async {
            let engine = Engine::create(&machine, &options).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            engine.export().await.unwrap();
        });
        spoil(&dir.join("a1"));
        let repaired = machine.block_on(async {
            let engine = import(&machine, &dir).await.unwrap();
            let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
            let (roots, bad) = weir_pool::roots::roots(&Request::internal("test"), &pool.mos).await.unwrap();
            let machine = machine.clone();
            let blocks = engine.cache.blocks().clone();
            let mut seen = Seen { unreadable: bad };
            Walk { machine, blocks, prove: Prove::Everything, log_before: Txg(u64::MAX) }.run(roots, &mut seen).await;
            assert_eq!(seen.unreadable, 0, "{name}");
            let health = engine.cache.blocks().tree().health();
            engine.export().await.unwrap();
            health.iter().map(|h| h.counts.repaired_bytes).collect::<Vec<_>>()
        });
        assert!(repaired[1] > 100_000 && repaired[0] == 0, "{name}: {repaired:?}");
        zdb::assert_clean(&dir, "tank");
        std::fs::rename(dir.join("a0"), dir.with_extension("gone")).unwrap();
        machine.block_on(work::assert_pool_clean(&machine, &dir, "tank"));
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(dir.with_extension("gone")).unwrap();
    }
}

/// Blocks that a walk visited.
struct Seen {
    unreadable: u64,
}

impl Visit for Seen {
    fn block(&mut self, _at: &VisitPosition, _bp: &BlockPointer) -> bool {
        true
    }

    fn claim(&mut self, _at: &VisitPosition, _bp: &BlockPointer, _claim: Claim) {}

    fn unreadable(&mut self, _at: &VisitPosition, _bp: &BlockPointer, _error: &BlockError) {
        self.unreadable += 1;
    }
}

/// Overwrites the allocatable space of a device, but none of its labels, wherever something was written.
pub fn spoil(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut block = vec![0; 64 << 10];
    let noise = vec![0xe7; 64 << 10];
    for at in ((4u64 << 20)..(90 << 20)).step_by(64 << 10) {
        file.read_exact_at(&mut block, at).unwrap();
        if block.iter().any(|&b| b != 0) {
            file.write_all_at(&noise, at).unwrap();
        }
    }
}

/// A gang block without a readable header can be freed: its pieces leak, and the pool continues.
#[test]
fn a_gang_without_its_header_stops_no_sync() {
    use std::os::unix::fs::FileExt;
    let dir = folder("gang-lost");
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, Layout::Single, 1)]);
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.cache.blocks().force_gangs_above(Some(8192)).unwrap();
        let id = weir_format::ObjectId(work::write_object(&engine, "tank", 8, 9).await.unwrap());
        engine.export().await.unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        let object = set.object(rq, id).await.unwrap();
        let pointer = set.pointers().at(rq, &object, 0, 0).await.unwrap().unwrap();
        assert!(pointer.is_gang());
        let disk = std::fs::File::options().write(true).open(dir.join("a0")).unwrap();
        pointer.dvas().for_each(|dva| disk.write_all_at(&[0xe7; 512], (4 << 20) + dva.offset_bytes).unwrap());
        {
            let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
            set.frees().remove(rq, &tx, id).await.unwrap();
        }
        engine.sync().await.unwrap();
        work::write_object(&engine, "tank", 8, 10).await.unwrap();
        engine.export().await.unwrap();
        import(&machine, &dir).await.unwrap().export().await.unwrap();
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
