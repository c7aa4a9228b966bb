//! Stores that are reached over HTTP, through the crate `object_store`, whose own repetitions are off.
//!
//! | Store | A version is named by | PUT over nothing, over a version | DELETE of a version |
//! |---|---|---|---|
//! | S3 ([`crate::s3`]) | its ETag | `If-None-Match: *`, `If-Match` | `If-Match`, as a signed URL that is valid for seconds |
//! | Azure ([`crate::azure`]) | its ETag | `If-None-Match: *`, `If-Match` | `If-Match` |
//! | Google ([`crate::google`]) | its generation | `x-goog-if-generation-match: 0`, or the generation | the same |
//!
//! The crate has no DELETE with a condition: that request is made here. With S3, tags depend on the bytes alone, so a DELETE that
//! arrives after a take-over could meet bytes that the next process wrote: its signature expires before. ETags of Azure and
//! generations of Google do not come back, so a late DELETE meets the version that its sender had freed, or nothing
//! ([`crate::probe`] tests it).

use crate::azure::Azure;
use crate::folder::FolderStore;
use crate::google::Google;
use crate::http::{Http, Outcome, Slot};
use crate::s3::S3;
use crate::store::{Answer, Condition, Etag, Fetched, Store, StoreError};
use crate::url::{Scheme, StoreUrl};
use bytes::Bytes;
use http::StatusCode;
use object_store::client::HttpRequest;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::Compute;

/// Most bytes that are accepted of an object.
const MAX_BYTES: usize = 64 << 20;

/// Looks up a variable of the environment.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables of this process.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Differences between the protocols.
pub(crate) trait Protocol: Send + Sync {
    /// The client of the crate.
    fn objects(&self) -> &dyn ObjectStore;

    /// The tag in an answer: from its ETag and its version.
    fn tag(&self, etag: Option<String>, _version: Option<String>) -> Option<Etag> {
        etag.map(Etag::new)
    }

    /// The condition of a PUT over the version with this tag.
    fn update(&self, etag: &Etag) -> UpdateVersion {
        UpdateVersion { e_tag: Some(etag.as_str().to_owned()), version: None }
    }

    /// A DELETE of the version with this tag, with its authorization.
    fn delete(&self, path: Path, etag: Etag) -> Answer<'_, HttpRequest>;

    /// The meaning of a status, if it is not what [`error_of`] takes it for. `why` begins with the error's code.
    fn meaning(&self, _status: StatusCode, _why: &str) -> Option<StoreError> {
        None
    }

    /// [`Store::never`].
    fn never(&self) -> Etag;

    /// [`Store::request_life`].
    fn request_life(&self) -> Option<Duration>;

    /// [`Store::deletes_late`].
    fn deletes_late(&self) -> bool;
}

/// A prefix in a bucket.
pub struct RemoteStore {
    url: StoreUrl,
    http: Http,
    protocol: Box<dyn Protocol>,
}

/// The store that a URL names; calls that block run on `threads`.
///
/// # Errors
/// As of [`RemoteStore::new`].
pub fn open_store(url: &StoreUrl, threads: Compute) -> Result<Arc<dyn Store>, String> {
    match url.scheme {
        Scheme::File => Ok(Arc::new(FolderStore::new(PathBuf::from(&url.prefix), threads))),
        Scheme::S3 | Scheme::Azure | Scheme::Google => Ok(Arc::new(RemoteStore::new(url, &environment)?)),
    }
}

impl RemoteStore {
    /// The prefix that a URL names; credentials and the server's address are in `variables` ([`crate::credentials`]), those of S3
    /// in the environment of this process.
    ///
    /// # Errors
    /// One line: which setting is missing or wrong.
    pub fn new(url: &StoreUrl, variables: Variables<'_>) -> Result<Self, String> {
        let http = Http::default();
        let protocol: Box<dyn Protocol> = match url.scheme {
            Scheme::S3 => Box::new(S3::new(url, &http)?),
            Scheme::Azure => Box::new(Azure::new(url, &http, variables)?),
            Scheme::Google => Box::new(Google::new(url, &http, variables)?),
            Scheme::File => return Err(format!("{url}: is a folder")),
        };
        Path::parse(&url.prefix).map_err(|error| format!("{url}: {error}"))?;
        Ok(RemoteStore { url: url.clone(), http, protocol })
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{key}", self.url.prefix))
    }

    /// The error of a request that was not successful.
    fn error(&self, outcome: Option<Outcome>) -> StoreError {
        let answered = outcome.as_ref().and_then(|outcome| Some((outcome.status?, outcome.why.as_str())));
        let meaning = answered.and_then(|(status, why)| self.protocol.meaning(status, why));
        meaning.unwrap_or_else(|| error_of(outcome))
    }
}

/// No request of the crate is repeated by itself.
pub(crate) fn no_retry() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

pub(crate) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// A status with the text of its error.
pub(crate) fn shown(status: StatusCode, why: &str) -> String {
    if why.is_empty() { format!("status {status}") } else { format!("status {status}: {why}") }
}

/// The error of a request that was not successful, where the protocols agree.
pub(crate) fn error_of(outcome: Option<Outcome>) -> StoreError {
    let Some(Outcome { status, why }) = outcome else {
        return StoreError::Unknown("no request could be made: are the credentials in the environment valid?".into());
    };
    let Some(status) = status else { return StoreError::Unknown(format!("no answer: {why}")) };
    let text = shown(status, &why);
    match status {
        StatusCode::PRECONDITION_FAILED | StatusCode::NOT_MODIFIED | StatusCode::CONFLICT => StoreError::Precondition,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => StoreError::Unknown(text),
        status if status.is_client_error() || status.is_redirection() => StoreError::Refused(text),
        _ => StoreError::Unknown(text),
    }
}

/// Whether the object, not the bucket, is missing. The status says it: the crate takes the 404 of a PUT with If-Match for an unmet
/// condition.
fn is_missing(outcome: Option<&Outcome>) -> bool {
    let codes = ["NoSuchBucket", "ContainerNotFound"];
    let of_bucket = |outcome: &Outcome| codes.iter().any(|code| outcome.why.starts_with(code));
    outcome.is_some_and(|outcome| outcome.status == Some(StatusCode::NOT_FOUND) && !of_bucket(outcome))
}

fn options(range: Option<Range<u64>>, head: bool, slot: &Slot) -> GetOptions {
    let mut options = GetOptions { range: range.map(GetRange::Bounded), head, ..GetOptions::default() };
    options.extensions.insert(slot.clone());
    options
}

const NO_TAG: &str = "the store sends no ETag, or with Google no generation";

impl Store for RemoteStore {
    fn place(&self, key: &str) -> String {
        if key.is_empty() { self.url.to_string() } else { format!("{}/{key}", self.url) }
    }

    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag> {
        Box::pin(async move {
            let mode = match condition {
                Condition::Missing => PutMode::Create,
                Condition::Is(etag) => PutMode::Update(self.protocol.update(&etag)),
                Condition::Any => PutMode::Overwrite,
            };
            let slot = Slot::default();
            let mut options = PutOptions { mode, ..PutOptions::default() };
            options.extensions.insert(slot.clone());
            match self.protocol.objects().put_opts(&self.path(&key), PutPayload::from(body), options).await {
                Ok(done) => {
                    let tag = self.protocol.tag(done.e_tag, done.version);
                    tag.ok_or_else(|| StoreError::Refused(NO_TAG.into()))
                }
                Err(_) => {
                    let outcome = slot.take();
                    // For a PUT with If-Match, S3 answers so if there is no object.
                    if is_missing(outcome.as_ref()) {
                        return Err(StoreError::Precondition);
                    }
                    Err(self.error(outcome))
                }
            }
        })
    }

    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>> {
        Box::pin(async move {
            let slot = Slot::default();
            let is_range = range.is_some();
            let got = match self.protocol.objects().get_opts(&self.path(&key), options(range, false, &slot)).await {
                Ok(got) => got,
                Err(_) => {
                    let outcome = slot.take();
                    let status = outcome.as_ref().and_then(|outcome| outcome.status);
                    if is_missing(outcome.as_ref()) {
                        return Ok(None);
                    }
                    if is_range && status == Some(StatusCode::RANGE_NOT_SATISFIABLE) {
                        return Err(StoreError::PastEnd);
                    }
                    return Err(self.error(outcome));
                }
            };
            let Some(etag) = self.protocol.tag(got.meta.e_tag.clone(), got.meta.version.clone()) else {
                return Err(StoreError::Refused(NO_TAG.into()));
            };
            if got.range.end.saturating_sub(got.range.start) > MAX_BYTES as u64 {
                return Err(StoreError::Refused(format!("more than {MAX_BYTES} bytes")));
            }
            let lost = |error: object_store::Error| StoreError::Unknown(first_line(&error.to_string()).to_owned());
            let bytes = got.bytes().await.map_err(lost)?;
            Ok(Some(Fetched { bytes, etag }))
        })
    }

    fn head(&self, key: String) -> Answer<'_, Option<Etag>> {
        Box::pin(async move {
            let slot = Slot::default();
            match self.protocol.objects().get_opts(&self.path(&key), options(None, true, &slot)).await {
                Ok(got) => {
                    let tag = self.protocol.tag(got.meta.e_tag, got.meta.version);
                    tag.map(Some).ok_or_else(|| StoreError::Refused(NO_TAG.into()))
                }
                Err(_) => {
                    let outcome = slot.take();
                    if is_missing(outcome.as_ref()) { Ok(None) } else { Err(self.error(outcome)) }
                }
            }
        })
    }

    fn delete(&self, key: String, etag: Etag) -> Answer<'_, ()> {
        Box::pin(async move {
            let request = self.protocol.delete(self.path(&key), etag).await?;
            let outcome = self.http.bare(request).await;
            match outcome.status {
                Some(status) if status.is_success() => Ok(()),
                _ if is_missing(Some(&outcome)) => Err(StoreError::Precondition),
                _ => Err(self.error(Some(outcome))),
            }
        })
    }

    fn never(&self) -> Etag {
        self.protocol.never()
    }

    fn request_life(&self) -> Option<Duration> {
        self.protocol.request_life()
    }

    fn deletes_late(&self) -> bool {
        self.protocol.deletes_late()
    }
}

/// Encodes a name for the path of a URL: all but the unreserved characters (RFC 3986, 2.3) as `%XX`. Those stay, since a server
/// that decodes them would compute another signature.
pub(crate) fn encoded(name: &str) -> String {
    let is_unreserved = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    name.bytes().map(|b| if is_unreserved(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_whether_a_request_may_be_repeated() {
        let error = |status: u16| {
            let status = StatusCode::from_u16(status).ok();
            error_of(Some(Outcome { status, why: String::new() }))
        };
        assert!([304, 409, 412].map(error).iter().all(|error| *error == StoreError::Precondition));
        assert!([408, 429, 500, 503].map(error).iter().all(StoreError::is_temporary));
        assert!([301, 400, 403, 404, 405].map(error).iter().all(|error| matches!(error, StoreError::Refused(_))));
        assert!(error_of(None).is_temporary() && error_of(Some(Outcome::default())).is_temporary());
    }

    #[test]
    fn an_object_is_missing_by_the_status_and_a_bucket_is_not_an_object() {
        let outcome = |status, why: &str| Outcome { status: StatusCode::from_u16(status).ok(), why: why.to_owned() };
        // S3 answers a PUT with If-Match so if there is no object.
        assert!(is_missing(Some(&outcome(404, "NoSuchKey: The specified key does not exist."))));
        assert!(is_missing(Some(&outcome(404, ""))));
        for (status, why) in [(404, "NoSuchBucket"), (404, "ContainerNotFound: none"), (412, ""), (403, "NoSuchKey")] {
            assert!(!is_missing(Some(&outcome(status, why))), "{status} {why}");
        }
        assert!(!is_missing(None));
    }

    #[test]
    fn names_are_encoded_for_urls() {
        assert_eq!(encoded("a/b c-ü~.%"), "a%2Fb%20c-%C3%BC~.%25");
    }
}
