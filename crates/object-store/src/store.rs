//! The narrow interface to a store: whole objects written under a condition, ranges read, whole objects deleted.
//!
//! Every change has a condition on the entity tag (ETag) of the object, so that a request that arrives late, or twice,
//! changes nothing. An implementation makes each request once: whether and how a request is repeated is decided by
//! [`crate::core`], which looks at the ETag before.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Tag of a version, which conditions name: the entity tag (ETag), with Google the generation. It changes whenever the bytes of an
/// object change. Two versions with equal bytes may have the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Etag(Arc<str>);

impl Etag {
    /// The tag as a store wrote it.
    pub fn new(text: impl AsRef<str>) -> Self {
        Etag(text.as_ref().into())
    }

    /// The text of the store.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State of an object that a change requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is no object (`If-None-Match: *`).
    Missing,
    /// The object has this tag (`If-Match`).
    Is(Etag),
    /// Any: used by no disk, but by the bug that tests plant ([`crate::core::Bug`]).
    Any,
}

/// Result of reading an object.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The bytes of the range, fewer if the object ends before.
    pub bytes: Bytes,
    /// Tag of the version that was read.
    pub etag: Etag,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The store answered that the condition is not met: the request changed nothing.
    #[error("the object has changed since it was last looked at")]
    Precondition,
    /// The object ends before the range of a read: [`crate::requests::Requests::get`] asks for its tag.
    #[error("the object ends before the range")]
    PastEnd,
    /// The store refused the request, which changed nothing and would not succeed if it was repeated.
    #[error("{0}")]
    Refused(String),
    /// The store may have executed the request, may still execute it, or has not: time-out, lost connection, status 5xx or 429.
    #[error("{0}")]
    Unknown(String),
}

impl StoreError {
    /// Whether the request may succeed if it is repeated.
    pub fn is_temporary(&self) -> bool {
        matches!(self, StoreError::Unknown(_))
    }
}

/// Answer of a request.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A place with objects: a prefix in a bucket, or a folder. Keys are names below it.
pub trait Store: Send + Sync {
    /// Where an object is, for messages: `s3://bucket/prefix/key`. Contains no credentials.
    fn place(&self, key: &str) -> String;
    /// Writes a whole object.
    ///
    /// # Errors
    /// [`StoreError`].
    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag>;
    /// Reads an object or a range of it; `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError`], never [`StoreError::Precondition`]; [`StoreError::PastEnd`] if the store refuses such a range.
    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>>;
    /// The tag of an object; `None` if there is none.
    ///
    /// # Errors
    /// As of [`Store::get`].
    fn head(&self, key: String) -> Answer<'_, Option<Etag>>;
    /// Deletes an object that has this tag. A store that ignores the condition is found at creation ([`crate::probe`]).
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Precondition`] also if there is no object.
    fn delete(&self, key: String, etag: Etag) -> Answer<'_, ()>;
    /// A tag that no version of an object has, in this store's form.
    fn never(&self) -> Etag {
        Etag::new("\"00000000000000000000000000000000\"")
    }
    /// How long the store may still execute a request that was not answered; `None` if the settings of the disk say it
    /// ([`crate::core::Settings::request_life`]).
    fn request_life(&self) -> Option<Duration> {
        None
    }
    /// Whether a DELETE may still be executed after the lease of its sender has expired. Then it is harmless only if no tag
    /// comes back, which is tested at creation.
    fn deletes_late(&self) -> bool {
        false
    }
}
