//! Operations on a scratch MOS, against a model that counts blocks itself.

mod golden;
mod keys;
mod limits;
mod links;
mod model;
mod together;

use super::*;
use crate::Dsl;
use weir_dmu::live;
use weir_dmu::txg::TxgTracker;
use weir_format::features::Feature;
use weir_format::{ObjectId, ObjsetKind};
use weir_sim::SimWorld;

/// Features of the pool that the tests create.
const FEATURES: [&Feature; 10] = [
    Feature::ASYNC_DESTROY,
    Feature::EMPTY_BPOBJ,
    Feature::EXTENSIBLE_DATASET,
    Feature::BOOKMARKS,
    Feature::BOOKMARK_V2,
    Feature::BOOKMARK_WRITTEN,
    Feature::FILESYSTEM_LIMITS,
    Feature::USEROBJ_ACCOUNTING,
    Feature::PROJECT_QUOTA,
    Feature::ENABLED_TXG,
];

/// A pool's MOS in memory.
pub(super) struct Lab {
    pub mos: Arc<ObjectSet>,
    pub rq: Request,
    pub pool: PoolContext,
    pub txg: u64,
}

/// The bytes of a made-up block.
pub(super) fn size(pointer: &BlockPointer) -> u64 {
    pointer.asize_bytes()
}

impl Lab {
    pub async fn new(machine: &weir_machine::Machine) -> Lab {
        let mos = live::scratch(machine, ObjsetKind::Meta);
        let pool = PoolContext {
            name: "tank".into(),
            version: 5000,
            capacity_bytes: 1 << 30,
            sizes: Arc::new(size),
            entropy: machine.entropy.clone(),
            host: "test".into(),
        };
        let mut lab = Lab { mos, rq: Request::internal("test"), pool, txg: 4 };
        let tx = lab.tx();
        zap::create_at(&lab.rq, &lab.mos, &tx, DIRECTORY, &NewZap::new(ObjectType::OBJECT_DIRECTORY)).await.unwrap();
        let mut change = lab.change(&tx);
        pool_dirs::create_pool_dirs(&mut change).await.unwrap();
        features::create_feature_objects(&mut change).await.unwrap();
        for feature in FEATURES {
            features::enable_feature(&mut change, feature).await.unwrap();
        }
        pool_dirs::create_root_dataset(&mut change).await.unwrap();
        history::create_history(&mut change, 1 << 20).await.unwrap();
        lab.txg = 5;
        lab
    }

    pub fn tx(&self) -> Tx {
        Tx::of_syncing(Txg(self.txg))
    }

    /// The transaction of the next txg.
    pub fn next_tx(&mut self) -> Tx {
        self.txg += 1;
        self.tx()
    }

    pub fn change<'a>(&'a self, tx: &'a Tx) -> DslSyncContext<'a> {
        DslSyncContext::new(&self.rq, self.mos.clone(), tx, self.pool.clone(), 1_700_000_000 + self.txg)
    }

    pub async fn dsl(&self) -> Arc<Dsl> {
        Dsl::open(&self.rq, self.mos.clone(), "tank").await.unwrap()
    }
}

pub(super) fn file_system(name: &str) -> NewDataset {
    NewDataset { name: name.into(), kind: Kind::FileSystem(FileSystemSpec::default()), properties: Vec::new() }
}

/// Runs a test in the simulator.
pub(super) fn run<F: Future<Output = ()> + Send + 'static>(seed: u64, test: impl FnOnce(weir_machine::Machine) -> F) {
    let world = SimWorld::new(seed);
    let machine = world.machine();
    world.run(test(machine)).unwrap();
}

#[test]
fn a_new_pool_has_its_directories() {
    run(1, |machine| async move {
        let lab = Lab::new(&machine).await;
        let dsl = lab.dsl().await;
        let root = dsl.root().unwrap();
        assert_eq!(root.name, "tank");
        let head = dsl.head(&lab.rq, root).await.unwrap();
        assert_eq!(head.phys.creation_txg, Txg(1));
        assert!(head.extensible, "it uses the accounting features");
        let origin = dsl.dataset(&lab.rq, head.phys.prev_snapshot, "origin".into()).await.unwrap();
        assert_eq!((origin.phys.creation_txg, origin.phys.children), (Txg(1), 2));
        let names = Zap::open(&lab.rq, &lab.mos, root.phys.children).await.unwrap().all(&lab.rq, 9).await.unwrap();
        let mut names: Vec<String> = names.into_iter().map(|e| e.key.text()).collect();
        names.sort();
        assert_eq!(names, ["$FREE", "$MOS", "$ORIGIN"]);
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        assert_eq!(features::feature_count(&mut change, Feature::USEROBJ_ACCOUNTING).await.unwrap(), Some(1));
        assert_eq!(features::feature_count(&mut change, Feature::EXTENSIBLE_DATASET).await.unwrap(), Some(1));
        assert_eq!(features::feature_count(&mut change, Feature::LZ4_COMPRESS).await.unwrap(), None);
        assert!(features::is_active(&mut change, Feature::EMPTY_BPOBJ).await.unwrap());
    });
}

#[test]
fn names_are_checked_before_anything_is_made() {
    run(2, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        create::create(&mut change, &file_system("tank/a")).await.unwrap();
        create::create(&mut change, &file_system("tank/a/b")).await.unwrap();
        for (name, wanted) in [
            ("tank/a", "tank/a: dataset already exists"),
            ("tank/x/y", "tank/x/y: parent does not exist"),
            ("other/a", "other/a: parent does not exist"),
            ("tank", "tank: parent does not exist"),
            ("tank/a@b", "tank/a@b: not the name of a file system or volume"),
            ("tank/a%", "tank/a%: invalid name: only letters, digits, '-', '_', '.', ':' and spaces are allowed"),
        ] {
            assert_eq!(create::create(&mut change, &file_system(name)).await.unwrap_err().to_string(), wanted);
        }
        let odd = VolumeSpec { size_bytes: 10_000, block_bytes: 8192 };
        let new = NewDataset { kind: Kind::Volume(odd), ..file_system("tank/v") };
        assert!(matches!(create::create(&mut change, &new).await, Err(DslError::Property { .. })));
        let busy = destroy_head::destroy(&mut change, "tank/a").await.unwrap_err();
        assert_eq!(
            busy,
            DslError::HasDependents { name: "tank/a".into(), what: "children", dependents: vec!["tank/a/b".into()] }
        );
        destroy_head::destroy(&mut change, "tank/a/b").await.unwrap();
        destroy_head::destroy(&mut change, "tank/a").await.unwrap();
        assert!(lab.dsl().await.dir_named("tank/a").is_none());
        assert_eq!(features::feature_count(&mut change, Feature::USEROBJ_ACCOUNTING).await.unwrap(), Some(1));
    });
}

#[test]
fn objects_come_and_go_in_pairs() {
    run(3, |machine| async move {
        let mut lab = Lab::new(&machine).await;
        let before = objects(&lab).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        create::create(&mut change, &file_system("tank/a")).await.unwrap();
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        snapshot::snapshot(&mut change, &["tank/a@1".into(), "tank@1".into()], &[]).await.unwrap();
        let twice = [("tank/a@1".into(), "keep".into()), ("tank/a@1".into(), "keep".into())];
        assert!(matches!(hold::hold(&mut change, &twice, false).await, Err(DslError::Exists { .. })));
        hold::hold(&mut change, &twice[..1], false).await.unwrap();
        assert!(matches!(
            destroy::destroy_snapshots(&mut change, &["tank/a@1".into()], false).await,
            Err(DslError::Held { .. })
        ));
        hold::hold(&mut change, &[("tank/a@1".into(), "until-import".into())], true).await.unwrap();
        destroy::destroy_snapshots(&mut change, &["tank/a@1".into()], true).await.unwrap();
        // The last hold keeps it.
        hold::drop_temporary_holds(&mut change).await.unwrap();
        let gone = hold::release(&mut change, &[("tank/a@1".into(), "until-import".into())]).await;
        assert!(matches!(gone, Err(DslError::Missing { .. })));
        hold::drop_temporary_holds(&mut change).await.unwrap();
        hold::release(&mut change, &[("tank/a@1".into(), "keep".into())]).await.unwrap();
        assert!(matches!(names::find(&mut change, "tank/a@1").await, Err(DslError::Missing { .. })));
        let early = branch::clone_snapshot(&mut change, "tank@1", "tank/c", &[]).await;
        assert!(matches!(early, Err(DslError::Busy { .. })), "later writes of this txg would count as the snapshot's");
        let tx = lab.next_tx();
        let mut change = lab.change(&tx);
        branch::clone_snapshot(&mut change, "tank@1", "tank/c", &[]).await.unwrap();
        let clones = destroy::destroy_snapshots(&mut change, &["tank@1".into()], false).await.unwrap_err();
        assert!(matches!(clones, DslError::HasDependents { what: "clones", .. }));
        for name in ["tank/c", "tank/a"] {
            destroy_head::destroy(&mut change, name).await.unwrap();
        }
        destroy::destroy_snapshots(&mut change, &["tank@1".into()], false).await.unwrap();
        trees::free_in_background(&mut change, 1000).await.unwrap();
        trees::free_in_background(&mut change, 1000).await.unwrap();
        assert_eq!(features::feature_count(&mut change, Feature::ASYNC_DESTROY).await.unwrap(), Some(0));
        // The root directory became a ZAP, to record when its snapshots changed, and has a list of clones.
        let mut wanted = before;
        *wanted.get_mut("DSL directory").unwrap() -= 1;
        *wanted.entry("zap").or_default() += 1;
        *wanted.entry("DSL dir clones").or_default() += 1;
        // The ZAP of temporary holds stays, empty.
        *wanted.entry("snapshot refcount tags").or_default() += 1;
        assert_eq!(objects(&lab).await, wanted);
    });
}

/// Number of objects of each kind.
async fn objects(lab: &Lab) -> BTreeMap<&'static str, usize> {
    let mut out = BTreeMap::new();
    for id in 1..300 {
        if let Ok(object) = lab.mos.object(&lab.rq, ObjectId(id)).await {
            *out.entry(object.dnode.object_type.name()).or_default() += 1;
        }
    }
    out
}

#[test]
fn a_new_file_system_equals_that_of_openzfs() {
    run(4, |machine| async move {
        let rq = Request::internal("test");
        let set = live::scratch(&machine, ObjsetKind::Zfs);
        let tx = Tx::of_syncing(Txg(12));
        let spec = FileSystemSpec { projects: true, ..FileSystemSpec::default() };
        let root = spec.create(&rq, &set, &tx).await.unwrap();
        let object = set.object(&rq, root).await.unwrap();
        assert_eq!(object.dnode.bonus_len, 176);
        golden::same_first_objects(&rq, &set).await;
        let set = live::scratch(&machine, ObjsetKind::Zvol);
        let volume = VolumeSpec { size_bytes: 1 << 20, block_bytes: 8192 };
        volume.create(&rq, &set, &tx).await.unwrap();
        assert_eq!(zap::lookup_word(&rq, &set, ObjectId(2), "size").await.unwrap(), Some(1 << 20));
        assert!(check_volume_size(&rq, &set, "v", 12_288).await.is_err());
        assert!(check_volume_size(&rq, &set, "v", 2 << 20).await.is_ok());
    });
}

#[test]
fn history_is_a_ring() {
    run(5, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        history::log_command(&mut change, "zpool create tank", 0).await.unwrap();
        let texts = |dsl: Arc<Dsl>, rq: Request| async move {
            let records = crate::history::history(&dsl, &rq).await.unwrap();
            let text = |r: &weir_format::NvList| r.get_str("history command").unwrap_or("?").to_owned();
            records.iter().map(text).collect::<Vec<_>>()
        };
        for n in 0..3000 {
            history::log_command(&mut change, &format!("command {n} {}", "x".repeat(100)), 0).await.unwrap();
        }
        let all = texts(lab.dsl().await, Request::internal("test")).await;
        assert_eq!(all.first().unwrap(), "zpool create tank");
        assert!(all.last().unwrap().starts_with("command 2999"));
        assert!(all.len() > 100 && all.len() < 3000);
        // A corrupt history fails no operation.
        let id = change.pool_object(pool_name::HISTORY).await.unwrap().unwrap();
        let mut bonus = Encoder::new(Endian::Little);
        bonus.words(&[40, 1 << 20, 40, u64::MAX - 3, 0]);
        let kind = ObjectType::SPA_HISTORY_OFFSETS;
        lab.mos.changes().set_bonus(&lab.rq, &tx, id, kind, &bonus.finish()).await.unwrap();
        lab.mos.frees().punch(&lab.rq, &tx, id, 0, u64::MAX).await.unwrap();
        create::create(&mut change, &file_system("tank/a")).await.unwrap();
        assert!(names::find_head(&mut change, "tank/a").await.is_ok());
    });
}

#[test]
fn a_running_scrub_follows_its_datasets() {
    run(7, |machine| async move {
        let lab = Lab::new(&machine).await;
        let tx = lab.tx();
        let mut change = lab.change(&tx);
        let head = create::create(&mut change, &file_system("tank/a")).await.unwrap().dataset;
        let queue = change.zap(ObjectType::SCAN_QUEUE).await.unwrap();
        zap::put_int(&lab.rq, &lab.mos, &tx, queue, head.0, 3).await.unwrap();
        let mut words = vec![0; 24];
        (words[0], words[1], words[2], words[19]) = (1, 1, queue.0, head.0);
        change.put(DIRECTORY, pool_name::SCAN, Value { int_size: 8, words }).await.unwrap();
        let stands = || {
            let rq = &lab.rq;
            let mos = &lab.mos;
            async move {
                let scan = zap::lookup(rq, mos, DIRECTORY, pool_name::SCAN).await.unwrap().unwrap();
                let queued = Zap::open(rq, mos, queue).await.unwrap().all(rq, 9).await.unwrap();
                let queued: Vec<String> = queued.iter().map(|e| e.key.text()).collect();
                (scan.words[19], scan.words[23], queued)
            }
        };
        let tx = Tx::of_syncing(Txg(6));
        let mut change = DslSyncContext::new(&lab.rq, lab.mos.clone(), &tx, lab.pool.clone(), 9);
        let snapshot = snapshot::snapshot(&mut change, &["tank/a@s".into()], &[]).await.unwrap()[0];
        assert_eq!(stands().await, (snapshot.0, 0, vec![format!("{:x}", snapshot.0)]));
        destroy::destroy_snapshots(&mut change, &["tank/a@s".into()], false).await.unwrap();
        assert_eq!(stands().await, (head.0, 1, vec![format!("{:x}", head.0)]));
        destroy_head::destroy(&mut change, "tank/a").await.unwrap();
        assert_eq!(stands().await, (u64::MAX, 1, vec![]));
    });
}

#[test]
fn txgs_sync_one_at_a_time() {
    // The scratch set has txgs of its own; the syncer's transactions count in none.
    let txgs = TxgTracker::new(Txg(3));
    assert_eq!(txgs.open(), Txg(4));
    drop(Tx::of_syncing(Txg(4)));
    assert_eq!(txgs.open(), Txg(4));
}
