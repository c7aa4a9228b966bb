//! Contents of the MOS of a new pool.
//!
//! ```text
//!   1 directory ─┬ root_dataset, free_bpobj        directories $MOS $FREE $ORIGIN, the root file system
//!                ├ features_for_read, …_for_write, feature_descriptions, feature_enabled_txg
//!                ├ history · config · creation_version · deflate · sync_bplist · checksum salt · pool_props
//!                ├ vdev_zap_map ─► a ZAP for the root vdev, each top-level vdev and each leaf
//!                └ spares, l2cache                 if there are any
//!   metaslab_array of each top-level vdev          (the configuration names it)
//! ```
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_create`, `spa_sync_props`, `spa_sync_aux_dev`), `module/zfs/dsl_pool.c`
//! (`dsl_pool_create`), `module/zfs/vdev.c` (`vdev_construct_zaps`, `vdev_sync`).

use super::{Aux, CreateOptions, PoolValue};
use crate::config::visit;
use crate::datasets::policy_for;
use crate::keys;
use crate::syncing::{CONFIG_BLOCK_BYTES, TxgSync};
use weir_codec::Salt;
use weir_dmu::live::{NewObject, Policy, TxAdmission};
use weir_dmu::zap::{self, Key, NewZap, Value};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::bpobj;
use weir_dsl::sync_tasks::{
    DslSyncContext, FileSystemSpec, Setting, ZAP_METADATA, features, history, pool_dirs, properties,
};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::znode::Timestamp;
use weir_format::{NvList, ObjectId, ObjectType, ObjsetId, ObjsetKind};
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::top_zap::ALLOCATION_BIAS;

const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
/// Configuration name of the root vdev's ZAP.
const ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";
/// Configuration name of a top-level vdev's ZAP.
const TOP_ZAP: &str = "com.delphix:vdev_zap_top";
/// Configuration name of a leaf's ZAP.
const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";

/// Input for creating the contents of the MOS.
pub(super) struct Contents {
    pub options: CreateOptions,
    pub salt: [u8; Salt::BYTES],
    pub aux: Aux,
}

impl Contents {
    /// Creates all objects of the MOS and the root file system, in syncing context.
    pub async fn make(self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let DslSyncContext { rq, mos, tx, .. } = &syncing.change;
        zap::create_at(rq, mos, tx, DIRECTORY, &NewZap::new(ObjectType::OBJECT_DIRECTORY)).await?;
        pool_dirs::create_pool_dirs(&mut syncing.change).await?;
        features::create_feature_objects(&mut syncing.change).await?;
        for feature in &self.options.features {
            features::enable_feature(&mut syncing.change, features::known(feature)?).await?;
        }
        self.root_file_system(syncing).await?;
        history::create_history(&mut syncing.change, syncing.engine.gate.space().size_bytes).await?;
        self.config_object(syncing).await?;
        self.pool_facts(syncing).await?;
        self.vdev_zaps(syncing).await?;
        self.metaslab_arrays(syncing).await?;
        self.aux_lists(syncing).await?;
        self.history(syncing).await
    }

    async fn root_file_system(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let plan = keys::plan(syncing, self.options.open_name(), &self.options.encryption).await?;
        let created = pool_dirs::create_root_dataset(&mut syncing.change).await?;
        let key = match plan {
            Some(plan) => Some(keys::encrypt(syncing, created, &plan).await?),
            None => None,
        };
        let engine = syncing.engine;
        let gate: std::sync::Arc<dyn TxAdmission> = engine.gate.clone();
        let opening = Opening { id: ObjsetId(created.dataset.0), key, ..Opening::default() };
        let policy = policy_for(ObjsetKind::Zfs, Policy::default());
        let set = ObjectSet::make_with(engine.cache.clone(), opening, ObjsetKind::Zfs, gate, policy);
        let projects = features::is_enabled(&mut syncing.change, Feature::PROJECT_QUOTA).await?;
        let now = match self.options.root.now {
            given if given != Timestamp::default() => given,
            _ => Timestamp { sec: syncing.change.now_s.cast_signed(), nsec: 0 },
        };
        let spec = FileSystemSpec { projects, now, ..self.options.root };
        let DslSyncContext { rq, tx, .. } = &syncing.change;
        spec.create(rq, &set, tx).await?;
        let settings: Vec<(String, Setting)> = self
            .options
            .root_properties
            .iter()
            .map(|(name, value)| (name.clone(), Setting::Set(value.clone())))
            .collect();
        properties::set_properties(&mut syncing.change, self.options.open_name(), &settings).await?;
        syncing.add_set(set);
        Ok(())
    }

    async fn config_object(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let id = list_object(&syncing.change).await?;
        put_word(&syncing.change, DIRECTORY, names::CONFIG, id.0).await?;
        syncing.core.config_object = id;
        Ok(())
    }

    async fn pool_facts(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let DslSyncContext { rq, mos, tx, .. } = &syncing.change;
        put_word(&syncing.change, DIRECTORY, names::CREATION_VERSION, syncing.core.config.version).await?;
        put_word(&syncing.change, DIRECTORY, names::DEFLATE, 1).await?;
        let deferred = bpobj::create(rq, mos, tx, false).await?;
        put_word(&syncing.change, DIRECTORY, names::SYNC_BPOBJ, deferred.0).await?;
        put(&syncing.change, DIRECTORY, names::CHECKSUM_SALT, &bytes_value(&self.salt)).await?;
        if self.options.properties.is_empty() && self.options.ashift.is_none() {
            return Ok(());
        }
        let props = zap::create(rq, mos, tx, &NewZap::new(ObjectType::POOL_PROPS)).await?;
        put_word(&syncing.change, DIRECTORY, names::PROPS, props.0).await?;
        if let Some(ashift) = self.options.ashift {
            put_word(&syncing.change, props, "ashift", ashift).await?;
        }
        for (name, value) in &self.options.properties {
            match value {
                PoolValue::Number(word) => put_word(&syncing.change, props, name, *word).await?,
                PoolValue::Text(text) => put(&syncing.change, props, name, &text_value(text)).await?,
            }
        }
        Ok(())
    }

    /// Creates a ZAP for each vdev, and the ZAP that lists them.
    async fn vdev_zaps(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let all = new_zap(&syncing.change).await?;
        put_word(&syncing.change, DIRECTORY, names::VDEV_ZAP_MAP, all.0).await?;
        let mut root = syncing.core.config.root.clone();
        if features::is_enabled(&mut syncing.change, Feature::VDEV_ZAPS_V2).await? {
            features::count_feature(&mut syncing.change, Feature::VDEV_ZAPS_V2, 1).await?;
            let id = linked_zap(&syncing.change, all).await?;
            root.set(ROOT_ZAP, id.0);
            move_before_children(&mut root);
        }
        let mut tops = root.get_list_array("children").unwrap_or_default().to_vec();
        for (top, new) in tops.iter_mut().zip(&self.options.tops) {
            zaps_of_top(syncing, top, new.class, all).await?;
        }
        root.set("children", tops);
        syncing.core.config.root = root;
        Ok(())
    }

    async fn metaslab_arrays(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let bad = |source| PoolError::Decode { what: "the new pool's vdevs".into(), source };
        let tree = VdevConfig::parse(&syncing.core.config.root).map_err(bad)?;
        for (index, top) in tree.children.iter().enumerate() {
            let array = syncing.core.maps.add_top(&mut syncing.change, top).await?;
            syncing.core.config.set_top_number(index, "metaslab_array", array.0);
        }
        Ok(())
    }

    async fn aux_lists(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        for (name, vdevs) in [(names::SPARES, &self.aux.spares), (names::L2CACHE, &self.aux.caches)] {
            if vdevs.is_empty() {
                continue;
            }
            let id = list_object(&syncing.change).await?;
            put_word(&syncing.change, DIRECTORY, name, id.0).await?;
            let mut list = NvList::new();
            list.set(name, vdevs.clone());
            syncing.write_list(id, &list).await?;
        }
        Ok(())
    }

    async fn history(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        if self.options.command.is_empty() {
            return Ok(());
        }
        let mut record = NvList::new();
        record.set("history time", syncing.change.now_s);
        record.set("history command", self.options.command.as_str());
        record.set("history who", 0u64);
        record.set("history zone", history::ZONE);
        Ok(history::append_history(&mut syncing.change, record).await?)
    }
}

/// Creates the ZAPs of a top-level vdev and its leaves, and adds them to the vdev's configuration.
pub(crate) async fn zaps_of_top(
    syncing: &mut TxgSync<'_>,
    top: &mut NvList,
    class: Class,
    all: ObjectId,
) -> Result<(), PoolError> {
    let mut leaves = 0;
    visit(top, &mut |vdev| leaves += usize::from(!vdev.contains("children")));
    let mut ids = Vec::new();
    for _ in 0..leaves {
        ids.push(linked_zap(&syncing.change, all).await?);
    }
    let mut ids = ids.into_iter();
    visit(top, &mut |vdev| {
        if !vdev.contains("children")
            && let Some(id) = ids.next()
        {
            vdev.set(LEAF_ZAP, id.0);
        }
    });
    let id = linked_zap(&syncing.change, all).await?;
    top.set(TOP_ZAP, id.0);
    move_before_children(top);
    if class != Class::Normal {
        put(&syncing.change, id, ALLOCATION_BIAS, &text_value(class.name())).await?;
    }
    if matches!(class, Class::Special | Class::Dedup) {
        features::count_feature(&mut syncing.change, Feature::ALLOCATION_CLASSES, 1).await?;
    }
    if top.get_str("type") == Some("draid") {
        features::count_feature(&mut syncing.change, Feature::DRAID, 1).await?;
    }
    Ok(())
}

/// Moves the children of a vdev behind its other values.
fn move_before_children(vdev: &mut NvList) {
    if let Some(children) = vdev.remove("children") {
        vdev.set("children", children);
    }
}

async fn list_object(change: &DslSyncContext<'_>) -> Result<ObjectId, PoolError> {
    let new = NewObject::new(ObjectType::PACKED_NVLIST, CONFIG_BLOCK_BYTES as u32)
        .bonus(ObjectType::PACKED_NVLIST_SIZE, vec![0; 8]);
    Ok(change.mos.changes().create(change.rq, change.tx, &new).await?)
}

/// Creates an object for a packed nvlist, and a ZAP entry that refers to it.
pub(crate) async fn new_list(change: &DslSyncContext<'_>, zap: ObjectId, name: &str) -> Result<ObjectId, PoolError> {
    let id = list_object(change).await?;
    put_word(change, zap, name, id.0).await?;
    Ok(id)
}

async fn new_zap(change: &DslSyncContext<'_>) -> Result<ObjectId, PoolError> {
    Ok(zap::create(change.rq, &change.mos, change.tx, &NewZap::new(ZAP_METADATA)).await?)
}

/// Creates a ZAP and lists it in `all` under its hexadecimal object number.
pub(crate) async fn linked_zap(change: &DslSyncContext<'_>, all: ObjectId) -> Result<ObjectId, PoolError> {
    let id = new_zap(change).await?;
    put_word(change, all, &format!("{:x}", id.0), id.0).await?;
    Ok(id)
}

async fn put_word(change: &DslSyncContext<'_>, zap: ObjectId, name: &str, word: u64) -> Result<(), PoolError> {
    Ok(zap::put_word(change.rq, &change.mos, change.tx, zap, name, word).await?)
}

async fn put(change: &DslSyncContext<'_>, zap: ObjectId, name: &str, value: &Value) -> Result<(), PoolError> {
    let key = Key::Name(name.as_bytes().to_vec());
    zap::put(change.rq, &change.mos, change.tx, zap, &key, value).await?;
    Ok(())
}

fn bytes_value(bytes: &[u8]) -> Value {
    Value { int_size: 1, words: bytes.iter().map(|b| u64::from(*b)).collect() }
}

/// A NUL-terminated string as a ZAP value.
fn text_value(text: &str) -> Value {
    let mut value = bytes_value(text.as_bytes());
    value.words.push(0);
    value
}
