//! Lists of hosts in the values of properties.
//!
//! ```text
//!   @10.1.0.0/16 : 192.0.2.7 : [2001:db8::1] : [2001:db8::]/32 : build.example.org : *
//! ```
//!
//! Words are separated by `:` or `+`; the colons of an IPv6 address are in brackets. Names are kept as names, and resolved
//! when rules are made of the list.

use super::ShareError;
use crate::hosts::Hosts;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Addresses of host names, as far as they could be resolved.
pub type Names = BTreeMap<String, Vec<IpAddr>>;

/// Longest host name in bytes.
const MAX_NAME_LEN: usize = 253;
/// Longest label of a host name in bytes.
const MAX_LABEL_LEN: usize = 63;

/// One word of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostWord {
    /// `*`: every host.
    Everyone,
    /// An address, or a network.
    Network {
        /// Address.
        address: IpAddr,
        /// Length of the prefix in bits: all of them for one address.
        bits: u8,
    },
    /// A host name.
    Name(String),
}

/// A list of hosts. The empty list is no host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostList(Vec<HostWord>);

fn max_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl HostList {
    /// Every host.
    pub fn everyone() -> Self {
        HostList(vec![HostWord::Everyone])
    }

    /// Whether no host is in the list.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list is every host and nothing else.
    pub fn is_everyone(&self) -> bool {
        self.0 == [HostWord::Everyone]
    }

    /// The words.
    pub fn words(&self) -> &[HostWord] {
        &self.0
    }

    /// The host names in the list.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|word| match word {
            HostWord::Name(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Parses a list.
    ///
    /// # Errors
    /// The first word that is no host.
    pub fn parse(text: &str) -> Result<Self, ShareError> {
        if has_bare_ipv6(text) {
            return Err(ShareError::refused(text, "IPv6 addresses are written in brackets, as in [2001:db8::1]"));
        }
        let mut out = HostList::default();
        for word in split(text) {
            out.add(parse_word(word)?);
        }
        if out.is_empty() { Err(ShareError::refused(text, "no host is named")) } else { Ok(out) }
    }

    /// Adds a word, unless the list has it.
    pub(super) fn add(&mut self, word: HostWord) {
        if !self.0.contains(&word) {
            self.0.push(word);
        }
    }

    /// Adds the words of another list.
    pub(super) fn extend(&mut self, other: HostList) {
        other.0.into_iter().for_each(|word| self.add(word));
    }

    /// A word that both lists have.
    pub(super) fn common(&self, other: &HostList) -> Option<&HostWord> {
        self.0.iter().find(|word| other.0.contains(word))
    }

    /// The addresses of the list; a name that is not among `names` has none.
    pub fn resolve(&self, names: &Names) -> Hosts {
        let mut hosts = Hosts::none();
        for word in &self.0 {
            match word {
                HostWord::Everyone => hosts.extend(Hosts::all()),
                HostWord::Network { address, bits } => hosts.add_network(*address, *bits),
                HostWord::Name(name) => {
                    let found = names.get(name).map(Vec::as_slice).unwrap_or_default();
                    found.iter().for_each(|address| hosts.add_network(address.to_canonical(), max_bits(*address)));
                }
            }
        }
        hosts
    }

    /// The text of the list with this separator.
    pub(super) fn text(&self, separator: char) -> String {
        let mut out = String::new();
        for word in &self.0 {
            if !out.is_empty() {
                out.push(separator);
            }
            out.push_str(&word.to_string());
        }
        out
    }
}

impl fmt::Display for HostWord {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostWord::Everyone => to.write_str("*"),
            HostWord::Name(name) => to.write_str(name),
            HostWord::Network { address, bits } => {
                let prefix = if *bits == max_bits(*address) { String::new() } else { format!("/{bits}") };
                let at = if prefix.is_empty() { "" } else { "@" };
                match address {
                    IpAddr::V4(address) => write!(to, "{at}{address}{prefix}"),
                    IpAddr::V6(address) => write!(to, "{at}[{address}]{prefix}"),
                }
            }
        }
    }
}

/// Splits at separators outside brackets; empty words are skipped.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    text.split(move |c: char| {
        match c {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        !is_inside && (c == ':' || c == '+')
    })
    .filter(|word| !word.is_empty())
}

/// Whether a list has an IPv6 address without brackets: the empty word in its `::` separates nothing.
fn has_bare_ipv6(text: &str) -> bool {
    let mut outside = text.split(['[', ']']).step_by(2);
    outside.any(|part| part.contains("::"))
}

fn parse_word(word: &str) -> Result<HostWord, ShareError> {
    if word == "*" {
        return Ok(HostWord::Everyone);
    }
    let plain = word.strip_prefix('@').unwrap_or(word);
    let (host, bits) = match plain.split_once('/') {
        Some((host, bits)) => (host, Some(bits)),
        None => (plain, None),
    };
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match inside {
        Some(inside) => inside.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    };
    if let Some(address) = address {
        let most = max_bits(address);
        let why = || ShareError::refused(word, format!("the length of the prefix is 0 to {most} bits"));
        let bits = match bits {
            None => most,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(why)?
            }
            Some(_) => return Err(why()),
        };
        return Ok(HostWord::Network { address, bits });
    }
    if inside.is_some() {
        return Err(ShareError::refused(word, "an IPv6 address is expected in the brackets"));
    }
    if word.starts_with('@') || bits.is_some() {
        let why = "not an address or network (@192.0.2.0/24, @[2001:db8::]/32); netgroups are not supported";
        return Err(ShareError::refused(word, why));
    }
    name(word)
}

/// Parses a host name.
fn name(word: &str) -> Result<HostWord, ShareError> {
    if word.contains(['*', '?']) {
        let why = "patterns of host names are not supported: write the network, for example @192.0.2.0/24";
        return Err(ShareError::refused(word, why));
    }
    let is_label = |label: &str| {
        let fits = (1..=MAX_LABEL_LEN).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-');
        fits && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let last_is_number = word.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if word.len() > MAX_NAME_LEN || !word.split('.').all(is_label) || last_is_number {
        let why = "not an address (192.0.2.7, [2001:db8::1]), network (@192.0.2.0/24) or host name";
        return Err(ShareError::refused(word, why));
    }
    Ok(HostWord::Name(word.to_ascii_lowercase()))
}
