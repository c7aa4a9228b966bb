//! Random histories of datasets on real files: snapshots, clones, promotions, rollbacks, destruction in the background.
//! Afterwards zdb, Weir's own walk, and a count of every block by hand must agree with what the pool says it uses.

use crate::{account, goldens, real, work, zdb};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::live::{Policy, SpaceReserve, TxAdmission};
use weir_dmu::{ObjectError, ObjectSet, zap};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{
    DslError, DslSyncContext, FileSystemSpec, Kind, NewDataset, Setting, VolumeSpec, bookmark, create, destroy,
    destroy_head, promote, properties, rename, snapshot, trees,
};
use weir_dsl::{Dsl, Scope, bpobj};
use weir_engine::{CreateOptions, Engine, Layout};
use weir_engine::{DslReadGuard, ImportOptions, TxgSync};
use weir_format::{DslDataset, Endian, ObjectId, ObjectType, ObjsetId, ObjsetKind};
use weir_machine::Request;
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};

/// A small generator of numbers, so that a seed is a history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.roll(from.len() as u64) as usize).cloned()
    }
}

/// A pool with datasets, and what is done to them.
pub struct History {
    engine: Arc<Engine>,
    rq: Request,
    dice: Dice,
    next: u64,
    /// Whether the pool was made by the history.
    own: bool,
    /// Number of different contents that are written.
    contents: u64,
    /// Objects that were written, by dataset.
    objects: Vec<(String, u64)>,
    /// Number of successful operations by kind.
    pub done: BTreeMap<&'static str, u32>,
}

/// Whether an operation was refused for a reason that a random history meets.
fn is_refusal(error: &PoolError) -> bool {
    let PoolError::Dsl(error) = error else { return false };
    matches!(
        error,
        DslError::HasDependents { .. }
            | DslError::Space { .. }
            | DslError::Kind { .. }
            | DslError::Busy { .. }
            | DslError::Held { .. }
            | DslError::Missing { .. }
            | DslError::Exists { .. }
            | DslError::Name { .. }
            | DslError::Feature { .. }
    )
}

macro_rules! task {
    ($self:ident, |$syncing:ident| $body:expr) => {
        $self
            .engine
            .sync_task(move |$syncing: &mut TxgSync<'_>| Box::pin(async move { Ok::<_, PoolError>($body) }))
            .await
    };
}

impl History {
    fn new(engine: Arc<Engine>, seed: u64, own: bool) -> History {
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rq = Request::internal("test");
        History { engine, rq, dice, next: 0, own, contents: 1 << 30, objects: Vec::new(), done: BTreeMap::new() }
    }

    /// The datasets that are not encrypted.
    async fn heads(&self) -> Vec<String> {
        let dsl = self.dsl().await;
        dsl.dirs().into_iter().filter(|dir| dir.crypto_key().is_none()).map(|dir| dir.name.clone()).collect()
    }

    async fn dsl(&self) -> DslReadGuard {
        self.engine.synced().dsl(&self.rq).await.unwrap()
    }

    async fn snapshots(&self) -> Vec<String> {
        let dsl = self.dsl().await;
        let mut out = Vec::new();
        for dir in dsl.dirs().into_iter().filter(|dir| dir.crypto_key().is_none()) {
            out.extend(dsl.snapshots(&self.rq, dir).await.unwrap().snapshots.iter().map(|s| s.name.clone()));
        }
        out
    }

    fn name(&mut self, letter: &str) -> String {
        self.next += 1;
        format!("{letter}{}", self.next)
    }

    fn settled(&mut self, what: &'static str, result: Result<(), PoolError>) -> bool {
        match result {
            Ok(()) => {
                *self.done.entry(what).or_default() += 1;
                true
            }
            Err(error) if is_refusal(&error) => false,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Writes some objects, takes some away.
    async fn write(&mut self) {
        let heads = self.heads().await;
        for _ in 0..4 {
            let name = self.dice.pick(&heads).unwrap();
            let blocks = 1 + self.dice.roll(12);
            let seed = self.dice.roll(self.contents);
            if self.is_volume(&name).await {
                continue;
            }
            self.engine.open_set(&self.rq, &name, None).await.unwrap();
            self.engine.properties().renew(&self.rq, Scope::Path(&name)).await.unwrap();
            match work::write_object(&self.engine, &name, blocks, seed).await {
                Ok(id) => self.objects.push((name, id)),
                // Quotas of the pool that the history began with.
                Err(PoolError::Object(ObjectError::Quota { .. } | ObjectError::NoSpace { .. })) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
        if self.objects.len() > 6 {
            let at = self.dice.roll(self.objects.len() as u64) as usize;
            let (name, id) = self.objects.swap_remove(at);
            let Ok(set) = self.engine.open_set(&self.rq, &name, None).await else { return };
            let tx = set.begin(&self.rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
            // Rolled back or promoted since: the object may be gone.
            let _gone = set.frees().remove(&self.rq, &tx, ObjectId(id)).await;
        }
    }

    async fn is_volume(&self, name: &str) -> bool {
        let dsl = self.dsl().await;
        dsl.kind(&self.rq, dsl.dir_named(name).unwrap()).await.unwrap() == ObjsetKind::Zvol
    }

    async fn create(&mut self) {
        let parents = self.heads().await;
        if parents.len() > 7 {
            return;
        }
        let volume = self.dice.roll(4) == 0;
        let name = format!("{}/{}", self.dice.pick(&parents).unwrap(), self.name("d"));
        let kind = match volume {
            true => Kind::Volume(VolumeSpec { size_bytes: 1 << 20, block_bytes: 16 << 10 }),
            false => Kind::FileSystem(FileSystemSpec::default()),
        };
        let result = task!(self, |syncing| {
            let created =
                create::create(&mut syncing.change, &NewDataset { name, kind, properties: Vec::new() }).await?;
            let gate: Arc<dyn TxAdmission> = syncing.engine.gate.clone();
            let id = ObjsetId(created.dataset.0);
            let set = ObjectSet::make(syncing.engine.cache.clone(), id, kind.objset(), gate, Policy::default());
            let DslSyncContext { rq, tx, .. } = &syncing.change;
            match kind {
                Kind::FileSystem(spec) => drop(spec.create(rq, &set, tx).await?),
                Kind::Volume(spec) => spec.create(rq, &set, tx).await?,
            }
            syncing.add_set(set);
        });
        self.settled("create", result);
    }

    async fn snapshot(&mut self) {
        let short = self.name("s");
        let heads = self.heads().await;
        let names: Vec<String> =
            heads.into_iter().filter(|_| self.dice.roll(2) == 0).map(|n| format!("{n}@{short}")).collect();
        let bookmark = names.first().filter(|_| self.dice.roll(2) == 0).map(|n| (n.replace('@', "#"), n.clone()));
        let result = task!(self, |syncing| {
            snapshot::snapshot(&mut syncing.change, &names, &[]).await?;
            if let Some(bookmark) = bookmark {
                bookmark::bookmark(&mut syncing.change, &[bookmark]).await?;
            }
        });
        self.settled("snapshot", result);
    }

    async fn destroy_snapshot(&mut self) {
        let all = self.snapshots().await;
        let Some(name) = self.dice.pick(&all) else { return };
        let defer = self.dice.roll(3) == 0;
        let result = task!(self, |syncing| destroy::destroy_snapshots(&mut syncing.change, &[name], defer).await?);
        self.settled("destroy snapshot", result);
    }

    async fn clone_one(&mut self) {
        let all = self.snapshots().await;
        let Some(origin) = self.dice.pick(&all).filter(|_| all.len() < 12) else { return };
        let name = format!("{}/{}", self.engine.name(), self.name("c"));
        let result = self.engine.clone_snapshot(origin, name, Vec::new()).await;
        self.settled("clone", result);
    }

    async fn promote(&mut self) {
        let heads = self.heads().await;
        let Some(name) = self.dice.pick(&heads) else { return };
        let result = task!(self, |syncing| promote::promote(&mut syncing.change, &name).await?);
        self.settled("promote", result);
    }

    /// The object set of a head that is about to change as a whole.
    async fn set_of(&self, name: &str) -> ObjsetId {
        self.dsl().await.find(&self.rq, name).await.unwrap().objset()
    }

    async fn rollback(&mut self) {
        let heads = self.heads().await;
        let name = self.dice.pick(&heads).unwrap();
        let result = self.engine.rollback(name, None).await;
        self.settled("rollback", result);
    }

    async fn destroy(&mut self) {
        let mut heads = self.heads().await;
        let snapshots = self.snapshots().await;
        if self.dice.roll(4) > 0 {
            // One that may be destroyed, because it has no children.
            let all = heads.clone();
            let bare = |name: &String| {
                let children = format!("{name}/");
                let own = format!("{name}@");
                !all.iter().any(|n| n.starts_with(&children)) && !snapshots.iter().any(|s| s.starts_with(&own))
            };
            heads.retain(bare);
        }
        let Some(name) = self.dice.pick(&heads).filter(|name| name.contains('/')) else { return };
        let set = self.set_of(&name).await;
        let below = name.clone();
        let slowly = self.own && self.dice.roll(2) == 0;
        let result = match slowly {
            false => self.engine.destroy_dataset(name).await,
            true => task!(self, |syncing| {
                destroy_head::destroy(&mut syncing.change, &name).await?;
                syncing.engine.sets.remove(set);
                // A few blocks at a time: each call goes on where the one before stopped.
                while trees::free_in_background(&mut syncing.change, 3).await?.more {}
            }),
        };
        if self.settled("destroy", result) {
            self.objects.retain(|(of, _)| *of != below);
        }
    }

    async fn rename(&mut self) {
        let heads = self.heads().await;
        let from = self.dice.pick(&heads).unwrap();
        let under = self.dice.pick(&heads).unwrap();
        let to = format!("{under}/{}", self.name("r"));
        let result = task!(self, |syncing| rename::rename(&mut syncing.change, &from, &to).await?);
        if self.settled("rename", result) {
            self.objects.clear();
        }
    }

    async fn set(&mut self) {
        let heads = self.heads().await;
        let name = self.dice.pick(&heads).unwrap();
        let property =
            self.dice.pick(&["reservation", "refreservation", "compression", "my:tag", "dedup", "copies"]).unwrap();
        let value = match property {
            "compression" => Value::Number(15),
            "dedup" => Value::Number(self.dice.pick(&[1, 2, 1 | 1 << 8, 11, 13 | 1 << 8, 14]).unwrap()),
            "copies" => Value::Number(1 + self.dice.roll(2)),
            "my:tag" => Value::Text("a value".into()),
            _ => Value::Number(self.dice.roll(200) * 4096),
        };
        let result =
            task!(self, |syncing| properties::set_property(&mut syncing.change, &name, property, &Setting::Set(value))
                .await?);
        self.settled("set", result);
    }

    /// One group: perhaps something is written, then one operation.
    pub async fn group(&mut self) {
        if self.dice.roll(4) > 0 {
            self.write().await;
        }
        match self.dice.roll(13) {
            0..=2 => self.snapshot().await,
            3..=4 => self.destroy_snapshot().await,
            5 => self.clone_one().await,
            6 => self.promote().await,
            7 => self.rollback().await,
            8 => self.destroy().await,
            9 => self.rename().await,
            10 => self.set().await,
            _ => self.create().await,
        }
    }
}

fn history(name: &str, seed: u64, txgs: u64, layout: Layout, leaves: usize) -> BTreeMap<&'static str, u32> {
    history_with(name, seed, txgs, (layout, leaves), 1 << 30, &|_| ())
}

fn history_with(
    name: &str,
    seed: u64,
    txgs: u64,
    (layout, leaves): (Layout, usize),
    contents: u64,
    how: &dyn Fn(&mut CreateOptions),
) -> BTreeMap<&'static str, u32> {
    let dir = real::folder(&format!("datasets-{name}-{seed}"));
    let machine = weir_linux::machine().unwrap();
    let mut options = CreateOptions::new("tank", vec![real::top(&dir, "a", Class::Normal, layout, leaves)]);
    how(&mut options);
    let done = machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let mut history = History::new(engine, seed, true);
        history.contents = contents;
        for _ in 0..txgs {
            history.group().await;
        }
        history.engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        account::assert_exact(&machine, &dir, "tank").await;
        account::assert_as_zdb(&machine, &dir, "tank").await;
        history.done
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
    done
}

#[test]
fn datasets_on_one_device() {
    let mut done: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 1..4 {
        for (what, times) in history("single", seed, 60, Layout::Single, 1) {
            *done.entry(what).or_default() += times;
        }
    }
    for what in ["create", "snapshot", "destroy snapshot", "clone", "promote", "rollback", "destroy", "rename", "set"] {
        assert!(done.get(what).is_some_and(|times| *times > 0), "{what} in {done:?}");
    }
}

#[test]
fn datasets_on_raidz() {
    history("raidz", 9, 60, Layout::Raidz(1), 3);
}

/// Most of what is written is there already.
fn deduplicated(name: &str, seed: u64, layout: (Layout, usize), features: &[&str]) {
    let dedup = |options: &mut CreateOptions| {
        options.root_properties = vec![("dedup".into(), Value::Number(1))];
        options.features.extend(features.iter().map(|f| (*f).to_owned()));
    };
    history_with(name, seed, 60, layout, 4, &dedup);
}

#[test]
fn datasets_with_dedup() {
    deduplicated("dedup", 4, (Layout::Single, 1), &[]);
}

#[test]
fn datasets_with_fast_dedup() {
    deduplicated("fast-dedup", 6, (Layout::Raidz(1), 3), &["fast_dedup"]);
}

/// A history on a pool of OpenZFS.
fn on_golden(from: &std::path::Path, name: &str, seed: u64, txgs: u64) {
    let dir = goldens::unpack(from, name);
    let machine = weir_linux::machine().unwrap();
    let pool = machine.block_on(async {
        account::assert_exact(&machine, &dir, "").await;
        let mut options = ImportOptions::new(OpenOptions::new(vec![dir.clone()], ""));
        options.force = true;
        let engine = Engine::import(&machine, &options).await.unwrap();
        let pool = engine.name();
        let mut history = History::new(engine, seed, false);
        for _ in 0..txgs {
            history.group().await;
        }
        history.engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, &pool).await;
        account::assert_exact(&machine, &dir, &pool).await;
        eprintln!("{name}: {:?}", history.done);
        pool
    });
    // zdb's longer listings do not come to an end on some pools with redaction lists, also as OpenZFS left them.
    assert!(zdb::is_clean(&dir, &pool), "{name}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Their snapshots, clones, bookmarks and lists go on under Weir.
#[test]
fn datasets_of_openzfs() {
    let Some(from) = goldens::goldens() else { return };
    let only = std::env::var("WEIR_GOLDEN_ONLY").ok();
    let wanted = |name: &&str| only.as_ref().is_none_or(|only| only.split(',').any(|o| o == *name));
    for name in ["snaps", "zvol", "quota", "nofeat-d", "dedup-legacy", "dedup-fast"].into_iter().filter(wanted) {
        on_golden(&from, name, 3, 20);
    }
}

/// A dead list of a pool upgraded from before version 26 cannot be split by a snapshot: the snapshot is refused.
#[test]
fn dead_lists_of_old_programs_are_left_alone() {
    let dir = real::folder("old-lists");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &real::pool_of(&dir, Layout::Single, 1)).await.unwrap();
        let aged = engine.sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let DslSyncContext { rq, mos, tx, .. } = &syncing.change;
                let head = Dsl::open(rq, mos.clone(), "tank").await?.find(rq, "tank").await?;
                let deadlist = bpobj::create(rq, mos, tx, false).await?;
                let bytes = DslDataset { deadlist, ..head.phys.clone() }.encode(Endian::Little);
                mos.changes().set_bonus(rq, tx, head.id, ObjectType::DSL_DATASET, &bytes).await?;
                Ok(zap::put_word(rq, mos, tx, ObjectId(1), "creation_version", 15).await?)
            })
        });
        aged.await.unwrap();
        engine.export().await.unwrap();
        let error = real::import(&machine, &dir).await.unwrap_err();
        assert!(error.to_string().contains("dead lists older than version 26"), "{error}");
        Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
