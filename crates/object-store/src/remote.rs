//! S3 as a store, through the crate `object_store`, whose own repetitions are off.
//!
//! What S3 and the crate do not have in common is added here: a DELETE with `If-Match`, as a signed URL that is valid for
//! seconds only, so that a late one is refused.

use crate::http::{Http, Outcome, Slot};
use crate::store::{Answer, Condition, Etag, Fetched, Store, StoreError};
use crate::url::StoreUrl;
use bytes::Bytes;
use http::{Method, StatusCode};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion};
use std::ops::Range;
use std::time::Duration;

/// How long the signature of a DELETE is valid: less than a lease, so that none arrives after a take-over.
const DELETE_LIFE: Duration = Duration::from_secs(20);

/// Most bytes that are accepted of an object.
const MAX_BYTES: usize = 64 << 20;

/// A prefix in a bucket.
pub struct S3Store {
    url: StoreUrl,
    http: Http,
    s3: AmazonS3,
}

impl S3Store {
    /// The prefix that a URL names; credentials and the server's address are those of the environment ([`crate::credentials`]).
    ///
    /// # Errors
    /// One line: which setting is missing or wrong.
    pub fn new(url: &StoreUrl) -> Result<Self, String> {
        let http = Http::default();
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env();
        for (key, value) in crate::credentials::from_file()? {
            builder = builder.with_config(key, value);
        }
        if crate::credentials::endpoint().is_some_and(|endpoint| endpoint.starts_with("http://")) {
            builder = builder.with_allow_http(true);
        }
        let builder = builder.with_bucket_name(&url.bucket).with_retry(retry).with_http_connector(http.clone());
        let s3 = builder.build().map_err(|error| format!("{url}: {}", first_line(&error.to_string())))?;
        Path::parse(&url.prefix).map_err(|error| format!("{url}: {error}"))?;
        Ok(S3Store { url: url.clone(), http, s3 })
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{key}", self.url.prefix))
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The error of a request that was not successful.
fn error_of(outcome: Option<Outcome>) -> StoreError {
    let Some(Outcome { status, why }) = outcome else {
        return StoreError::Unknown("no request could be made: are the credentials in the environment valid?".into());
    };
    let Some(status) = status else { return StoreError::Unknown(format!("no answer: {why}")) };
    let text = if why.is_empty() { format!("status {status}") } else { format!("status {status}: {why}") };
    match status {
        StatusCode::PRECONDITION_FAILED | StatusCode::NOT_MODIFIED | StatusCode::CONFLICT => StoreError::Precondition,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => StoreError::Unknown(text),
        status if status.is_client_error() || status.is_redirection() => StoreError::Refused(text),
        _ => StoreError::Unknown(text),
    }
}

/// Whether the object, not the bucket, is missing.
fn is_missing(error: &object_store::Error, outcome: Option<&Outcome>) -> bool {
    matches!(error, object_store::Error::NotFound { .. })
        && !outcome.is_some_and(|outcome| outcome.why.starts_with("NoSuchBucket"))
}

fn options(range: Option<Range<u64>>, head: bool, slot: &Slot) -> GetOptions {
    let mut options = GetOptions { range: range.map(GetRange::Bounded), head, ..GetOptions::default() };
    options.extensions.insert(slot.clone());
    options
}

const NO_TAG: &str = "the store sends no ETag";

impl Store for S3Store {
    fn place(&self, key: &str) -> String {
        if key.is_empty() { self.url.to_string() } else { format!("{}/{key}", self.url) }
    }

    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag> {
        Box::pin(async move {
            let mode = match condition {
                Condition::Missing => PutMode::Create,
                Condition::Is(etag) => {
                    PutMode::Update(UpdateVersion { e_tag: Some(etag.as_str().to_owned()), version: None })
                }
                Condition::Any => PutMode::Overwrite,
            };
            let slot = Slot::default();
            let mut options = PutOptions { mode, ..PutOptions::default() };
            options.extensions.insert(slot.clone());
            match self.s3.put_opts(&self.path(&key), PutPayload::from(body), options).await {
                Ok(done) => done.e_tag.map(Etag::new).ok_or_else(|| StoreError::Refused(NO_TAG.into())),
                // For a PUT with If-Match, S3 answers so if there is no object.
                Err(error) if is_missing(&error, None) => Err(StoreError::Precondition),
                Err(object_store::Error::Precondition { .. }) => Err(StoreError::Precondition),
                Err(_) => Err(error_of(slot.take())),
            }
        })
    }

    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>> {
        Box::pin(async move {
            let slot = Slot::default();
            let is_range = range.is_some();
            let got = match self.s3.get_opts(&self.path(&key), options(range, false, &slot)).await {
                Ok(got) => got,
                Err(error) => {
                    let outcome = slot.take();
                    let status = outcome.as_ref().and_then(|outcome| outcome.status);
                    if is_missing(&error, outcome.as_ref()) {
                        return Ok(None);
                    }
                    if is_range && status == Some(StatusCode::RANGE_NOT_SATISFIABLE) {
                        return Err(StoreError::PastEnd);
                    }
                    return Err(error_of(outcome));
                }
            };
            let Some(etag) = got.meta.e_tag.as_ref().map(Etag::new) else {
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
            match self.s3.get_opts(&self.path(&key), options(None, true, &slot)).await {
                Ok(got) => {
                    let etag = got.meta.e_tag.map(Etag::new);
                    etag.map(Some).ok_or_else(|| StoreError::Refused(NO_TAG.into()))
                }
                Err(error) => {
                    let outcome = slot.take();
                    if is_missing(&error, outcome.as_ref()) { Ok(None) } else { Err(error_of(outcome)) }
                }
            }
        })
    }

    fn delete(&self, key: String, etag: Etag) -> Answer<'_, ()> {
        Box::pin(async move {
            let signed = self.s3.signed_url(Method::DELETE, &self.path(&key), DELETE_LIFE).await;
            let Ok(url) = signed else { return Err(error_of(None)) };
            let request = http::Request::delete(url.as_str()).header(http::header::IF_MATCH, etag.as_str()).body(());
            let request = request.map_err(|error| StoreError::Refused(error.to_string()))?;
            let outcome = self.http.bare(request).await;
            match outcome.status {
                Some(status) if status.is_success() => Ok(()),
                Some(StatusCode::NOT_FOUND) => Err(StoreError::Precondition),
                _ => Err(error_of(Some(outcome))),
            }
        })
    }
}
