//! Keys of an open pool's encrypted datasets: load, use, change and unload.
//!
//! ```text
//!   user's secret ──► wrapping key, by encryption root ──unwraps──► dataset keys, by key object ──► sets, logs, readers
//! ```
//!
//! A clone shares its origin's key object and therefore its key. Keys on disk are wrapped. This module holds the only
//! unwrapped copies, and they are wiped when the last holder drops them.
//!
//! *Without its key* a dataset can still be destroyed, renamed, snapshotted and rolled back, and its intent log can be
//! claimed. Its object set is then stored with its present MACs, because nothing that they cover changes
//! ([`weir_blocks::WriteOptions::sealed`]). The log is replayed when the dataset is first opened with its key.
//!
//! *Unloading* requires that the datasets are not in use. Each is closed, its log is destroyed (all its records have
//! synced), and the cache drops decrypted blocks. A key that still has a holder (an open snapshot) is revoked: further
//! decryption with it fails.
//!
//! Source: OpenZFS `module/zfs/dsl_crypt.c` (`spa_keystore_load_wkey`, `spa_keystore_unload_wkey`,
//! `spa_keystore_change_key_check`, `dmu_objset_create_crypt_check`).

use super::closing::{clear_log, close};
use super::syncing::TxgSync;
use super::{EncryptionKeys, PoolError, closing};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_codec::CodecError;
use weir_codec::crypt::{DatasetKey, Suite, WrappingKey};
use weir_dmu::ObjectError;
use weir_dsl::sync_tasks::{Created, DslError, KeySource, NewKey, features, key};
use weir_dsl::{Dir, Dsl, KeyFormat, KeySpec, Scope, SetKey};
use weir_format::ObjectId;
use weir_format::features::Feature;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Machine, Request};
pub use weir_pool::error::KeyError;
use weir_zil as zil;

/// Default number of PBKDF2 iterations over a passphrase (`DEFAULT_PBKDF2_ITERATIONS`).
pub const DEFAULT_ITERATIONS: u64 = 350_000;

/// A wrapping key that makes a dataset an encryption root.
#[derive(Clone, Debug)]
pub struct NewRoot {
    /// The key's format and parameters, which are stored with the dataset.
    pub source: KeySource,
    /// The wrapping key.
    pub wrapping: Arc<WrappingKey>,
}

impl NewRoot {
    /// Derives a wrapping key from `secret`. A passphrase gets a random salt and `iterations` of PBKDF2.
    ///
    /// `None` means [`DEFAULT_ITERATIONS`].
    ///
    /// # Errors
    /// [`KeyError::Material`] if the secret cannot be a key of that format.
    pub async fn new(
        machine: &Machine,
        name: &str,
        format: KeyFormat,
        location: &str,
        iterations: Option<u64>,
        secret: Vec<u8>,
    ) -> Result<Self, PoolError> {
        let (salt, iterations) = match format {
            KeyFormat::Passphrase => (machine.entropy.u64().max(1), iterations.unwrap_or(DEFAULT_ITERATIONS)),
            KeyFormat::Hex | KeyFormat::Raw => (0, 0),
        };
        let wrapping = derive(machine, name, format, (salt, iterations), secret).await?;
        let source = KeySource { format, salt, iterations, location: location.to_owned() };
        Ok(NewRoot { source, wrapping })
    }
}

/// Encryption of a new dataset (property `encryption`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crypt {
    /// Inherited from the parent.
    #[default]
    Inherit,
    /// Not encrypted.
    Off,
    /// Encrypted with this cipher.
    With(Suite),
}

/// Requested encryption of a new dataset.
#[derive(Clone, Debug, Default)]
pub struct Encryption {
    /// The cipher.
    pub crypt: Crypt,
    /// The dataset's own key; `None` for the parent's key.
    pub root: Option<NewRoot>,
}

/// A change of a dataset's wrapping key (`zfs change-key`).
#[derive(Clone, Debug)]
pub enum KeyChange {
    /// The dataset becomes an encryption root with this key, or changes its key to it.
    New(NewRoot),
    /// The dataset uses its parent's key.
    Inherit,
}

/// Checked encryption parameters of a new dataset.
pub(crate) struct KeyPlan {
    suite: Suite,
    key: NewKey,
    wrapping: Arc<WrappingKey>,
}

/// The loaded keys of a pool (`spa_keystore_t`).
#[derive(Default)]
pub struct KeyStore(Mutex<Loaded, { order::KEYS }>);

#[derive(Default)]
struct Loaded {
    /// By the directory of the encryption root.
    wrapping: BTreeMap<ObjectId, Arc<WrappingKey>>,
    /// By the key object.
    keys: BTreeMap<ObjectId, SetKey>,
}

impl std::fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyStore({} roots)", self.loaded().wrapping.len())
    }
}

impl KeyStore {
    /// A store of loaded keys: wrapping keys by the encryption root's directory, dataset keys by their key object.
    pub(crate) fn new(wrapping: BTreeMap<ObjectId, Arc<WrappingKey>>, keys: BTreeMap<ObjectId, SetKey>) -> Self {
        KeyStore(Mutex::new(Loaded { wrapping, keys }))
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.0.lock()
    }

    /// The key of a directory's datasets, if they are encrypted and the key is loaded.
    pub fn of(&self, dir: Option<&Dir>) -> Option<SetKey> {
        self.of_object(dir?.crypto_key()?)
    }

    /// The key in a key object, if it is loaded.
    pub(crate) fn of_object(&self, object: ObjectId) -> Option<SetKey> {
        self.loaded().keys.get(&object).cloned()
    }

    /// The key objects whose keys are loaded.
    pub fn key_objects(&self) -> BTreeSet<ObjectId> {
        self.loaded().keys.keys().copied().collect()
    }

    /// Whether no key is loaded.
    pub fn is_empty(&self) -> bool {
        self.loaded().keys.is_empty()
    }

    fn wrapping(&self, root: ObjectId) -> Option<Arc<WrappingKey>> {
        self.loaded().wrapping.get(&root).cloned()
    }

    /// Removes an encryption root's wrapping key and these dataset keys, by their key objects, and wipes them.
    fn remove(&self, root: ObjectId, objects: &BTreeSet<ObjectId>) {
        let mut loaded = self.loaded();
        objects.iter().filter_map(|object| loaded.keys.remove(object)).for_each(|key| key.revoke());
        loaded.wrapping.remove(&root);
    }

    /// Adds an encryption root's wrapping key and the dataset keys that it unwrapped.
    pub(crate) fn insert(
        &self,
        root: ObjectId,
        wrapping: Arc<WrappingKey>,
        keys: impl IntoIterator<Item = (ObjectId, SetKey)>,
    ) {
        let mut loaded = self.loaded();
        loaded.wrapping.insert(root, wrapping);
        loaded.keys.extend(keys);
    }

    /// Drops keys that no directory refers to, after encryption roots moved or datasets were destroyed.
    pub(crate) async fn drop_orphaned_roots(&self, rq: &Request, dsl: &Dsl) -> Result<(), PoolError> {
        let mut objects: BTreeSet<ObjectId> = BTreeSet::new();
        let mut roots: BTreeSet<ObjectId> = BTreeSet::new();
        for dir in dsl.dirs() {
            let Some(object) = dir.crypto_key() else { continue };
            let Some(spec) = weir_dsl::keys::key_spec(dsl, rq, dir).await? else { continue };
            objects.insert(object);
            roots.insert(spec.root);
            let mut loaded = self.loaded();
            if loaded.keys.contains_key(&object) && !loaded.wrapping.contains_key(&spec.root) {
                let opens = |key: &&Arc<WrappingKey>| DatasetKey::unwrap(key, &spec.wrapped).is_ok();
                if let Some(key) = loaded.wrapping.values().find(opens).cloned() {
                    loaded.wrapping.insert(spec.root, key);
                }
            }
        }
        let mut loaded = self.loaded();
        loaded.keys.retain(|object, _| objects.contains(object));
        loaded.wrapping.retain(|root, _| roots.contains(root));
        Ok(())
    }
}

/// An encryption root found by name.
struct Root {
    dsl: Arc<Dsl>,
    dir: ObjectId,
    spec: KeySpec,
}

/// Derives a wrapping key from a secret, on the compute pool because PBKDF2 is slow.
async fn derive(
    machine: &Machine,
    name: &str,
    format: KeyFormat,
    (salt, iterations): (u64, u64),
    secret: Vec<u8>,
) -> Result<Arc<WrappingKey>, PoolError> {
    let derived = machine.compute.run(move || format.wrapping_key(&secret, salt, iterations)).await;
    let lost = |_| DslError::busy(name, "the computation of its key was lost");
    let derived = derived.map_err(lost)?;
    Ok(derived.map(Arc::new).map_err(|error| KeyError::Material { name: name.to_owned(), error })?)
}

impl EncryptionKeys<'_> {
    /// Finds an encryption root by its name.
    async fn encryption_root(rq: &Request, dsl: Arc<Dsl>, name: &str) -> Result<Root, PoolError> {
        let dir = dsl.dir_named(name).ok_or_else(|| DslError::missing(name))?;
        let plain = || KeyError::NotEncrypted { name: name.to_owned() };
        let spec = weir_dsl::keys::key_spec(&dsl, rq, dir).await?.ok_or_else(plain)?;
        let dir = dir.id;
        if spec.root != dir {
            let root = dsl.dir(spec.root).map_or_else(String::new, |root| root.name.clone());
            return Err(KeyError::NotRoot { name: name.to_owned(), root }.into());
        }
        Ok(Root { dsl, dir, spec })
    }

    /// Whether the key of a dataset is loaded; `None` if it is not encrypted.
    ///
    /// # Errors
    /// [`DslError::missing`] if no dataset has that name; errors of reading the MOS.
    pub async fn is_loaded(&self, rq: &Request, name: &str) -> Result<Option<bool>, PoolError> {
        let dsl = self.engine.synced().dsl_of(rq, name).await?;
        let dir = dsl.dir_named(name).ok_or_else(|| DslError::missing(name))?;
        Ok(dir.crypto_key().map(|_| self.engine.keys.of(Some(dir)).is_some()))
    }

    /// Whether `secret` is the key of an encryption root (`zfs load-key -n`).
    ///
    /// # Errors
    /// [`KeyError::Wrong`] if not; other variants of [`KeyError`] if it cannot be a key of this root.
    pub async fn check(&self, rq: &Request, name: &str, secret: Vec<u8>) -> Result<(), PoolError> {
        self.open_keys(rq, name, secret).await.map(drop)
    }

    /// Unwraps keys with the secret of an encryption root: returns its directory, wrapping key and dataset keys by key object.
    async fn open_keys(
        &self,
        rq: &Request,
        name: &str,
        secret: Vec<u8>,
    ) -> Result<(ObjectId, Arc<WrappingKey>, Vec<(ObjectId, SetKey)>), PoolError> {
        let spec = Self::encryption_root(rq, self.engine.synced().state(rq).await?.dsl(rq).await?, name).await?.spec;
        let format = spec.format.ok_or(ObjectError::Unsupported { what: "a key of unknown format" })?;
        let wrapping = derive(&self.engine.machine, name, format, (spec.salt, spec.iterations), secret).await?;
        let synced = self.engine.synced().state(rq).await?;
        let root = Self::encryption_root(rq, synced.dsl(rq).await?, name).await?;
        let keys = root.opened_by(rq, &wrapping).await.map_err(|error| match error {
            PoolError::Object(ObjectError::Key { error: CodecError::WrongKey, .. }) => {
                KeyError::Wrong { name: name.to_owned() }.into()
            }
            other => other,
        })?;
        Ok((root.dir, wrapping, keys))
    }

    /// Loads the key of an encryption root; all datasets below it that share the key become accessible.
    ///
    /// # Errors
    /// Errors of [`Engine::check_key`]; [`KeyError::Loaded`].
    pub async fn load(&self, rq: &Request, name: &str, secret: Vec<u8>) -> Result<(), PoolError> {
        if self.is_loaded(rq, name).await? == Some(true) {
            return Err(KeyError::Loaded { name: name.to_owned() }.into());
        }
        let (root, wrapping, keys) = self.open_keys(rq, name, secret).await?;
        if self.engine.is_read_only() {
            // No set is open for writing without its key.
            self.engine.keys.insert(root, wrapping, keys);
            self.engine.changed.note_all();
            return Ok(());
        }
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    // Sets that are open without their key are written, then closed; the next user opens them with the key.
                    syncing.sync_sets().await?;
                    let engine = syncing.engine;
                    engine.sets.all().iter().filter(|open| open.set.is_locked()).for_each(|open| {
                        engine.sets.remove(open.set.id());
                    });
                    engine.keys.insert(root, wrapping, keys);
                    Ok(())
                })
            })
            .await?;
        self.engine.changed.note_all();
        Ok(())
    }

    /// Unloads the key of an encryption root and wipes it.
    ///
    /// # Errors
    /// [`KeyError::Busy`] while one of its datasets is in use, [`KeyError::Unloaded`], [`KeyError::NotRoot`].
    pub async fn unload(&self, rq: &Request, name: &str) -> Result<(), PoolError> {
        if self.is_loaded(rq, name).await? == Some(false) {
            return Err(KeyError::Unloaded { name: name.to_owned() }.into());
        }
        let synced = self.engine.synced().state(rq).await?;
        let root = Self::encryption_root(rq, synced.dsl(rq).await?, name).await?;
        if self.engine.is_read_only() {
            return self.unload_of_read_only(rq, &root).await;
        }
        let members: Vec<String> = root.members(rq).await?.into_iter().map(|dir| dir.name.clone()).collect();
        let mut closings = Vec::new();
        for member in members {
            let closing = closing::begin(self.engine, &member).await;
            closings.push(closing.map_err(|_| KeyError::Busy { name: member })?);
        }
        let name = name.to_owned();
        let done = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(unload(syncing, name))).await;
        let is_done = done.is_ok();
        self.engine.changed.note_all();
        for closing in closings {
            // After a failed unload, the datasets can be opened again.
            let _ = closing.end(if is_done { Ok(()) } else { Err(PoolError::from(KeyError::NotLoaded)) });
        }
        done
    }

    /// [`EncryptionKeys::unload`] in a pool that is open read-only.
    async fn unload_of_read_only(&self, rq: &Request, root: &Root) -> Result<(), PoolError> {
        let engine = self.engine;
        let mut objects = BTreeSet::new();
        for dir in root.members(rq).await? {
            objects.extend(dir.crypto_key());
            let head = root.dsl.head(rq, dir).await?;
            if engine.reading.is_read(head.id, engine.txgs().open()) {
                return Err(KeyError::Busy { name: dir.name.clone() }.into());
            }
        }
        engine.keys.remove(root.dir, &objects);
        engine.cache.clear();
        engine.changed.note_all();
        Ok(())
    }

    /// Changes the wrapping key of a dataset, or makes it inherit the parent's. Its present key must be loaded.
    ///
    /// # Errors
    /// [`KeyError`] with the reason of refusal; errors of reading or writing the MOS.
    pub async fn change(&self, name: String, change: KeyChange) -> Result<(), PoolError> {
        self.engine.sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(change_key(syncing, name, change))).await
    }
}

impl Root {
    /// The directories whose keys this root's wrapping key wraps.
    async fn members(&self, rq: &Request) -> Result<Vec<&Dir>, PoolError> {
        let mut out = Vec::new();
        for dir in self.dsl.dirs() {
            if weir_dsl::keys::key_spec(&self.dsl, rq, dir).await?.is_some_and(|spec| spec.root == self.dir) {
                out.push(dir);
            }
        }
        Ok(out)
    }

    async fn opened_by(&self, rq: &Request, wrapping: &WrappingKey) -> Result<Vec<(ObjectId, SetKey)>, PoolError> {
        let mut out = BTreeMap::new();
        for dir in self.members(rq).await? {
            let Some(object) = dir.crypto_key().filter(|object| !out.contains_key(object)) else { continue };
            if let Some(key) = weir_dsl::keys::load_key(&self.dsl, rq, dir, wrapping).await? {
                out.insert(object, key);
            }
        }
        Ok(out.into_iter().collect())
    }
}

/// Removes the closed datasets of an encryption root from the open sets and drops its keys, in syncing context.
async fn unload(syncing: &mut TxgSync<'_>, name: String) -> Result<(), PoolError> {
    let rq = syncing.change.rq;
    let engine = syncing.engine;
    syncing.sync_sets().await?;
    let root = EncryptionKeys::encryption_root(rq, engine.live_dsl(rq, Scope::All).await?, &name).await?;
    let mut heads = Vec::new();
    let mut objects: BTreeSet<ObjectId> = BTreeSet::new();
    for dir in root.members(rq).await? {
        objects.extend(dir.crypto_key());
        let head = root.dsl.head(rq, dir).await?;
        if let Some(open) = engine.sets.get(head.objset()) {
            if !open.set.is_closed() {
                return Err(KeyError::Busy { name: dir.name.clone() }.into());
            }
            heads.push((head, open.zil.is_some_and(|log| !zil::needs_replay(&log.header()))));
        }
    }
    for (head, has_log) in &heads {
        // A log that was not replayed stays until the key is loaded again.
        if *has_log {
            close(syncing, &head.name).await?;
            clear_log(syncing, head.id, &head.name).await?;
        }
    }
    syncing.sync_sets().await?;
    heads.iter().for_each(|(head, _)| drop(engine.sets.remove(head.objset())));
    engine.keys.remove(root.dir, &objects);
    engine.cache.clear();
    Ok(())
}

async fn change_key(syncing: &mut TxgSync<'_>, name: String, change: KeyChange) -> Result<(), PoolError> {
    let rq = syncing.change.rq;
    let engine = syncing.engine;
    let dsl = engine.live_dsl(rq, Scope::All).await?;
    let dir = dsl.dir_named(&name).ok_or_else(|| DslError::missing(&name))?;
    let plain = || KeyError::NotEncrypted { name: name.clone() };
    let spec = weir_dsl::keys::key_spec(&dsl, rq, dir).await?.ok_or_else(plain)?;
    let parent = dsl.dir(dir.phys.parent);
    if parent.is_some_and(|_| dir.phys.origin.0 != 0) && key::is_clone(&mut syncing.change, dir.id).await? {
        return Err(KeyError::Clone.into());
    }
    let (new_root, wrapping) = match change {
        KeyChange::New(new) => {
            let old = engine.keys.wrapping(spec.root).ok_or(KeyError::NotLoaded)?;
            key::change_key(&mut syncing.change, &name, &old, &new.wrapping, &new.source).await?;
            (dir.id, new.wrapping)
        }
        KeyChange::Inherit => {
            if spec.root != dir.id {
                return Err(KeyError::InheritsAlready.into());
            }
            let above = weir_dsl::keys::key_spec(&dsl, rq, parent.ok_or(KeyError::NoParent)?)
                .await?
                .ok_or(KeyError::PlainParent)?
                .root;
            let above_key = engine.keys.wrapping(above).ok_or(KeyError::ParentNotLoaded)?;
            let old = engine.keys.wrapping(spec.root).ok_or(KeyError::NotLoaded)?;
            key::inherit_key(&mut syncing.change, &name, &old, &above_key).await?;
            (above, above_key)
        }
    };
    engine.keys.insert(new_root, wrapping, []);
    engine.keys.drop_orphaned_roots(rq, &*engine.live_dsl(rq, Scope::All).await?).await
}

/// Checks the requested encryption of a new dataset, in syncing context; `None` if it is not encrypted.
pub(crate) async fn plan(
    syncing: &mut TxgSync<'_>,
    name: &str,
    requested: &Encryption,
) -> Result<Option<KeyPlan>, PoolError> {
    let rq = syncing.change.rq;
    let engine = syncing.engine;
    let above = match name.rsplit_once('/') {
        None => None,
        Some((above, _)) => {
            let dsl = engine.live_dsl(rq, Scope::Path(above)).await?;
            let dir = dsl.dir_named(above).ok_or_else(|| DslError::NoParent { name: name.to_owned() })?;
            weir_dsl::keys::key_spec(&dsl, rq, dir).await?
        }
    };
    let suite = match (requested.crypt, &above) {
        (Crypt::With(suite), _) => suite,
        (Crypt::Inherit, Some(spec)) => {
            let of = spec.wrapped.suite();
            of.map_err(|error| ObjectError::Key { dataset: name.to_owned(), error })?
        }
        (Crypt::Off, _) | (Crypt::Inherit, None) => {
            return if requested.root.is_some() { Err(KeyError::Off.into()) } else { Ok(None) };
        }
    };
    for feature in [Feature::ENCRYPTION, Feature::BOOKMARK_V2] {
        if !features::is_enabled(&mut syncing.change, feature).await? {
            return Err(KeyError::NoFeature.into());
        }
    }
    let (key, wrapping) = match (&requested.root, above) {
        (Some(new), _) => (NewKey::Root(new.source.clone()), new.wrapping.clone()),
        (None, None) => return Err(KeyError::NoFormat.into()),
        (None, Some(spec)) => (NewKey::Inherited, engine.keys.wrapping(spec.root).ok_or(KeyError::RootNotLoaded)?),
    };
    Ok(Some(KeyPlan { suite, key, wrapping }))
}

/// Encrypts a dataset that was just created, as planned. Returns the key that opens its object set.
pub(crate) async fn encrypt(syncing: &mut TxgSync<'_>, made: Created, plan: &KeyPlan) -> Result<SetKey, PoolError> {
    let (object, root, key) =
        key::encrypt_new(&mut syncing.change, made, plan.suite, &plan.key, &plan.wrapping).await?;
    syncing.engine.keys.insert(root, plan.wrapping.clone(), [(object, key.clone())]);
    Ok(key)
}
