//! `sharesmb`.

use super::{HostList, OptionWriter, ShareError, after_switch, options};
use std::fmt;
use std::str::FromStr;

const OPTIONS: &str = "name=NAME, guest_ok=y|n, ro, rw, timemachine[=SIZE], hosts=HOST:HOST, browseable=y|n";
/// Longest name of a share in characters.
const MAX_NAME_CHARS: usize = 80;
/// Names that Windows or Samba's configuration reserve.
const RESERVED: &[&str] = &["ipc$", "admin$", "print$", "global", "homes", "printers"];
/// Options of other systems that are refused, and why.
const REFUSED: &[(&str, &str)] = &[
    ("abe", "access-based enumeration is not supported"),
    ("ad-container", "shares are not published in a directory"),
    ("catia", "names are not translated"),
    ("csc", "the clients' offline caching is not configured"),
    ("dfsroot", "DFS is not supported"),
    ("encrypt", "encryption is set for the whole server"),
    ("none", "name the hosts with hosts=; all others have no access"),
];

/// Time Machine on a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeMachine {
    /// The share is none for backups.
    #[default]
    Off,
    /// Macs may put backups there, limited by the file system alone.
    Unlimited,
    /// Macs are shown this size in bytes.
    Limited(u64),
}

/// Share of a file system over SMB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareSmb {
    /// Name of the share; made of the dataset's name by default.
    pub name: Option<String>,
    /// Whether users without an account may connect.
    pub guest: bool,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Time Machine.
    pub time_machine: TimeMachine,
    /// Hosts that may connect; none if it is not shared.
    pub hosts: HostList,
    /// Whether the list of shares shows it.
    pub browseable: bool,
}

impl ShareSmb {
    /// Not shared.
    pub fn off() -> Self {
        let hosts = HostList::default();
        let time_machine = TimeMachine::Off;
        ShareSmb { name: None, guest: false, read_only: false, time_machine, hosts, browseable: true }
    }

    /// Shared with every host that can connect, for users with an account.
    pub fn on() -> Self {
        ShareSmb { hosts: HostList::everyone(), ..ShareSmb::off() }
    }

    /// Name of the share of a file system.
    pub fn name_for(&self, dataset: &str) -> String {
        self.name.clone().unwrap_or_else(|| default_name(dataset))
    }

    /// Whether nothing is shared.
    pub fn is_off(&self) -> bool {
        self.hosts.is_empty()
    }
}

/// The name of the share of a dataset that has none set: its name with every character that shares or paths cannot have
/// replaced by `_`.
fn default_name(dataset: &str) -> String {
    let fits = |c: char| c.is_alphanumeric() || "-.".contains(c);
    dataset.chars().map(|c| if fits(c) { c } else { '_' }).take(MAX_NAME_CHARS).collect()
}

fn check_name(word: &str, name: &str) -> Result<(), ShareError> {
    let refused = |why: &str| Err(ShareError::refused(word, why));
    if name.chars().count() > MAX_NAME_CHARS {
        return refused("a name has at most 80 characters");
    }
    if name.chars().any(|c| c.is_control() || "\\/[]:|<>+=;,*?\"%".contains(c)) || name.trim() != name {
        return refused("a name has none of \\ / [ ] : | < > + = ; , * ? \" % and no space at its ends");
    }
    if RESERVED.contains(&name.to_lowercase().as_str()) || name.starts_with('.') {
        return refused("the name is reserved");
    }
    Ok(())
}

/// A size: a number with a suffix of K, M, G, T, P or E, base 1024.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        "P" | "PB" | "PIB" => 50,
        "E" | "EB" | "EIB" => 60,
        _ => return None,
    };
    let number: u64 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()?;
    number.checked_mul(1 << shift).filter(|size| *size > 0)
}

impl FromStr for ShareSmb {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let mut out = ShareSmb::on();
        let Some(text) = after_switch(text)? else { return Ok(ShareSmb::off()) };
        let mut hosts = None;
        let mut guest = None;
        let mut read_only = None;
        let mut browseable = None;
        let mut time_machine = None;
        for option in options(text) {
            match option.key {
                "name" | "resource" => {
                    let name = option.required()?;
                    check_name(option.word, name)?;
                    option.put(&mut out.name, name.to_owned())?;
                }
                "guest_ok" | "guestok" | "guest" | "public" => option.put(&mut guest, option.switch()?)?,
                "ro" | "readonly" | "read-only" => option.put(&mut read_only, option.switch()?)?,
                "rw" => option.flag().and_then(|()| option.put(&mut read_only, false))?,
                "browseable" | "browsable" => option.put(&mut browseable, option.switch()?)?,
                "hosts" => option.put(&mut hosts, HostList::parse(option.required()?)?)?,
                "timemachine" => {
                    let said = match option.value {
                        None => TimeMachine::Unlimited,
                        Some("off") => TimeMachine::Off,
                        Some(text) => TimeMachine::Limited(
                            size(text)
                                .ok_or_else(|| ShareError::refused(option.word, "it takes a size, as in 500G"))?,
                        ),
                    };
                    option.put(&mut time_machine, said)?;
                }
                key => {
                    let refused = REFUSED.iter().find(|(refused, _)| *refused == key);
                    let unknown = || {
                        let option = option.word.to_owned();
                        ShareError::Unknown { option, property: "sharesmb", options: OPTIONS }
                    };
                    return Err(refused.map_or_else(unknown, |(_, why)| ShareError::refused(option.word, *why)));
                }
            }
        }
        out.hosts = hosts.unwrap_or(out.hosts);
        out.guest = guest.unwrap_or_default();
        out.read_only = read_only.unwrap_or_default();
        out.browseable = browseable.unwrap_or(out.browseable);
        out.time_machine = time_machine.unwrap_or_default();
        Ok(out)
    }
}

impl fmt::Display for ShareSmb {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return to.write_str("off");
        }
        let mut out = OptionWriter(String::new());
        if let Some(name) = &self.name {
            out.put(format_args!("name={name}"));
        }
        if self.guest {
            out.put(format_args!("guest_ok=y"));
        }
        if self.read_only {
            out.put(format_args!("ro"));
        }
        match self.time_machine {
            TimeMachine::Off => {}
            TimeMachine::Unlimited => out.put(format_args!("timemachine")),
            TimeMachine::Limited(bytes) => out.put(format_args!("timemachine={bytes}")),
        }
        if !self.hosts.is_everyone() {
            out.put(format_args!("hosts={}", self.hosts.text(':')));
        }
        if !self.browseable {
            out.put(format_args!("browseable=n"));
        }
        out.finish(to)
    }
}
