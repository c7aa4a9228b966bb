//! `weir:nbd`.

use super::{HostList, OptionWriter, ShareError, after_switch, options};
use std::fmt;
use std::str::FromStr;

const OPTIONS: &str = "name=NAME, hosts=HOST+HOST, ro, rw";
/// Longest name in bytes; the protocol allows 4096, clients print shorter ones.
const MAX_NAME_LEN: usize = 255;

/// Share of a volume over NBD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareNbd {
    /// Name of the export; the volume's name by default.
    pub name: Option<String>,
    /// Hosts that see it; none if it is not shared.
    pub hosts: HostList,
    /// Whether clients may only read.
    pub read_only: bool,
}

impl ShareNbd {
    /// Not shared.
    pub fn off() -> Self {
        ShareNbd { name: None, hosts: HostList::default(), read_only: false }
    }

    /// Shared with every host that can connect.
    pub fn on() -> Self {
        ShareNbd { hosts: HostList::everyone(), ..ShareNbd::off() }
    }

    /// Whether nothing is shared.
    pub fn is_off(&self) -> bool {
        self.hosts.is_empty()
    }
}

impl FromStr for ShareNbd {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let mut out = ShareNbd::on();
        let Some(text) = after_switch(text)? else { return Ok(ShareNbd::off()) };
        let mut hosts = None;
        let mut read_only = None;
        for option in options(text) {
            match option.key {
                "name" => {
                    let name = option.required()?;
                    if name.len() > MAX_NAME_LEN || name.chars().any(char::is_control) {
                        let why = "a name has at most 255 bytes and no control characters";
                        return Err(ShareError::refused(option.word, why));
                    }
                    option.put(&mut out.name, name.to_owned())?;
                }
                "hosts" => option.put(&mut hosts, HostList::parse(option.required()?)?)?,
                "ro" | "readonly" | "read-only" => option.put(&mut read_only, option.switch()?)?,
                "rw" => option.flag().and_then(|()| option.put(&mut read_only, false))?,
                _ => {
                    let option = option.word.to_owned();
                    return Err(ShareError::Unknown { option, property: "weir:nbd", options: OPTIONS });
                }
            }
        }
        out.hosts = hosts.unwrap_or(out.hosts);
        out.read_only = read_only.unwrap_or_default();
        Ok(out)
    }
}

impl fmt::Display for ShareNbd {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return to.write_str("off");
        }
        let mut out = OptionWriter(String::new());
        if let Some(name) = &self.name {
            out.put(format_args!("name={name}"));
        }
        if !self.hosts.is_everyone() {
            out.put(format_args!("hosts={}", self.hosts.text('+')));
        }
        if self.read_only {
            out.put(format_args!("ro"));
        }
        out.finish(to)
    }
}
