//! Opening of file systems and volumes for front ends.
//!
//! ```text
//!   open the object set for writing ─► intent log ─► file system or volume ─► replay ─► delete queue ─► clients
//! ```
//!
//! The first request opens a dataset; it stays open and all front ends share it. Snapshots are opened for reading, and
//! the caller owns the handle.

use super::Engine;
use super::open_datasets::{OpenDataset, OpenSet};
use std::sync::Arc;
use weir_dmu::live::Policy;
use weir_dsl::props::Value;
use weir_dsl::{Dataset, Dsl, PoolFacts};
use weir_files::writing::{AccessTimes, AclInherit, AclMode, AclType, Opening as FilesOpening, Settings, owner_of};
use weir_files::{FileSystem, Identity, Snapdir};
use weir_format::{Dnode, ObjsetKind};
use weir_machine::Request;
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_volumes::{Volume, WriteOptions};
use weir_zil::{BlockLog, LogOpening, Policy as LogPolicy, SyncMode, WriteKind, Zil};

/// Owner ids of an object (user, group, project), for space accounting in each sync.
fn owners(dnode: &Dnode, _spill: Option<&[u8]>) -> Option<[u64; 3]> {
    let owner = owner_of(dnode.bonus_type, dnode.bonus(), dnode.endian).ok().flatten()?;
    Some([owner.uid, owner.gid, owner.project])
}

/// The write policy of an object set of this kind before its properties are known.
pub(crate) fn policy_for(kind: ObjsetKind, policy: Policy) -> Policy {
    Policy { owner_of: (kind == ObjsetKind::Zfs).then_some(owners), ..policy }
}

/// Slots of new dnodes by `dnodesize` (`dnodesize_changed_cb`).
fn dnode_slots(property: u64) -> u8 {
    match property {
        0 => 1,
        // `auto`: 1 KiB, which has space for some extended attributes.
        1 => 2,
        bytes => (bytes >> 9).clamp(1, 32) as u8,
    }
}

impl Engine {
    /// Pool facts that dataset properties depend on.
    pub fn facts(&self) -> PoolFacts {
        PoolFacts {
            usable_bytes: self.gate.space().capacity_bytes(),
            altroot: String::new(),
            loaded_keys: self.keys.key_objects(),
        }
    }

    /// Opens a file system for writing after replay of its intent log, or a snapshot for reading.
    ///
    /// # Errors
    /// Errors of finding or reading the dataset, or of replaying its log.
    pub async fn file_system(&self, rq: &Request, name: &str) -> Result<Arc<FileSystem>, PoolError> {
        let failed = |source| PoolError::File { name: name.to_owned(), source: Box::new(source) };
        let _one_at_a_time = self.opening.lock().await;
        let mos_sync_lock = self.mos_sync_lock.lock().await;
        let dsl = self.dsl_now(rq).await?;
        let dataset = dsl.find(rq, name).await?;
        let identity = self.identity(rq, &dsl, &dataset).await?;
        if dataset.is_snapshot() {
            let set = dsl.open_set(rq, &dataset, self.keys.of(dsl.dir(dataset.dir))).await?;
            let files = FileSystem::open(rq, set, identity).await.map_err(failed)?;
            self.reading.watch(dataset.objset(), &OpenDataset::Files(files.clone()));
            return Ok(files);
        }
        if let Some(OpenDataset::Files(files)) = self.sets.get(dataset.objset()).and_then(|open| open.door) {
            return Ok(files);
        }
        let open = self.open_with_log(rq, &dsl, &dataset).await?;
        let settings = self.settings(rq, &dsl, &dataset).await?;
        drop(mos_sync_lock);
        // The log's records were acknowledged before the dataset became read-only, so replay may write.
        let replaying = Settings { read_only: false, ..settings };
        let opening = FilesOpening { machine: self.machine.clone(), zil: open.zil.clone(), settings: replaying };
        let files = FileSystem::open_writable(rq, open.set.clone(), identity, opening).await.map_err(failed)?;
        self.replay(rq, name, &open, &files.replay()).await?;
        files.set_settings(settings);
        // An unreadable delete queue only leaks the space of its files (`zfs_unlinked_drain`).
        let large = files.is_writable()
            && files.delete_queue().empty_of_small(rq).await.unwrap_or_else(|error| {
                tracing::warn!(name, %error, "the delete queue cannot be read: its files stay queued");
                false
            });
        if large {
            // Freeing a large file takes many txgs: do it in the background.
            let files = files.clone();
            self.machine.tasks.spawn(async move {
                let rq = Request::internal("delete queue");
                if let Err(error) = files.delete_queue().empty(&rq).await {
                    tracing::warn!(name = files.name(), %error, "the delete queue is not emptied");
                }
            });
        }
        self.sets.update(dataset.objset(), |open| open.door = Some(OpenDataset::Files(files.clone())));
        Ok(files)
    }

    /// Opens a volume for writing after replay of its intent log, or a snapshot for reading.
    ///
    /// # Errors
    /// Errors of finding or reading the dataset, or of replaying its log.
    pub async fn volume(&self, rq: &Request, name: &str) -> Result<Arc<Volume>, PoolError> {
        let failed = |source| PoolError::Volume { name: name.to_owned(), source: Box::new(source) };
        let _one_at_a_time = self.opening.lock().await;
        let mos_sync_lock = self.mos_sync_lock.lock().await;
        let dsl = self.dsl_now(rq).await?;
        let dataset = dsl.find(rq, name).await?;
        if dataset.is_snapshot() {
            let set = dsl.open_set(rq, &dataset, self.keys.of(dsl.dir(dataset.dir))).await?;
            let volume = Volume::open(rq, set, name).await.map_err(failed)?;
            self.reading.watch(dataset.objset(), &OpenDataset::Volume(volume.clone()));
            return Ok(volume);
        }
        if let Some(OpenDataset::Volume(volume)) = self.sets.get(dataset.objset()).and_then(|open| open.door) {
            return Ok(volume);
        }
        let open = self.open_with_log(rq, &dsl, &dataset).await?;
        let read_only = self.number(rq, &dsl, &dataset, "readonly").await? != 0;
        drop(mos_sync_lock);
        let opening = WriteOptions { zil: open.zil.clone(), read_only };
        let volume = Volume::open_writable(rq, open.set.clone(), name, opening).await.map_err(failed)?;
        self.replay(rq, name, &open, &*volume).await?;
        self.sets.update(dataset.objset(), |open| open.door = Some(OpenDataset::Volume(volume.clone())));
        Ok(volume)
    }

    /// Opens an object set for writing, with its intent log.
    async fn open_with_log(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<OpenSet, PoolError> {
        let set = self.open_set(rq, &dataset.name, None).await?;
        let opening = LogOpening {
            machine: self.machine.clone(),
            set: set.id(),
            txgs: self.txgs().clone(),
            store: Arc::new(BlockLog {
                blocks: self.cache.blocks().clone(),
                keys: set.options().keys.clone(),
                set: set.id(),
            }),
            data: Arc::new(Arc::downgrade(&set)),
            accounts: self.cache.accounts().clone(),
            policy: self.log_policy(rq, dsl, dataset).await?,
            header: set.root().header.zil.clone(),
        };
        let zil = Zil::new(opening);
        self.sets.update(set.id(), |open| open.zil = Some(zil.clone()));
        Ok(OpenSet { set, zil: Some(zil), door: None })
    }

    /// Applies changed properties to open datasets.
    ///
    /// # Errors
    /// Errors of reading the properties.
    pub async fn renew_settings(&self, rq: &Request) -> Result<(), PoolError> {
        let _steady = self.mos_sync_lock.lock().await;
        let dsl = self.dsl_now(rq).await?;
        for dir in dsl.dirs() {
            let dataset = dsl.head(rq, dir).await?;
            let Some(open) = self.sets.get(dataset.objset()) else { continue };
            self.renew_policy(rq, &dataset.name).await?;
            if let Some(zil) = &open.zil {
                zil.set_policy(self.log_policy(rq, &dsl, &dataset).await?);
            }
            match &open.door {
                Some(OpenDataset::Files(files)) => files.set_settings(self.settings(rq, &dsl, &dataset).await?),
                Some(OpenDataset::Volume(volume)) => {
                    let failed = |source| PoolError::Volume { name: dataset.name.clone(), source: Box::new(source) };
                    volume.refresh_size(rq).await.map_err(failed)?;
                    volume.set_read_only(self.number(rq, &dsl, &dataset, "readonly").await? != 0);
                }
                None => {}
            }
        }
        Ok(())
    }

    async fn number(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset, name: &str) -> Result<u64, PoolError> {
        let found = dsl.property(rq, dataset, &self.facts(), name).await?;
        Ok(match found.map(|p| p.value) {
            Some(Value::Number(n)) => n,
            _ => 0,
        })
    }

    async fn log_policy(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<LogPolicy, PoolError> {
        // The property's values: standard 0, always 1, disabled 2.
        let sync = match self.number(rq, dsl, dataset, "sync").await? {
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        };
        let sa_xattr = self.feature_count(rq, "org.openzfs:zilsaxattr").await?.is_some();
        // `logbias`: latency 0, throughput 1.
        let in_place = match (self.number(rq, dsl, dataset, "logbias").await?, self.has_class(Class::Log)) {
            (1, _) => WriteKind::Always,
            (_, true) => WriteKind::Never,
            // The special class holds log blocks too, so log blocks are as fast as the data.
            (_, false) if self.has_class(Class::Special) => WriteKind::Never,
            (_, false) => WriteKind::Large,
        };
        Ok(LogPolicy { sync, sa_xattr, in_place })
    }

    async fn settings(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<Settings, PoolError> {
        let number = async |name: &str| self.number(rq, dsl, dataset, name).await;
        // `xattr`: off 0, dir 1, sa 2. `acltype`: off 0, posix 1, nfsv4 2. `dnodesize`: legacy 0, auto 1, else bytes.
        let xattr = number("xattr").await?;
        let access_times = match (number("atime").await? != 0, number("relatime").await? != 0) {
            (false, _) => AccessTimes::Off,
            (true, true) => AccessTimes::Relative,
            (true, false) => AccessTimes::On,
        };
        let record_bytes = number("recordsize").await?;
        let projects = self.feature_count(rq, "org.zfsonlinux:project_quota").await?.is_some_and(|count| count > 0);
        let large_dnodes = self.feature_count(rq, "org.zfsonlinux:large_dnode").await?.is_some();
        Ok(Settings {
            read_only: number("readonly").await? != 0,
            record_bytes: u32::try_from(record_bytes).ok().filter(|n| n.is_power_of_two()).unwrap_or(128 << 10),
            dnode_slots: if large_dnodes { dnode_slots(number("dnodesize").await?) } else { 1 },
            xattr_in_sa: xattr == 2,
            xattrs: xattr != 0,
            acl_type: match number("acltype").await? {
                1 => AclType::Posix,
                2 => AclType::Nfsv4,
                _ => AclType::Off,
            },
            acl_mode: AclMode::from_number(number("aclmode").await?).unwrap_or_default(),
            acl_inherit: AclInherit::from_number(number("aclinherit").await?).unwrap_or_default(),
            access_times,
            projects,
            long_names: self.long_names(rq, dsl, dataset).await?,
            snapdir: Snapdir::from_number(number("snapdir").await?),
        })
    }

    /// Whether the pool has a top-level vdev of this class.
    fn has_class(&self, class: Class) -> bool {
        let tree = VdevConfig::parse(&self.shown().config.root);
        tree.is_ok_and(|tree| tree.children.iter().any(|top| top.is_concrete() && top.class == class))
    }

    /// The reference count of a feature; `None` if it is not enabled.
    async fn feature_count(&self, rq: &Request, guid: &str) -> Result<Option<u64>, PoolError> {
        let mos = weir_pool::mos::Mos { set: self.mos.clone() };
        Ok(weir_pool::features::Features::read(rq, &mos).await?.count(guid))
    }

    async fn long_names(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<bool, PoolError> {
        Ok(self.number(rq, dsl, dataset, "longname").await? != 0
            && self.feature_count(rq, "org.zfsonlinux:longname").await?.is_some())
    }

    async fn identity(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<Identity, PoolError> {
        Ok(Identity {
            name: dataset.name.clone(),
            fsid: dataset.phys.fsid_guid,
            is_snapshot: dataset.is_snapshot(),
            referenced_bytes: dataset.phys.referenced_bytes,
            available_bytes: self.number(rq, dsl, dataset, "available").await?,
            long_names: self.long_names(rq, dsl, dataset).await?,
            snapdir: Snapdir::from_number(self.number(rq, dsl, dataset, "snapdir").await?),
        })
    }
}
