//! Credentials and addresses of stores: only from the environment, or a file that the environment names. They are in no
//! command line, message or log.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` | the key |
//! | `AWS_SHARED_CREDENTIALS_FILE`, `AWS_PROFILE` | a file with keys in AWS's format, and the section (`default`) |
//! | `AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_CONTAINER_CREDENTIALS_*`, `AWS_METADATA_ENDPOINT` | keys of roles |
//! | `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` | the server |
//! | `AZURE_STORAGE_ACCOUNT_NAME` | the account |
//! | `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_ACCOUNT_KEY_FILE` | its key, or a file with it |
//! | `AZURE_STORAGE_SAS_TOKEN`, `AZURE_STORAGE_TOKEN` | a shared access signature, a token |
//! | `AZURE_CLIENT_ID`, `AZURE_TENANT_ID`, `AZURE_CLIENT_SECRET`, `AZURE_FEDERATED_TOKEN_FILE`, `AZURE_MSI_ENDPOINT` | identities |
//! | `AZURE_ENDPOINT` | the server, with the account if that is part of the path |
//! | `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_SERVICE_ACCOUNT_KEY` | a file with the key of a service account, the key itself |
//! | `GOOGLE_APPLICATION_CREDENTIALS` | a file with the key of a service account or a user |
//! | `GOOGLE_BEARER_TOKEN`, `GCE_METADATA_HOST` | a token, the server that has those of this virtual machine |
//! | `GOOGLE_BASE_URL` | the server |

use crate::remote::Variables;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of a file with credentials.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The server's address, if it is not Amazon's.
pub fn endpoint() -> Option<String> {
    let names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    names.iter().find_map(|name| std::env::var(name).ok()).filter(|value| !value.is_empty())
}

/// Settings of the file that the environment names; none if the key itself is in the environment.
///
/// # Errors
/// The file cannot be used, or the environment names no credentials at all.
pub fn from_file() -> Result<Vec<(AmazonS3ConfigKey, String)>, String> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let others = [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_METADATA_ENDPOINT",
    ];
    if others.iter().any(|name| is_set(name)) {
        return Ok(Vec::new());
    }
    let Some(path) = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from) else {
        return Err("s3: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                    AWS_SHARED_CREDENTIALS_FILE, in the environment"
            .into());
    };
    let text = file("AWS_SHARED_CREDENTIALS_FILE", &path)?;
    let profile = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into());
    let found = section(&text, &profile);
    if found.is_empty() {
        let shown = path.display();
        return Err(format!("AWS_SHARED_CREDENTIALS_FILE={shown}: no key in the section [{profile}]"));
    }
    Ok(found)
}

/// The text of a file that a variable names.
fn file(variable: &str, path: &Path) -> Result<String, String> {
    let failed = |why: &str| format!("{variable}={}: {why}", path.display());
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| failed(&error.to_string()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(failed("longer than 1 MiB"));
    }
    Ok(text)
}

/// The keys in a section of a file in AWS's format.
fn section(text: &str, profile: &str) -> Vec<(AmazonS3ConfigKey, String)> {
    let mut is_inside = false;
    let mut out = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_inside = name.trim() == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_inside) {
            let key = match name.trim() {
                "aws_access_key_id" => AmazonS3ConfigKey::AccessKeyId,
                "aws_secret_access_key" => AmazonS3ConfigKey::SecretAccessKey,
                "aws_session_token" => AmazonS3ConfigKey::Token,
                _ => continue,
            };
            out.push((key, value.trim().to_owned()));
        }
    }
    out
}

/// How long a store may still execute a request that was sent with these credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// The signature has a time, and is refused 15 minutes after it, as that of S3.
    Signature,
    /// The token is refused after a day at the latest: those of Google last an hour, those of Azure's identities up to a day.
    Token,
    /// The shared access signature may be valid for years.
    Endless,
}

impl Life {
    /// The time as [`crate::store::Store::request_life`] has it.
    pub(crate) fn bound(self) -> Option<Duration> {
        const HOUR: Duration = Duration::from_secs(3600);
        match self {
            Life::Signature => None,
            Life::Token => Some(25 * HOUR),
            Life::Endless => Some(24 * 365 * 10 * HOUR),
        }
    }
}

/// An address without a slash at its end.
fn address(variable: &str, text: &str) -> Result<String, String> {
    let uri: http::Uri = text.parse().map_err(|_| format!("{variable} is no address"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    // A query or a user would be a secret that does not belong there.
    if !is_http || uri.query().is_some() || uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
        return Err(format!("{variable} is no address of the form https://HOST[:PORT][/PATH]"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Variables with settings of Azure, as the crate `object_store` names them.
const AZURE: [&str; 15] = [
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_OBJECT_ID",
    "AZURE_MSI_RESOURCE_ID",
];

/// Settings of Azure.
pub(crate) struct AzureSettings {
    pub(crate) builder: MicrosoftAzureBuilder,
    pub(crate) account: String,
    /// Address of the account.
    pub(crate) endpoint: String,
    pub(crate) life: Life,
}

impl AzureSettings {
    /// The settings in these variables, and in the file that they name.
    ///
    /// # Errors
    /// One line: a variable is missing, or its value cannot be used.
    pub(crate) fn read(variables: Variables<'_>) -> Result<Self, String> {
        let mut builder = MicrosoftAzureBuilder::new();
        for name in AZURE {
            if let (Some(value), Ok(key)) = (variables(name), name.to_ascii_lowercase().parse()) {
                builder = builder.with_config(key, value);
            }
        }
        let Some(account) = builder.get_config_value(&AzureConfigKey::AccountName) else {
            return Err("az: set AZURE_STORAGE_ACCOUNT_NAME in the environment".into());
        };
        let is_host = !account.is_empty() && account.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_host {
            return Err("AZURE_STORAGE_ACCOUNT_NAME takes letters and digits".into());
        }
        const IDENTITY: [AzureConfigKey; 2] = [AzureConfigKey::ClientId, AzureConfigKey::MsiEndpoint];
        let is_set = |key: &AzureConfigKey| builder.get_config_value(key).is_some();
        // The crate takes a token before a key, and a key before all others.
        let life = if is_set(&AzureConfigKey::Token) {
            Life::Token
        } else if is_set(&AzureConfigKey::AccessKey) {
            Life::Signature
        } else if let Some(path) = variables("AZURE_STORAGE_ACCOUNT_KEY_FILE") {
            let key = file("AZURE_STORAGE_ACCOUNT_KEY_FILE", Path::new(&path))?;
            builder = builder.with_access_key(key.trim());
            Life::Signature
        } else if is_set(&AzureConfigKey::SasKey) {
            Life::Endless
        } else if IDENTITY.iter().any(is_set) {
            Life::Token
        } else {
            return Err("az: no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_ACCOUNT_KEY_FILE in the \
                        environment, or what docs/object-store.md names"
                .into());
        };
        let named = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"].map(|name| (name, variables(name)));
        let endpoint = match named.into_iter().find_map(|(name, value)| Some((name, value?))) {
            Some((name, value)) => address(name, &value)?,
            None => format!("https://{account}.blob.core.windows.net"),
        };
        Ok(AzureSettings { builder: builder.with_endpoint(endpoint.clone()), account, endpoint, life })
    }
}

/// Address of Google Cloud Storage.
const GOOGLE: &str = "https://storage.googleapis.com";

/// Settings of Google.
pub(crate) struct GoogleSettings {
    pub(crate) builder: GoogleCloudStorageBuilder,
    /// Address of the server.
    pub(crate) base: String,
    /// The variable with the credentials, for messages.
    pub(crate) source: &'static str,
    pub(crate) life: Life,
}

impl GoogleSettings {
    /// The settings in these variables, and in the file that they name.
    ///
    /// # Errors
    /// One line: a variable is missing, or its value cannot be used.
    pub(crate) fn read(variables: Variables<'_>) -> Result<Self, String> {
        let builder = GoogleCloudStorageBuilder::new();
        let mut base = None;
        let mut service_account = |source: &'static str, text: &str| -> Result<GoogleCloudStorageBuilder, String> {
            base = service_account_base(source, text)?;
            Ok(builder.clone().with_service_account_key(text))
        };
        let named = |names: &[&'static str]| names.iter().find_map(|name| Some((*name, variables(name)?)));
        let (builder, source) = if let Some((name, text)) = named(&["GOOGLE_SERVICE_ACCOUNT_KEY"]) {
            (service_account(name, &text)?, name)
        } else if let Some((name, path)) = named(&["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"]) {
            (service_account(name, &file(name, Path::new(&path))?)?, name)
        } else if let Some((name, path)) = named(&["GOOGLE_APPLICATION_CREDENTIALS"]) {
            file(name, Path::new(&path))?;
            (builder.with_application_credentials(path), name)
        } else if let Some((name, token)) = named(&["GOOGLE_BEARER_TOKEN"]) {
            (builder.with_bearer_token(token), name)
        } else if let Some((name, _)) = named(&["GCE_METADATA_HOST"]) {
            (builder, name)
        } else {
            return Err(
                "gs: no credentials: set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, the file with the \
                        key, in the environment"
                    .into(),
            );
        };
        let base = match (variables("GOOGLE_BASE_URL"), base) {
            (Some(text), _) => address("GOOGLE_BASE_URL", &text)?,
            (None, Some(text)) => address("gcs_base_url", &text)?,
            (None, None) => GOOGLE.to_owned(),
        };
        Ok(GoogleSettings { builder: builder.with_base_url(&base), base, source, life: Life::Token })
    }
}

/// The server that the key of a service account names, if it does. The text is looked at here because the crate's errors could
/// have parts of it.
fn service_account_base(source: &str, text: &str) -> Result<Option<String>, String> {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    if ["client_email", "private_key", "private_key_id"].iter().any(|name| field(name).is_none()) {
        return Err(format!("{source}: no key of a service account in Google's JSON format"));
    }
    Ok(field("gcs_base_url").map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn azure(pairs: &[(&str, &str)]) -> Result<AzureSettings, String> {
        AzureSettings::read(&lookup(pairs))
    }

    fn google(pairs: &[(&str, &str)]) -> Result<GoogleSettings, String> {
        GoogleSettings::read(&lookup(pairs))
    }

    /// How Google writes the key of a service account. This one is none.
    const SERVICE_ACCOUNT: &str =
        r#"{"client_email": "a@b", "private_key": "secret", "private_key_id": "i", "gcs_base_url": "http://h:1/"}"#;

    #[test]
    fn azure_takes_a_key_of_the_environment_or_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "c2VjcmV0\n").unwrap();
        let path = path.display().to_string();
        let name = ("AZURE_STORAGE_ACCOUNT_NAME", "account");
        let named = azure(&[name, ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")]).unwrap();
        assert_eq!((&*named.endpoint, named.life), ("https://account.blob.core.windows.net", Life::Signature));
        let read = azure(&[name, ("AZURE_STORAGE_ACCOUNT_KEY_FILE", &path), ("AZURE_ENDPOINT", "http://h:1/account/")]);
        let read = read.unwrap();
        assert_eq!(read.endpoint, "http://h:1/account");
        assert_eq!(read.builder.get_config_value(&AzureConfigKey::AccessKey).as_deref(), Some("c2VjcmV0"));
        let life = |variable| azure(&[name, (variable, "x=y")]).unwrap().life;
        assert_eq!(life("AZURE_STORAGE_SAS_TOKEN"), Life::Endless);
        assert_eq!(["AZURE_CLIENT_ID", "AZURE_STORAGE_TOKEN", "AZURE_MSI_ENDPOINT"].map(life), [Life::Token; 3]);
        // The key of a file is the last that is looked for, but before other kinds.
        let both = azure(&[name, ("AZURE_STORAGE_ACCOUNT_KEY_FILE", &path), ("AZURE_STORAGE_SAS_TOKEN", "sig=x")]);
        assert_eq!(both.unwrap().life, Life::Signature);
    }

    #[test]
    fn google_takes_the_key_of_a_service_account() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, SERVICE_ACCOUNT).unwrap();
        let path = path.display().to_string();
        assert_eq!(google(&[("GOOGLE_SERVICE_ACCOUNT", &path)]).unwrap().base, "http://h:1");
        let text = [("GOOGLE_SERVICE_ACCOUNT_KEY", SERVICE_ACCOUNT), ("GOOGLE_BASE_URL", "https://other")];
        assert_eq!(google(&text).unwrap().base, "https://other");
        let token = google(&[("GOOGLE_BEARER_TOKEN", "t")]).unwrap();
        assert_eq!((&*token.base, token.life), (GOOGLE, Life::Token));
    }

    #[test]
    fn settings_that_cannot_be_used_are_named_and_not_shown() {
        let name = ("AZURE_STORAGE_ACCOUNT_NAME", "account");
        let key = ("AZURE_STORAGE_ACCOUNT_KEY", "secret");
        for (pairs, why) in [
            (&[][..], "set AZURE_STORAGE_ACCOUNT_NAME"),
            (&[name], "no credentials"),
            (&[("AZURE_STORAGE_ACCOUNT_NAME", "h/secret"), key], "takes letters"),
            (
                &[name, ("AZURE_STORAGE_ACCOUNT_KEY_FILE", "/nowhere/key")],
                "AZURE_STORAGE_ACCOUNT_KEY_FILE=/nowhere/key",
            ),
            (&[name, key, ("AZURE_ENDPOINT", "https://h/?sig=secret")], "AZURE_ENDPOINT is no address"),
            (&[name, key, ("AZURE_STORAGE_ENDPOINT", "ftp://h")], "AZURE_STORAGE_ENDPOINT is no address"),
        ] {
            let error = azure(pairs).map(|_| ()).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        for (pairs, why) in [
            (&[][..], "no credentials"),
            (&[("GOOGLE_SERVICE_ACCOUNT_KEY", "\"secret\"")], "GOOGLE_SERVICE_ACCOUNT_KEY: no key"),
            (&[("GOOGLE_SERVICE_ACCOUNT", "/nowhere/key")], "GOOGLE_SERVICE_ACCOUNT=/nowhere/key"),
            (&[("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")], "GOOGLE_APPLICATION_CREDENTIALS=/nowhere"),
            (&[("GOOGLE_BEARER_TOKEN", "secret"), ("GOOGLE_BASE_URL", "https://secret@h")], "GOOGLE_BASE_URL is no"),
        ] {
            let error = google(pairs).map(|_| ()).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_section_of_the_file_gives_its_keys_only() {
        let text = "[default]\naws_access_key_id = a\naws_secret_access_key=b=c\nregion = x\n\n[ other ]\naws_access_key_id=d\n";
        let found = section(text, "default");
        assert_eq!(
            found,
            [(AmazonS3ConfigKey::AccessKeyId, "a".into()), (AmazonS3ConfigKey::SecretAccessKey, "b=c".into())]
        );
        assert_eq!(section(text, "other").len(), 1);
        assert!(section(text, "none").is_empty());
    }
}
