#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use super::*;
use crate::exports::Exports;
use std::net::IpAddr;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, Setting, VolumeSpec};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_front::Host;
use weir_front::files::FileError;
use weir_pool::config::Class;
use weir_sim::{SimWorld, Timing};

async fn set(engine: &Engine, name: &str, property: &str, value: &str) {
    let setting = (property.to_owned(), Setting::Set(Value::Text(value.to_owned())));
    engine.properties().set_properties(name.to_owned(), vec![setting]).await.unwrap();
}

/// A pool with `tank/a`, `tank/a/b` and the volume `tank/v`.
async fn pool(world: &SimWorld) -> Arc<Engine> {
    let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    let engine = Engine::create(&world.machine(), &options).await.unwrap();
    let volume = Kind::Volume(VolumeSpec { size_bytes: 1 << 20, block_bytes: 4096 });
    let file_system = || Kind::FileSystem(FileSystemSpec::default());
    for (name, kind) in [("tank/a", file_system()), ("tank/a/b", file_system()), ("tank/v", volume)] {
        engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await.unwrap();
    }
    engine
}

/// Values are stored without a check here, as by OpenZFS: those that cannot be parsed share nothing.
#[test]
fn invalid_values_share_nothing_and_valid_ones_are_inherited() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let run = world.run(async {
        let rq = &Request::internal("test");
        let engine = pool(&world).await;
        let exports = Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap();
        let id = |name: &str| exports.tree.exports().into_iter().find(|export| export.name == name).unwrap().id;
        let ids = ["tank", "tank/a", "tank/a/b"].map(id);
        let host = Host { address: IpAddr::from([192, 0, 2, 7]), port: 700 };
        let permitted = || ids.map(|id| exports.file_shares.permit(id, host).map(|permission| permission.may_write));
        let stale = Err(FileError::Stale);
        assert_eq!(permitted(), [stale.clone(), stale.clone(), stale.clone()], "nothing is shared at first");
        exports.share(rq, Sharing::ByProperties).await.unwrap();
        assert_eq!(permitted(), [stale.clone(), stale.clone(), stale.clone()]);
        set(&engine, "tank/a", "sharenfs", "ro").await;
        exports.renew(rq).await.unwrap();
        assert_eq!(permitted(), [stale.clone(), Ok(false), Ok(false)]);
        set(&engine, "tank/a/b", "sharenfs", "rw,sec=krb5p").await;
        exports.renew(rq).await.unwrap();
        assert_eq!(permitted(), [stale.clone(), Ok(false), stale.clone()]);
        let problems = exports.shares.of("tank/a/b").unwrap().problems;
        assert!(problems.len() == 1 && problems[0].1.contains("'sec=krb5p': Kerberos"), "{problems:?}");
        // A name without an address grants nothing, also to hosts that other lists do not name.
        set(&engine, "tank/a/b", "sharenfs", "rw=build.example.org").await;
        exports.renew(rq).await.unwrap();
        assert_eq!(permitted(), [stale.clone(), Ok(false), Err(FileError::Denied)]);
        exports.resolve_names(&world.machine()).await;
        assert_eq!(permitted()[2], Err(FileError::Denied));
        let names = Names::from([("build.example.org".to_owned(), vec![host.address])]);
        assert!(exports.shares.set_names(names));
        exports.shares.applied(&exports.file_shares);
        assert_eq!(permitted()[2], Ok(true));
        exports.share(rq, Sharing::Nothing).await.unwrap();
        assert_eq!(permitted(), [stale.clone(), stale.clone(), stale]);
        engine.export().await.unwrap();
    });
    run.unwrap();
}

#[test]
fn targets_and_shares_are_listed_and_survive_a_rename() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let run = world.run(async {
        let rq = &Request::internal("test");
        let engine = pool(&world).await;
        let guid = engine.shown().config.guid;
        let exports = Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap();
        exports.share(rq, Sharing::ByProperties).await.unwrap();
        for (name, property, value) in [
            ("tank", "weir:iscsi", "chap=ann,wce=off"),
            ("tank/a", "sharesmb", "name=Music,hosts=@10.0.0.0/8"),
            ("tank/v", "weir:nbd", "name=disk"),
        ] {
            set(&engine, name, property, value).await;
        }
        exports.renew(rq).await.unwrap();
        let [target] = exports.shares.iscsi_targets(guid).shares.try_into().unwrap();
        assert_eq!((target.chap.as_deref(), target.luns[0].write_cache), (Some("ann"), false), "inherited from tank");
        assert_eq!(exports.volumes.shared_names(), ["disk"]);
        // The child inherits the hosts, not the name.
        let listed = exports.shares.smb_shares();
        let names: Vec<_> = listed.shares.iter().map(|share| (share.name.as_str(), share.dataset.as_str())).collect();
        assert_eq!(names, [("Music", "tank/a"), ("tank_a_b", "tank/a/b")]);
        assert!(listed.conflicts.is_empty() && listed.shares[0].hosts == listed.shares[1].hosts);
        engine.rename("tank/v".into(), "tank/w".into()).await.unwrap();
        exports.renew(rq).await.unwrap();
        let [renamed] = exports.shares.iscsi_targets(guid).shares.try_into().unwrap();
        assert_eq!((&renamed.iqn, renamed.luns[0].dataset.as_str()), (&target.iqn, "tank/w"));
        set(&engine, "tank/w", "weir:iscsi", "off").await;
        exports.renew(rq).await.unwrap();
        assert!(exports.shares.iscsi_targets(guid).shares.is_empty());
        engine.export().await.unwrap();
    });
    run.unwrap();
}
