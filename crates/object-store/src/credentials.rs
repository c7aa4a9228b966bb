//! Credentials and addresses of stores: only from the environment, or a file that the environment names. They are in no
//! command line, message or log.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` | the key |
//! | `AWS_SHARED_CREDENTIALS_FILE`, `AWS_PROFILE` | a file with keys in AWS's format, and the section (`default`) |
//! | `AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_CONTAINER_CREDENTIALS_*`, `AWS_METADATA_ENDPOINT` | keys of roles |
//! | `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` | the server |

use object_store::aws::AmazonS3ConfigKey;

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
    let Some(path) = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE") else {
        return Err("s3: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                    AWS_SHARED_CREDENTIALS_FILE, in the environment"
            .into());
    };
    let shown = std::path::Path::new(&path).display().to_string();
    let failed = |why: &str| format!("AWS_SHARED_CREDENTIALS_FILE={shown}: {why}");
    let size = std::fs::metadata(&path).map_err(|error| failed(&error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed("longer than 1 MiB"));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| failed(&error.to_string()))?;
    let profile = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into());
    let found = section(&text, &profile);
    if found.is_empty() {
        return Err(failed(&format!("no key in the section [{profile}]")));
    }
    Ok(found)
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

#[cfg(test)]
mod tests {
    use super::*;

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
