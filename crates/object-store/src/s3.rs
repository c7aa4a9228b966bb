//! S3: what it does in its own way ([`crate::remote`]).

use crate::http::Http;
use crate::remote::{Protocol, error_of, first_line, no_retry};
use crate::store::{Answer, Etag, StoreError};
use crate::url::StoreUrl;
use http::Method;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::Signer;
use std::time::Duration;

/// How long the signature of a DELETE is valid: less than a lease, so that none arrives after a take-over.
const DELETE_LIFE: Duration = Duration::from_secs(20);

pub(crate) struct S3(AmazonS3);

impl S3 {
    /// A bucket; credentials and the server's address are those of the environment ([`crate::credentials`]).
    ///
    /// # Errors
    /// One line: which setting is missing or wrong.
    pub(crate) fn new(url: &StoreUrl, http: &Http) -> Result<Self, String> {
        let mut builder = AmazonS3Builder::from_env();
        for (key, value) in crate::credentials::from_file()? {
            builder = builder.with_config(key, value);
        }
        if crate::credentials::endpoint().is_some_and(|endpoint| endpoint.starts_with("http://")) {
            builder = builder.with_allow_http(true);
        }
        let builder = builder.with_bucket_name(&url.bucket).with_retry(no_retry()).with_http_connector(http.clone());
        let s3 = builder.build().map_err(|error| format!("{url}: {}", first_line(&error.to_string())))?;
        Ok(S3(s3))
    }
}

impl Protocol for S3 {
    fn objects(&self) -> &dyn ObjectStore {
        &self.0
    }

    fn delete(&self, path: Path, etag: Etag) -> Answer<'_, HttpRequest> {
        Box::pin(async move {
            let signed = self.0.signed_url(Method::DELETE, &path, DELETE_LIFE).await;
            let Ok(url) = signed else { return Err(error_of(None)) };
            let request = http::Request::delete(url.as_str()).header(http::header::IF_MATCH, etag.as_str());
            request.body(HttpRequestBody::empty()).map_err(|error| StoreError::Refused(error.to_string()))
        })
    }

    fn never(&self) -> Etag {
        Etag::new("\"00000000000000000000000000000000\"")
    }

    fn request_life(&self) -> Option<Duration> {
        None
    }

    fn deletes_late(&self) -> bool {
        false
    }
}
