//! Opening of file systems and volumes for front ends.
//!
//! ```text
//!   open the object set for writing ─► intent log ─► file system or volume ─► replay ─► delete queue ─► clients
//! ```
//!
//! The first request opens a dataset; it stays open and all front ends share it. Snapshots are opened for reading, and
//! the caller owns the handle.

use super::open_datasets::{OpenDataset, OpenSet};
use super::{Engine, lost_records, open_set};
use futures_util::lock::MutexGuard as AsyncMutexGuard;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dmu::live::Policy;
use weir_dsl::props::{Property, Value, ZfsProp};
use weir_dsl::redaction::redaction_of;
use weir_dsl::sync_tasks::DslError;
use weir_dsl::{Dataset, Dsl, MountedFileSystems, PoolFacts, Scope, SetKey};
use weir_files::writing::{AccessTimes, AclInherit, AclMode, AclType, Opening as FilesOpening, Settings, owner_of};
use weir_files::{FileSystem, Identity, Snapdir};
use weir_format::features::Feature;
use weir_format::{Dnode, DslDataset, ObjsetKind};
use weir_machine::Request;
use weir_pool::config::Class;
use weir_pool::error::PoolError;
use weir_pool::features::Features;
use weir_pool::mos::Mos;
use weir_volumes::{Volume, WriteOptions};
use weir_zil::{BlockLog, LogOpening, Policy as LogPolicy, SyncMode, WriteKind, Zil};

/// Maximum number of times that a dataset is read to be opened.
const MAX_READS_TO_OPEN: usize = 3;

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
    /// Opens the object set of a file system or volume for writing, or of a snapshot for reading.
    ///
    /// `key` replaces the loaded key.
    ///
    /// # Errors
    /// Errors of finding or reading the dataset.
    pub async fn open_set(&self, rq: &Request, name: &str, key: Option<SetKey>) -> Result<Arc<ObjectSet>, PoolError> {
        let dsl = self.live_dsl(rq, Scope::Path(name)).await?;
        let dataset = dsl.find(rq, name).await?;
        open_set::open_set_of(self, rq, &dsl, &dataset, key).await
    }

    /// Whether clients use a dataset: they have its files open or are attached to the volume.
    ///
    /// # Errors
    /// Errors of finding the dataset.
    pub async fn is_used(&self, rq: &Request, name: &str) -> Result<bool, PoolError> {
        let id = self.synced().dsl_of(rq, name).await?.find(rq, name).await?.objset();
        Ok(self.sets.get(id).and_then(|open| open.contents).is_some_and(|contents| contents.is_used()))
    }

    /// Refuses a dataset that is being received, or of which a process left a part behind; and one that is redacted, unless
    /// it was allowed (`dsl_dataset_tryown`).
    async fn check_whole(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<(), PoolError> {
        if dataset.phys.flags & DslDataset::INCONSISTENT != 0 {
            return Err(DslError::busy(&dataset.name, "it is being received").into());
        }
        if !self.redacted.lock().contains(&dataset.dir) && redaction_of(dsl, rq, dataset).await?.is_some() {
            return Err(DslError::busy(&dataset.name, "it is redacted").into());
        }
        Ok(())
    }

    /// Allows that a redacted file system and its snapshots are opened, until the pool is closed. Its redacted blocks are
    /// read as zeros.
    ///
    /// # Errors
    /// Errors of finding it.
    pub async fn allow_redacted(&self, rq: &Request, name: &str) -> Result<(), PoolError> {
        let dataset = self.synced().dsl_of(rq, name).await?.find(rq, name).await?;
        self.redacted.lock().insert(dataset.dir);
        Ok(())
    }

    /// Sets the directory below which the file systems are mounted, an absolute path, until the pool is closed. It is set once, by
    /// the command that creates or imports the pool.
    pub fn set_altroot(&self, root: &str) {
        let is_new = self.altroot.set(root.to_owned()).is_ok();
        debug_assert!(is_new && root.starts_with('/'), "the alternate root is set once, to an absolute path");
    }

    /// Pool facts that dataset properties depend on.
    pub fn facts(&self) -> PoolFacts {
        PoolFacts {
            usable_bytes: self.gate.space().capacity_bytes(),
            altroot: self.altroot.get().cloned().unwrap_or_default(),
            loaded_keys: self.keys.key_objects(),
            mounted: MountedFileSystems::default(),
        }
    }

    /// Keeps the syncer from changing the MOS (`dp_config_rwlock`), for the opening of the dataset `name`. Readers of names,
    /// properties and status do not take this lock: they read [`crate::synced_state`].
    ///
    /// The syncer waits for the holder, and must not wait for its reads. So what the holder is going to read is read here
    /// first, as of the last synced txg, and again if another has synced meanwhile: the holder finds it in the ARC.
    pub(crate) async fn lock_mos(&self, rq: &Request, name: &str) -> AsyncMutexGuard<'_, ()> {
        for _ in 0..MAX_READS_TO_OPEN {
            let txg = self.txgs().last_synced();
            // The holder reads the same again, and reports the errors.
            let _in_arc = self.read_as_for_opening(rq, name).await;
            let locked = self.mos_sync_lock.lock().await;
            if self.txgs().last_synced() == txg {
                return locked;
            }
        }
        self.mos_sync_lock.lock().await
    }

    /// Reads what the opening of a dataset reads, as of the last synced txg: then it is in the ARC.
    ///
    /// # Errors
    /// Errors of finding or reading the dataset.
    async fn read_as_for_opening(&self, rq: &Request, name: &str) -> Result<(), PoolError> {
        let dsl = self.synced().dsl_of(rq, name).await?;
        let dataset = dsl.find(rq, name).await?;
        let values = self.values(rq, &dsl, &dataset).await?;
        if self.sets.get(dataset.objset()).is_some() {
            return Ok(());
        }
        let set = dsl.open_set(rq, &dataset, self.keys.of(dsl.dir(dataset.dir))).await?;
        let failed = |source| PoolError::File { name: name.to_owned(), source: Box::new(source) };
        match (dataset.is_snapshot(), set.kind()) {
            (true, ObjsetKind::Zfs) => {
                FileSystem::open(rq, set, values.identity(&dataset)).await.map(drop).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// Opens a file system for writing after replay of its intent log, or a snapshot for reading.
    ///
    /// # Errors
    /// Errors of finding or reading the dataset, or of replaying its log.
    pub async fn file_system(&self, rq: &Request, name: &str) -> Result<Arc<FileSystem>, PoolError> {
        let failed = |source| PoolError::File { name: name.to_owned(), source: Box::new(source) };
        let _one_at_a_time = self.opening.lock().await;
        let mos_locked = self.lock_mos(rq, name).await;
        let dsl = self.live_dsl(rq, Scope::Path(name)).await?;
        let dataset = dsl.find(rq, name).await?;
        self.check_whole(rq, &dsl, &dataset).await?;
        let values = self.values(rq, &dsl, &dataset).await?;
        let identity = values.identity(&dataset);
        if dataset.is_snapshot() || self.is_read_only() {
            let set = dsl.open_set(rq, &dataset, self.keys.of(dsl.dir(dataset.dir))).await?;
            let files = FileSystem::open(rq, set, identity).await.map_err(failed)?;
            self.reading.watch(dataset.objset(), &OpenDataset::Files(files.clone()));
            return Ok(files);
        }
        if let Some(OpenDataset::Files(files)) = self.sets.get(dataset.objset()).and_then(|open| open.contents) {
            return Ok(files);
        }
        let open = self.open_with_log(rq, &dsl, &dataset, &values).await?;
        let settings = values.settings();
        drop(mos_locked);
        // The log's records were acknowledged before the dataset became read-only, so replay may write.
        let replaying = Settings { read_only: false, ..settings };
        let opening = FilesOpening { machine: self.machine.clone(), zil: open.zil.clone(), settings: replaying };
        let files = FileSystem::open_writable(rq, open.set.clone(), identity, opening).await.map_err(failed)?;
        lost_records::replay(self, rq, name, &open, &files.replay()).await?;
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
        self.sets.update(dataset.objset(), |open| open.contents = Some(OpenDataset::Files(files.clone())));
        // Its properties may have changed during the replay.
        self.properties().renew(rq, Scope::Path(name)).await?;
        Ok(files)
    }

    /// Opens a volume for writing after replay of its intent log, or a snapshot for reading.
    ///
    /// # Errors
    /// Errors of finding or reading the dataset, or of replaying its log.
    pub async fn volume(&self, rq: &Request, name: &str) -> Result<Arc<Volume>, PoolError> {
        let failed = |source| PoolError::Volume { name: name.to_owned(), source: Box::new(source) };
        let _one_at_a_time = self.opening.lock().await;
        let mos_locked = self.lock_mos(rq, name).await;
        let dsl = self.live_dsl(rq, Scope::Path(name)).await?;
        let dataset = dsl.find(rq, name).await?;
        self.check_whole(rq, &dsl, &dataset).await?;
        if dataset.is_snapshot() || self.is_read_only() {
            let set = dsl.open_set(rq, &dataset, self.keys.of(dsl.dir(dataset.dir))).await?;
            let volume = Volume::open(rq, set, name).await.map_err(failed)?;
            self.reading.watch(dataset.objset(), &OpenDataset::Volume(volume.clone()));
            return Ok(volume);
        }
        if let Some(OpenDataset::Volume(volume)) = self.sets.get(dataset.objset()).and_then(|open| open.contents) {
            return Ok(volume);
        }
        let values = self.values(rq, &dsl, &dataset).await?;
        let open = self.open_with_log(rq, &dsl, &dataset, &values).await?;
        let read_only = values.is_set(ZfsProp::ReadOnly);
        drop(mos_locked);
        let opening = WriteOptions { zil: open.zil.clone(), read_only };
        let volume = Volume::open_writable(rq, open.set.clone(), name, opening).await.map_err(failed)?;
        lost_records::replay(self, rq, name, &open, &*volume).await?;
        self.sets.update(dataset.objset(), |open| open.contents = Some(OpenDataset::Volume(volume.clone())));
        // Its properties may have changed during the replay.
        self.properties().renew(rq, Scope::Path(name)).await?;
        Ok(volume)
    }

    /// Opens an object set for writing, with its intent log.
    async fn open_with_log(
        &self,
        rq: &Request,
        dsl: &Dsl,
        dataset: &Dataset,
        values: &Values,
    ) -> Result<OpenSet, PoolError> {
        let set = open_set::open_set_of(self, rq, dsl, dataset, None).await?;
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
            policy: self.log_policy(values),
            header: set.root().header.zil.clone(),
        };
        let zil = Zil::new(opening);
        self.sets.update(set.id(), |open| open.zil = Some(zil.clone()));
        Ok(OpenSet { set, zil: Some(zil), contents: None, received: None })
    }

    /// Reads the values that the settings of a dataset depend on.
    pub(crate) async fn values(&self, rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<Values, PoolError> {
        let properties = dsl.properties(rq, dataset, &self.facts()).await?;
        let features = Features::read(rq, &Mos { set: dsl.mos().clone() }).await?;
        Ok(Values { properties, features })
    }

    pub(crate) fn log_policy(&self, values: &Values) -> LogPolicy {
        // The property's values: standard 0, always 1, disabled 2.
        let sync = match values.number(ZfsProp::Sync) {
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        };
        let sa_xattr = values.features.count("org.openzfs:zilsaxattr").is_some();
        // `logbias`: latency 0, throughput 1.
        let blocks = self.cache.blocks();
        let in_place = match (values.number(ZfsProp::LogBias), blocks.has_class(Class::Log)) {
            (1, _) => WriteKind::Always,
            (_, true) => WriteKind::Never,
            // The special class holds log blocks too, so log blocks are as fast as the data.
            (_, false) if blocks.has_class(Class::Special) => WriteKind::Never,
            (_, false) => WriteKind::Large,
        };
        LogPolicy { sync, sa_xattr, in_place }
    }
}

/// The properties of a dataset and the features of its pool, as of one txg.
pub(crate) struct Values {
    properties: Vec<Property>,
    features: Features,
}

impl Values {
    /// Whether the dataset lacks blocks that its stream left out.
    fn is_redacted(&self) -> bool {
        self.properties.iter().any(|property| property.name == ZfsProp::RedactSnaps.name())
    }

    /// The number of a property; 0 if the dataset does not have it or it is a text.
    fn number(&self, prop: ZfsProp) -> u64 {
        let found = self.properties.iter().find(|property| property.name == prop.name());
        match found.map(|property| &property.value) {
            Some(Value::Number(n)) => *n,
            _ => 0,
        }
    }

    pub(crate) fn is_set(&self, prop: ZfsProp) -> bool {
        self.number(prop) != 0
    }

    fn long_names(&self) -> bool {
        self.is_set(ZfsProp::LongName) && self.features.count(Feature::LONGNAME.guid).is_some()
    }

    pub(crate) fn settings(&self) -> Settings {
        // `xattr`: off 0, dir 1, sa 2. `acltype`: off 0, posix 1, nfsv4 2. `dnodesize`: legacy 0, auto 1, else bytes.
        let xattr = self.number(ZfsProp::Xattr);
        let access_times = match (self.is_set(ZfsProp::Atime), self.is_set(ZfsProp::RelAtime)) {
            (false, _) => AccessTimes::Off,
            (true, true) => AccessTimes::Relative,
            (true, false) => AccessTimes::On,
        };
        let record_bytes = u32::try_from(self.number(ZfsProp::RecordSize)).ok().filter(|n| n.is_power_of_two());
        let large_dnodes = self.features.count("org.zfsonlinux:large_dnode").is_some();
        Settings {
            // What is changed in a redacted file system could not be sent on to one that is whole.
            read_only: self.is_set(ZfsProp::ReadOnly) || self.is_redacted(),
            record_bytes: record_bytes.unwrap_or(128 << 10),
            dnode_slots: if large_dnodes { dnode_slots(self.number(ZfsProp::DnodeSize)) } else { 1 },
            xattr_in_sa: xattr == 2,
            xattrs: xattr != 0,
            acl_type: match self.number(ZfsProp::AclType) {
                1 => AclType::Posix,
                2 => AclType::Nfsv4,
                _ => AclType::Off,
            },
            acl_mode: AclMode::from_number(self.number(ZfsProp::AclMode)).unwrap_or_default(),
            acl_inherit: AclInherit::from_number(self.number(ZfsProp::AclInherit)).unwrap_or_default(),
            access_times,
            projects: self.features.count("org.zfsonlinux:project_quota").is_some_and(|count| count > 0),
            long_names: self.long_names(),
            snapdir: Snapdir::from_number(self.number(ZfsProp::SnapDir)),
        }
    }

    fn identity(&self, dataset: &Dataset) -> Identity {
        Identity {
            name: dataset.name.clone(),
            fsid: dataset.phys.fsid_guid,
            is_snapshot: dataset.is_snapshot(),
            referenced_bytes: dataset.phys.referenced_bytes,
            available_bytes: self.number(ZfsProp::Available),
            long_names: self.long_names(),
            snapdir: Snapdir::from_number(self.number(ZfsProp::SnapDir)),
        }
    }
}
