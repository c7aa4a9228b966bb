//! Google Cloud Storage: what it does in its own way ([`crate::remote`]).
//!
//! Source: Google's reference of the XML API, "Request preconditions" and "HTTP status codes". Each version of an object has a
//! generation, a number that grows. `x-goog-if-generation-match: 0` is met if there is no object. A condition that is not met is
//! answered with 412; 429 if an object is written more often than once a second. ETags have no condition for changes, so the
//! generation is the tag.

use crate::credentials::{GoogleSettings, Life};
use crate::http::Http;
use crate::remote::{Protocol, Variables, encoded, error_of, no_retry, shown};
use crate::store::{Answer, Etag, StoreError};
use crate::url::StoreUrl;
use http::header::AUTHORIZATION;
use http::{HeaderValue, StatusCode};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::gcp::GoogleCloudStorage;
use object_store::path::Path;
use object_store::{ObjectStore, UpdateVersion};
use std::time::Duration;

/// Header with the generation that a change requires.
const GENERATION_MATCH: &str = "x-goog-if-generation-match";

pub(crate) struct Google {
    client: GoogleCloudStorage,
    /// Address of the bucket.
    bucket: String,
    life: Life,
}

impl Google {
    /// A bucket; credentials and the server's address are in the variables ([`crate::credentials`]).
    ///
    /// # Errors
    /// One line: which setting is missing or wrong.
    pub(crate) fn new(url: &StoreUrl, http: &Http, variables: Variables<'_>) -> Result<Self, String> {
        let GoogleSettings { builder, base, source, life } = GoogleSettings::read(variables)?;
        let builder = builder.with_bucket_name(&url.bucket).with_retry(no_retry()).with_http_connector(http.clone());
        // The crate's text could have parts of the key.
        let client = builder.build().map_err(|_| format!("{url}: {source} has no key that can be used"))?;
        Ok(Google { client, bucket: format!("{base}/{}", encoded(&url.bucket)), life })
    }
}

impl Protocol for Google {
    fn objects(&self) -> &dyn ObjectStore {
        &self.client
    }

    fn tag(&self, _etag: Option<String>, version: Option<String>) -> Option<Etag> {
        version.map(Etag::new)
    }

    fn update(&self, etag: &Etag) -> UpdateVersion {
        UpdateVersion { e_tag: None, version: Some(etag.as_str().to_owned()) }
    }

    fn delete(&self, path: Path, etag: Etag) -> Answer<'_, HttpRequest> {
        Box::pin(async move {
            let Ok(credential) = self.client.credentials().get_credential().await else { return Err(error_of(None)) };
            let mut bearer =
                HeaderValue::try_from(format!("Bearer {}", credential.bearer)).map_err(|_| error_of(None))?;
            bearer.set_sensitive(true);
            http::Request::delete(format!("{}/{}", self.bucket, encoded(path.as_ref())))
                .header(GENERATION_MATCH, etag.as_str())
                .header(AUTHORIZATION, bearer)
                .body(HttpRequestBody::empty())
                .map_err(|error| StoreError::Refused(error.to_string()))
        })
    }

    fn meaning(&self, status: StatusCode, why: &str) -> Option<StoreError> {
        // Requests that collide: a condition that is not met is answered with 412.
        (status == StatusCode::CONFLICT).then(|| StoreError::Unknown(shown(status, why)))
    }

    fn never(&self) -> Etag {
        // Generations are microseconds since 1970.
        Etag::new("1")
    }

    fn request_life(&self) -> Option<Duration> {
        self.life.bound()
    }

    fn deletes_late(&self) -> bool {
        true
    }
}
