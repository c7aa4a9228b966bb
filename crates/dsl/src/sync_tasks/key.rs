//! Creation and change of the keys of encrypted datasets (OpenZFS `module/zfs/dsl_crypt.c`).
//!
//! ```text
//!   a new root       its own wrapping key ── wraps ──► its master key
//!   a new child      the wrapping key of its root ── wraps ──► a master key of its own; its key object names the root
//!   another key      all master keys that a root wraps are wrapped anew; blocks stay as they are
//! ```
//!
//! The caller holds the wrapping keys in memory and passes them; this module keeps none.

use super::names::FoundDir;
use super::{Created, DslError, DslSyncContext, ZAP_METADATA, create, features, history, names, number, text};
use crate::props::ZfsProp;
use crate::{KeyFormat, KeySpec, SetKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_codec::crypt::{DatasetKey, Suite, WrappedKey, WrappingKey};
use weir_dmu::error::ObjectError;
use weir_dmu::zap::Value;
use weir_format::ObjectId;
use weir_format::dsl::{crypto_key, dir_field};
use weir_format::features::Feature;

/// Origin of a wrapping key, stored beside the keys that it wraps.
#[derive(Clone, Debug)]
pub struct KeySource {
    /// How the user gives it.
    pub format: KeyFormat,
    /// Salt of a passphrase; 0 otherwise.
    pub salt: u64,
    /// Iterations over a passphrase; 0 otherwise.
    pub iterations: u64,
    /// `keylocation`: `prompt`, or the location that it is read from.
    pub location: String,
}

impl KeyFormat {
    /// The number on disk.
    pub fn to_u64(self) -> u64 {
        match self {
            KeyFormat::Raw => 1,
            KeyFormat::Hex => 2,
            KeyFormat::Passphrase => 3,
        }
    }
}

/// Selects the wrapping key of a new dataset's key.
#[derive(Clone, Debug)]
pub enum NewKey {
    /// A wrapping key of its own: the dataset becomes an encryption root.
    Root(KeySource),
    /// The wrapping key of the parent's encryption root.
    Inherited,
}

fn key_error(name: &str, why: &'static str) -> DslError {
    DslError::Key { name: name.to_owned(), why }
}

/// Checks that a dataset of that name may have this key.
///
/// # Errors
/// [`DslError::Feature`]; [`DslError::Key`] if the parent has no key to inherit.
pub async fn check_new_key(cx: &mut DslSyncContext<'_>, name: &str, key: &NewKey) -> Result<(), DslError> {
    if !features::is_enabled(cx, Feature::ENCRYPTION).await? {
        return Err(DslError::Feature { name: name.to_owned(), feature: Feature::ENCRYPTION.name });
    }
    if matches!(key, NewKey::Inherited) {
        let above = name.rsplit_once('/').map_or(name, |(above, _)| above);
        let parent = names::find_dir(cx, above).await?;
        if key_of(cx, parent.id).await?.is_none() {
            return Err(key_error(name, "the parent dataset is not encrypted"));
        }
    }
    Ok(())
}

/// Whether a directory's dataset is a clone.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn is_clone(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<bool, DslError> {
    let origin = cx.dir(dir).await?.origin;
    Ok(origin.0 != 0 && Some(origin) != create::empty_origin(cx).await?)
}

/// The key object of a directory, decoded; `None` if the directory is not encrypted.
pub(super) async fn key_of(cx: &DslSyncContext<'_>, dir: ObjectId) -> Result<Option<(ObjectId, KeySpec)>, DslError> {
    let Some(id) = create::dir_word(cx, dir, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId) else { return Ok(None) };
    let fields: BTreeMap<String, Value> = cx.entries(id).await?.into_iter().collect();
    let spec = KeySpec::of_fields(&fields, dir);
    Ok(Some((id, spec.map_err(|e| ObjectError::decode(cx.mos.place(id, 0, 0), e))?)))
}

/// Encrypts a new dataset that has no objects yet. Returns its key object, the directory of its encryption root,
/// and its unwrapped key.
///
/// # Errors
/// Those of [`check_new_key`]; [`DslError::Object`] if the wrapping key is not that of the parent's
/// root.
pub async fn encrypt_new(
    cx: &mut DslSyncContext<'_>,
    created: Created,
    suite: Suite,
    key: &NewKey,
    wrapping: &WrappingKey,
) -> Result<(ObjectId, ObjectId, SetKey), DslError> {
    let name = names::dir_name(cx, created.dir).await?;
    check_new_key(cx, &name, key).await?;
    let (root, source) = match key {
        NewKey::Root(source) => (created.dir, source.clone()),
        NewKey::Inherited => inherited(cx, created.dir, &name, wrapping).await?,
    };
    let wrapped = new_wrapped(cx, &name, suite, wrapping)?;
    let opened = DatasetKey::unwrap(wrapping, &wrapped);
    let opened = opened.map_err(|error| ObjectError::Key { dataset: name, error })?;
    let id = cx.zap(ZAP_METADATA).await?;
    put_key(cx, id, &wrapped, root, &source).await?;
    cx.put(id, crypto_key::REFCOUNT, number(1)).await?;
    cx.put(id, crypto_key::VERSION, number(wrapped.version)).await?;
    features::zapify(cx, created.dir).await?;
    cx.insert_word(created.dir, dir_field::CRYPTO_KEY_OBJ, id.0).await?;
    features::activate(cx, created.dataset, Feature::ENCRYPTION).await?;
    if root == created.dir {
        put_location(cx, root, &source.location).await?;
    }
    Ok((id, root, Arc::new(opened)))
}

/// The parent's encryption root, and the origin of its wrapping key; checks the wrapping key against that root.
async fn inherited(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    name: &str,
    wrapping: &WrappingKey,
) -> Result<(ObjectId, KeySource), DslError> {
    let parent = cx.dir(dir).await?.parent;
    let none = || key_error(name, "the parent dataset is not encrypted");
    let (_, spec) = key_of(cx, parent).await?.ok_or_else(none)?;
    let proof = DatasetKey::unwrap(wrapping, &spec.wrapped);
    proof.map_err(|error| ObjectError::Key { dataset: name.to_owned(), error })?;
    let format = spec.format.ok_or(ObjectError::Unsupported { what: "a key of unknown format" })?;
    let source = KeySource { format, salt: spec.salt, iterations: spec.iterations, location: String::new() };
    Ok((spec.root, source))
}

/// Generates a dataset's keys and wraps them.
fn new_wrapped(
    cx: &DslSyncContext<'_>,
    name: &str,
    suite: Suite,
    wrapping: &WrappingKey,
) -> Result<WrappedKey, DslError> {
    let mut master = [0; 32];
    let mut hmac = [0; 64];
    let mut iv = [0; 12];
    let chance = &cx.pool.entropy;
    chance.fill(&mut master[..suite.key_bytes()]);
    chance.fill(&mut hmac);
    chance.fill(&mut iv);
    let wrapped = WrappedKey::seal(wrapping, suite, cx.guid(), iv, &master, &hmac);
    master.fill(0);
    hmac.fill(0);
    std::hint::black_box((&master, &hmac));
    Ok(wrapped.map_err(|error| ObjectError::Key { dataset: name.to_owned(), error })?)
}

pub(super) async fn put_key(
    cx: &DslSyncContext<'_>,
    id: ObjectId,
    key: &WrappedKey,
    root: ObjectId,
    source: &KeySource,
) -> Result<(), DslError> {
    let words = [
        (crypto_key::SUITE, key.suite),
        (crypto_key::GUID, key.guid),
        (crypto_key::ROOT_DDOBJ, root.0),
        (crypto_key::KEYFORMAT, source.format.to_u64()),
        (crypto_key::PBKDF2_SALT, source.salt),
        (crypto_key::PBKDF2_ITERS, source.iterations),
    ];
    for (name, word) in words {
        cx.put_word(id, name, word).await?;
    }
    let arrays: [(&str, &[u8]); 4] = [
        (crypto_key::IV, &key.iv),
        (crypto_key::MAC, &key.mac),
        (crypto_key::MASTER_KEY, &key.master_key),
        (crypto_key::HMAC_KEY, &key.hmac_key),
    ];
    for (name, bytes) in arrays {
        let words = bytes.iter().map(|b| u64::from(*b)).collect();
        cx.put(id, name, Value { int_size: 1, words }).await?;
    }
    Ok(())
}

pub(super) async fn put_location(cx: &mut DslSyncContext<'_>, dir: ObjectId, location: &str) -> Result<(), DslError> {
    let props = cx.dir(dir).await?.props;
    cx.put(props, ZfsProp::KeyLocation.name(), text(location)).await
}

/// Gives an encryption root another wrapping key, or makes a dataset a root (`zfs change-key`): every key wrapped
/// with the old one is wrapped anew. `old` is the present wrapping key of its root.
///
/// # Errors
/// [`DslError::Key`] if it is not encrypted; [`DslError::Object`] if `old` is wrong.
pub async fn change_key(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    old: &WrappingKey,
    new: &WrappingKey,
    source: &KeySource,
) -> Result<(), DslError> {
    let dir = names::find_dir(cx, name).await?;
    rewrap(cx, &dir, old, new, dir.id, source).await?;
    put_location(cx, dir.id, &source.location).await?;
    history::log(cx, name, dir.dir.head_dataset, "change key", "").await
}

/// Makes an encryption root inherit the parent's key (`zfs change-key -i`).
///
/// # Errors
/// [`DslError::Key`] if one of them is not encrypted; [`DslError::Object`] if a key is wrong.
pub async fn inherit_key(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    old: &WrappingKey,
    above: &WrappingKey,
) -> Result<(), DslError> {
    let dir = names::find_dir(cx, name).await?;
    let (root, source) = inherited(cx, dir.id, name, above).await?;
    rewrap(cx, &dir, old, above, root, &source).await?;
    cx.zap_remove(dir.dir.props, ZfsProp::KeyLocation.name()).await?;
    history::log(cx, name, dir.dir.head_dataset, "change key", "inherited").await
}

/// The directory of the encryption root of a directory; `None` if it is not encrypted.
pub(super) async fn key_root(cx: &DslSyncContext<'_>, dir: ObjectId) -> Result<Option<ObjectId>, DslError> {
    Ok(key_of(cx, dir).await?.map(|(_, spec)| spec.root))
}

/// The directories that may use a root's key if `dir` does: its descendants, and clones anywhere, which share their
/// origin's key object, with their descendants.
pub(super) async fn key_users(cx: &DslSyncContext<'_>, dir: ObjectId) -> Result<BTreeSet<ObjectId>, DslError> {
    let mut to_visit = vec![dir];
    let mut seen = BTreeSet::new();
    while let Some(id) = to_visit.pop() {
        if !seen.insert(id) {
            continue;
        }
        let phys = cx.dir(id).await?;
        for (_, value) in cx.entries(phys.clones).await? {
            to_visit.push(cx.dataset(ObjectId(value.first().unwrap_or(0))).await?.dir);
        }
        to_visit.extend(names::children_of(cx, &phys).await?.into_iter().map(|(_, child)| child));
    }
    Ok(seen)
}

/// Wraps anew the keys that the root of `dir` wraps, at `dir` and below it; unwraps all of them before it writes
/// any.
async fn rewrap(
    cx: &mut DslSyncContext<'_>,
    dir: &FoundDir,
    old: &WrappingKey,
    new: &WrappingKey,
    root: ObjectId,
    source: &KeySource,
) -> Result<(), DslError> {
    let none = || key_error(&dir.name, "it is not encrypted");
    let of = key_of(cx, dir.id).await?.ok_or_else(none)?.1.root;
    let mut wrapped = BTreeMap::new();
    for id in key_users(cx, dir.id).await? {
        let Some((key, spec)) = key_of(cx, id).await? else { continue };
        if spec.root != of || wrapped.contains_key(&key) {
            continue;
        }
        let mut iv = [0; 12];
        cx.pool.entropy.fill(&mut iv);
        let again = spec.wrapped.rewrap(old, new, iv);
        wrapped.insert(key, again.map_err(|error| ObjectError::Key { dataset: dir.name.clone(), error })?);
    }
    for (key, again) in wrapped {
        put_key(cx, key, &again, root, source).await?;
    }
    Ok(())
}
