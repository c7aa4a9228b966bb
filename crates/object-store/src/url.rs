//! URLs of disks in object stores: `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, `gs://BUCKET/PREFIX`, `file:///FOLDER`.
//!
//! The part after `?` says how a new disk is made, and is no part of the disk's name: `size=100G&object=1M`.

use std::fmt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// S3, or a server that speaks its protocol.
    S3,
    /// Azure Blob Storage; the account is in the environment.
    Azure,
    /// Google Cloud Storage.
    Google,
    /// A folder of this machine.
    File,
}

/// Prefixes of URLs.
pub(crate) const SCHEMES: [(&str, Scheme); 4] =
    [("s3://", Scheme::S3), ("az://", Scheme::Azure), ("gs://", Scheme::Google), ("file://", Scheme::File)];

/// The forms that are accepted, for messages.
pub const FORMS: &str = "s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX or file:///FOLDER, and for a new disk \
                         ?size=SIZE[&object=SIZE]";

/// Least and greatest size of objects in bytes.
pub const OBJECT_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;
/// Size of objects of a new disk without `object=`.
pub const DEFAULT_OBJECT_BYTES: u64 = 1 << 20;
/// Least size of a disk: that of a vdev.
const MIN_SIZE_BYTES: u64 = 64 << 20;
/// Most characters of a URL. A path in a label has as many at most (`MAXPATHLEN`).
const MAX_LEN: usize = 1024;

/// Location of a disk in an object store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreUrl {
    /// Kind of store.
    pub scheme: Scheme,
    /// Bucket, or container of Azure; empty for a folder.
    pub bucket: String,
    /// Names below it, joined by `/`, without a slash at the end; the absolute path of a folder.
    pub prefix: String,
}

/// A URL with how a new disk is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskUrl {
    /// Where the disk is.
    pub url: StoreUrl,
    /// `size=`: size of the disk in bytes, rounded up to whole objects when it is made.
    pub size_bytes: Option<u64>,
    /// `object=`: size of its objects in bytes.
    pub object_bytes: Option<u64>,
}

/// Error: a text is no URL of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{url}': {why}; accepted are {FORMS}")]
pub struct UrlError {
    /// The text, without the part after `?`.
    pub url: String,
    /// The reason.
    pub why: String,
}

/// Whether a text has the form of a URL: letters, then `://`. A path that is meant begins with `/` or `./`.
pub fn is_url(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once("://") else { return false };
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+')
}

/// Whether a path has the form of a URL.
pub fn is_url_path(path: &Path) -> bool {
    path.to_str().is_some_and(is_url)
}

impl StoreUrl {
    /// Parses the path of a vdev: a URL without `?`.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let parsed = DiskUrl::parse(text)?;
        if parsed.size_bytes.is_some() || parsed.object_bytes.is_some() {
            return Err(wrong(text, "?size= and ?object= are for new disks only"));
        }
        Ok(parsed.url)
    }

    /// The path of the vdev in labels.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = SCHEMES.iter().find(|(_, scheme)| *scheme == self.scheme).map_or("", |(text, _)| text);
        match self.scheme {
            Scheme::File => write!(f, "{scheme}{}", self.prefix),
            Scheme::S3 | Scheme::Azure | Scheme::Google => write!(f, "{scheme}{}/{}", self.bucket, self.prefix),
        }
    }
}

fn wrong(text: &str, why: impl Into<String>) -> UrlError {
    // What follows the question mark, or precedes an `@`, may be a secret that does not belong there.
    let url = text.split('?').next().unwrap_or_default();
    let url = url.rsplit_once('@').map_or(url.to_owned(), |(_, rest)| format!("…@{rest}"));
    UrlError { url, why: why.into() }
}

impl DiskUrl {
    /// Parses a URL of the command line.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let wrong = |why: &str| wrong(text, why);
        if text.len() > MAX_LEN {
            return Err(wrong("longer than 1024 characters"));
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(wrong("has blanks or control characters"));
        }
        let known = SCHEMES.iter().find_map(|(start, scheme)| text.strip_prefix(start).map(|rest| (*scheme, rest)));
        let Some((scheme, rest)) = known else { return Err(wrong("unknown kind of store")) };
        let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        if place.contains('@') || place.contains('#') || place.contains('%') {
            return Err(wrong("has '@', '#' or '%'; credentials come from the environment"));
        }
        let place = place.trim_end_matches('/');
        let (bucket, prefix) = match scheme {
            Scheme::File if !place.starts_with('/') => return Err(wrong("the folder's path is not absolute")),
            Scheme::File => ("", place),
            _ => place.split_once('/').unwrap_or((place, "")),
        };
        let names = prefix.split('/').skip(usize::from(scheme == Scheme::File));
        if !prefix.is_empty() && names.clone().any(|name| name.is_empty() || name == "." || name == "..") {
            return Err(wrong("has an empty name, '.' or '..'"));
        }
        if scheme != Scheme::File && bucket.is_empty() {
            return Err(wrong("names no bucket or container"));
        }
        if scheme != Scheme::File && prefix.is_empty() {
            return Err(wrong("names no prefix in the bucket or container"));
        }
        let url = StoreUrl { scheme, bucket: bucket.to_owned(), prefix: prefix.to_owned() };
        let mut out = DiskUrl { url, size_bytes: None, object_bytes: None };
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bytes = size(value);
            match name {
                "size" => {
                    let bytes = bytes.filter(|bytes| (MIN_SIZE_BYTES..=1 << 60).contains(bytes));
                    out.size_bytes = Some(bytes.ok_or_else(|| wrong("size= takes 64M to 1E"))?);
                }
                "object" => {
                    let is_size = |bytes: &u64| OBJECT_BYTES.contains(bytes) && bytes.is_power_of_two();
                    let why = "object= takes a power of two from 64K to 16M";
                    out.object_bytes = Some(bytes.filter(is_size).ok_or_else(|| wrong(why))?);
                }
                _ => return Err(wrong("after '?' only size= and object= are known")),
            }
        }
        Ok(out)
    }
}

/// A number of bytes with an optional unit: `100G`.
fn size(text: &str) -> Option<u64> {
    const UNITS: &str = "KMGTPE";
    let text = text.strip_suffix("iB").or(text.strip_suffix('B')).unwrap_or(text);
    let unit = text.chars().last().and_then(|last| UNITS.find(last.to_ascii_uppercase()));
    let digits = if unit.is_some() { &text[..text.len() - 1] } else { text };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit.map_or(1, |unit| 1 << (10 * (unit as u64 + 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_place_and_how_a_disk_is_made() {
        let parsed = DiskUrl::parse("s3://b/a/tank/?size=100G&object=256K").unwrap();
        assert_eq!(parsed.url.to_string(), "s3://b/a/tank");
        assert_eq!((parsed.size_bytes, parsed.object_bytes), (Some(100 << 30), Some(256 << 10)));
        for text in ["s3://b/p", "s3://b/p/q", "az://c/p", "gs://b/p/q", "file:///d/e"] {
            assert_eq!(StoreUrl::parse(text).unwrap().to_string(), text);
            assert!(is_url(text));
        }
        assert!(!is_url("/dev/sda") && !is_url("s3:/b") && !is_url("../x://y"));
    }

    #[test]
    fn what_is_no_url_is_refused_with_the_accepted_forms() {
        for (text, why) in [
            ("http://b/p", "unknown kind of store"),
            ("s3://", "names no bucket"),
            ("s3://b", "names no prefix"),
            ("s3://b//p", "an empty name"),
            ("s3://b/../p", "'..'"),
            ("az:///p", "names no bucket or container"),
            ("az://c?size=1G", "names no prefix"),
            ("az://account.blob.core.windows.net@c/p", "credentials come from the environment"),
            ("gs://b/./p", "'.'"),
            ("gs://", "names no bucket"),
            ("azure://c/p", "unknown kind of store"),
            ("file://d", "not absolute"),
            ("file:///d/../e", "'..'"),
            ("s3://b/p?size=1M", "size= takes"),
            ("s3://b/p?size=1GX", "size= takes"),
            ("s3://b/p?size=99999999999999999999G", "size= takes"),
            ("s3://b/p?object=3M", "object= takes"),
            ("s3://b/p?secret=x", "only size= and object="),
            ("s3://b/p p", "blanks"),
        ] {
            let error = DiskUrl::parse(text).unwrap_err();
            assert!(error.why.contains(why), "{text}: {error}");
            let accepted = ["s3://BUCKET/PREFIX", "az://CONTAINER/PREFIX", "gs://BUCKET/PREFIX", "file:///FOLDER"];
            assert!(accepted.iter().all(|form| error.to_string().contains(form)), "{error}");
        }
        assert!(StoreUrl::parse("s3://b/p?size=1G").unwrap_err().why.contains("new disks only"));
        let secret = DiskUrl::parse("s3://key:secret@b/p?token=secret").unwrap_err().to_string();
        assert!(!secret.contains("secret"), "{secret}");
    }
}
