//! Volumes over several imports, and property changes of a volume in use.

use crate::world::{Shape, assert_pool_clean, create, import, world};
use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{Kind, NewDataset, Setting, VolumeSpec};
use weir_engine::{Engine, Layout};
use weir_machine::{Machine, Request};
use weir_volumes::{Volume, VolumeError};

pub const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };
pub const NAME: &str = "tank/vol";

pub async fn create_with_volume(machine: &Machine) -> (Arc<Engine>, Arc<Volume>) {
    let (engine, _) = create(machine, SHAPE).await.unwrap();
    let spec = VolumeSpec { size_bytes: 4 << 20, block_bytes: 16 << 10 };
    let new = NewDataset { name: NAME.into(), kind: Kind::Volume(spec), properties: Vec::new() };
    engine.create_dataset(new).await.unwrap();
    let volume = engine.volume(&Request::internal("test"), NAME).await.unwrap();
    (engine, volume)
}

/// Setting `readonly` applies immediately to open volumes.
#[test]
fn an_open_volume_becomes_read_only() {
    let world = world(27, SHAPE);
    let machine = world.machine();
    let run = world.run(async {
        let rq = Request::internal("test");
        let (engine, volume) = create_with_volume(&machine).await;
        let readonly = async |on| {
            let setting = Setting::Set(Value::Number(on));
            engine.properties().set_properties(NAME.into(), vec![("readonly".into(), setting)]).await.unwrap();
            volume.write(&rq, 0, Bytes::from_static(&[1; 512]), false).await
        };
        assert!(matches!(readonly(1).await, Err(VolumeError::ReadOnly { .. })));
        assert!(!volume.is_writable());
        readonly(0).await.unwrap();
        engine.export().await.unwrap();
    });
    run.unwrap();
}

/// Flushed writes are replayed.
#[test]
fn a_flushed_volume_is_replayed() {
    let world = world(3, SHAPE);
    let machine = world.machine();
    let data = |n: u64| Bytes::from(vec![n as u8 + 1; 20_000]);
    let first = world.run(async {
        let rq = Request::internal("test");
        let (_engine, volume) = create_with_volume(&machine).await;
        for n in 0..8 {
            volume.write(&rq, n * 300_000, data(n), n % 2 == 1).await.unwrap();
        }
        volume.write(&rq, 0, data(9), false).await.unwrap();
        volume.flush(&rq).await.unwrap();
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        let engine = import(&machine).await.unwrap();
        let volume = engine.volume(&rq, NAME).await.unwrap();
        assert_eq!(volume.read(&rq, 0, 20_000).await.unwrap(), data(9));
        for n in 1..8 {
            assert_eq!(volume.read(&rq, n * 300_000, 20_000).await.unwrap(), data(n), "write {n}");
        }
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    second.unwrap();
}
