//! Object sets: the MOS, file systems, snapshots, volumes.
//!
//! ```text
//!   pointer ──► header ──► meta dnode ──► blocks of 512-byte slots: dnode of object n at slot n
//!                     └──► accounting dnodes, intent log
//! ```
//!
//! Decoded dnodes are cached in two generations. A miss is inserted into the young generation. When that is full, it
//! replaces the old generation, whose entries are dropped. A hit in the old generation moves the entry to the young one.
//! The memory is bounded without an LRU list.
//!
//! Invariants: an open object set does not change, unless it is live ([`crate::live`]): a sync then replaces its root in one
//! step. The mutexes over the root and the cached dnodes are held for one look-up only.
//!
//! Failures: a dnode block that cannot be read is an error for its 32 dnodes only.
//!
//! *Without the key* of an encrypted dataset, the header and the dnodes except for their bonus areas are readable, and so are
//! the objects that hold no user data (the master node, the structure of the accounting ZAPs). [`ObjectSet::is_locked`] is
//! then true, and the bonus areas hold ciphertext.

use crate::error::{ErrorLocation, ObjectError};
use crate::live::DirtyObjset;
use crate::object::Object;
use crate::read::{SEEK_DESCENTS, Seek};
use bytes::Bytes;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use weir_blocks::{Bookmark, CacheClass, ReadOptions};
use weir_cache::Cache;
use weir_codec::crypt::DatasetKey;
use weir_format::{BlockPointer, Dnode, Endian, ObjectId, Objset, ObjsetId, ObjsetKind, Txg};
use weir_machine::Request;
use weir_machine::map::FixedMap;

/// Maximum dnodes in a generation of the cache.
const GENERATION: usize = 8192;

/// Parameters of opening an object set.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// Number of the object set.
    pub id: ObjsetId,
    /// The dataset's key, if it is encrypted and loaded.
    pub key: Option<Arc<DatasetKey>>,
    /// Blocks that may be cached (`primarycache`).
    pub cache: CacheClass,
}

#[derive(Default)]
struct ObjectMemo {
    young: FixedMap<ObjectId, Arc<Object>>,
    old: FixedMap<ObjectId, Arc<Object>>,
}

impl ObjectMemo {
    fn get(&mut self, id: ObjectId) -> Option<Arc<Object>> {
        if let Some(object) = self.young.get(&id) {
            return Some(object.clone());
        }
        let object = self.old.remove(&id)?;
        self.insert(object.clone());
        Some(object)
    }

    fn insert(&mut self, object: Arc<Object>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(object.id, object);
    }
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
    root: Mutex<Arc<Root>>,
    locked: bool,
    remembered: Mutex<ObjectMemo>,
    live: Option<DirtyObjset>,
    /// Blocks that may be cached now.
    cache_class: RwLock<CacheClass>,
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
        let locked = pointer.uses_crypt() && options.keys.is_none();
        let root = Mutex::new(Root::new(pointer, header));
        let cache_class = RwLock::new(options.cache);
        let closed = AtomicBool::new(false);
        ObjectSet { cache, options, root, locked, remembered: Mutex::default(), live: None, cache_class, closed }
    }

    pub(crate) fn alive(self, live: DirtyObjset) -> Self {
        ObjectSet { live: Some(live), ..self }
    }

    pub(crate) fn live(&self) -> Option<&DirtyObjset> {
        self.live.as_ref()
    }

    /// The current root, which a sync of a live set replaces.
    pub fn root(&self) -> Arc<Root> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_root(&self, root: Arc<Root>) {
        *self.root.lock().unwrap_or_else(PoisonError::into_inner) = root;
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
        let cache = *self.cache_class.read().unwrap_or_else(PoisonError::into_inner);
        ReadOptions { cache, ..self.options.clone() }
    }

    /// Sets which blocks may be cached from now on (`primarycache`).
    pub fn set_cache_class(&self, class: CacheClass) {
        *self.cache_class.write().unwrap_or_else(PoisonError::into_inner) = class;
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

    fn remembered(&self) -> MutexGuard<'_, ObjectMemo> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
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
        let version = match &self.live {
            None => 0,
            Some(live) => {
                let state = live.state();
                if let Some(node) = state.nodes.get(&id) {
                    return node.current.clone().ok_or(ObjectError::NoObject { objset: self.id(), object: id });
                }
                state.version
            }
        };
        if let Some(object) = self.remembered().get(id) {
            return Ok(object);
        }
        let dnode = self.dnode(rq, id).await?;
        let object = Arc::new(Object::new(id, dnode));
        // A dnode that was read before a sync must not be cached after it.
        let state = self.live.as_ref().map(DirtyObjset::state);
        if state.is_none_or(|state| state.version == version) {
            self.remembered().insert(object.clone());
        }
        Ok(object)
    }

    /// Drops the cached dnodes of objects that a sync changed.
    pub(crate) fn forget(&self, ids: impl Iterator<Item = ObjectId>) {
        let mut remembered = self.remembered();
        for id in ids {
            remembered.young.remove(&id);
            remembered.old.remove(&id);
        }
    }

    async fn dnode(self: &Arc<Self>, rq: &Request, id: ObjectId) -> Result<Dnode, ObjectError> {
        let absent = ObjectError::NoObject { objset: self.id(), object: id };
        let root = self.root();
        let special = match id.0 {
            0 => Some(&root.header.meta_dnode),
            Objset::USERUSED_OBJECT => Some(&root.header.user_used),
            Objset::GROUPUSED_OBJECT => Some(&root.header.group_used),
            Objset::PROJECTUSED_OBJECT => Some(&root.header.project_used),
            _ => None,
        };
        if let Some(dnode) = special {
            return dnode.clone().ok_or(absent);
        }
        let meta = root.meta.as_ref().ok_or(absent.clone())?;
        let per_block = meta.block_bytes() / Dnode::SLOT as u64;
        let block = id.0 / per_block;
        let Some((bytes, endian)) = self.dnode_block(rq, meta, block).await? else { return Err(absent) };
        let slot = (id.0 % per_block) as usize;
        if !starts_dnode(&bytes, slot) {
            return Err(absent);
        }
        let at = slot * Dnode::SLOT;
        let decoded = Dnode::decode(bytes.get(at..).unwrap_or_default(), endian);
        decoded.map_err(|e| ObjectError::decode(self.place(id, 0, block), e))?.ok_or(absent)
    }

    /// The numbers and dnodes of all objects in data block `block` of the meta dnode, in order; `None` for a hole.
    /// A dnode that cannot be decoded is returned as an error for that object.
    ///
    /// # Errors
    /// Errors of reading the block.
    pub async fn dnodes_in_block(
        self: &Arc<Self>,
        rq: &Request,
        block: u64,
    ) -> Result<Vec<(ObjectId, Result<Dnode, ObjectError>)>, ObjectError> {
        let Some(meta) = self.meta() else { return Ok(Vec::new()) };
        let Some((bytes, endian)) = self.dnode_block(rq, &meta, block).await? else { return Ok(Vec::new()) };
        let slots = bytes.len() / Dnode::SLOT;
        let mut out = Vec::new();
        let mut slot = 0;
        while slot < slots {
            let id = ObjectId(block.saturating_mul(slots as u64).saturating_add(slot as u64));
            match Dnode::decode(bytes.get(slot * Dnode::SLOT..).unwrap_or_default(), endian) {
                Ok(None) => slot += 1,
                Ok(Some(dnode)) => {
                    slot += dnode.slots();
                    if id.0 != 0 {
                        out.push((id, Ok(dnode)));
                    }
                }
                Err(e) => {
                    slot += 1;
                    out.push((id, Err(ObjectError::decode(self.place(id, 0, block), e))));
                }
            }
        }
        Ok(out)
    }

    /// Returns the first object in use with a number of at least `from`. Subtrees without objects are skipped. To list all
    /// objects, see [`crate::Objects`].
    ///
    /// # Errors
    /// Errors of reading dnodes; [`ObjectError::Corrupt`] if fill counts exceed the number of objects.
    pub async fn next_object(self: &Arc<Self>, rq: &Request, from: ObjectId) -> Result<Option<ObjectId>, ObjectError> {
        let Some(meta) = self.meta() else { return Ok(None) };
        let per_block = meta.block_bytes() / Dnode::SLOT as u64;
        let mut block = from.0 / per_block;
        // All objects of the first block may be before `from`. Later blocks have objects if their fill counts are right.
        for _ in 0..SEEK_DESCENTS {
            let found = self.next_block(rq, &meta, block, Seek::Dnodes, None).await?;
            let Some(found) = found else { return Ok(None) };
            let dnodes = self.dnodes_in_block(rq, found).await?;
            if let Some((id, _)) = dnodes.into_iter().find(|(id, _)| *id >= from) {
                return Ok(Some(id));
            }
            block = found.saturating_add(1);
        }
        Err(ObjectError::Corrupt { place: self.place(ObjectId(0), 0, block), why: "wrong fill counts" })
    }

    /// Reads a block of dnodes. In a locked set its bonus areas are still encrypted.
    async fn dnode_block(
        self: &Arc<Self>,
        rq: &Request,
        meta: &Arc<Object>,
        block: u64,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        self.prefetch_after(meta, block.saturating_mul(meta.block_bytes()), meta.block_bytes(), meta.span_bytes());
        let Some(pointer) = self.pointer_at(rq, meta, 0, block).await? else { return Ok(None) };
        Ok(Some((self.read_pointer(rq, meta, block, &pointer).await?, pointer.endian())))
    }
}

/// Whether a dnode can begin at `slot`, because no larger dnode before it covers the slot.
fn starts_dnode(block: &[u8], slot: usize) -> bool {
    const EXTRA_SLOTS: usize = 12;
    let mut at = 0;
    while at < slot {
        let base = at * Dnode::SLOT;
        let free = block.get(base).is_none_or(|kind| *kind == 0);
        at += 1 + if free { 0 } else { block.get(base + EXTRA_SLOTS).map_or(0, |n| usize::from(*n)) };
    }
    at == slot
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
