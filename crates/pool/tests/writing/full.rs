//! A pool that is full: writing stops in time, freeing goes on, and then writing does too.

use crate::work;
use std::path::Path;
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_objects::ObjectError;
use weir_objects::live::Purpose;
use weir_pool::config::Class;
use weir_pool::{CreateOptions, Engine, Layout, NewLeaf, NewTop, PoolError};
use weir_sim::{SimWorld, Timing};

const SEARCH: &str = "/sim";

fn options(layout: Layout, devices: usize, ashift: u64) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let top = NewTop { class: Class::Normal, layout, leaves: (0..devices).map(leaf).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.ashift = Some(ashift);
    options.arc_bytes = 16 << 20;
    options
}

fn is_full(error: &PoolError) -> bool {
    matches!(error, PoolError::Object(ObjectError::NoSpace { .. }))
}

/// Writes objects of 1 MiB until there is no more space; gives their numbers.
async fn fill(engine: &Engine) -> Vec<u64> {
    let mut ids = Vec::new();
    loop {
        match work::write_object(engine, "tank", 64, ids.len() as u64).await {
            Ok(id) => ids.push(id),
            Err(error) if is_full(&error) => return ids,
            Err(error) => panic!("after {} objects: {error}", ids.len()),
        }
    }
}

async fn empty(engine: &Engine, ids: &[u64]) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    for id in ids {
        let tx = set.begin(rq, 16 << 10, Purpose::Free).await.unwrap();
        set.remove(rq, &tx, ObjectId(*id)).await.unwrap();
    }
}

async fn scenario(machine: &Machine, options: &CreateOptions) {
    let engine = Engine::create(machine, options).await.unwrap();
    let first = fill(&engine).await;
    assert!(first.len() >= 8, "only {} MiB went in", first.len());
    empty(&engine, &first).await;
    let second = fill(&engine).await;
    assert!(second.len() * 10 >= first.len() * 8, "{} MiB, then {} MiB", first.len(), second.len());
    engine.export().await.unwrap();
    work::demand_whole(machine, Path::new(SEARCH), "tank").await;
}

fn run(layout: Layout, devices: usize, ashift: u64) {
    let world = SimWorld::new(11);
    for i in 0..devices {
        world.add_disk(format!("{SEARCH}/d{i}"), 80 << 20, 512, Timing::Nvme);
    }
    let machine = world.machine();
    world.run(scenario(&machine, &options(layout, devices, ashift))).unwrap();
}

#[test]
fn one_device() {
    run(Layout::Single, 1, 9);
}

#[test]
fn raidz_with_large_sectors() {
    run(Layout::Raidz(1), 3, 12);
}
