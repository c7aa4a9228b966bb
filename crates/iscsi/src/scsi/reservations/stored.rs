//! The form in which reservations are stored: one line of printable characters, so that a property can hold it.
//!
//! ```text
//!   1;KIND;HOLDER;KEY,INITIATOR,TARGET;KEY,INITIATOR,TARGET;…
//!   KIND 0: no reservation.  HOLDER: index of the registration.  KEY: 16 hexadecimal digits.
//! ```

use super::{Kind, MAX_REGISTRATIONS, Port, Registration, Reservation, Reservations};

/// Maximum length of the encoding in bytes: a user property of ZFS has at most 8191.
pub const MAX_ENCODED_BYTES: usize = 8000;
const VERSION: &str = "1";

impl Reservations {
    /// Encodes what survives a restart: nothing (an empty text) unless the last registration asked for it.
    pub fn encode(&self) -> Vec<u8> {
        if !self.persists || self.registrations.is_empty() {
            return Vec::new();
        }
        let kind = self.held.as_ref().map_or(0, |held| held.kind as u8);
        let holds = |known: &Registration| self.held.as_ref().is_some_and(|held| held.holder == known.port);
        let holder = self.registrations.iter().position(holds).unwrap_or(0);
        let mut text = format!("{VERSION};{kind};{holder}");
        for Registration { port, key } in &self.registrations {
            text.push_str(&format!(";{key:016x},{},{}", port.initiator, port.target));
        }
        text.into_bytes()
    }

    /// Decodes stored reservations; `None` if they are malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Reservations::default());
        }
        if bytes.len() > MAX_ENCODED_BYTES {
            return None;
        }
        let mut words = std::str::from_utf8(bytes).ok()?.split(';');
        if words.next()? != VERSION {
            return None;
        }
        let kind: u8 = words.next()?.parse().ok()?;
        let holder: usize = words.next()?.parse().ok()?;
        let registrations = words.map(registration).collect::<Option<Vec<Registration>>>()?;
        let ports: std::collections::BTreeSet<&Port> = registrations.iter().map(|known| &known.port).collect();
        if registrations.is_empty() || ports.len() != registrations.len() || registrations.len() > MAX_REGISTRATIONS {
            return None;
        }
        let held = match kind {
            0 => None,
            kind => Some(Reservation { kind: Kind::of(kind)?, holder: registrations.get(holder)?.port.clone() }),
        };
        Some(Reservations { generation: 0, registrations, held, persists: true })
    }
}

fn registration(word: &str) -> Option<Registration> {
    let (key, ports) = word.split_once(',')?;
    let (initiator, target) = ports.rsplit_once(',')?;
    let key = u64::from_str_radix(key, 16).ok().filter(|key| *key != 0)?;
    (!initiator.is_empty() && !target.is_empty())
        .then(|| Registration { port: Port { initiator: initiator.to_owned(), target: target.to_owned() }, key })
}
