//! Parameters of a storage class.
//!
//! | Parameter | Meaning |
//! |---|---|
//! | `parent` | dataset below which volumes are created |
//! | `protocol` | `nfs` (default) or `iscsi` |
//! | `server`, `port` | address of the server as nodes reach it |
//! | `reserve` | `true`: the space of a volume is reserved |
//! | `chapUser`, `mutualUser` | users of CHAP |
//! | any other | property of the new dataset, such as `compression` |

use crate::names::{self, Protocol};
use std::collections::BTreeMap;

/// Prefix of parameters that sidecars add.
const OF_SIDECARS: &str = "csi.storage.k8s.io/";
/// Maximum length of a parameter in bytes.
const MAX_LEN: usize = 1024;
/// Maximum number of parameters.
const MAX_COUNT: usize = 128;
/// Properties that a storage class may set. Others are set by the plugin, or change who reaches a dataset.
const PROPERTIES: [&str; 25] = [
    "aclinherit",
    "aclmode",
    "acltype",
    "atime",
    "casesensitivity",
    "checksum",
    "compression",
    "copies",
    "dedup",
    "dnodesize",
    "logbias",
    "normalization",
    "primarycache",
    "recordsize",
    "redundant_metadata",
    "relatime",
    "secondarycache",
    "snapdir",
    "special_small_blocks",
    "snapshot_limit",
    "sync",
    "utf8only",
    "volblocksize",
    "xattr",
    "prefetch",
];

/// Parameters of a storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Dataset below which volumes are created.
    pub parent: Option<String>,
    /// How nodes reach volumes.
    pub protocol: Protocol,
    /// Name or address of the server.
    pub server: Option<String>,
    /// Port of the protocol at the server.
    pub port: Option<u16>,
    /// Whether the space of volumes is reserved.
    pub reserve: bool,
    /// CHAP user of targets.
    pub chap: Option<String>,
    /// User as whom targets answer the initiator's challenge.
    pub mutual: Option<String>,
    /// Properties of new datasets.
    pub properties: Vec<(String, String)>,
}

/// Whether a text can be the name or address of a server: it becomes a part of mount's and iscsiadm's arguments.
pub(crate) fn is_server(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    !text.is_empty() && text.len() <= 253 && text.chars().all(allowed) && !text.starts_with(['-', '.'])
}

impl Parameters {
    /// Parses the parameters.
    ///
    /// # Errors
    /// The parameter that is wrong, and what it takes.
    pub fn parse(map: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut out = Parameters {
            parent: None,
            protocol: Protocol::Nfs,
            server: None,
            port: None,
            reserve: false,
            chap: None,
            mutual: None,
            properties: Vec::new(),
        };
        if map.len() > MAX_COUNT {
            return Err(format!("a storage class has at most {MAX_COUNT} parameters"));
        }
        for (key, value) in map {
            let wrong = |takes: &str| Err(format!("parameter '{key}' takes {takes}, not '{value}'"));
            if key.len() > MAX_LEN || value.len() > MAX_LEN {
                return Err(format!("a parameter has at most {MAX_LEN} bytes"));
            }
            let is_user = |user: &str| {
                !user.is_empty()
                    && user.len() <= 223
                    && !user.contains(|c: char| c.is_whitespace() || c.is_control() || ",+=".contains(c))
            };
            match key.as_str() {
                key if key.starts_with(OF_SIDECARS) => {}
                "parent" if names::is_dataset(value) && value.len() <= names::MAX_PARENT_LEN => {
                    out.parent = Some(value.clone());
                }
                "parent" => return wrong(&format!("the name of a dataset of at most {} bytes", names::MAX_PARENT_LEN)),
                "protocol" => match Protocol::named(value) {
                    Some(protocol) => out.protocol = protocol,
                    None => return wrong("nfs or iscsi"),
                },
                "server" if is_server(value) => out.server = Some(value.clone()),
                "server" => return wrong("a host name or address"),
                "port" => match value.parse() {
                    Ok(port) if port != 0 => out.port = Some(port),
                    _ => return wrong("a number from 1 to 65535"),
                },
                "reserve" => match value.as_str() {
                    "true" => out.reserve = true,
                    "false" => out.reserve = false,
                    _ => return wrong("true or false"),
                },
                "chapUser" if is_user(value) => out.chap = Some(value.clone()),
                "mutualUser" if is_user(value) => out.mutual = Some(value.clone()),
                "chapUser" | "mutualUser" => return wrong("the name of a user that 'weir user add' added"),
                property if PROPERTIES.contains(&property) => out.properties.push((key.clone(), value.clone())),
                _ => return Err(format!("unknown parameter '{key}': docs/kubernetes.md lists them")),
            }
        }
        if out.mutual.is_some() && out.chap.is_none() {
            return Err("parameter 'mutualUser' needs 'chapUser'".into());
        }
        Ok(out)
    }
}

pub(crate) fn parameters_target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let map: BTreeMap<String, String> = lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    if let Ok(parameters) = Parameters::parse(&map) {
        assert!(parameters.parent.is_none_or(|parent| names::is_dataset(&parent)));
        assert!(parameters.server.is_none_or(|server| is_server(&server)));
        assert!(parameters.properties.len() <= map.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Parameters, String> {
        Parameters::parse(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn parameters_are_parsed() {
        let got = parse(&[
            ("parent", "tank/k8s"),
            ("protocol", "iscsi"),
            ("server", "192.0.2.1"),
            ("port", "3261"),
            ("volblocksize", "8K"),
            ("csi.storage.k8s.io/pvc/name", "../x"),
        ])
        .unwrap();
        assert_eq!((got.parent.as_deref(), got.protocol, got.port), (Some("tank/k8s"), Protocol::Iscsi, Some(3261)));
        assert_eq!(got.properties, [("volblocksize".to_owned(), "8K".to_owned())]);
        assert!(!got.reserve && got.chap.is_none());
    }

    #[test]
    fn what_a_class_must_not_say_is_refused() {
        for (key, value) in [
            ("parent", "tank/../x"),
            ("parent", "tank@a"),
            ("protocol", "smb"),
            ("server", "-oProxy"),
            ("server", "a,b"),
            ("port", "0"),
            ("reserve", "yes"),
            ("chapUser", "a,ro"),
            ("mutualUser", "a"),
            ("mountpoint", "/etc"),
            ("sharenfs", "on"),
            ("weir:csi", "x"),
            ("readonly", "off"),
        ] {
            assert!(parse(&[(key, value)]).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn the_seeds_of_fuzzing_are_parsed() {
        let folder = format!("{}/../../fuzz/seeds/csi-parameters", env!("CARGO_MANIFEST_DIR"));
        let seeds: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|f| std::fs::read(f.unwrap().path()).unwrap()).collect();
        assert!(!seeds.is_empty());
        seeds.iter().for_each(|seed| parameters_target(seed));
    }
}
