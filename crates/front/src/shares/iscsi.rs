//! `weir:iscsi`, and the names of iSCSI nodes (RFC 7143, 4.2.7).

use super::{HostList, OptionWriter, ShareError, after_switch, options};
use std::fmt;
use std::str::FromStr;

const OPTIONS: &str =
    "target=IQN, lun=N, initiators=IQN+IQN, hosts=HOST+HOST, chap=USER, mutual=USER, wce=on|off, ro, rw";
/// Longest name of a node in bytes.
const MAX_NAME_LEN: usize = 223;
/// Longest name of a user in bytes.
const MAX_USER_LEN: usize = 223;
/// Largest logical unit number: those up to 255 have the same form for every initiator.
const MAX_LUN: u32 = 255;

/// Name of an iSCSI node: `iqn.2001-04.com.example:disk`, `eui.0123456789abcdef` or `naa.…`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Iqn(String);

impl Iqn {
    /// The default target of a volume. It contains the GUID of the pool and the persistent ID of the volume
    /// ([`crate::BlockDevice::id`]), so it stays when either is renamed, and no other volume ever has it.
    pub fn of_volume(pool_guid: u64, volume: u64) -> Self {
        Iqn(format!("iqn.2026-01.local.weir:{pool_guid:016x}.{volume:014x}"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Iqn {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl FromStr for Iqn {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let refused = |why: &str| Err(ShareError::refused(text, why));
        // Names are compared after mapping to lower case (RFC 3722).
        let name = text.to_ascii_lowercase();
        if name.len() > MAX_NAME_LEN {
            return refused("a name has at most 223 bytes");
        }
        let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = if let Some(digits) = name.strip_prefix("eui.") {
            digits.len() == 16 && is_hex(digits)
        } else if let Some(digits) = name.strip_prefix("naa.") {
            matches!(digits.len(), 16 | 32) && is_hex(digits)
        } else {
            name.strip_prefix("iqn.").is_some_and(is_qualified)
        };
        if fits { Ok(Iqn(name)) } else { refused("not a name like iqn.2001-04.com.example:disk, eui.… or naa.…") }
    }
}

/// Whether a name after `iqn.` is a month, a reversed domain, and maybe a text after a colon.
fn is_qualified(name: &str) -> bool {
    let (authority, rest) = match name.split_once(':') {
        Some((authority, rest)) => (authority, Some(rest)),
        None => (name, None),
    };
    let Some((date, domain)) = authority.split_once('.') else { return false };
    let is_month = date.split_once('-').is_some_and(|(year, month)| {
        let is_number = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
        is_number(year, 4) && is_number(month, 2) && ("01"..="12").contains(&month)
    });
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    let rest = rest.is_none_or(|rest| !rest.is_empty() && rest.chars().all(allowed));
    is_month && domain.split('.').all(is_label) && rest
}

/// Share of a volume over iSCSI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareIscsi {
    /// The target; [`Iqn::of_volume`] by default. Several volumes may share a target.
    pub target: Option<Iqn>,
    /// Logical unit number of the volume in the target.
    pub lun: u16,
    /// Initiators that may log in; empty for all.
    pub initiators: Vec<Iqn>,
    /// Hosts that may connect; none if the volume is not shared.
    pub hosts: HostList,
    /// User whose CHAP secret the initiator must know.
    pub chap: Option<String>,
    /// User as whom the target answers the initiator's challenge.
    pub mutual: Option<String>,
    /// Whether writes may stay in memory until the initiator flushes them.
    pub write_cache: bool,
    /// Whether initiators may only read.
    pub read_only: bool,
}

impl ShareIscsi {
    /// Not shared.
    pub fn off() -> Self {
        ShareIscsi {
            target: None,
            lun: 0,
            initiators: Vec::new(),
            hosts: HostList::default(),
            chap: None,
            mutual: None,
            write_cache: true,
            read_only: false,
        }
    }

    /// Shared as LUN 0 of a target of its own, with every initiator that can connect.
    pub fn on() -> Self {
        ShareIscsi { hosts: HostList::everyone(), ..ShareIscsi::off() }
    }

    /// Whether nothing is shared.
    pub fn is_off(&self) -> bool {
        self.hosts.is_empty()
    }
}

fn user(word: &str, name: &str) -> Result<String, ShareError> {
    let fits = name.len() <= MAX_USER_LEN && !name.chars().any(|c| c.is_control() || c.is_whitespace() || c == '+');
    if fits { Ok(name.to_owned()) } else { Err(ShareError::refused(word, "not the name of one user")) }
}

impl FromStr for ShareIscsi {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let mut out = ShareIscsi::on();
        let Some(text) = after_switch(text)? else { return Ok(ShareIscsi::off()) };
        let mut lun = None;
        let mut hosts = None;
        let mut write_cache = None;
        let mut read_only = None;
        for option in options(text) {
            match option.key {
                "target" => option.put(&mut out.target, option.required()?.parse()?)?,
                "lun" => {
                    let number =
                        option.number().ok().filter(|lun| *lun <= MAX_LUN).and_then(|lun| u16::try_from(lun).ok());
                    let refused = || ShareError::refused(option.word, "it takes a number, 0 to 255");
                    option.put(&mut lun, number.ok_or_else(refused)?)?;
                }
                "initiators" => {
                    for name in option.required()?.split('+').filter(|name| !name.is_empty()) {
                        let initiator: Iqn = name.parse()?;
                        if !out.initiators.contains(&initiator) {
                            out.initiators.push(initiator);
                        }
                    }
                    if out.initiators.is_empty() {
                        return Err(ShareError::refused(option.word, "no initiator is named"));
                    }
                }
                "hosts" => option.put(&mut hosts, HostList::parse(option.required()?)?)?,
                "chap" => option.put(&mut out.chap, user(option.word, option.required()?)?)?,
                "mutual" => option.put(&mut out.mutual, user(option.word, option.required()?)?)?,
                "wce" => option.put(&mut write_cache, option.switch()?)?,
                "ro" | "readonly" | "read-only" => option.put(&mut read_only, option.switch()?)?,
                "rw" => option.flag().and_then(|()| option.put(&mut read_only, false))?,
                _ => {
                    let option = option.word.to_owned();
                    return Err(ShareError::Unknown { option, property: "weir:iscsi", options: OPTIONS });
                }
            }
        }
        out.lun = lun.unwrap_or_default();
        out.hosts = hosts.unwrap_or(out.hosts);
        out.write_cache = write_cache.unwrap_or(out.write_cache);
        out.read_only = read_only.unwrap_or_default();
        if out.mutual.is_some() && out.mutual == out.chap {
            let why =
                "chap= and mutual= must be two users: with one secret, an initiator could answer its own challenge";
            return Err(ShareError::refused(text, why));
        }
        if out.mutual.is_some() && out.chap.is_none() {
            return Err(ShareError::refused(text, "mutual= needs chap=: the initiator authenticates first"));
        }
        Ok(out)
    }
}

impl fmt::Display for ShareIscsi {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return to.write_str("off");
        }
        let mut out = OptionWriter(String::new());
        if let Some(target) = &self.target {
            out.put(format_args!("target={target}"));
        }
        if self.lun != 0 {
            out.put(format_args!("lun={}", self.lun));
        }
        if !self.initiators.is_empty() {
            let names: Vec<&str> = self.initiators.iter().map(Iqn::as_str).collect();
            out.put(format_args!("initiators={}", names.join("+")));
        }
        if !self.hosts.is_everyone() {
            out.put(format_args!("hosts={}", self.hosts.text('+')));
        }
        for (key, user) in [("chap", &self.chap), ("mutual", &self.mutual)] {
            if let Some(user) = user {
                out.put(format_args!("{key}={user}"));
            }
        }
        if !self.write_cache {
            out.put(format_args!("wce=off"));
        }
        if self.read_only {
            out.put(format_args!("ro"));
        }
        out.finish(to)
    }
}
