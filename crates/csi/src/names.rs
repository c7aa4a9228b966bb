//! Handles of volumes and snapshots, names of nodes, tokens of lists, and what is stored in user properties.
//!
//! ```text
//!   volume handle     tank/kubernetes/pvc-0a1b           a dataset with at least two components
//!   snapshot handle   tank/kubernetes/pvc-0a1b@snap-7    a snapshot of one
//!   node              worker-3@192.0.2.13                name, and the address from which it reaches the server
//!   weir:csi          {"name":"pvc-0a1b","protocol":"nfs","bytes":1073741824}
//!   weir:csi-nodes    2w:worker-3@192.0.2.13             access mode, r or w, node; separated by spaces
//!   token             after:tank/kubernetes/pvc-0a1b
//! ```

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// User property that marks datasets and snapshots of this plugin.
pub const MARK: &str = "weir:csi";
/// User property with the nodes to which a volume is published.
pub const NODES: &str = "weir:csi-nodes";
/// Maximum length of a handle, of a name that callers choose, and of a node, in bytes (the specification's limit of strings).
pub const MAX_LEN: usize = 128;
/// Maximum length of a component that is a caller's name unchanged. A longer one is replaced by its hash.
const MAX_PLAIN_LEN: usize = 64;
/// Maximum length of a component in bytes: `csi-` and 128 bits as hexadecimal digits, or a plain one.
const MAX_COMPONENT_LEN: usize = MAX_PLAIN_LEN;
/// Maximum length of the name of a parent dataset in bytes: a handle has room for a slash and the hash of a name.
pub const MAX_PARENT_LEN: usize = MAX_LEN - 1 - HASHED_LEN;
/// Length of a name's hash with its prefix, in bytes.
const HASHED_LEN: usize = 36;
/// Maximum length of the value of a user property in bytes (OpenZFS `ZAP_MAXVALUELEN`, with its NUL).
pub const MAX_VALUE_LEN: usize = 8191;
/// Start of the name of an iSCSI target.
const TARGET_PREFIX: &str = "iqn.2026-01.local.weir:csi.";

/// How nodes reach a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A file system over NFS.
    Nfs,
    /// A ZFS volume over iSCSI.
    Iscsi,
}

impl Protocol {
    /// Name in parameters and contexts.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Nfs => "nfs",
            Protocol::Iscsi => "iscsi",
        }
    }

    /// The protocol of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Protocol::Nfs, Protocol::Iscsi].into_iter().find(|protocol| protocol.name() == name)
    }
}

/// The request that created a dataset or snapshot: the value of [`MARK`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The caller's name for it.
    pub name: String,
    /// Protocol by which nodes reach the volume, or the volume of the snapshot.
    pub protocol: Protocol,
    /// Size in bytes when it was created.
    pub bytes: u64,
    /// Handle of the snapshot or volume from which a volume was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// CHAP user of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<String>,
    /// User as whom the target answers the initiator's challenge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<String>,
}

impl Mark {
    /// Decodes the value of the property; `None` if it is not one.
    pub fn decode(text: &str) -> Option<Self> {
        if text.len() > MAX_VALUE_LEN { None } else { serde_json::from_str(text).ok() }
    }

    /// Encodes the value of the property.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether a component is one of a dataset's or snapshot's name, without the characters that other tools have to quote.
fn is_component(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    !part.is_empty() && part != "." && part != ".." && part.chars().all(allowed)
}

/// Whether a text is the name of a dataset that can hold volumes: `tank` or `tank/kubernetes`.
pub fn is_dataset(name: &str) -> bool {
    name.len() <= MAX_LEN && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.split('/').all(is_component)
}

/// Whether a text can be the handle of a volume.
pub fn is_volume(handle: &str) -> bool {
    is_dataset(handle) && handle.contains('/')
}

/// The volume and the name of a snapshot handle; `None` if a text cannot be one.
pub fn split_snapshot(handle: &str) -> Option<(&str, &str)> {
    let (volume, name) = handle.split_once('@')?;
    (handle.len() <= 2 * MAX_LEN && is_volume(volume) && is_component(name)).then_some((volume, name))
}

/// Name of the pool of a dataset or snapshot.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@']).next().unwrap_or(name)
}

/// Whether a dataset is another one, or below it.
pub fn is_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Component of a dataset name for a name that the caller chose, at most `max_len` bytes: that name if it is valid as one, else its hash.
pub fn component(name: &str, max_len: usize) -> String {
    let max_len = max_len.min(MAX_COMPONENT_LEN);
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_component(name);
    // A caller's name cannot be the hash of another one.
    if is_plain && name.len() <= max_len && !name.starts_with("csi-") {
        return name.to_owned();
    }
    format!("csi-{}", hash(name))
}

/// 128 bits of the hash of a text, as hexadecimal digits.
fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().as_str().chars().take(HASHED_LEN - 4).collect()
}

/// The handle of the volume of that name below a parent.
pub fn volume_below(parent: &str, name: &str) -> String {
    let handle = format!("{parent}/{}", component(name, MAX_LEN.saturating_sub(parent.len() + 1)));
    debug_assert!(parent.len() > MAX_PARENT_LEN || handle.len() <= MAX_LEN, "a handle fits");
    handle
}

/// Name of the iSCSI target of a volume. It follows from the handle, so a node needs no state to log out.
pub fn target_of(volume: &str) -> String {
    format!("{TARGET_PREFIX}{}", hash(volume))
}

/// The address of a node; `None` if a text does not name one.
pub fn address_of(node: &str) -> Option<IpAddr> {
    let (name, address) = node.rsplit_once('@')?;
    let is_name = is_component(name) && node.len() <= MAX_LEN;
    address.parse().ok().filter(|_| is_name)
}

/// A node to which a volume is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Access mode: the number of the specification.
    pub mode: u8,
    /// Whether the node may only read.
    pub read_only: bool,
    /// The node.
    pub node: String,
}

/// Decodes the value of [`NODES`]. Words that are no publication are left out.
pub fn publications(text: &str) -> Vec<Publication> {
    let word = |word: &str| {
        let (access, node) = word.split_once(':')?;
        let mut chars = access.chars();
        let mode = chars.next()?.to_digit(10)? as u8;
        let read_only = match chars.as_str() {
            "r" => true,
            "w" => false,
            _ => return None,
        };
        address_of(node).map(|_| Publication { mode, read_only, node: node.to_owned() })
    };
    text.split(' ').take(MAX_VALUE_LEN).filter_map(word).collect()
}

/// Encodes the value of [`NODES`].
pub fn publications_text(nodes: &[Publication]) -> String {
    let word = |p: &Publication| format!("{}{}:{}", p.mode, if p.read_only { 'r' } else { 'w' }, p.node);
    nodes.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The handle after which a list goes on; `None` if a token is not one.
pub fn after(token: &str) -> Option<&str> {
    token.strip_prefix("after:").filter(|handle| is_volume(handle) || split_snapshot(handle).is_some())
}

/// The token for the rest of a list after a handle.
pub fn token_after(handle: &str) -> String {
    format!("after:{handle}")
}

pub(crate) fn names_target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(mark) = Mark::decode(text) {
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
    }
    let nodes = publications(text);
    assert_eq!(publications(&publications_text(&nodes)), nodes);
    if let Some((volume, _)) = split_snapshot(text) {
        assert!(is_volume(volume) && !is_volume(text));
    }
    if let Some(handle) = after(text) {
        assert_eq!(token_after(handle), text);
    }
    let volume = volume_below("tank/k8s", text);
    assert!(is_volume(&volume) && is_below(&volume, "tank/k8s") && volume.matches('/').count() == 2);
    assert_eq!(address_of(text).is_some(), publications(&format!("5w:{text}")).len() == 1 && !text.contains(' '));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_callers_stay_one_component() {
        for name in ["pvc-1", "a_b.c:d"] {
            assert_eq!(volume_below("tank/k8s", name), format!("tank/k8s/{name}"));
        }
        let long = "x".repeat(MAX_LEN);
        for name in ["..", ".", "", "a/b", "a@b", "a b", "-o", ".zfs", "ü", "a\0", "csi-0", "@", "#", &long] {
            let volume = volume_below("tank/k8s", name);
            assert!(volume.starts_with("tank/k8s/csi-") && is_volume(&volume) && volume.len() <= MAX_LEN, "{name}");
        }
        assert_ne!(volume_below("tank", "a/b"), volume_below("tank", "a@b"));
        let parent = format!("t{}", "a".repeat(MAX_PARENT_LEN - 1));
        assert_eq!(volume_below(&parent, &"b".repeat(60)).len(), MAX_LEN);
    }

    #[test]
    fn handles_of_hostile_callers_are_refused() {
        for handle in
            ["tank", "tank/..", "/tank/a", "tank//a", "tank/a@s", "tank/a#b", "tank/a b", "1/a", "tank/a\n", ""]
        {
            assert!(!is_volume(handle), "{handle}");
        }
        assert_eq!(split_snapshot("tank/a@s"), Some(("tank/a", "s")));
        for handle in ["tank/a", "tank@s", "tank/a@", "tank/a@b@c", "tank/a@%b", "tank/a@b,c", "@"] {
            assert_eq!(split_snapshot(handle), None, "{handle}");
        }
        assert!(is_below("tank/a", "tank") && is_below("tank", "tank") && !is_below("tanker/a", "tank"));
        assert_eq!(after("after:tank/a@s"), Some("tank/a@s"));
        assert_eq!(after("after:..").or(after("3")), None);
    }

    #[test]
    fn nodes_are_stored_and_read() {
        assert_eq!(address_of("worker-3@192.0.2.13"), "192.0.2.13".parse().ok());
        assert!(address_of("w@2001:db8::1").is_some());
        for node in ["worker", "@192.0.2.13", "a b@192.0.2.13", "w@host", "w@192.0.2.1:/x", ""] {
            assert_eq!(address_of(node), None, "{node}");
        }
        let nodes = vec![
            Publication { mode: 5, read_only: false, node: "a@192.0.2.1".into() },
            Publication { mode: 3, read_only: true, node: "b@2001:db8::1".into() },
        ];
        assert_eq!(publications_text(&nodes), "5w:a@192.0.2.1 3r:b@2001:db8::1");
        assert_eq!(publications("5w:a@192.0.2.1 junk 3r:b@2001:db8::1 9x:c@192.0.2.2"), nodes);
        assert_eq!(publications(""), []);
    }

    #[test]
    fn marks_convert_to_text_and_back() {
        let mark = Mark {
            name: "pvc-1".into(),
            protocol: Protocol::Nfs,
            bytes: 1 << 30,
            source: None,
            chap: None,
            mutual: None,
        };
        assert_eq!(mark.encode(), r#"{"name":"pvc-1","protocol":"nfs","bytes":1073741824}"#);
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        assert_eq!(Mark::decode("on").or(Mark::decode(r#"{"name":"x","protocol":"smb","bytes":1}"#)), None);
    }

    #[test]
    fn the_seeds_of_fuzzing_are_decoded() {
        let folder = format!("{}/../../fuzz/seeds/csi-names", env!("CARGO_MANIFEST_DIR"));
        let seeds: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|f| std::fs::read(f.unwrap().path()).unwrap()).collect();
        assert!(seeds.len() >= 3);
        seeds.iter().for_each(|seed| names_target(seed));
    }
}
