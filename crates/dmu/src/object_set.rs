//! Object sets: the MOS, file systems, snapshots, volumes.
//!
//! ```text
//!   pointer ──► header ──► meta dnode ──► blocks of 512-byte slots: dnode of object n at slot n
//!                     └──► accounting dnodes, intent log
//! ```
//!
//! Invariants: an open object set does not change, unless it is live ([`crate::live`]): a sync then replaces its root
//! in one step. The mutexes over the root and the cached dnodes are held for one look-up only.
//!
//! *Without the key* of an encrypted dataset, the header and the dnodes except for their bonus areas are readable, and
//! so are the objects that hold no user data (the master node, the structure of the accounting ZAPs).
//! [`ObjectSet::is_locked`] is then true, and the bonus areas hold ciphertext.

use crate::dnode_cache::DnodeCache;
use crate::error::{ErrorLocation, ObjectError};
use crate::live::RawHeader;
use crate::live::overlay::Overlay;
use crate::object::Object;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use weir_blocks::{Bookmark, CacheClass, ReadOptions};
use weir_cache::Cache;
use weir_codec::crypt::DatasetKey;
use weir_format::{BlockPointer, Dnode, ObjectId, ObjectType, Objset, ObjsetId, ObjsetKind, Txg};
use weir_machine::Request;
use weir_machine::lock::{Mutex, MutexGuard, RwLock, order};

/// Parameters of opening an object set.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// Number of the object set.
    pub id: ObjsetId,
    /// The dataset's key, if it is encrypted and loaded.
    pub key: Option<Arc<DatasetKey>>,
    /// Blocks that may be cached (`primarycache`).
    pub cache: CacheClass,
    /// The set is received from a raw stream: it is written without the key.
    pub raw: Option<RawHeader>,
}

/// Root of an object set: its pointer, header and meta dnode.
pub struct Root {
    /// Pointer to the header.
    pub pointer: BlockPointer,
    /// The decoded header.
    pub header: Objset,
    /// The object that holds all dnodes; `None` in a set that never had an object.
    pub meta: Option<Arc<Object>>,
}

impl Root {
    pub(crate) fn new(pointer: BlockPointer, header: Objset) -> Arc<Self> {
        let meta = header.meta_dnode.clone().map(|dnode| Arc::new(Object::new(ObjectId(0), dnode)));
        Arc::new(Root { pointer, header, meta })
    }
}

/// An object set.
pub struct ObjectSet {
    cache: Arc<Cache>,
    options: ReadOptions,
    root: Mutex<Arc<Root>, { order::SYNCED_ROOT }>,
    locked: bool,
    raw: Option<RawHeader>,
    dnode_cache: Mutex<DnodeCache, { order::DNODE_CACHE }>,
    live: Option<Overlay>,
    /// Blocks that may be cached now.
    cache_class: RwLock<CacheClass>,
    /// Blocks that cache devices may hold now.
    secondary_class: RwLock<CacheClass>,
    /// Blocks that are read ahead.
    prefetch_class: RwLock<CacheClass>,
    /// See [`ObjectSet::close`].
    pub(crate) closed: AtomicBool,
}

impl ObjectSet {
    /// Opens the object set that `pointer` leads to.
    pub async fn open(
        rq: &Request,
        cache: Arc<Cache>,
        pointer: BlockPointer,
        opening: Opening,
    ) -> Result<Arc<Self>, ObjectError> {
        Self::read_root(rq, cache, pointer, opening).await.map(Arc::new)
    }

    pub(crate) async fn read_root(
        rq: &Request,
        cache: Arc<Cache>,
        pointer: BlockPointer,
        opening: Opening,
    ) -> Result<Self, ObjectError> {
        let place = ErrorLocation { objset: opening.id, ..ErrorLocation::default() };
        if pointer.is_hole() {
            return Ok(Self::with_header(cache, opening, pointer, empty_header()));
        }
        let origin = Some(Bookmark { objset: opening.id, level: Bookmark::ROOT_LEVEL, ..Bookmark::default() });
        let options = ReadOptions { origin, ..options_of(&opening) };
        let block = cache.read(rq, &pointer, &options).await.map_err(|e| ObjectError::block(place, e))?;
        let header = Objset::decode(&block, pointer.endian()).map_err(|e| ObjectError::decode(place, e))?;
        Ok(Self::with_header(cache, opening, pointer, header))
    }

    pub(crate) fn with_header(cache: Arc<Cache>, opening: Opening, pointer: BlockPointer, header: Objset) -> Self {
        let options = options_of(&opening);
        let raw = opening.raw;
        debug_assert!(raw.is_none() || options.keys.is_none(), "a set is received raw without its key");
        let locked = raw.is_some() || pointer.uses_crypt() && options.keys.is_none();
        let root = Mutex::new(Root::new(pointer, header));
        let cache_class = RwLock::new(options.cache);
        let closed = AtomicBool::new(false);
        let dnode_cache = Mutex::default();
        let prefetch_class = RwLock::new(CacheClass::All);
        let secondary_class = RwLock::new(CacheClass::All);
        ObjectSet {
            cache,
            options,
            root,
            locked,
            raw,
            dnode_cache,
            live: None,
            cache_class,
            secondary_class,
            prefetch_class,
            closed,
        }
    }

    pub(crate) fn alive(self, live: Overlay) -> Self {
        ObjectSet { live: Some(live), ..self }
    }

    pub(crate) fn live(&self) -> Option<&Overlay> {
        self.live.as_ref()
    }

    /// The current root, which a sync of a live set replaces.
    pub fn root(&self) -> Arc<Root> {
        self.root.lock().clone()
    }

    pub(crate) fn set_root(&self, root: Arc<Root>) {
        *self.root.lock() = root;
    }

    /// Number of the object set.
    pub fn id(&self) -> ObjsetId {
        self.options.objset
    }

    /// Kind of the object set.
    pub fn kind(&self) -> ObjsetKind {
        self.root().header.kind
    }

    /// Pointer to the header of the object set.
    pub fn pointer(&self) -> BlockPointer {
        self.root().pointer
    }

    /// Txg of the last change.
    pub fn birth(&self) -> Txg {
        self.pointer().logical_birth()
    }

    /// Whether the object set is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.pointer().uses_crypt()
    }

    /// Whether the object set is encrypted and its key is not loaded.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// The header of the raw stream that the set is received from.
    pub(crate) fn raw(&self) -> Option<&RawHeader> {
        self.raw.as_ref()
    }

    /// The cache through which the object set is read.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Options of reading blocks, as given at open.
    pub fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Options of reading the block at `place`.
    pub(crate) fn options_at(&self, place: ErrorLocation) -> ReadOptions {
        let ErrorLocation { objset, object, level, block } = place;
        let origin = Some(Bookmark { objset, object: object.0, level: level.into(), block });
        ReadOptions { origin, ..self.options_now() }
    }

    /// Options of reading and caching blocks under the current properties.
    pub(crate) fn options_now(&self) -> ReadOptions {
        let cache = *self.cache_class.read();
        let secondary = *self.secondary_class.read();
        ReadOptions { cache, secondary, ..self.options.clone() }
    }

    /// Sets which blocks may be cached from now on (`primarycache`).
    pub fn set_cache_class(&self, class: CacheClass) {
        *self.cache_class.write() = class;
    }

    /// Sets which blocks cache devices may hold from now on (`secondarycache`).
    pub fn set_secondary_class(&self, class: CacheClass) {
        *self.secondary_class.write() = class;
    }

    /// Sets which blocks are read ahead from now on (`prefetch`).
    pub fn set_prefetch_class(&self, class: CacheClass) {
        *self.prefetch_class.write() = class;
    }

    /// Whether blocks of an object of type `kind` are read ahead.
    pub(crate) fn reads_ahead(&self, kind: ObjectType) -> bool {
        match *self.prefetch_class.read() {
            CacheClass::All => true,
            CacheClass::Metadata => kind.is_metadata(),
            CacheClass::None => false,
        }
    }

    /// The object that holds all dnodes; `None` in a set that never had an object.
    pub fn meta(&self) -> Option<Arc<Object>> {
        self.root().meta.clone()
    }

    /// Number of objects in use by the fill counts of the meta dnode (without the meta dnode and accounting objects).
    pub fn objects_used(&self) -> u64 {
        let fill = |dnode: &Dnode| dnode.block_pointers.iter().fold(0u64, |sum, bp| sum.saturating_add(bp.fill()));
        self.root().header.meta_dnode.as_ref().map_or(0, fill)
    }

    /// Location of block `block` of level `level` of an object.
    pub fn place(&self, object: ObjectId, level: u8, block: u64) -> ErrorLocation {
        ErrorLocation { objset: self.id(), object, level, block }
    }

    /// Returns an object by its number. The accounting objects have the numbers [`Objset::USERUSED_OBJECT`] and so on.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`] if the number is free, or inside another object's dnode.
    pub async fn object(self: &Arc<Self>, rq: &Request, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        loop {
            let version = self.version();
            match self.object_once(rq, id).await {
                Err(error) if self.raced_with_sync(&error, version) => {}
                answer => return answer,
            }
        }
    }

    async fn object_once(self: &Arc<Self>, rq: &Request, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        let version = match self.live() {
            None => 0,
            Some(live) => {
                let shard = live.shard(id);
                if let Some(node) = shard.get(&id) {
                    return node.current.clone().ok_or(ObjectError::NoObject { objset: self.id(), object: id });
                }
                live.version()
            }
        };
        if let Some(object) = self.dnode_cache().get(id) {
            return Ok(object);
        }
        let dnode = self.dnodes().dnode(rq, id).await?;
        let object = Arc::new(Object::new(id, dnode));
        // A dnode that was read before a sync must not be cached after it: a sync counts before it drops cached dnodes.
        let mut cache = self.dnode_cache();
        if self.version() == version {
            cache.insert(object.clone());
        }
        Ok(object)
    }

    /// Locks the cache of dnodes.
    pub(crate) fn dnode_cache(&self) -> MutexGuard<'_, DnodeCache> {
        self.dnode_cache.lock()
    }

    /// Drops the cached dnodes of objects that a sync changed.
    pub(crate) fn forget(&self, ids: impl Iterator<Item = ObjectId>) {
        let mut cache = self.dnode_cache();
        ids.for_each(|id| cache.remove(id));
    }
}

fn options_of(opening: &Opening) -> ReadOptions {
    ReadOptions { keys: opening.key.clone(), objset: opening.id, cache: opening.cache, ..ReadOptions::default() }
}

pub(crate) fn empty_header() -> Objset {
    Objset {
        meta_dnode: None,
        zil: Default::default(),
        kind: ObjsetKind::None,
        flags: 0,
        portable_mac: [0; 32],
        local_mac: [0; 32],
        user_used: None,
        group_used: None,
        project_used: None,
    }
}
