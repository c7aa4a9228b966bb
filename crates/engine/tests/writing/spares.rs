//! Hot spares: they step in by command or by themselves, step back when the original is whole again, and take its place when it
//! is detached. zdb judges each state.

use crate::attach::{assert_healthy, blank, guid, request, shape};
use crate::real::{folder, import, pool_of};
use crate::resilver::{look, run, small};
use crate::{work, zdb};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_engine::scrub::ScanLimits;
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev, OfflineMode, SpareWatch};
use weir_engine::{ImportOptions, VdevAddRequest};
use weir_machine::Machine;
use weir_pool::OpenOptions;
use weir_pool::assemble::state;
use weir_pool::config::Class;
use weir_pool::status::VdevState;
use weir_sim::{Fault, SimWorld, Timing};

/// A pool of these devices and two spares, `s` and `t`, of which `t` is smaller.
async fn with_spares(machine: &Machine, dir: &Path, layout: Layout, count: usize) -> Arc<Engine> {
    let mut options = pool_of(dir, layout, count);
    options.spares = vec![blank(dir, "s", 120), blank(dir, "t", 100)];
    let engine = Engine::create(machine, &options).await.unwrap();
    work::history(&engine, &|_| ()).await.unwrap();
    engine
}

fn spare(dir: &Path, name: &str) -> NewLeaf {
    NewLeaf { path: dir.join(name), is_file: true }
}

async fn step_in(engine: &Engine) -> Option<PathBuf> {
    engine.spares().keep_spares(&mut SpareWatch::default(), &mut |_| true).await.unwrap()
}

fn label_state(pool: &weir_pool::Pool, guid: u64) -> Option<u64> {
    pool.aux.get(&guid).and_then(|device| device.config()?.get_u64("state"))
}

#[test]
fn a_spare_is_used_by_command_and_is_available_again_after_it() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("spare-command");
        let engine = with_spares(&machine, &dir, Layout::Raidz(1), 3).await;
        let error = engine.vdevs().attach(&request(&engine, "a0", spare(&dir, "s"), false)).await.unwrap_err();
        assert!(error.to_string().contains("hot spare"), "{error}");
        engine.vdevs().attach(&request(&engine, "a1", spare(&dir, "s"), true)).await.unwrap();
        assert_eq!(shape(&engine), "root[raidz1-0[a0 spare-1[a1 s] a2]]");
        let s = guid(&engine, "s");
        let t = spare(&dir, "t");
        for refused in ["a0", "a1"] {
            let again = request(&engine, refused, spare(&dir, "s"), true);
            assert!(engine.vdevs().attach(&again).await.is_err(), "it is in use");
        }
        let error = engine.vdevs().attach(&request(&engine, "a1", t, true)).await.unwrap_err();
        assert!(error.to_string().contains("replaces the device already"), "{error}");
        assert!(engine.spares().remove_aux(s).await.unwrap_err().to_string().contains("detach it first"));
        run(&engine, &small()).await;
        assert_eq!(shape(&engine), "root[raidz1-0[a0 spare-1[a1 s] a2]]", "the device works: the spare stays");
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        zdb::assert_counted(&dir, "tank");
        let engine = import(&machine, &dir).await.unwrap();
        engine.vdevs().detach(s).await.unwrap();
        assert_eq!(shape(&engine), "root[raidz1-0[a0 a1 a2]]");
        engine.stop().await.unwrap();
        assert_eq!(label_state(&look(&machine, &dir).await, s), Some(state::SPARE));
        let engine = import(&machine, &dir).await.unwrap();
        engine.spares().remove_aux(s).await.unwrap();
        assert!(engine.spares().remove_aux(s).await.is_err());
        assert_eq!(engine.shown().config.aux.spares.len(), 1);
        engine.stop().await.unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn a_spare_becomes_an_ordinary_device_when_the_original_is_detached() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count, after) in
        [("single", Layout::Single, 1, "root[s]"), ("mirror", Layout::Mirror, 2, "root[mirror-0[s a1]]")]
    {
        machine.block_on(async {
            let dir = folder(&format!("spare-permanent-{name}"));
            let engine = with_spares(&machine, &dir, layout, count).await;
            engine.vdevs().attach(&request(&engine, "a0", spare(&dir, "s"), true)).await.unwrap();
            run(&engine, &small()).await;
            engine.vdevs().detach(guid(&engine, "a0")).await.unwrap();
            assert_eq!(shape(&engine), after);
            assert_eq!(engine.shown().config.aux.spares.len(), 1);
            work::write_object(&engine, "tank", 20, 4).await.unwrap();
            engine.stop().await.unwrap();
            std::fs::remove_file(dir.join("a0")).unwrap();
            assert_healthy(&machine, &dir).await;
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

/// The device fails: the smallest spare replaces it. It is cleared: what it missed is resilvered, and the spare is available again.
#[test]
fn a_spare_steps_in_and_back_by_itself() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("spare-faulted");
        let engine = with_spares(&machine, &dir, Layout::Raidz(1), 3).await;
        assert_eq!(step_in(&engine).await, None, "no device failed");
        let device = guid(&engine, "a2");
        engine.vdevs().offline(device, OfflineMode::Kept).await.unwrap();
        assert_eq!(step_in(&engine).await, None, "the administrator knows");
        engine.vdevs().online(device).await.unwrap();
        engine.vdevs().offline(device, OfflineMode::Faulted).await.unwrap();
        let refused = engine.spares().keep_spares(&mut SpareWatch::default(), &mut |_| false).await.unwrap();
        assert_eq!(refused, None, "another process has the spares");
        assert_eq!(step_in(&engine).await, Some(dir.join("t")));
        assert_eq!(step_in(&engine).await, None, "one is enough");
        work::write_object(&engine, "tank", 50, 7).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        assert_eq!(shape(&engine), "root[raidz1-0[a0 a1 spare-2[a2 t]]]");
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        let pool = look(&machine, &dir).await;
        assert_eq!((pool.state, pool.states[&device]), (VdevState::Degraded, VdevState::Faulted));
        drop(pool);
        let engine = import(&machine, &dir).await.unwrap();
        engine.devices().clear(Some(device)).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        run(&engine, &ScanLimits::default()).await;
        assert_eq!(shape(&engine), "root[raidz1-0[a0 a1 a2]]");
        engine.stop().await.unwrap();
        std::fs::remove_file(dir.join("t")).unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn the_replacement_of_a_spared_device_sends_the_spare_back() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("spare-replaced");
        let engine = with_spares(&machine, &dir, Layout::Mirror, 2).await;
        engine.vdevs().offline(guid(&engine, "a1"), OfflineMode::Faulted).await.unwrap();
        assert_eq!(step_in(&engine).await, Some(dir.join("t")));
        run(&engine, &small()).await;
        let new = blank(&dir, "b1", 96);
        engine.vdevs().attach(&request(&engine, "a1", new, true)).await.unwrap();
        assert_eq!(shape(&engine), "root[mirror-0[a0 spare-1[replacing-0[a1 b1] t]]]");
        engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        zdb::assert_counted(&dir, "tank");
        let engine = import(&machine, &dir).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        assert_eq!(shape(&engine), "root[mirror-0[a0 b1]]");
        engine.stop().await.unwrap();
        std::fs::remove_file(dir.join("a1")).unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A spare that fails while it is active is replaced by the next one.
#[test]
fn a_failed_spare_is_replaced_by_another_one() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("spare-of-spare");
        let engine = with_spares(&machine, &dir, Layout::Raidz(1), 3).await;
        engine.vdevs().offline(guid(&engine, "a0"), OfflineMode::Faulted).await.unwrap();
        assert_eq!(step_in(&engine).await, Some(dir.join("t")));
        run(&engine, &small()).await;
        engine.vdevs().offline(guid(&engine, "t"), OfflineMode::Faulted).await.unwrap();
        assert_eq!(step_in(&engine).await, Some(dir.join("s")));
        assert_eq!(shape(&engine), "root[raidz1-0[spare-0[a0 t s] a1 a2]]");
        run(&engine, &ScanLimits::default()).await;
        assert_eq!(shape(&engine), "root[raidz1-0[spare-0[a0 s] a1 a2]]");
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// In the simulator: a device that is missing for a while gets a spare; when it is back at the next import, the spare leaves.
#[test]
fn a_missing_device_gets_a_spare_after_a_while() {
    let world = SimWorld::new(7);
    let disks: Vec<_> = (0..3).map(|i| world.add_disk(format!("/sim/d{i}"), 64 << 20, 512, Timing::Nvme)).collect();
    let machine = world.machine();
    let new = |index: usize| NewLeaf { path: format!("/sim/d{index}").into(), is_file: true };
    let open = || OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::new(vec!["/sim".into()], "tank") };
    let run = world.run(async {
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Mirror, leaves: vec![new(0), new(1)] };
        let options = CreateOptions { arc_bytes: 16 << 20, ..CreateOptions::new("tank", vec![top]) };
        let engine = Engine::create(&machine, &options).await.unwrap();
        let more = VdevAddRequest { spares: vec![new(2)], ..VdevAddRequest::default() };
        engine.devices().add(&more).await.unwrap();
        work::write_object(&engine, "tank", 12, 1).await.unwrap();
        engine.stop().await.unwrap();
        let fault = disks[1].lay(Fault::Gone);
        let engine = Engine::import(&machine, &ImportOptions::new(open())).await.unwrap();
        work::write_object(&engine, "tank", 12, 2).await.unwrap();
        let mut watch = SpareWatch::default();
        assert_eq!(engine.spares().keep_spares(&mut watch, &mut |_| true).await.unwrap(), None);
        machine.clock.sleep(Duration::from_secs(16)).await;
        let used = engine.spares().keep_spares(&mut watch, &mut |_| true).await.unwrap();
        assert_eq!(used, Some(PathBuf::from("/sim/d2")));
        engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap();
        assert_eq!(shape(&engine), "root[mirror-0[d0 spare-1[d1 d2]]]");
        engine.stop().await.unwrap();
        disks[1].lift(fault);
        let engine = Engine::import(&machine, &ImportOptions::new(open())).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap();
        assert_eq!(shape(&engine), "root[mirror-0[d0 d1]]");
        engine.stop().await.unwrap();
    });
    run.unwrap();
}
