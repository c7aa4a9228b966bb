//! Events of a pool: commands, and errors of its devices with their offsets.

use crate::real::import;
use crate::scrub::{destroy_block, pool};
use crate::work;
use std::sync::Arc;
use weir_engine::scrub::ScanLimits;
use weir_engine::{Engine, Event, Layout};
use weir_format::NvValue;
use weir_machine::Request;

fn events(engine: &Engine) -> Vec<Arc<Event>> {
    engine.events.after(0).events
}

/// The classes without their fronts, config_sync and history left out.
fn classes(engine: &Engine) -> Vec<String> {
    let short = |event: &Arc<Event>| event.class.replace("sysevent.fs.zfs.", "").replace("ereport.fs.zfs.", "");
    events(engine).iter().map(short).filter(|class| class != "config_sync" && class != "history_event").collect()
}

/// A wrong block on one device: each read and each scrub reports the block, its file, the device and the offset.
#[test]
fn a_wrong_block_is_reported_with_its_place() {
    for (name, layout, count, disk) in [("mirror", Layout::Mirror, 2, "a1"), ("raidz", Layout::Raidz(1), 3, "a2")] {
        let (dir, machine) = pool(&format!("events-{name}"), layout, count);
        let object = machine.block_on(async {
            let engine = import(&machine, &dir).await.unwrap();
            let object = work::write_object(&engine, "tank", 4, 77).await.unwrap();
            engine.export().await.unwrap();
            object
        });
        let contents = work::contents(77, 2);
        // Of a RAID-Z block, a column: the device that has its front is not known beforehand.
        let disks = [disk, "a0", "a1"].map(|disk| dir.join(disk));
        let has = |path: &&std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap();
            bytes.chunks(512).any(|chunk| chunk == &contents[..512])
        };
        let path = disks.iter().find(has).unwrap();
        let at = destroy_block(path, &contents);
        machine.block_on(async {
            let engine = import(&machine, &dir).await.unwrap();
            assert_eq!(classes(&engine), ["pool_import"], "{name}");
            engine.scrubs().start().await.unwrap();
            engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap();
            assert_eq!(classes(&engine), ["pool_import", "scrub_start", "checksum", "scrub_finish"], "{name}");
            let all = events(&engine);
            let event = &all.iter().find(|event| event.class == "ereport.fs.zfs.checksum").unwrap().list;
            assert_eq!(event.get_str("vdev_path"), path.to_str(), "{name}");
            let number = |word: &str| event.get_u64(word).unwrap();
            let offset = number("zio_offset");
            let size = number("zio_size");
            assert!(offset <= at && at < offset + size, "{name}: {at} in {offset}+{size}");
            let dataset = engine.synced().dsl(&Request::internal("test")).await.unwrap();
            let root = dataset.find(&Request::internal("test"), "tank").await.unwrap();
            let block = ["zio_objset", "zio_object", "zio_blkid", "vdev_cksum_errors"].map(number);
            assert_eq!(block, [root.objset().0, object, 2, 1], "{name}");
            drop(dataset);
            assert!(event.pairs().iter().any(|p| p.name == b"zio_level" && p.value == NvValue::Int64(0)), "{name}");
            assert_eq!(event.get_str("cksum_algorithm"), Some("fletcher4"), "{name}");
            // After its repair it is not reported again.
            engine.scrubs().start().await.unwrap();
            engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap();
            assert_eq!(classes(&engine).iter().filter(|class| *class == "checksum").count(), 1, "{name}");
            engine.export().await.unwrap();
            assert_eq!(classes(&engine).last().unwrap(), "pool_export");
            assert!(engine.events.after(0).ended);
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

/// A block without a valid copy is lost, which is an event of the pool, not only of a device.
#[test]
fn losses_and_commands_are_reported() {
    let (dir, machine) = pool("events-lost", Layout::Single, 1);
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 4, 77).await.unwrap();
        engine.export().await.unwrap();
    });
    destroy_block(&dir.join("a0"), &work::contents(77, 0));
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.scrubs().start().await.unwrap();
        engine.scrubs().pause().await.unwrap();
        engine.scrubs().start().await.unwrap();
        engine.scrubs().stop().await.unwrap();
        engine.devices().trim().await.unwrap();
        engine.log_command("zpool nothing".into(), 7).unwrap();
        engine.sync().await.unwrap();
        let done =
            ["pool_import", "scrub_start", "scrub_paused", "scrub_resume", "scrub_abort", "trim_start", "trim_finish"];
        assert_eq!(classes(&engine), done);
        let all = events(&engine);
        let history = &all.iter().rfind(|event| event.class == "sysevent.fs.zfs.history_event").unwrap().list;
        assert_eq!(
            (history.get_str("history_command"), history.get_u64("history_who")),
            (Some("zpool nothing"), Some(7))
        );
        assert_eq!(engine.events.clear(), all.len());
        engine.scrubs().start().await.unwrap();
        engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap();
        assert_eq!(classes(&engine), ["scrub_start", "checksum", "data", "scrub_finish"]);
        let all = events(&engine);
        let lost = &all.iter().find(|event| event.class == "ereport.fs.zfs.data").unwrap().list;
        assert_eq!((lost.get_u64("vdev_guid"), lost.get_u64("zio_blkid")), (None, Some(0)));
        assert!(all.windows(2).all(|pair| pair[0].eid + 1 == pair[1].eid));
        engine.destroy().await.unwrap();
        assert_eq!(classes(&engine).last().unwrap(), "pool_destroy");
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
