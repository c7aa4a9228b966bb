//! Devices that grow while the pool is in use: the new space is used, and zdb finds it where the configuration says.

use crate::attach::assert_healthy;
use crate::real::{folder, import, pool_of};
use crate::resilver::LAYOUTS;
use crate::work;
use std::path::Path;
use weir_engine::{Engine, Layout, PoolProperty};

fn grow(dir: &Path, name: &str, mib: u64) {
    std::fs::File::options().write(true).open(dir.join(name)).unwrap().set_len(mib << 20).unwrap();
}

fn size_bytes(engine: &Engine) -> u64 {
    engine.cache.blocks().vdev_space(0).size_bytes
}

#[test]
fn the_space_of_grown_devices_is_used() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count) in [("single", Layout::Single, 1), LAYOUTS[1]] {
        machine.block_on(async {
            let dir = folder(&format!("expand-{name}"));
            let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            let before = size_bytes(&engine);
            assert_eq!(engine.growth().expand(None).await.unwrap(), 0);
            for index in 0..count {
                assert_eq!(engine.growth().expand(None).await.unwrap(), 0, "the smallest device counts");
                grow(&dir, &format!("a{index}"), 384);
            }
            let capacity = engine.gate.space().capacity_bytes();
            assert_eq!(engine.growth().expand(None).await.unwrap(), 1);
            assert!(size_bytes(&engine) > 3 * before, "{before} {}", size_bytes(&engine));
            assert!(engine.gate.space().capacity_bytes() > 3 * capacity);
            // More than fitted before.
            let blocks = before / (16 << 10);
            for seed in 0..4 {
                work::write_object(&engine, "tank", blocks / 2, seed).await.unwrap();
                engine.sync().await.unwrap();
            }
            engine.stop().await.unwrap();
            assert_healthy(&machine, &dir).await;
            let engine = import(&machine, &dir).await.unwrap();
            work::write_object(&engine, "tank", 20, 9).await.unwrap();
            engine.stop().await.unwrap();
            assert_healthy(&machine, &dir).await;
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

/// The devices grew while no process had the pool open; with `autoexpand=on` the next one uses the space.
#[test]
fn devices_that_grew_meanwhile_are_used_with_autoexpand() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("expand-auto");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        engine.stop().await.unwrap();
        ["a0", "a1"].iter().for_each(|name| grow(&dir, name, 256));
        let engine = import(&machine, &dir).await.unwrap();
        let before = size_bytes(&engine);
        engine.growth().keep_expanded().await.unwrap();
        assert_eq!(size_bytes(&engine), before, "autoexpand is off");
        let on = PoolProperty::Number { property: "autoexpand".into(), number: 1 };
        engine.properties().set_on_pool(on).await.unwrap();
        engine.growth().keep_expanded().await.unwrap();
        assert!(size_bytes(&engine) > 2 * before);
        work::write_object(&engine, "tank", 100, 9).await.unwrap();
        engine.stop().await.unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
