//! What the status monitor keeps on stable storage: its state number, and the clients to notify after a restart.
//!
//! ```text
//!   weir locks 1
//!   state 7
//!   client 192.0.2.7 host.example
//! ```
//!
//! The state number is odd while the host is up. Names are for people; control characters in them become `?`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

const HEAD: &str = "weir locks 1";
/// Maximum number of clients.
pub(crate) const MAX_CLIENTS: usize = 4096;
/// Maximum length of a client's name in bytes; longer ones are cut.
const MAX_NAME_BYTES: usize = 255;

/// State number and clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) state: u32,
    /// Name of each client by its address.
    pub(crate) clients: BTreeMap<IpAddr, String>,
}

impl Record {
    /// Decodes a record; `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Record> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        let state = lines.next()?.strip_prefix("state ")?.parse().ok()?;
        let mut record = Record { state, clients: BTreeMap::new() };
        for line in lines {
            let (address, name) = line.strip_prefix("client ")?.split_once(' ')?;
            if record.clients.len() >= MAX_CLIENTS {
                return None;
            }
            record.clients.insert(address.parse().ok()?, name.to_owned());
        }
        Some(record)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = format!("{HEAD}\nstate {}\n", self.state);
        for (address, name) in &self.clients {
            // Writing to a string does not fail.
            let _ = writeln!(out, "client {address} {name}");
        }
        out.into_bytes()
    }

    /// The record of the next start: the next odd state number.
    pub(crate) fn restarted(self) -> Record {
        let state = (self.state.wrapping_add(1) | 1) & (u32::MAX >> 1);
        debug_assert!(state % 2 == 1 && state != self.state, "the state number stays");
        Record { state, ..self }
    }

    /// Adds a client; false if its address is recorded already, under whatever name.
    pub(crate) fn add(&mut self, address: IpAddr, name: &[u8]) -> bool {
        if self.clients.contains_key(&address) {
            return false;
        }
        let name: String =
            String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let name: String = name.char_indices().take_while(|(at, _)| *at < MAX_NAME_BYTES).map(|(_, c)| c).collect();
        self.clients.insert(address, name).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_is_encoded() {
        let mut record = Record { state: 7, clients: BTreeMap::new() };
        assert!(record.add("192.0.2.7".parse().unwrap(), b"host one\n"));
        assert!(record.add("2001:db8::1".parse().unwrap(), &[0xff; 999]));
        assert!(!record.add("192.0.2.7".parse().unwrap(), b"another name"));
        assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
        assert_eq!(record.clients.values().next().unwrap(), "host one?");
        assert_eq!(Record::decode(b"weir locks 1\nstate 3\nclient none x\n"), None);
        assert_eq!(Record::decode(&[0xff; 9]), None);
    }

    #[test]
    fn each_start_has_another_odd_state() {
        let after = |state| Record { state, ..Record::default() }.restarted().state;
        assert_eq!((after(0), after(1), after(2), after(7)), (1, 3, 3, 9));
        assert_eq!(after(u32::MAX >> 1), 1);
    }
}
