//! Devices that are taken offline and come back while the pool is in use.

use crate::real::{folder, import, pool_of};
use crate::resilver::{LAYOUTS, look, run};
use crate::{work, zdb};
use weir_engine::scrub::ScanLimits;
use weir_engine::{Engine, OfflineMode};
use weir_pool::VdevConfig;
use weir_pool::status::VdevState;

pub fn guid(engine: &Engine, name: &str) -> u64 {
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    root.leaves().into_iter().find(|leaf| leaf.name().ends_with(name)).unwrap().guid
}

#[test]
fn a_device_is_offline_until_it_is_brought_online_and_gets_what_it_missed() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count) in LAYOUTS {
        machine.block_on(async {
            let dir = folder(&format!("offline-{name}"));
            let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            let device = guid(&engine, "a1");
            engine.vdevs().offline(device, OfflineMode::Kept).await.unwrap();
            if count < 4 {
                let error = engine.vdevs().offline(guid(&engine, "a0"), OfflineMode::Kept).await.unwrap_err();
                assert!(error.to_string().contains("no valid replicas"), "{error}");
            }
            work::write_object(&engine, "tank", 100, 4).await.unwrap();
            engine.stop().await.unwrap();
            let pool = look(&machine, &dir).await;
            assert_eq!(pool.states[&device], VdevState::Offline);
            drop(pool);
            zdb::assert_counted(&dir, "tank");
            // Offline stays offline after an import.
            let engine = import(&machine, &dir).await.unwrap();
            work::write_object(&engine, "tank", 100, 5).await.unwrap();
            engine.vdevs().online(device).await.unwrap();
            work::write_object(&engine, "tank", 10, 6).await.unwrap();
            run(&engine, &ScanLimits::default()).await;
            engine.vdevs().offline(device, OfflineMode::Temporary).await.unwrap();
            work::write_object(&engine, "tank", 10, 7).await.unwrap();
            engine.sync().await.unwrap();
            let shown = async || {
                let options = weir_pool::OpenOptions::new(vec![dir.clone()], "tank");
                engine.synced().view(&options).await.unwrap().states[&device]
            };
            assert_eq!(shown().await, VdevState::Offline, "as long as the pool is open");
            engine.devices().clear(None).await.unwrap();
            assert_eq!(shown().await, VdevState::Offline, "clearing errors brings no device online");
            engine.vdevs().online(device).await.unwrap();
            run(&engine, &ScanLimits::default()).await;
            engine.vdevs().offline(device, OfflineMode::Faulted).await.unwrap();
            work::write_object(&engine, "tank", 10, 8).await.unwrap();
            engine.stop().await.unwrap();
            assert_eq!(look(&machine, &dir).await.states[&device], VdevState::Faulted);
            let engine = import(&machine, &dir).await.unwrap();
            assert!(!engine.vdevs().online(device).await.unwrap(), "it is faulted");
            engine.devices().clear(Some(device)).await.unwrap();
            assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
            run(&engine, &ScanLimits::default()).await;
            engine.stop().await.unwrap();
            let pool = look(&machine, &dir).await;
            assert!(pool.state == VdevState::Online && pool.dtls().is_empty());
            drop(pool);
            zdb::assert_clean(&dir, "tank");
            std::fs::remove_file(dir.join("a0")).unwrap();
            work::assert_pool_clean(&machine, &dir, "tank").await;
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

#[test]
fn a_missing_device_that_returns_is_taken_back_while_the_pool_is_open() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let (_, layout, count) = LAYOUTS[1];
        let dir = folder("reopen");
        let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.stop().await.unwrap();
        let away = dir.with_extension("away");
        std::fs::rename(dir.join("a1"), &away).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 100, 5).await.unwrap();
        assert!(engine.vdevs().reopen().await.unwrap().is_empty());
        std::fs::rename(&away, dir.join("a1")).unwrap();
        assert_eq!(engine.vdevs().reopen().await.unwrap(), [dir.join("a1")]);
        work::write_object(&engine, "tank", 10, 6).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        run(&engine, &ScanLimits::default()).await;
        engine.stop().await.unwrap();
        assert!(look(&machine, &dir).await.dtls().is_empty());
        zdb::assert_clean(&dir, "tank");
        std::fs::remove_file(dir.join("a2")).unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
