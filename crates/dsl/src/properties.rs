//! Reads the input of [`crate::props`], which is pure: the stored ZAPs from the dataset up to the root, and all
//! computed properties.

use super::{Dataset, Dir, Dsl, MAX_ENTRIES};
use crate::props::{self, DatasetKind, Facts, Property, Stored, Value, ZfsProp};
use crate::redaction::{redaction_of, redaction_text};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_blocks::CacheClass;
use weir_dmu::error::ObjectError;
use weir_dmu::object_set::{ObjectSet, Opening};
use weir_dmu::zap::{self, Zap};
use weir_format::dsl::{dir_field, split_property};
use weir_format::znode::master;
use weir_format::{DslDataset, ObjectId, ObjsetKind};
use weir_machine::Request;

/// Object of a volume's data.
pub const VOLUME_DATA: ObjectId = ObjectId(1);
/// Object of a volume's properties.
pub const VOLUME_PROPERTIES: ObjectId = ObjectId(2);

/// Facts about a pool that the properties of its datasets depend on.
#[derive(Clone, Debug, Default)]
pub struct PoolFacts {
    /// The pool's size less its slop, in bytes, from which `available` is computed.
    pub usable_bytes: u64,
    /// `altroot`.
    pub altroot: String,
    /// Key objects whose key is loaded.
    pub loaded_keys: BTreeSet<ObjectId>,
    /// Mounted file systems.
    pub mounted: MountedFileSystems,
}

/// The file systems that are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountedFileSystems {
    /// All, in one mount of the pool.
    All,
    /// Those with these persistent IDs (`fsid_guid`).
    These(BTreeSet<u64>),
}

impl Default for MountedFileSystems {
    fn default() -> Self {
        MountedFileSystems::These(BTreeSet::new())
    }
}

impl MountedFileSystems {
    /// Whether the file system of this ID is mounted.
    pub fn has(&self, id: u64) -> bool {
        match self {
            MountedFileSystems::All => true,
            MountedFileSystems::These(ids) => ids.contains(&id),
        }
    }

    /// These file systems and others, which may be of another pool.
    #[must_use]
    pub fn and(self, others: MountedFileSystems) -> MountedFileSystems {
        match (self, others) {
            (MountedFileSystems::These(mut ids), MountedFileSystems::These(more)) => {
                ids.extend(more);
                MountedFileSystems::These(ids)
            }
            _ => MountedFileSystems::All,
        }
    }
}

type Computed = BTreeMap<ZfsProp, Value>;

impl Dsl {
    /// All properties of a head or snapshot, as `zfs get all` shows them.
    pub async fn properties(
        &self,
        rq: &Request,
        dataset: &Dataset,
        pool: &PoolFacts,
    ) -> Result<Vec<Property>, ObjectError> {
        let gathered = self.gather(rq, dataset, pool).await?;
        Ok(props::resolve(&gathered.facts(dataset, pool)))
    }

    /// One property of a head or snapshot; `None` if the dataset does not have it. `written@…` is supported as well.
    pub async fn property(
        &self,
        rq: &Request,
        dataset: &Dataset,
        pool: &PoolFacts,
        name: &str,
    ) -> Result<Option<Property>, ObjectError> {
        if let Some(since) = name.strip_prefix("written@") {
            let head = dataset.name.split('@').next().unwrap_or(&dataset.name);
            let since = if since.contains('@') { since.to_owned() } else { format!("{head}@{since}") };
            let since = self.find(rq, &since).await?;
            let value = Value::Number(crate::space::written_since(self, rq, dataset, &since).await?);
            // OpenZFS's source of these is local, and scripts select by it.
            return Ok(Some(Property { name: name.to_owned(), value, source: props::Source::Local, received: None }));
        }
        let gathered = self.gather(rq, dataset, pool).await?;
        Ok(props::resolve_one(&gathered.facts(dataset, pool), name))
    }

    /// A directory's property ZAP, read at the first call.
    pub async fn stored(&self, rq: &Request, dir: &Dir) -> Result<Arc<Stored>, ObjectError> {
        if let Some(stored) = self.remembered().stored.get(&dir.id) {
            return Ok(stored.clone());
        }
        let stored = Arc::new(self.read_stored(rq, dir.phys.props).await?);
        self.remembered().stored.insert(dir.id, stored.clone());
        Ok(stored)
    }

    /// A snapshot's own property ZAP.
    ///
    /// # Errors
    /// Errors of reading the ZAP.
    pub async fn stored_of(&self, rq: &Request, snapshot: &Dataset) -> Result<Stored, ObjectError> {
        self.read_stored(rq, snapshot.phys.props).await
    }

    async fn read_stored(&self, rq: &Request, id: ObjectId) -> Result<Stored, ObjectError> {
        if id.0 == 0 {
            return Ok(Stored::new());
        }
        let entries = Zap::open(rq, &self.mos, id).await?.all(rq, MAX_ENTRIES).await?;
        let value = |v: &zap::Value| match v.text() {
            Some(text) => Value::Text(text),
            None => Value::Number(v.first().unwrap_or(0)),
        };
        Ok(entries.iter().map(|e| (e.key.text(), value(&e.value))).collect())
    }

    /// One property of a head as its property ZAPs and those above have it. The head's object set is not read, so that a
    /// damaged dataset has it, too.
    ///
    /// # Errors
    /// Errors of reading the ZAPs.
    pub async fn stored_property(
        &self,
        rq: &Request,
        dir: &Dir,
        kind: DatasetKind,
        name: &str,
    ) -> Result<Option<Property>, ObjectError> {
        let chain = self.stored_chain(rq, dir).await?;
        let computed = Computed::new();
        let facts = Facts {
            kind,
            of_volume: false,
            name: &dir.name,
            snapshot: None,
            chain: &chain,
            computed: &computed,
            altroot: "",
        };
        Ok(props::resolve_one(&facts, name))
    }

    /// Reads the objects of a head that describe it: of a file system the master node, of a volume its properties.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub async fn check_contents(&self, rq: &Request, head: &Dataset, of_volume: bool) -> Result<(), ObjectError> {
        self.compute_contents(rq, &mut Computed::new(), head, of_volume).await
    }

    /// The property ZAPs from a directory up to the root, with the names of their directories.
    pub async fn stored_chain(&self, rq: &Request, dir: &Dir) -> Result<Vec<(String, Arc<Stored>)>, ObjectError> {
        let mut out = Vec::new();
        let mut at = Some(dir);
        while let Some(dir) = at {
            out.push((dir.name.clone(), self.stored(rq, dir).await?));
            at = self.dir(dir.phys.parent).filter(|_| out.len() < super::MAX_DEPTH);
        }
        Ok(out)
    }

    /// The value of the property `primarycache`.
    ///
    /// # Errors
    /// Errors of reading the properties.
    pub async fn cache_class(&self, rq: &Request, dir: &Dir) -> Result<CacheClass, ObjectError> {
        self.class_of(rq, dir, ZfsProp::PrimaryCache).await
    }

    /// The value of the property `secondarycache`.
    ///
    /// # Errors
    /// Errors of reading the properties.
    pub async fn secondary_class(&self, rq: &Request, dir: &Dir) -> Result<CacheClass, ObjectError> {
        self.class_of(rq, dir, ZfsProp::SecondaryCache).await
    }

    /// The value of the property `prefetch`.
    ///
    /// # Errors
    /// Errors of reading the properties.
    pub async fn prefetch_class(&self, rq: &Request, dir: &Dir) -> Result<CacheClass, ObjectError> {
        self.class_of(rq, dir, ZfsProp::Prefetch).await
    }

    async fn class_of(&self, rq: &Request, dir: &Dir, prop: ZfsProp) -> Result<CacheClass, ObjectError> {
        for (_, stored) in self.stored_chain(rq, dir).await? {
            match props::stored_value(&stored, prop.name()).map(|(value, _)| value) {
                Some(Value::Number(0)) => return Ok(CacheClass::None),
                Some(Value::Number(1)) => return Ok(CacheClass::Metadata),
                Some(_) => return Ok(CacheClass::All),
                None => {}
            }
        }
        Ok(CacheClass::All)
    }

    async fn gather(&self, rq: &Request, dataset: &Dataset, pool: &PoolFacts) -> Result<Gathered, ObjectError> {
        let missing = || ObjectError::NoName { what: "dataset", name: dataset.name.clone() };
        let dir = self.dir(dataset.dir).ok_or_else(missing)?;
        let of_volume = self.kind(rq, dir).await? == ObjsetKind::Zvol;
        let kind = match (dataset.is_snapshot(), of_volume) {
            (true, _) => DatasetKind::Snapshot,
            (false, true) => DatasetKind::Volume,
            (false, false) => DatasetKind::Filesystem,
        };
        let mut computed = Computed::new();
        computed.insert(ZfsProp::Type, Value::Text(kind.name().into()));
        compute_common(&mut computed, dataset);
        if dataset.is_snapshot() {
            self.compute_snapshot(rq, &mut computed, dataset).await?;
        } else {
            self.compute_head(rq, &mut computed, dir, dataset, pool).await?;
        }
        if let Some(guids) = redaction_of(self, rq, dataset).await? {
            computed.insert(ZfsProp::RedactSnaps, Value::Text(redaction_text(&guids)));
        }
        if let Some(written) = crate::space::written(self, rq, dataset).await? {
            computed.insert(ZfsProp::Written, Value::Number(written));
        }
        self.compute_encryption(rq, &mut computed, dir, pool).await?;
        self.compute_contents(rq, &mut computed, dataset, of_volume).await?;
        let snapshot = match dataset.is_snapshot() {
            true => Some(self.read_stored(rq, dataset.phys.props).await?),
            false => None,
        };
        let chain = self.stored_chain(rq, dir).await?;
        Ok(Gathered { kind, of_volume: of_volume && dataset.is_snapshot(), snapshot, chain, computed })
    }

    async fn compute_snapshot(
        &self,
        rq: &Request,
        computed: &mut Computed,
        snapshot: &Dataset,
    ) -> Result<(), ObjectError> {
        let number = |n| Value::Number(n);
        computed.insert(ZfsProp::Used, number(snapshot.phys.unique_bytes));
        computed.insert(ZfsProp::CompressRatio, number(ratio(&snapshot.phys)));
        computed.insert(ZfsProp::DeferDestroy, number((snapshot.phys.flags & DslDataset::DEFER_DESTROY != 0).into()));
        computed.insert(ZfsProp::UserRefs, number(self.holds(rq, snapshot).await?.len() as u64));
        let clones = self.clones(rq, snapshot).await?;
        // Shown only where there are some.
        if !clones.is_empty() {
            computed.insert(ZfsProp::Clones, Value::Text(clones.join(",")));
        }
        Ok(())
    }

    async fn compute_head(
        &self,
        rq: &Request,
        computed: &mut Computed,
        dir: &Dir,
        head: &Dataset,
        pool: &PoolFacts,
    ) -> Result<(), ObjectError> {
        let phys = &dir.phys;
        let stored = self.stored(rq, dir).await?;
        let own = |prop: ZfsProp| match props::stored_value(&stored, prop.name()) {
            Some((Value::Number(n), _)) => *n,
            _ => 0,
        };
        let mut number = |name, n| {
            computed.insert(name, Value::Number(n));
        };
        number(ZfsProp::Used, phys.used_bytes);
        number(
            ZfsProp::Available,
            crate::space::available(
                self,
                head,
                pool.usable_bytes,
                own(ZfsProp::RefQuota),
                own(ZfsProp::RefReservation),
            ),
        );
        number(ZfsProp::CompressRatio, percent(phys.uncompressed_bytes, phys.compressed_bytes));
        number(ZfsProp::LogicalUsed, phys.uncompressed_bytes);
        let [of_head, of_snapshots, of_children, of_reserved, of_refreservation] = phys.used_breakdown;
        // Pools before version 13 have no breakdown.
        if phys.flags & 1 != 0 {
            number(ZfsProp::UsedByDataset, of_head);
            number(ZfsProp::UsedBySnapshots, of_snapshots);
            number(ZfsProp::UsedByChildren, of_children.saturating_add(of_reserved));
            number(ZfsProp::UsedByRefReservation, of_refreservation);
        }
        for (name, n) in [(ZfsProp::Quota, phys.quota_bytes), (ZfsProp::Reservation, phys.reserved_bytes)] {
            if n != 0 {
                number(name, n);
            }
        }
        let fields = [
            (ZfsProp::FilesystemCount, dir_field::FILESYSTEM_COUNT),
            (ZfsProp::SnapshotCount, dir_field::SNAPSHOT_COUNT),
            (ZfsProp::SnapshotsChanged, dir_field::SNAPSHOTS_CHANGED),
        ];
        for (name, field) in fields {
            if let Some(n) = dir.fields.get(field) {
                number(name, *n);
            }
        }
        if phys.origin.0 != 0
            && let Some(origin) = self.snapshot_name(rq, phys.origin).await?
        {
            computed.insert(ZfsProp::Origin, Value::Text(origin));
        }
        if let Some((state, _)) = crate::resume::resume_state(self, rq, dir, head).await? {
            computed.insert(ZfsProp::ReceiveResumeToken, Value::Text(state.to_token()));
        }
        computed.insert(ZfsProp::Mounted, Value::Number(pool.mounted.has(head.phys.fsid_guid).into()));
        Ok(())
    }

    async fn compute_encryption(
        &self,
        rq: &Request,
        computed: &mut Computed,
        dir: &Dir,
        pool: &PoolFacts,
    ) -> Result<(), ObjectError> {
        let Some(spec) = crate::keys::key_spec(self, rq, dir).await? else { return Ok(()) };
        computed.insert(ZfsProp::Encryption, Value::Number(spec.wrapped.suite));
        computed.insert(ZfsProp::KeyFormat, Value::Number(spec.format_number));
        computed.insert(ZfsProp::Pbkdf2Iters, Value::Number(spec.iterations));
        let available = dir.crypto_key().is_some_and(|key| pool.loaded_keys.contains(&key));
        computed.insert(ZfsProp::KeyStatus, Value::Number(if available { 2 } else { 1 }));
        if let Some(root) = crate::keys::encryption_root(self, rq, dir).await? {
            computed.insert(ZfsProp::EncryptionRoot, Value::Text(root));
        }
        Ok(())
    }

    /// Computes the properties that are stored in the dataset's own object set, as far as it is readable. A dataset of which
    /// a part was received may lack them.
    async fn compute_contents(
        &self,
        rq: &Request,
        computed: &mut Computed,
        dataset: &Dataset,
        of_volume: bool,
    ) -> Result<(), ObjectError> {
        let opening = Opening { id: dataset.objset(), ..Opening::default() };
        if dataset.phys.flags & DslDataset::INCONSISTENT != 0 {
            return Ok(());
        }
        let set = ObjectSet::open(rq, self.mos.cache().clone(), dataset.phys.pointer, opening).await?;
        if of_volume {
            let size = zap::lookup_word(rq, &set, VOLUME_PROPERTIES, "size").await?;
            let data = set.object(rq, VOLUME_DATA).await?;
            computed.extend(size.map(|size| (ZfsProp::VolSize, Value::Number(size))));
            computed.insert(ZfsProp::VolBlockSize, Value::Number(data.dnode.data_block_bytes.into()));
            return Ok(());
        }
        let master = Zap::open(rq, &set, ObjectId(master::OBJECT)).await?;
        let names = [
            (ZfsProp::Version, master::VERSION, None),
            (ZfsProp::Utf8Only, master::UTF8ONLY, Some(0)),
            (ZfsProp::Normalization, master::NORMALIZATION, Some(0)),
            (ZfsProp::CaseSensitivity, master::CASESENSITIVITY, Some(0)),
            (ZfsProp::DefaultUserQuota, "defaultuserquota", None),
            (ZfsProp::DefaultGroupQuota, "defaultgroupquota", None),
            (ZfsProp::DefaultProjectQuota, "defaultprojectquota", None),
            (ZfsProp::DefaultUserObjQuota, "defaultuserobjquota", None),
            (ZfsProp::DefaultGroupObjQuota, "defaultgroupobjquota", None),
            (ZfsProp::DefaultProjectObjQuota, "defaultprojectobjquota", None),
        ];
        for (property, name, unset) in names {
            let found = master.lookup(rq, name.as_bytes(), zap::Match::Exact).await?.and_then(|v| v.first());
            computed.extend(found.or(unset).map(|n| (property, Value::Number(n))));
        }
        Ok(())
    }

    /// The names of the user properties that are stored for the directory itself.
    pub async fn user_property_names(&self, rq: &Request, dir: &Dir) -> Result<Vec<String>, ObjectError> {
        let stored = self.stored(rq, dir).await?;
        let mut names: Vec<String> = stored.keys().map(|key| split_property(key).0.to_owned()).collect();
        names.retain(|name| name.contains(':'));
        names.dedup();
        Ok(names)
    }
}

struct Gathered {
    kind: DatasetKind,
    of_volume: bool,
    snapshot: Option<Stored>,
    chain: Vec<(String, Arc<Stored>)>,
    computed: Computed,
}

impl Gathered {
    fn facts<'a>(&'a self, dataset: &'a Dataset, pool: &'a PoolFacts) -> Facts<'a> {
        Facts {
            kind: self.kind,
            of_volume: self.of_volume,
            name: &dataset.name,
            snapshot: self.snapshot.as_ref(),
            chain: &self.chain,
            computed: &self.computed,
            altroot: &pool.altroot,
        }
    }
}

fn compute_common(computed: &mut Computed, dataset: &Dataset) {
    let phys = &dataset.phys;
    let numbers = [
        (ZfsProp::Creation, phys.creation_time_s),
        (ZfsProp::CreateTxg, phys.creation_txg.0),
        (ZfsProp::Guid, phys.guid),
        (ZfsProp::ObjsetId, dataset.id.0),
        (ZfsProp::Referenced, phys.referenced_bytes),
        (ZfsProp::LogicalReferenced, phys.uncompressed_bytes),
        (ZfsProp::RefCompressRatio, ratio(phys)),
    ];
    computed.extend(numbers.map(|(name, n)| (name, Value::Number(n))));
}

fn ratio(phys: &DslDataset) -> u64 {
    percent(phys.uncompressed_bytes, phys.compressed_bytes)
}

/// A ratio in hundredths; 1.00 if there is nothing.
fn percent(of: u64, to: u64) -> u64 {
    (u128::from(of) * 100).checked_div(u128::from(to)).map_or(100, |p| u64::try_from(p).unwrap_or(u64::MAX))
}
