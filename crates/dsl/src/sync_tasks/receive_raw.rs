//! Keys of datasets that raw streams make (OpenZFS `module/zfs/dsl_crypt.c`, `dsl_crypto_recv_raw_key_check`,
//! `dsl_crypto_recv_raw_key_sync`, `dsl_crypto_recv_raw_objset_check`).
//!
//! ```text
//!   new dataset   begin: its key object, with the wrapped key of the stream; it is an encryption root, to be unlocked by the user
//!   existing one  begin: its key must be the stream's; end: wrapped as the stream says, because the sender may have changed that
//!   snapshot      end: the identity of its IVs is the sender's; the next stream must begin with the same
//! ```

use super::key::{KeySource, is_clone, key_of, key_root, put_key, put_location};
use super::names::Found;
use super::receive::Receive;
use super::{Created, DslError, DslSyncContext, ZAP_METADATA, features, history, names, number};
use crate::RawKey;
use crate::props::ZfsProp;
use weir_format::ObjectId;
use weir_format::dsl::{crypto_key, dataset_field, dir_field};
use weir_format::features::Feature;
use weir_machine::invariant;

/// Checks a raw stream that makes a dataset: the pool can have encrypted ones, and the origin of a clone has the stream's key.
pub(super) async fn check_new(
    cx: &mut DslSyncContext<'_>,
    receive: &Receive,
    raw: &RawKey,
    origin: Option<&Found>,
) -> Result<(), DslError> {
    let (name, _) = receive.names();
    if !features::is_enabled(cx, Feature::ENCRYPTION).await? || !features::is_enabled(cx, Feature::BOOKMARK_V2).await? {
        return Err(DslError::stream(name, "pool must be upgraded to receive this stream.".into()));
    }
    let Some(origin) = origin else { return Ok(()) };
    check_key(cx, name, origin.at.id, raw).await?;
    match receive.from_guid {
        0 => Ok(()),
        _ => check_ivset(cx, name, origin.id, raw).await,
    }
}

/// Checks a raw stream into an existing dataset.
pub(super) async fn check_existing(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    dir: ObjectId,
    raw: &RawKey,
) -> Result<(), DslError> {
    check_key(cx, name, dir, raw).await
}

/// Checks that the dataset has the key of the stream.
async fn check_key(cx: &DslSyncContext<'_>, name: &str, dir: ObjectId, raw: &RawKey) -> Result<(), DslError> {
    let Some((_, spec)) = key_of(cx, dir).await? else {
        let why = "cannot perform raw receive on top of existing unencrypted dataset";
        return Err(DslError::stream(name, why.into()));
    };
    if spec.wrapped.guid != raw.wrapped.guid || spec.wrapped.suite != raw.wrapped.suite {
        return Err(DslError::stream(name, "encryption key does not match existing key".into()));
    }
    Ok(())
}

/// Checks that the IVs of the snapshot that an incremental stream begins with are those of the sender's.
pub(super) async fn check_ivset(
    cx: &DslSyncContext<'_>,
    name: &str,
    snapshot: ObjectId,
    raw: &RawKey,
) -> Result<(), DslError> {
    let here = names::dataset_word(cx, snapshot, dataset_field::IVSET_GUID).await?.unwrap_or(0);
    let why = match (here, raw.from_ivset_guid) {
        (0, _) | (_, 0) => {
            "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER."
        }
        (here, sent) if here != sent => {
            "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw encrypted send streams."
        }
        _ => return Ok(()),
    };
    Err(DslError::stream(name, why.into()))
}

fn source(raw: &RawKey) -> KeySource {
    KeySource { format: raw.format, salt: raw.salt, iterations: raw.iterations, location: "prompt".into() }
}

/// Makes the key object of a new dataset: it is an encryption root whose key is asked for.
pub(super) async fn encrypt(cx: &mut DslSyncContext<'_>, created: Created, raw: &RawKey) -> Result<(), DslError> {
    let id = cx.zap(ZAP_METADATA).await?;
    put_key(cx, id, &raw.wrapped, created.dir, &source(raw)).await?;
    cx.put(id, crypto_key::REFCOUNT, number(1)).await?;
    cx.put(id, crypto_key::VERSION, number(raw.wrapped.version)).await?;
    features::zapify(cx, created.dir).await?;
    cx.insert_word(created.dir, dir_field::CRYPTO_KEY_OBJ, id.0).await?;
    features::activate(cx, created.dataset, Feature::ENCRYPTION).await?;
    put_location(cx, created.dir, "prompt").await?;
    invariant!(key_root(cx, created.dir).await? == Some(created.dir), "a raw stream makes an encryption root");
    Ok(())
}

/// Gives the received snapshot the sender's identity of IVs; with `dir`, that of a dataset that existed, also the key as the stream
/// wraps it.
pub(super) async fn end(
    cx: &mut DslSyncContext<'_>,
    snapshot: ObjectId,
    dir: Option<ObjectId>,
    raw: &RawKey,
) -> Result<(), DslError> {
    if raw.to_ivset_guid != 0 {
        cx.put_word(snapshot, dataset_field::IVSET_GUID, raw.to_ivset_guid).await?;
    }
    let Some(dir) = dir else { return Ok(()) };
    if let Some((id, spec)) = key_of(cx, dir).await? {
        invariant!(spec.wrapped.guid == raw.wrapped.guid, "the key was compared before");
        put_key(cx, id, &raw.wrapped, spec.root, &source(raw)).await?;
    }
    Ok(())
}

/// Makes a dataset that a raw stream made an encryption root, or share that of its parent, as it is at the sender
/// (`spa_keystore_change_key` with `DCP_CMD_FORCE_NEW_KEY` and `DCP_CMD_FORCE_INHERIT`). No key is needed, because the key is
/// wrapped alike there.
///
/// # Errors
/// [`DslError::Missing`]; errors of changing the MOS. A dataset without a key, or with that of its origin, stays as it is, and so
/// does one whose parent has no key to share.
pub async fn set_root(cx: &mut DslSyncContext<'_>, name: &str, is_root: bool) -> Result<(), DslError> {
    let dir = names::find_dir(cx, name).await?;
    let Some((id, spec)) = key_of(cx, dir.id).await?.filter(|(_, spec)| (spec.root == dir.id) != is_root) else {
        return Ok(());
    };
    let above = if dir.dir.parent.0 == 0 { None } else { key_root(cx, dir.dir.parent).await? };
    let Some(root) = (if is_root { Some(dir.id) } else { above }) else { return Ok(()) };
    if is_clone(cx, dir.id).await? {
        return Ok(());
    }
    debug_assert!(root != spec.root, "the root changes");
    cx.put_word(id, crypto_key::ROOT_DDOBJ, root.0).await?;
    match is_root {
        true => put_location(cx, dir.id, "prompt").await?,
        false => drop(cx.zap_remove(dir.dir.props, ZfsProp::KeyLocation.name()).await?),
    }
    history::log(cx, name, dir.dir.head_dataset, "change key", if is_root { "" } else { "inherited" }).await
}
