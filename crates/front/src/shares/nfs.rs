//! `sharenfs`.

use super::{HostList, Names, OptionWord, OptionWriter, ShareError, options};
use crate::rules::{FileRules, IdentityMap, Squash};
use std::fmt;
use std::str::FromStr;

const OPTIONS: &str = "rw[=HOSTS], ro[=HOSTS], root=HOSTS, root_squash, no_root_squash, all_squash, anonuid=N, anongid=N, \
                       secure, insecure, and options of exports(5) that change nothing here";

/// Options of exports(5) that change nothing here, and the reason.
///
/// - `sync`, `async`, `wdelay`, `no_wdelay`: a client decides by its call when data are stable, and no answer is early.
/// - `crossmnt`, `nohide`, `hide`: a child file system is reachable through its parent if it is shared to the same host.
/// - `subtree_check`, `no_subtree_check`: handles carry a MAC, and name the file system.
/// - `fsid`, `mountpoint`, `mp`: file systems have numbers of their own, and are never an empty directory in their place.
/// - `auth_nlm`, `secure_locks` and their opposites: locks need the same permissions as reading and writing.
/// - `no_acl`, `acl`: the side protocol for ACLs is not offered.
/// - `pnfs`, `no_pnfs`, `security_label`: of NFS version 4.
const WITHOUT_EFFECT: &[&str] = &[
    "sync",
    "async",
    "wdelay",
    "no_wdelay",
    "crossmnt",
    "nohide",
    "hide",
    "subtree_check",
    "no_subtree_check",
    "auth_nlm",
    "no_auth_nlm",
    "secure_locks",
    "insecure_locks",
    "acl",
    "no_acl",
    "pnfs",
    "no_pnfs",
    "security_label",
    "nosub",
    "nosuid",
    "aclok",
    "mountpoint",
    "mp",
    "fsid",
];

/// Options of WITHOUT_EFFECT that may have a value.
const WITH_VALUE: &[&str] = &["mountpoint", "mp", "fsid"];

/// Pairs of [`WITHOUT_EFFECT`] that say the opposite of each other. Locks have two names.
const OPPOSITES: &[(&str, &str)] = &[
    ("sync", "async"),
    ("wdelay", "no_wdelay"),
    ("hide", "nohide"),
    ("subtree_check", "no_subtree_check"),
    ("auth_nlm", "no_auth_nlm"),
    ("auth_nlm", "insecure_locks"),
    ("secure_locks", "insecure_locks"),
    ("secure_locks", "no_auth_nlm"),
    ("acl", "no_acl"),
    ("aclok", "no_acl"),
    ("pnfs", "no_pnfs"),
];

/// Whether two words without effect cannot both be meant: opposites, or one key with two values.
fn are_contrary(a: &str, b: &str) -> bool {
    let valued = |word| match str::split_once(word, '=') {
        Some(("mp", value)) => Some(("mountpoint", value)),
        other => other,
    };
    let have_two_values = valued(a).zip(valued(b)).is_some_and(|(a, b)| a.0 == b.0 && a.1 != b.1);
    have_two_values || OPPOSITES.iter().any(|pair| *pair == (a, b) || *pair == (b, a))
}

/// Values of the options that a list may set once, to find one that contradicts another before it.
#[derive(Default)]
struct SetOptions {
    root_squash: Option<bool>,
    all_squash: Option<bool>,
    anon_uid: Option<u32>,
    anon_gid: Option<u32>,
    secure: Option<bool>,
}

impl SetOptions {
    /// Squashing all users squashes root too, whatever is said of root: the narrower of both.
    fn identity(&self) -> IdentityMap {
        let usual = IdentityMap::default();
        IdentityMap {
            squash: match (self.all_squash, self.root_squash) {
                (Some(true), _) => Squash::All,
                (_, Some(false)) => Squash::None,
                _ => Squash::Root,
            },
            anon_uid: self.anon_uid.unwrap_or(usual.anon_uid),
            anon_gid: self.anon_gid.unwrap_or(usual.anon_gid),
        }
    }
}

/// Options that are refused, and why.
const REFUSED: &[(&str, &str)] = &[
    ("refer", "referrals are of NFS version 4"),
    ("replicas", "replicas are of NFS version 4"),
    ("xprtsec", "NFS is not encrypted here"),
    ("log", "calls are not logged per export"),
    ("public", "the public file handle is not served"),
    ("index", "the public file handle is not served"),
    ("window", "it belongs to sec=dh, which is not supported"),
    ("none", "name the hosts with rw= and ro=; all others have no access"),
    ("maproot", "an option of FreeBSD: write no_root_squash, or anonuid= and anongid="),
    ("mapall", "an option of FreeBSD: write all_squash,anonuid=UID,anongid=GID"),
    ("alldirs", "an option of FreeBSD: subdirectories can always be mounted; leave it out"),
    ("network", "an option of FreeBSD: write rw=@NETWORK/BITS"),
    ("mask", "an option of FreeBSD: write rw=@NETWORK/BITS"),
    ("quiet", "an option of FreeBSD: leave it out"),
];

/// Share of a file system over NFS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareNfs {
    /// Hosts that may read and write.
    pub read_write: HostList,
    /// Hosts that may only read. A host in both lists has the permission of the longer prefix.
    pub read_only: HostList,
    /// Hosts whose root is not squashed.
    pub root: HostList,
    /// Mapping of users.
    pub identity: IdentityMap,
    /// Whether clients must call from a port below 1024.
    pub secure: bool,
    /// Options that change nothing here, as written.
    pub without_effect: Vec<String>,
}

impl ShareNfs {
    /// `on`: `sec=sys,rw,crossmnt,no_subtree_check`.
    pub fn on() -> Self {
        let without_effect = ["crossmnt", "no_subtree_check"].map(str::to_owned).to_vec();
        ShareNfs { read_write: HostList::everyone(), without_effect, ..ShareNfs::default() }
    }

    /// Whether nothing is shared.
    pub fn is_off(&self) -> bool {
        self.read_write.is_empty() && self.read_only.is_empty()
    }

    /// The host names in the value.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.read_write.names().chain(self.read_only.names()).chain(self.root.names())
    }

    /// The rules of the export, with these addresses of host names. `is_readonly` forbids all changes.
    pub fn rules(&self, names: &Names, is_readonly: bool) -> FileRules {
        let mut readers = self.read_only.resolve(names);
        let mut writers = self.read_write.resolve(names);
        if is_readonly {
            readers.extend(std::mem::replace(&mut writers, crate::Hosts::none()));
        }
        let root = self.root.resolve(names);
        FileRules { writers, readers, root, identity: self.identity, needs_privileged_port: self.secure }
    }

    fn apply(&mut self, said: &mut SetOptions, option: &OptionWord<'_>) -> Result<(), ShareError> {
        let hosts = || match option.value {
            None => Ok(HostList::everyone()),
            Some(text) => HostList::parse(text),
        };
        match option.key {
            "rw" => self.read_write.extend(hosts()?),
            "ro" => self.read_only.extend(hosts()?),
            "root" => self.root.extend(HostList::parse(option.required()?)?),
            "sec" => check_security(option)?,
            "root_squash" => option.flag().and_then(|()| option.put(&mut said.root_squash, true))?,
            "no_root_squash" => option.flag().and_then(|()| option.put(&mut said.root_squash, false))?,
            "all_squash" => option.flag().and_then(|()| option.put(&mut said.all_squash, true))?,
            "no_all_squash" => option.flag().and_then(|()| option.put(&mut said.all_squash, false))?,
            "anonuid" | "anon" => option.put(&mut said.anon_uid, option.number()?)?,
            "anongid" => option.put(&mut said.anon_gid, option.number()?)?,
            "root_mapping" => {
                option.put(&mut said.anon_uid, option.number()?)?;
                option.put(&mut said.root_squash, true)?;
            }
            "secure" => option.flag().and_then(|()| option.put(&mut said.secure, true))?,
            "insecure" => option.flag().and_then(|()| option.put(&mut said.secure, false))?,
            key if WITHOUT_EFFECT.contains(&key) => {
                if !WITH_VALUE.contains(&key) {
                    option.flag()?;
                }
                if self.without_effect.iter().any(|known| are_contrary(known, option.word)) {
                    return Err(option.contradiction());
                }
                if !self.without_effect.iter().any(|known| known == option.word) {
                    self.without_effect.push(option.word.to_owned());
                }
            }
            key => return Err(unsupported(key, option.word)),
        }
        Ok(())
    }
}

fn unsupported(key: &str, word: &str) -> ShareError {
    match REFUSED.iter().find(|(refused, _)| *refused == key) {
        Some((_, why)) => ShareError::refused(word, *why),
        None => ShareError::Unknown { option: word.to_owned(), property: "sharenfs", options: OPTIONS },
    }
}

/// Only AUTH_SYS is supported; a list that also has others would promise them.
fn check_security(option: &OptionWord<'_>) -> Result<(), ShareError> {
    for flavour in option.required()?.split(':') {
        let why = match flavour {
            "sys" => continue,
            "krb5" | "krb5i" | "krb5p" => "Kerberos is not supported: only sec=sys",
            "none" | "null" => "write all_squash instead: only sec=sys",
            _ => "not supported: only sec=sys",
        };
        return Err(ShareError::refused(option.word, why));
    }
    Ok(())
}

impl FromStr for ShareNfs {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        match text {
            "off" => return Ok(ShareNfs::default()),
            "on" => return Ok(ShareNfs::on()),
            _ => {}
        }
        if text.contains(';') {
            return Err(ShareError::refused(
                text,
                "sets of options separated by ';' are of FreeBSD: one set is supported",
            ));
        }
        let mut out = ShareNfs::default();
        let mut said = SetOptions::default();
        for option in options(text) {
            out.apply(&mut said, &option)?;
        }
        out.identity = said.identity();
        out.secure = said.secure.unwrap_or_default();
        if out.is_off() {
            return Err(ShareError::refused(text, "no host has access: add rw, ro, rw=HOSTS or ro=HOSTS"));
        }
        if let Some(word) = out.read_write.common(&out.read_only) {
            return Err(ShareError::refused(&word.to_string(), "it is in both rw and ro"));
        }
        Ok(out)
    }
}

impl fmt::Display for ShareNfs {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return to.write_str("off");
        }
        if *self == ShareNfs::on() {
            return to.write_str("on");
        }
        let mut out = OptionWriter(String::new());
        for (key, hosts) in [("rw", &self.read_write), ("ro", &self.read_only), ("root", &self.root)] {
            if hosts.is_everyone() && key != "root" {
                out.put(format_args!("{key}"));
            } else if !hosts.is_empty() {
                out.put(format_args!("{key}={}", hosts.text(':')));
            }
        }
        match self.identity.squash {
            Squash::Root => {}
            Squash::All => out.put(format_args!("all_squash")),
            Squash::None => out.put(format_args!("no_root_squash")),
        }
        let usual = IdentityMap::default();
        if self.identity.anon_uid != usual.anon_uid {
            out.put(format_args!("anonuid={}", self.identity.anon_uid));
        }
        if self.identity.anon_gid != usual.anon_gid {
            out.put(format_args!("anongid={}", self.identity.anon_gid));
        }
        if self.secure {
            out.put(format_args!("secure"));
        }
        self.without_effect.iter().for_each(|word| out.put(format_args!("{word}")));
        out.finish(to)
    }
}
