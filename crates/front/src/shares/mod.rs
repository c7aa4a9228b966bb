//! What the datasets share, as their properties say: `sharenfs`, `sharesmb`, `weir:iscsi` and `weir:nbd`. Pure.
//!
//! ```text
//!   "rw=@10.0.0.0/8,no_root_squash" ─ parse ─▶ ShareNfs ─ rules(names) ─▶ FileRules: may this host read, write?
//!   "target=iqn.…,lun=1,chap=ann"   ─ parse ─▶ ShareIscsi ─┐
//!   "name=disk,hosts=10.0.0.7"      ─ parse ─▶ ShareNbd    ├─ lists ─▶ targets, names, shares of a pool
//!   "name=music,guest_ok=y"         ─ parse ─▶ ShareSmb   ─┘
//! ```
//!
//! **Values.** `off` shares nothing, `on` shares with the defaults, anything else is a list of options separated by commas,
//! which may begin with `on` (except that of `sharenfs`, where `rw` or `ro` says so).
//! Printing a value and parsing the text returns the same value. Every option is one of three kinds: Weir honours it; Weir
//! accepts it because it changes nothing here (`async`, `wdelay`); Weir refuses it with the reason (`sec=krb5`). No option is
//! ignored that would narrow what is shared.
//!
//! **Hosts** are addresses, networks and host names ([`HostList`]). A list only ever grants, so a name that cannot be resolved
//! grants nothing.
//!
//! **Errors.** A value that cannot be parsed is refused when it is set, and the message names the word. A pool may have such a
//! value nevertheless, set by OpenZFS or by an older version: then the dataset shares nothing over that protocol.
//!
//! Facts about `sharenfs`: OpenZFS `lib/libzfs/os/linux/libzfs_share_nfs.c`, exports(5).

mod hosts;
mod iscsi;
mod lists;
mod nbd;
mod nfs;
mod smb;

pub use hosts::{HostList, HostWord, Names};
pub use iscsi::{Iqn, ShareIscsi};
pub use lists::{
    IscsiLun, IscsiTarget, Listed, NbdExport, Precedence, SharedFileSystem, SharedVolume, SmbShare, iscsi_targets,
    nbd_exports, smb_shares,
};
pub use nbd::ShareNbd;
pub use nfs::ShareNfs;
pub use smb::{ShareSmb, TimeMachine};

use std::fmt;
use thiserror::Error;

/// Why a value shares nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShareError {
    /// The option does not exist.
    #[error("'{option}' is not an option of {property}; it has: {options}")]
    Unknown {
        /// The option.
        option: String,
        /// Name of the property.
        property: &'static str,
        /// The options that exist.
        options: &'static str,
    },
    /// The option exists, but not here, or not with this value.
    #[error("'{word}': {why}")]
    Refused {
        /// The option with its value.
        word: String,
        /// Reason, and what to write instead.
        why: String,
    },
}

impl ShareError {
    pub(crate) fn refused(word: &str, why: impl Into<String>) -> Self {
        ShareError::Refused { word: word.to_owned(), why: why.into() }
    }
}

/// The properties of this module.
pub const PROPERTIES: [&str; 4] = ["sharenfs", "sharesmb", "weir:iscsi", "weir:nbd"];

/// Host names and users with a CHAP secret that the value of a property names. None for other properties and for values
/// that cannot be parsed.
pub fn named_in(property: &str, value: &str) -> NamedInShare {
    let hosts = |hosts: &HostList| hosts.names().map(str::to_owned).collect();
    let of_hosts = |hosts| NamedInShare { hosts, chap_users: Vec::new() };
    let found = match property {
        "sharenfs" => value.parse().ok().map(|nfs: ShareNfs| of_hosts(nfs.names().map(str::to_owned).collect())),
        "sharesmb" => value.parse().ok().map(|smb: ShareSmb| of_hosts(hosts(&smb.hosts))),
        "weir:nbd" => value.parse().ok().map(|nbd: ShareNbd| of_hosts(hosts(&nbd.hosts))),
        "weir:iscsi" => value.parse().ok().map(|iscsi: ShareIscsi| NamedInShare {
            hosts: hosts(&iscsi.hosts),
            chap_users: iscsi.chap.into_iter().chain(iscsi.mutual).collect(),
        }),
        _ => None,
    };
    found.unwrap_or_default()
}

/// Names in a value of a property of sharing: each must exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedInShare {
    /// Host names.
    pub hosts: Vec<String>,
    /// Users with a CHAP secret.
    pub chap_users: Vec<String>,
}

/// Checks the value of a property of this module; other properties pass.
///
/// # Errors
/// The word that is wrong, and why.
pub fn check(property: &str, value: &str) -> Result<(), ShareError> {
    match property {
        "sharenfs" => value.parse::<ShareNfs>().map(drop),
        "sharesmb" => value.parse::<ShareSmb>().map(drop),
        "weir:iscsi" => value.parse::<ShareIscsi>().map(drop),
        "weir:nbd" => value.parse::<ShareNbd>().map(drop),
        _ => Ok(()),
    }
}

/// One option of a list.
struct OptionWord<'a> {
    /// The option as written.
    word: &'a str,
    key: &'a str,
    value: Option<&'a str>,
}

impl OptionWord<'_> {
    /// The value of an option that must have one.
    fn required(&self) -> Result<&str, ShareError> {
        let found = self.value.filter(|value| !value.is_empty());
        found.ok_or_else(|| ShareError::refused(self.word, "a value is missing"))
    }

    /// Fails if an option without a value has one.
    fn flag(&self) -> Result<(), ShareError> {
        if self.value.is_none() { Ok(()) } else { Err(ShareError::refused(self.word, "it takes no value")) }
    }

    /// A number.
    fn number(&self) -> Result<u32, ShareError> {
        let digits = self.required()?;
        let found = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        found.ok_or_else(|| ShareError::refused(self.word, "it takes a number, 0 to 4294967295"))
    }

    /// Records what the option says. An option that says something else than one before it is refused, so that a list
    /// never means less or more than its reader believes.
    fn put<T: PartialEq>(&self, slot: &mut Option<T>, said: T) -> Result<(), ShareError> {
        if slot.as_ref().is_some_and(|before| *before != said) {
            return Err(self.contradiction());
        }
        *slot = Some(said);
        Ok(())
    }

    /// The refusal of an option that contradicts one before it.
    fn contradiction(&self) -> ShareError {
        ShareError::refused(self.word, "an option before it says something else; leave one out")
    }

    /// A switch: `y`, `yes`, `on`, `true`, `1`, or no value, and their opposites.
    fn switch(&self) -> Result<bool, ShareError> {
        match self.value {
            None | Some("y" | "yes" | "on" | "true" | "1") => Ok(true),
            Some("n" | "no" | "off" | "false" | "0") => Ok(false),
            Some(_) => Err(ShareError::refused(self.word, "it takes on or off (also y or n)")),
        }
    }
}

/// The options of a value that may begin with `on`; `None` for `off`.
fn after_switch(text: &str) -> Result<Option<&str>, ShareError> {
    match text.split_once(',').map_or((text, ""), |(first, rest)| (first, rest)) {
        ("off", "") => Ok(None),
        ("off", _) => Err(ShareError::refused(text, "off takes no options")),
        ("on", rest) => Ok(Some(rest)),
        _ if text.is_empty() => Err(ShareError::refused(text, "write on, off or options")),
        _ => Ok(Some(text)),
    }
}

/// The options of a value; empty ones are skipped.
fn options(text: &str) -> impl Iterator<Item = OptionWord<'_>> {
    text.split(',').filter(|word| !word.is_empty()).map(|word| match word.split_once('=') {
        Some((key, value)) => OptionWord { word, key, value: Some(value) },
        None => OptionWord { word, key: word, value: None },
    })
}

/// Writes options separated by commas, or `on` if there is none.
struct OptionWriter(String);

impl OptionWriter {
    fn put(&mut self, option: fmt::Arguments<'_>) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        // Writing into a string cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.0, option);
    }

    fn finish(self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(if self.0.is_empty() { "on" } else { &self.0 })
    }
}

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz targets of this module: each must return for any input, in time and memory bounded by the input's length.
pub const TARGETS: &[Target] = &[("share_properties", properties_target)];

/// Parses the input as every property, and requires that printing and parsing return the same value.
fn properties_target(data: &[u8]) {
    fn round_trip<T: std::str::FromStr + fmt::Display + PartialEq + fmt::Debug>(text: &str) {
        if let Ok(value) = text.parse::<T>() {
            let printed = value.to_string();
            assert_eq!(printed.parse::<T>().ok(), Some(value), "'{text}' is printed as '{printed}'");
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    round_trip::<ShareNfs>(text);
    round_trip::<ShareSmb>(text);
    round_trip::<ShareIscsi>(text);
    round_trip::<ShareNbd>(text);
    round_trip::<Iqn>(text);
}

#[cfg(test)]
mod tests;
