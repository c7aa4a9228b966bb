//! Configuration of the daemon: one TOML file with few keys. An unknown key is an error that names its line.
//!
//! ```toml
//! listen = "0.0.0.0"
//! nfs_port = 2049
//! nbd_port = 10809
//! iscsi_port = 3260
//! smb_port = 445
//! http_port = 8420
//! http_listen = "0.0.0.0"
//! http_tls_cert = "/etc/weir/page.crt"
//! http_tls_key = "/etc/weir/page.key"
//! nbd_tls_cert = "/etc/weir/nbd.crt"
//! nbd_tls_key = "/etc/weir/nbd.key"
//! nbd_tls_ca = "/etc/weir/clients.crt"
//! nbd_tls = "required"
//! mounts = true
//! arc_max = "8G"
//! dirty_max = "1G"
//! history = "256M"
//! slow_io = 30
//! deadman = 60
//! log = "info"
//! pool_dirs = ["/srv/disks"]
//! user_queries = true
//! store_prices = "/etc/weir/prices.toml"
//!
//! [[jobs]]
//! name = "daily"
//! snapshot = ["tank/home"]
//! recursive = true
//! schedule = "daily 02:30"
//! time_zone = "Europe/Berlin"
//! keep = 14
//!
//! [[jobs]]
//! name = "scrub"
//! scrub = ["tank"]
//! schedule = "monthly 1 03:00"
//!
//! [alerts]
//! interval = 60
//! capacity = 80
//! fill_days = 7
//! scrub_days = 35
//! remind_hours = 24
//! ignore = ["sync-disabled"]
//!
//! [[alerts.send]]
//! mail = "root"
//! from = "weir@example.org"
//!
//! [[alerts.send]]
//! command = ["/usr/local/bin/notify", "storage"]
//!
//! [[alerts.send]]
//! webhook_file = "/etc/weir/webhook"
//! ```

use super::alerts::AlertsText;
use super::jobs::JobText;
use crate::directories;
use crate::failure::Failure;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Name of the file in the configuration directory.
const NAME: &str = "weir.toml";

/// Configuration as the file says it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The file; `None` if there is none.
    #[serde(skip)]
    pub path: Option<PathBuf>,
    /// Address to listen on.
    pub listen: Option<IpAddr>,
    /// Port of NFS.
    pub nfs_port: Option<u16>,
    /// Port of NBD.
    pub nbd_port: Option<u16>,
    /// Port of iSCSI.
    pub iscsi_port: Option<u16>,
    /// Port of SMB.
    pub smb_port: Option<u16>,
    /// Port of page, API and metrics.
    pub http_port: Option<u16>,
    /// Address of page, API and metrics; beyond loopback they are served over TLS.
    pub http_listen: Option<IpAddr>,
    /// Certificate of page, API and metrics, in PEM.
    pub http_tls_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM.
    pub http_tls_key: Option<PathBuf>,
    /// Certificate of NBD over TLS, in PEM.
    pub nbd_tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM.
    pub nbd_tls_key: Option<PathBuf>,
    /// Authority whose certificates NBD clients must have over TLS, in PEM.
    pub nbd_tls_ca: Option<PathBuf>,
    /// Whether NBD clients have to use TLS: `off`, `allowed` or `required`.
    pub nbd_tls: Option<String>,
    /// Whether file systems are mounted at their mount points.
    pub mounts: Option<bool>,
    /// Maximum size of the ARC of each pool.
    pub arc_max: Option<String>,
    /// Maximum amount of dirty data of each pool.
    pub dirty_max: Option<String>,
    /// Maximum size of the stored history of analytics, or `off`.
    pub history: Option<String>,
    /// Seconds after which an operation of a device is slow.
    pub slow_io: Option<f64>,
    /// Seconds after which a device that does not answer is taken out of service.
    pub deadman: Option<f64>,
    /// Filter of the log: a level, or levels of single crates.
    pub log: Option<String>,
    /// Directories and devices in which pools are found beside the cache file.
    pub pool_dirs: Option<Vec<PathBuf>>,
    /// Whether all users of the machine may read names, properties and state of the pools; by default if the daemon is root's.
    pub user_queries: Option<bool>,
    /// Price list of object stores.
    pub store_prices: Option<PathBuf>,
    /// Scheduled snapshots and scrubs.
    #[serde(default)]
    pub jobs: Vec<JobText>,
    /// Alerts, and who receives them.
    #[serde(default)]
    pub alerts: AlertsText,
}

impl Configuration {
    /// Reads the file that is named, else the one in the configuration directory if it exists.
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML, or has an unknown key or a value of the wrong kind.
    pub fn load(named: Option<&Path>) -> Result<Self, Failure> {
        let usual = || directories::configuration().map(|folder| folder.join(NAME)).filter(|path| path.exists());
        let Some(path) = named.map(Path::to_owned).or_else(usual) else { return Ok(Configuration::default()) };
        let failed = |why: String| Failure::failed(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        let read = Self::parse(&text).map_err(failed)?;
        Ok(Configuration { path: Some(path), ..read })
    }

    /// Parses the text of a file.
    fn parse(text: &str) -> Result<Self, String> {
        let parsed: Configuration = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        let files = [
            ("http_tls_cert", &parsed.http_tls_cert),
            ("http_tls_key", &parsed.http_tls_key),
            ("nbd_tls_cert", &parsed.nbd_tls_cert),
            ("nbd_tls_key", &parsed.nbd_tls_key),
            ("nbd_tls_ca", &parsed.nbd_tls_ca),
            ("store_prices", &parsed.store_prices),
        ];
        let files = files.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?)));
        let folders = parsed.pool_dirs.iter().flatten().map(|path| ("pool_dirs", path));
        let relative = folders.chain(files).find(|(_, path)| !path.is_absolute());
        if let Some((key, path)) = relative {
            return Err(format!("{key}: '{}' is not an absolute path", path.display()));
        }
        Ok(parsed)
    }
}

/// The error as `line N: what is wrong`.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    format!("line {line}: {}", error.message().trim().replace('\n', "; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_documentation_is_known() {
        let text = include_str!("configuration.rs");
        let example: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("//! ")).collect();
        let toml: Vec<&str> =
            example.iter().copied().filter(|line| line.contains(" = ") || line.starts_with('[')).collect();
        let parsed = Configuration::parse(&toml.join("\n")).unwrap();
        assert_eq!((parsed.nfs_port, parsed.nbd_port), (Some(2049), Some(10_809)));
        assert_eq!((parsed.smb_port, parsed.mounts), (Some(445), Some(true)));
        assert_eq!(parsed.pool_dirs, Some(vec!["/srv/disks".into()]));
        assert_eq!(parsed.nbd_tls.as_deref(), Some("required"));
        assert_eq!(parsed.history.as_deref(), Some("256M"));
        assert_eq!(parsed.jobs.len(), 2);
        assert_ne!(parsed.alerts, AlertsText::default());
        assert_eq!(Configuration::parse("").unwrap(), Configuration::default());
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        for (text, line, what) in [
            ("nfs_port = 1\nnfs_prot = 2\n", "line 2", "unknown field `nfs_prot`"),
            ("nfs_port = 65536", "line 1", "65536"),
            ("\nlisten = \"everywhere\"", "line 2", "IP address"),
            ("arc_max = 5", "line 1", "string"),
            ("log = [\"a\"", "line 1", ""),
            ("nfs_port = 1\nnfs_port = 2", "line 2", "duplicate key"),
        ] {
            let error = Configuration::parse(text).unwrap_err();
            assert!(error.contains(line) && error.contains(what), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(Configuration::parse("pool_dirs = [\"disks\"]").unwrap_err().contains("'disks'"));
        let relative = Configuration::parse("nbd_tls_key = \"nbd.key\"").unwrap_err();
        assert_eq!(relative, "nbd_tls_key: 'nbd.key' is not an absolute path");
    }
}
