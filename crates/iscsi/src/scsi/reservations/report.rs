//! Data of PERSISTENT RESERVE IN (SPC-4, 6.15).

use super::{Kind, Registration, Reservations};

/// Size in bytes of what precedes the TransportID of a full status descriptor.
const DESCRIPTOR_BYTES: usize = 24;
/// Minimum length of the name in a TransportID, in bytes.
const MIN_NAME_BYTES: usize = 20;

impl Reservations {
    fn header(&self, body: Vec<u8>) -> Vec<u8> {
        let mut out = self.generation.to_be_bytes().to_vec();
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend(body);
        out
    }

    /// READ KEYS.
    pub fn keys(&self) -> Vec<u8> {
        self.header(self.registrations.iter().flat_map(|known| known.key.to_be_bytes()).collect())
    }

    /// READ RESERVATION.
    pub fn reservation(&self) -> Vec<u8> {
        let body = self.held.as_ref().map(|held| {
            let key = if held.kind.is_held_by_all() { 0 } else { self.key_of(&held.holder).unwrap_or(0) };
            let mut body = key.to_be_bytes().to_vec();
            body.extend_from_slice(&[0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
            body
        });
        self.header(body.unwrap_or_default())
    }

    /// REPORT CAPABILITIES: reservations can survive restarts; all types are supported.
    pub fn capabilities(&self) -> Vec<u8> {
        let kinds = [
            Kind::WriteExclusive,
            Kind::ExclusiveAccess,
            Kind::WriteExclusiveRegistrants,
            Kind::ExclusiveAccessRegistrants,
            Kind::WriteExclusiveAll,
            Kind::ExclusiveAccessAll,
        ];
        let mask = kinds.into_iter().fold(0u16, |mask, kind| mask | 1 << (kind as u16));
        // The mask has types 0 to 7 in its first byte, and from 8 on in the second one.
        let [second, first] = mask.to_be_bytes();
        const PERSIST_CAPABLE: u8 = 1;
        const MASK_VALID: u8 = 0x80;
        vec![0, 8, PERSIST_CAPABLE, MASK_VALID | u8::from(self.persists), first, second, 0, 0]
    }

    /// READ FULL STATUS.
    pub fn full_status(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for known @ Registration { port, key } in &self.registrations {
            let mut name = port.initiator.clone().into_bytes();
            name.push(0);
            name.resize(name.len().next_multiple_of(4).max(MIN_NAME_BYTES), 0);
            let holds = self.holds(&known.port);
            let kind = self.held.as_ref().filter(|_| holds).map_or(0, |held| held.kind as u8);
            let start = body.len();
            body.extend_from_slice(&key.to_be_bytes());
            body.extend_from_slice(&[0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
            // Relative target port 1.
            body.extend_from_slice(&[0, 1]);
            body.extend_from_slice(&(name.len() as u32 + 4).to_be_bytes());
            debug_assert_eq!(body.len() - start, DESCRIPTOR_BYTES);
            // Protocol 5 (iSCSI), format 1 (with the ISID).
            body.extend_from_slice(&[0x45, 0]);
            body.extend_from_slice(&(name.len() as u16).to_be_bytes());
            body.extend(name);
        }
        self.header(body)
    }
}
