//! Keys of encrypted datasets (OpenZFS `module/zfs/dsl_crypt.c`): the object of the wrapped key, which datasets share
//! it, and how a user's key unwraps it.
//!
//! ```text
//!   Dir ─ crypto_key_obj ─► key object (a ZAP): suite, wrapped keys, IV, MAC · keyformat, salt, iterations
//!                                              └ root ──► Dir of the *encryption root*, whose user key wraps it
//! ```
//!
//! A clone shares its origin's key object; a child has its own, wrapped by the user key of its encryption root.

use super::{Dir, Dsl, MAX_ENTRIES};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_codec::CodecError;
use weir_codec::crypt::{DatasetKey, WrappedKey, WrappingKey};
use weir_dmu::error::ObjectError;
use weir_dmu::zap::{Value, Zap};
use weir_format::dsl::crypto_key;
use weir_format::{DecodeError, ObjectId};
use weir_machine::Request;

/// How the user gives the key (`keyformat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// A passphrase.
    Passphrase,
}

impl KeyFormat {
    /// Decodes the number on disk.
    pub fn from_u64(n: u64) -> Option<Self> {
        match n {
            1 => Some(KeyFormat::Raw),
            2 => Some(KeyFormat::Hex),
            3 => Some(KeyFormat::Passphrase),
            _ => None,
        }
    }

    /// The wrapping key of a user's `secret`: a passphrase or hexadecimal digits (a line end after them is ignored), or
    /// 32 raw bytes. Salt and iterations apply to a passphrase.
    ///
    /// # Errors
    /// [`CodecError::KeyMaterial`] if the secret does not have this format.
    pub fn wrapping_key(self, secret: &[u8], salt: u64, iterations: u64) -> Result<WrappingKey, CodecError> {
        let line = secret.strip_suffix(b"\n").unwrap_or(secret);
        match self {
            KeyFormat::Raw => WrappingKey::from_raw(secret),
            KeyFormat::Hex => WrappingKey::from_hex(line),
            KeyFormat::Passphrase => WrappingKey::from_passphrase(line, salt, iterations),
        }
    }
}

/// Contents of a key object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The keys, wrapped.
    pub wrapped: WrappedKey,
    /// How the user gives the key.
    pub format: Option<KeyFormat>,
    /// `keyformat` as its number.
    pub format_number: u64,
    /// `pbkdf2salt`.
    pub salt: u64,
    /// `pbkdf2iters`.
    pub iterations: u64,
    /// The directory of the encryption root.
    pub root: ObjectId,
}

/// The unwrapped key of a dataset.
pub type SetKey = Arc<DatasetKey>;

impl KeySpec {
    /// Decodes the entries of the key object of the directory `dir`.
    pub(crate) fn of_fields(fields: &BTreeMap<String, Value>, dir: ObjectId) -> Result<Self, DecodeError> {
        let word = |name: &str| fields.get(name).and_then(Value::first);
        let wrong = |field| DecodeError::Field { what: "key object", field, value: 0 };
        let format_number = word(crypto_key::KEYFORMAT).unwrap_or(0);
        let wrapped = WrappedKey {
            suite: word(crypto_key::SUITE).ok_or_else(|| wrong("suite"))?,
            version: word(crypto_key::VERSION).unwrap_or(0),
            guid: word(crypto_key::GUID).ok_or_else(|| wrong("guid"))?,
            master_key: array(fields, crypto_key::MASTER_KEY).ok_or_else(|| wrong("master key"))?,
            hmac_key: array(fields, crypto_key::HMAC_KEY).ok_or_else(|| wrong("HMAC key"))?,
            iv: array(fields, crypto_key::IV).ok_or_else(|| wrong("IV"))?,
            mac: array(fields, crypto_key::MAC).ok_or_else(|| wrong("MAC"))?,
        };
        Ok(KeySpec {
            wrapped,
            format: KeyFormat::from_u64(format_number),
            format_number,
            salt: word(crypto_key::PBKDF2_SALT).unwrap_or(0),
            iterations: word(crypto_key::PBKDF2_ITERS).unwrap_or(0),
            root: ObjectId(word(crypto_key::ROOT_DDOBJ).unwrap_or(dir.0)),
        })
    }

    /// The wrapping key of a user's `secret`: see [`KeyFormat::wrapping_key`].
    pub fn wrapping_key(&self, dataset: &str, secret: &[u8]) -> Result<WrappingKey, ObjectError> {
        let format = self.format.ok_or(ObjectError::Unsupported { what: "a key of unknown format" })?;
        let key = format.wrapping_key(secret, self.salt, self.iterations);
        key.map_err(|error| ObjectError::Key { dataset: dataset.to_owned(), error })
    }
}

/// The key object of a directory, decoded; `None` if the directory is not encrypted.
pub async fn key_spec(dsl: &Dsl, rq: &Request, dir: &Dir) -> Result<Option<KeySpec>, ObjectError> {
    let Some(id) = dir.crypto_key() else { return Ok(None) };
    let entries = Zap::open(rq, &dsl.mos, id).await?.all(rq, MAX_ENTRIES).await?;
    let fields: BTreeMap<String, Value> = entries.into_iter().map(|e| (e.key.text(), e.value)).collect();
    let spec = KeySpec::of_fields(&fields, dir.id);
    spec.map(Some).map_err(|error| ObjectError::decode(dsl.mos.place(id, 0, 0), error))
}

/// The name of a directory's encryption root; `None` if it is not encrypted.
pub async fn encryption_root(dsl: &Dsl, rq: &Request, dir: &Dir) -> Result<Option<String>, ObjectError> {
    let Some(spec) = key_spec(dsl, rq, dir).await? else { return Ok(None) };
    Ok(Some(dsl.dir(spec.root).map_or_else(|| dir.name.clone(), |root| root.name.clone())))
}

/// Unwraps the key of one dataset with the wrapping key of its encryption root.
///
/// # Errors
/// [`ObjectError::Key`] if the key is the wrong one.
pub async fn load_key(
    dsl: &Dsl,
    rq: &Request,
    dir: &Dir,
    wrapping: &WrappingKey,
) -> Result<Option<SetKey>, ObjectError> {
    let Some(spec) = key_spec(dsl, rq, dir).await? else { return Ok(None) };
    let key = DatasetKey::unwrap(wrapping, &spec.wrapped);
    let key = key.map_err(|error| ObjectError::Key { dataset: dir.name.clone(), error })?;
    Ok(Some(Arc::new(key)))
}

/// Unwraps the keys of all datasets whose encryption root is `root` with the user's `secret` (`zfs load-key`).
/// Returns the directory's object number and the key of each.
///
/// # Errors
/// [`ObjectError::Key`] if the secret is not that of `root`; [`ObjectError::NoName`] if `root` is no encryption root.
pub async fn load_keys(
    dsl: &Dsl,
    rq: &Request,
    root: &Dir,
    secret: &[u8],
) -> Result<Vec<(ObjectId, SetKey)>, ObjectError> {
    let wrapping = wrapping_key(dsl, rq, root, secret).await?;
    load_keys_with(dsl, rq, root, &wrapping).await
}

/// The wrapping key of an encryption root, from the user's `secret`.
///
/// # Errors
/// [`ObjectError::Key`] if the secret is malformed; [`ObjectError::NoName`] if `root` is no encryption root.
pub async fn wrapping_key(dsl: &Dsl, rq: &Request, root: &Dir, secret: &[u8]) -> Result<WrappingKey, ObjectError> {
    let none = || ObjectError::NoName { what: "encryption root", name: root.name.clone() };
    let spec = key_spec(dsl, rq, root).await?.filter(|spec| spec.root == root.id).ok_or_else(none)?;
    spec.wrapping_key(&root.name, secret)
}

/// Unwraps the keys of all datasets whose encryption root is `root` with its wrapping key. Returns directory and
/// key of each.
///
/// # Errors
/// [`ObjectError::Key`] if the key is the wrong one.
pub async fn load_keys_with(
    dsl: &Dsl,
    rq: &Request,
    root: &Dir,
    wrapping: &WrappingKey,
) -> Result<Vec<(ObjectId, SetKey)>, ObjectError> {
    let mut out = Vec::new();
    for dir in dsl.dirs().into_iter().filter(|dir| dir.crypto_key().is_some()) {
        let Some(spec) = key_spec(dsl, rq, dir).await? else { continue };
        if spec.root != root.id {
            continue;
        }
        out.extend(load_key(dsl, rq, dir, wrapping).await?.map(|key| (dir.id, key)));
    }
    Ok(out)
}

/// The bytes of an entry, padded with zeros: shorter keys are stored with their own length.
fn array<const N: usize>(fields: &BTreeMap<String, Value>, name: &str) -> Option<[u8; N]> {
    let bytes = fields.get(name)?.bytes()?;
    let mut out = [0; N];
    out.get_mut(..bytes.len())?.copy_from_slice(&bytes);
    Some(out)
}
