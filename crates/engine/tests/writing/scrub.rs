//! Scrubs: what they put right, where they go on, what they tell.

use crate::gangs::spoil;
use crate::real::{folder, import, top};
use crate::{work, zdb};
use futures_util::FutureExt;
use std::path::Path;
use std::time::Duration;
use weir_dmu::live::{NewObject, SpaceReserve};
use weir_engine::scrub::{Progress, ScanLimits, ScrubStart};
use weir_engine::{CreateOptions, Engine, Layout};
use weir_format::ObjectType;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::scan_status::Stage;
use weir_pool::{OpenOptions, Pool, PoolError};

/// A pool with a history, exported.
pub fn pool(name: &str, layout: Layout, count: usize) -> (std::path::PathBuf, Machine) {
    let dir = folder(&format!("scrub-{name}"));
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, layout, count)]);
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.export().await.unwrap();
    });
    (dir, machine)
}

fn small() -> ScanLimits {
    ScanLimits { time: Duration::from_secs(60), bytes: 100 << 10, sorted_blocks: 3, ..ScanLimits::default() }
}

async fn read_only(machine: &Machine, dir: &Path) -> Pool {
    Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap()
}

#[test]
fn a_scrub_puts_a_whole_device_right() {
    for (name, layout, count) in [("mirror", Layout::Mirror, 2), ("raidz2", Layout::Raidz(2), 4)] {
        let (dir, machine) = pool(name, layout, count);
        spoil(&dir.join("a1"));
        machine.block_on(async {
            let engine = import(&machine, &dir).await.unwrap();
            engine.scrubs().start().await.unwrap();
            let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
            assert!(done.is_finished() && done.scan.errors == 0, "{name}: {done:?}");
            assert!(done.scan.processed_bytes > 100_000, "{name}: {done:?}");
            assert!(done.scan.examined_bytes * 10 > done.scan.to_examine_bytes * 9, "{name}: {done:?}");
            engine.scrubs().start().await.unwrap();
            let again = engine.scrubs().run(&small(), &mut |_| true).await.unwrap().unwrap();
            assert!(again.is_finished() && again.scan.processed_bytes == 0, "{name}: {again:?}");
            engine.export().await.unwrap();
        });
        zdb::assert_clean(&dir, "tank");
        std::fs::remove_file(dir.join("a0")).unwrap();
        machine.block_on(work::assert_pool_clean(&machine, &dir, "tank"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

/// A pass of a scrub that ends in an object of many indirect blocks has read little that the next pass reads again.
#[test]
fn passes_of_a_scrub_read_each_block_once() {
    const BLOCKS: u64 = 10_240;
    const BLOCK_BYTES: u64 = 4 << 10;
    let dir = folder("scrub-once");
    let machine = weir_linux::machine().unwrap();
    let tops = ["a", "b", "c"].map(|name| top(&dir, name, Class::Normal, Layout::Single, 1));
    let options = CreateOptions::new("tank", tops.into());
    machine.block_on(async {
        let rq = &Request::internal("test");
        let engine = Engine::create(&machine, &options).await.unwrap();
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        let tx = set.begin(rq, BLOCK_BYTES, SpaceReserve::Normal).await.unwrap();
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK_BYTES as u32);
        let id = set.changes().create(rq, &tx, &new).await.unwrap();
        drop(tx);
        for first in (0..BLOCKS).step_by(1024) {
            let tx = set.begin(rq, 1024 * BLOCK_BYTES, SpaceReserve::Normal).await.unwrap();
            for block in first..first + 1024 {
                let bytes = work::contents(3, 2 * block);
                set.writes().write(rq, &tx, id, block * BLOCK_BYTES, &bytes[..BLOCK_BYTES as usize]).await.unwrap();
            }
            drop(tx);
            engine.sync().await.unwrap();
        }
        engine.scrubs().start().await.unwrap();
        let mut passes = 0;
        let limits = ScanLimits { bytes: 4 << 20, sorted_blocks: 1024, ..small() };
        let done = engine.scrubs().run(&limits, &mut |_| (passes += 1, true).1).await.unwrap().unwrap();
        let examined = done.scan.examined_bytes;
        let all = done.scan.to_examine_bytes;
        assert!(done.is_finished() && passes > 8 && all > BLOCKS * BLOCK_BYTES, "{passes} passes: {done:?}");
        assert!(examined < all + all / 5, "{passes} passes: {examined} bytes of {all}");
        engine.export().await.unwrap();
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A device was away while the pool was written; a scrub brings it up to date, and excises its DTL.
#[test]
fn a_scrub_excises_the_dtl_of_a_device_that_was_away() {
    let (dir, machine) = pool("dtl", Layout::Mirror, 2);
    let there = dir.join("a1");
    let away = dir.with_extension("away");
    std::fs::rename(&there, &away).unwrap();
    let dtls = async || read_only(&machine, &dir).await.dtls().len();
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 300, 5).await.unwrap();
        engine.export().await.unwrap();
        std::fs::rename(&away, &there).unwrap();
        assert_eq!(dtls().await, 1);
        let engine = import(&machine, &dir).await.unwrap();
        engine.scrubs().start().await.unwrap();
        let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
        assert!(done.is_finished() && done.scan.errors == 0 && done.scan.processed_bytes > 100_000, "{done:?}");
        engine.export().await.unwrap();
        assert_eq!(dtls().await, 0);
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_file(dir.join("a0")).unwrap();
    machine.block_on(work::assert_pool_clean(&machine, &dir, "tank"));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// When a snapshot is destroyed, its blocks belong to the next one, which the scrub may have passed already. A device
/// may then still lack them after the scrub.
#[test]
fn a_dtl_is_kept_where_blocks_may_have_passed_a_scrub_by() {
    let (dir, machine) = pool("passed", Layout::Mirror, 2);
    let there = dir.join("a1");
    let away = dir.with_extension("away");
    std::fs::rename(&there, &away).unwrap();
    let dtls = async || read_only(&machine, &dir).await.dtls().len();
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 300, 5).await.unwrap();
        work::snapshot(&engine, "tank@first").await.unwrap();
        work::snapshot(&engine, "tank@second").await.unwrap();
        engine.export().await.unwrap();
        std::fs::rename(&away, &there).unwrap();
        for (destroys, left) in [(true, 1), (false, 0)] {
            let engine = import(&machine, &dir).await.unwrap();
            engine.scrubs().start().await.unwrap();
            engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
            if destroys {
                engine.destroy_snapshots(vec!["tank@first".to_owned()], false).await.unwrap();
            }
            let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
            assert!(done.is_finished() && done.scan.errors == 0, "{done:?}");
            engine.export().await.unwrap();
            assert_eq!(dtls().await, left, "destroys {destroys}");
        }
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A scrub is left off in the middle again and again, by the end of a process or by a pause, and goes on where it was;
/// together the parts examine as much as one that is never interrupted.
#[test]
fn a_scrub_goes_on_after_each_import_and_only_when_it_is_wanted() {
    let (dir, machine) = pool("resumed", Layout::Mirror, 2);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        assert!(matches!(engine.scrubs().pause().await, Err(PoolError::Refused { .. })));
        assert!(engine.scrubs().progress(rq).await.unwrap().is_none());
        let datasets = engine.synced().dsl(rq).await.unwrap();
        assert!(engine.scrubs().progress(rq).now_or_never().is_some(), "a reader waits for no other");
        drop(datasets);
        engine.scrubs().start().await.unwrap();
        let whole = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
        engine.scrubs().start().await.unwrap();
        engine.export().await.unwrap();
        let mut places = Vec::new();
        let (last, parts) = loop {
            let engine = import(&machine, &dir).await.unwrap();
            let mut passes = 0;
            let part: Progress = engine
                .scrubs()
                .run(&small(), &mut |_| {
                    passes += 1;
                    passes < 4
                })
                .await
                .unwrap()
                .unwrap();
            if places.len() == 1 {
                engine.scrubs().pause().await.unwrap();
                let halted = engine.scrubs().run(&small(), &mut |_| true).await.unwrap().unwrap();
                assert!(halted.is_paused() && halted.place == part.place);
                engine.export().await.unwrap();
                zdb::assert_clean(&dir, "tank");
                let scan =
                    weir_pool::scan_status::last_scan(&read_only(&machine, &dir).await, rq).await.unwrap().unwrap();
                assert!(
                    scan.stage == Stage::Running && scan.paused && scan.paused_s >= scan.start_s.max(1),
                    "{scan:?}"
                );
                let engine = import(&machine, &dir).await.unwrap();
                assert!(engine.scrubs().progress(rq).await.unwrap().unwrap().is_paused());
                engine.scrubs().start().await.unwrap();
                engine.export().await.unwrap();
            } else {
                engine.export().await.unwrap();
            }
            if part.is_finished() {
                break (part, places.len() + 1);
            }
            places.push(part.place);
        };
        // A process may end while found blocks are not read.
        assert!(parts >= 3 && places.windows(2).all(|w| w[0] <= w[1]), "{places:?}");
        let one = whole.scan.examined_bytes;
        let many = last.scan.examined_bytes;
        assert!(many >= one && many < one * 4, "{one} bytes in one, {many} in {parts} parts");
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Snapshots that are taken during a scrub are walked in several passes like all else: blocks that are freed meanwhile
/// do not wait for the end of all passes.
#[test]
fn snapshots_of_meanwhile_are_scrubbed_in_stretches() {
    let (dir, machine) = pool("meanwhile", Layout::Mirror, 2);
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 800, 5).await.unwrap();
        engine.sync().await.unwrap();
        engine.scrubs().start().await.unwrap();
        let first = engine.scrubs().run(&small(), &mut |_| false).await.unwrap().unwrap();
        work::snapshot(&engine, "tank@meanwhile").await.unwrap();
        let mut examined = vec![first.scan.examined_bytes];
        let mut places = vec![first.place];
        let done = engine
            .scrubs()
            .run(&small(), &mut |progress| {
                examined.push(progress.scan.examined_bytes);
                places.push(progress.place);
                true
            })
            .await
            .unwrap()
            .unwrap();
        assert!(done.is_finished() && done.scan.errors == 0, "{done:?}");
        let longest = examined.windows(2).map(|w| w[1] - w[0]).max().unwrap();
        // A stretch that finds only the way to its place is walked again, longer.
        assert!(longest < 2 << 20, "{longest} bytes in one stretch: {examined:?}");
        // The last place is what it was when the scrub ended.
        places.pop();
        // A pass that does not read all blocks that it found records no new position.
        places.dedup();
        assert!(places.windows(2).all(|w| w[0] < w[1]), "{places:?}");
        // The file twice: on its own, and again in the snapshot.
        assert!(done.scan.examined_bytes > 2 * 400 * (16 << 10), "{done:?}");
        engine.export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_scrub_that_is_stopped_is_over() {
    let (dir, machine) = pool("stopped", Layout::Single, 1);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.scrubs().start().await.unwrap();
        engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
        engine.scrubs().stop().await.unwrap();
        assert!(matches!(engine.scrubs().stop().await, Err(PoolError::Refused { .. })));
        engine.export().await.unwrap();
        let scan = weir_pool::scan_status::last_scan(&read_only(&machine, &dir).await, rq).await.unwrap().unwrap();
        assert_eq!(scan.stage, Stage::Canceled);
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// An error that cannot be repaired is counted and listed until a scrub does not find it any more.
#[test]
fn a_lost_block_is_reported_until_it_is_gone() {
    let (dir, machine) = pool("lost", Layout::Single, 1);
    let rq = &Request::internal("test");
    let object = machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        let object = work::write_object(&engine, "tank", 4, 77).await.unwrap();
        engine.export().await.unwrap();
        object
    });
    destroy_block(&dir.join("a0"), &work::contents(77, 0));
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.scrubs().start().await.unwrap();
        let done = engine.scrubs().run(&small(), &mut |_| true).await.unwrap().unwrap();
        assert_eq!((done.is_finished(), done.scan.errors), (true, 1));
        engine.export().await.unwrap();
        let pool = read_only(&machine, &dir).await;
        let errors = weir_pool::errlog::errors(&pool, rq).await.unwrap();
        assert_eq!(errors.count, 1);
        let lines = weir_pool::errlog::error_lines(&pool, rq, &errors, &Default::default()).await;
        assert_eq!(lines, [format!("tank:<{object:#x}>")]);
        drop(pool);

        let engine = import(&machine, &dir).await.unwrap();
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        {
            let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
            set.frees().remove(rq, &tx, weir_format::ObjectId(object)).await.unwrap();
        }
        engine.sync().await.unwrap();
        engine.scrubs().start().await.unwrap();
        let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
        assert_eq!((done.is_finished(), done.scan.errors), (true, 0));
        engine.export().await.unwrap();
        assert_eq!(weir_pool::errlog::errors(&read_only(&machine, &dir).await, rq).await.unwrap().count, 0);
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Overwrites the place where these bytes lie; gives where that is.
pub fn destroy_block(path: &Path, contents: &[u8]) -> u64 {
    use std::os::unix::fs::FileExt;
    let bytes = std::fs::read(path).unwrap();
    let at = (0..bytes.len()).step_by(512).find(|&at| bytes[at..].starts_with(&contents[..512])).unwrap();
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(&[0xe7; 512], at as u64).unwrap();
    at as u64
}

/// A scrub of the newer blocks reads no others.
#[test]
fn a_scrub_from_the_last_txg_reads_newer_blocks_only() {
    let (dir, machine) = pool("newer", Layout::Mirror, 2);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 300, 5).await.unwrap();
        engine.sync().await.unwrap();
        let mut runs = Vec::new();
        for (from, blocks) in
            [(ScrubStart::LastScrubbedTxg, 0), (ScrubStart::LastScrubbedTxg, 20), (ScrubStart::Whole, 0)]
        {
            if blocks > 0 {
                work::write_object(&engine, "tank", blocks, 6).await.unwrap();
            }
            engine.scrubs().start_after(from).await.unwrap();
            let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
            assert!(done.is_finished() && done.scan.errors == 0, "{done:?}");
            runs.push((done.scan.min_txg, done.scan.max_txg, done.scan.examined_bytes));
        }
        let [first, second, whole] = runs[..] else { panic!("{runs:?}") };
        assert_eq!((first.0.0, second.0, whole.0.0), (0, first.1, 0), "the first one has no earlier scrub");
        assert!(second.2 < first.2 / 2 && second.2 > 10 << 14, "{runs:?}");
        assert!(whole.2 > first.2, "{runs:?}");
        assert!(engine.scrubs().progress(rq).await.unwrap().is_some());
        engine.export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A device may lack older blocks than a scrub of the newer ones reads.
#[test]
fn a_scrub_from_the_last_txg_keeps_dtls() {
    let (dir, machine) = pool("newer-dtl", Layout::Mirror, 2);
    let there = dir.join("a1");
    let away = dir.with_extension("away");
    let dtls = async || read_only(&machine, &dir).await.dtls().len();
    machine.block_on(async {
        let scrub = async |from| {
            let engine = import(&machine, &dir).await.unwrap();
            engine.scrubs().start_after(from).await.unwrap();
            let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
            assert!(done.is_finished() && done.scan.errors == 0, "{done:?}");
            engine.export().await.unwrap();
            dtls().await
        };
        std::fs::rename(&there, &away).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 100, 5).await.unwrap();
        engine.scrubs().start().await.unwrap();
        engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap();
        engine.export().await.unwrap();
        std::fs::rename(&away, &there).unwrap();
        assert_eq!(scrub(ScrubStart::LastScrubbedTxg).await, 1, "the blocks before the first scrub were not read");
        assert_eq!(scrub(ScrubStart::Whole).await, 0);
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}
