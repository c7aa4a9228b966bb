//! Azure Blob Storage: what it does in its own way ([`crate::remote`]).
//!
//! Source: Azure's reference of the Blob service, "Put Blob", "Delete Blob", "Specifying conditional headers" and "Blob service
//! error codes". A PUT with `If-None-Match: *` over an existing blob is answered with 409 `BlobAlreadyExists`; an `If-Match` that is
//! not met with 412 `ConditionNotMet`. Every write gives a blob another ETag.

use crate::credentials::{AzureSettings, Life};
use crate::http::Http;
use crate::remote::{Protocol, Variables, encoded, error_of, first_line, no_retry, shown};
use crate::store::{Answer, Etag, StoreError};
use crate::url::StoreUrl;
use http::StatusCode;
use object_store::ObjectStore;
use object_store::azure::{AzureAuthorizer, MicrosoftAzure};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use std::time::Duration;

pub(crate) struct Azure {
    client: MicrosoftAzure,
    account: String,
    /// Address of the container.
    container: String,
    life: Life,
}

impl Azure {
    /// A container of the account that the variables name ([`crate::credentials`]).
    ///
    /// # Errors
    /// One line: which setting is missing or wrong.
    pub(crate) fn new(url: &StoreUrl, http: &Http, variables: Variables<'_>) -> Result<Self, String> {
        let AzureSettings { builder, account, endpoint, life } = AzureSettings::read(variables)?;
        let builder = builder.with_container_name(&url.bucket).with_retry(no_retry()).with_http_connector(http.clone());
        let client = builder.build().map_err(|error| format!("{url}: {}", first_line(&error.to_string())))?;
        let container = format!("{endpoint}/{}", encoded(&url.bucket));
        Ok(Azure { client, account, container, life })
    }
}

impl Protocol for Azure {
    fn objects(&self) -> &dyn ObjectStore {
        &self.client
    }

    fn delete(&self, path: Path, etag: Etag) -> Answer<'_, HttpRequest> {
        Box::pin(async move {
            let Ok(credential) = self.client.credentials().get_credential().await else { return Err(error_of(None)) };
            let names: Vec<String> = path.parts().map(|part| encoded(part.as_ref())).collect();
            let request = http::Request::delete(format!("{}/{}", self.container, names.join("/")))
                .header(http::header::IF_MATCH, etag.as_str())
                .body(HttpRequestBody::empty());
            let mut request = request.map_err(|error| StoreError::Refused(error.to_string()))?;
            let signed = AzureAuthorizer::new(&credential, &self.account).try_authorize(&mut request);
            signed.map(|()| request).map_err(|_| error_of(None))
        })
    }

    fn meaning(&self, status: StatusCode, why: &str) -> Option<StoreError> {
        let refused = || Some(StoreError::Refused(shown(status, why)));
        match status {
            // Azure answers 409 also for other reasons: the blob is immutable, or its container is being deleted.
            StatusCode::CONFLICT if !why.starts_with("BlobAlreadyExists") => refused(),
            // A lease of Azure's own, which another client has taken on the blob.
            StatusCode::PRECONDITION_FAILED if why.starts_with("Lease") => refused(),
            _ => None,
        }
    }

    fn never(&self) -> Etag {
        Etag::new("\"0x0\"")
    }

    fn request_life(&self) -> Option<Duration> {
        self.life.bound()
    }

    fn deletes_late(&self) -> bool {
        true
    }
}
