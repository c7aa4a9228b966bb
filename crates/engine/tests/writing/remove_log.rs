//! Removal of log vdevs from pools on real files: zdb finds nothing wrong, and each object is accounted for.

use crate::{real, zdb};
use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, VdevAddRequest};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::{Class, PoolError, VdevConfig};

async fn write_stable(files: &Arc<FileSystem>, name: &str) {
    let rq = Request::internal("test");
    let root = Cred::root();
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), Bytes::from(name.repeat(900))).await.unwrap();
    files.sync(&rq, Some(made)).await.unwrap();
}

fn logs(engine: &Engine) -> Vec<VdevConfig> {
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    root.children.into_iter().filter(|top| top.is_concrete() && top.class == Class::Log).collect()
}

fn allocated_on_logs(engine: &Engine) -> u64 {
    engine.cache.blocks().space(weir_blocks::Class::Log).allocated_bytes
}

/// Two log vdevs in front of the data; files are written all the time.
async fn remove_both(machine: &Machine, dir: &std::path::Path) -> Result<(), PoolError> {
    let tops = vec![
        real::top(dir, "l", Class::Log, Layout::Mirror, 2),
        real::top(dir, "a", Class::Normal, Layout::Mirror, 2),
        real::top(dir, "m", Class::Log, Layout::Single, 1),
    ];
    let engine = Engine::create(machine, &CreateOptions::new("tank", tops)).await?;
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: "tank/home".into(), kind, properties: Vec::new() }).await?;
    let files = engine.file_system(&Request::internal("test"), "tank/home").await?;
    let absent = engine.vdev_removals().remove_log(logs(&engine)[0].leaves()[0].guid).await.unwrap_err().to_string();
    assert_eq!(absent, "no such log device in pool");
    for n in 0..20 {
        write_stable(&files, &format!("a{n}")).await;
    }
    assert!(allocated_on_logs(&engine) > 0);
    for index in 0..2 {
        let log = logs(&engine).remove(0);
        engine.vdev_removals().remove_log(log.guid).await?;
        for n in 0..20 {
            write_stable(&files, &format!("b{index}-{n}")).await;
        }
        assert_eq!(allocated_on_logs(&engine) > 0, index == 0, "the other log vdev is used while there is one");
    }
    let summed =
        engine.shown().config.tops().iter().map(|top| top.get_str("type").unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(summed, ["hole", "mirror", "hole"]);
    engine.export().await
}

#[test]
fn log_vdevs_leave_a_pool_in_use() {
    let dir = real::folder("remove-log");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(remove_both(&machine, &dir)).unwrap();
    let clean = async || crate::work::assert_pool_clean(&machine, &dir, "tank").await;
    machine.block_on(clean());
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    machine.block_on(async {
        let engine = real::import(&machine, &dir).await.unwrap();
        // The devices are free again.
        let leaves = vec![weir_engine::NewLeaf { path: dir.join("m0"), is_file: true }];
        let log = weir_engine::NewTopLevelVdev { class: Class::Log, layout: Layout::Single, leaves };
        engine.devices().add(&VdevAddRequest { tops: vec![log], ..VdevAddRequest::default() }).await.unwrap();
        let ashifts: Vec<_> = engine.shown().config.tops().iter().map(|top| top.get_u64("ashift").unwrap()).collect();
        assert_eq!(ashifts, [0, ashifts[1], 0, ashifts[1]]);
        let files = engine.file_system(&Request::internal("test"), "tank/home").await.unwrap();
        write_stable(&files, "again").await;
        assert!(allocated_on_logs(&engine) > 0);
        engine.export().await.unwrap();
        clean().await;
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}
