//! The state of a logical unit: unit attentions, reservations, mode parameters, range locks.
//!
//! ```text
//!   Server ─► Unit, by the identity of its device ◄─ OpenUnit of each session ─► device
//! ```
//!
//! A unit exists once per device, whatever the number of targets that offer it and however often the device is opened and
//! closed: reservations and unit attentions of one initiator concern the commands of all others.
//!
//! A session is a *nexus* between an initiator port (its name and the ISID) and a target port (the target's name; each
//! target has one portal group). Unit attentions belong to a nexus that exists; reservations outlive it.

use super::copy::CopyResult;
use super::ranges::RangeLocks;
use super::reservations::{Port, Reservations};
use super::sense::code;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use weir_front::BlockDevice;
use weir_machine::lock::{Mutex, MutexGuard};

/// Maximum number of unit attentions that a nexus has pending; later ones replace the last.
const MAX_ATTENTIONS: usize = 8;
/// Maximum number of results of copies that a unit keeps.
const MAX_COPY_RESULTS: usize = 16;

/// A nexus: a session between an initiator port and a target port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nexus {
    /// Number of the session.
    pub session: u64,
    /// Name of the initiator.
    pub initiator: String,
    /// The session's ISID.
    pub isid: [u8; 6],
    /// Name of the target.
    pub target: String,
}

impl Nexus {
    /// The ports, as reservations name them.
    pub fn port(&self) -> Port {
        let isid = self.isid.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"));
        Port { initiator: format!("{},i,{isid}", self.initiator), target: self.target.clone() }
    }
}

/// A nexus, as a unit knows it.
struct NexusState {
    port: Port,
    attentions: SmallVec<[u16; 2]>,
    /// Size in bytes that the initiator knows, or learns by a pending unit attention.
    known_bytes: u64,
}

/// Mode parameters that initiators can change; they are lost when the server stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeParameters {
    /// Sense data has descriptor format.
    pub descriptor_sense: bool,
    /// Writing is switched off.
    pub software_write_protect: bool,
    /// The write cache is switched off.
    pub no_write_cache: bool,
}

#[derive(Default)]
struct UnitState {
    nexuses: BTreeMap<u64, NexusState>,
    mode: ModeParameters,
    /// Session that holds the unit with RESERVE.
    reserved_by: Option<u64>,
    reservations: Reservations,
    is_stopped: bool,
    /// Sessions that prevent the removal of the medium.
    preventing: Vec<u64>,
    copy_results: VecDeque<CopyResult>,
}

/// A logical unit.
pub struct Unit {
    /// Identity of the device.
    pub id: u64,
    /// Locks of blocks.
    pub ranges: RangeLocks,
    /// Held while blocks are copied: one copy at a time.
    pub copying: tokio::sync::Mutex<()>,
    /// Serialises PERSISTENT RESERVE OUT: its change is stored before the next one begins.
    pub reserving: tokio::sync::Mutex<()>,
    state: Mutex<UnitState>,
}

/// A logical unit of a session's target, with its device.
#[derive(Clone)]
pub struct OpenUnit {
    /// The unit.
    pub unit: Arc<Unit>,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Whether writes may be answered before they are stable.
    pub write_cache: bool,
}

impl OpenUnit {
    /// Whether writes are answered before they are stable.
    pub fn has_write_cache(&self) -> bool {
        self.write_cache && !self.unit.mode().no_write_cache
    }
}

impl Unit {
    /// A unit with these reservations, which survived a restart.
    pub fn new(id: u64, reservations: Reservations) -> Self {
        let state = Mutex::new(UnitState { reservations, ..UnitState::default() });
        let copying = tokio::sync::Mutex::default();
        Unit { id, ranges: RangeLocks::default(), copying, reserving: tokio::sync::Mutex::default(), state }
    }

    /// Locks the state; the lock is held for a few instructions, never across an await.
    fn state(&self) -> MutexGuard<'_, UnitState> {
        self.state.lock()
    }

    /// Adds a nexus, with the unit attention of a new one.
    pub fn attach(&self, nexus: &Nexus, size_bytes: u64) {
        let attentions = SmallVec::from_slice(&[code::POWER_ON]);
        let new = NexusState { port: nexus.port(), attentions, known_bytes: size_bytes };
        self.state().nexuses.insert(nexus.session, new);
    }

    /// Removes a nexus: its RESERVE ends, its registrations remain.
    pub fn detach(&self, session: u64) {
        let mut state = self.state();
        state.nexuses.remove(&session);
        state.preventing.retain(|other| *other != session);
        if state.reserved_by == Some(session) {
            state.reserved_by = None;
        }
        debug_assert!(state.nexuses.len() < 1 << 20, "{} nexuses", state.nexuses.len());
    }

    /// Whether a nexus is attached.
    pub fn is_attached(&self, session: u64) -> bool {
        self.state().nexuses.contains_key(&session)
    }

    /// Takes the next unit attention of a nexus. A changed size is one.
    pub fn take_attention(&self, session: u64, size_bytes: u64) -> Option<u16> {
        let mut state = self.state();
        let nexus = state.nexuses.get_mut(&session)?;
        if nexus.known_bytes != size_bytes {
            nexus.known_bytes = size_bytes;
            push(nexus, code::CAPACITY_CHANGED);
        }
        if nexus.attentions.is_empty() { None } else { Some(nexus.attentions.remove(0)) }
    }

    /// Removes a unit attention of a nexus that has become known otherwise.
    pub fn forget_attention(&self, session: u64, code: u16) {
        if let Some(nexus) = self.state().nexuses.get_mut(&session) {
            nexus.attentions.retain(|pending| *pending != code);
        }
    }

    /// Raises a unit attention for the nexuses that `of` selects by session and ports.
    pub fn raise(&self, code: u16, of: impl Fn(u64, &Port) -> bool) {
        let mut state = self.state();
        for (session, nexus) in &mut state.nexuses {
            if of(*session, &nexus.port) {
                push(nexus, code);
            }
        }
    }

    /// Resets the unit: ends RESERVE, starts the unit, and tells every nexus. The caller has ended its commands.
    pub fn reset(&self) {
        {
            let mut state = self.state();
            state.reserved_by = None;
            state.is_stopped = false;
            state.preventing.clear();
            state.mode = ModeParameters::default();
        }
        self.raise(code::BUS_DEVICE_RESET, |_, _| true);
    }

    /// The mode parameters.
    pub fn mode(&self) -> ModeParameters {
        self.state().mode
    }

    /// Changes the mode parameters, and tells the other nexuses if they differ.
    pub fn set_mode(&self, session: u64, mode: ModeParameters) {
        let was = std::mem::replace(&mut self.state().mode, mode);
        if was != mode {
            self.raise(code::MODE_CHANGED, |other, _| other != session);
        }
    }

    /// Whether the medium is stopped.
    pub fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    /// Starts or stops the medium.
    pub fn set_stopped(&self, is_stopped: bool) {
        self.state().is_stopped = is_stopped;
    }

    /// Keeps the result of a copy until the initiator asks for it, or until there are many newer ones.
    pub fn keep_copy_result(&self, result: CopyResult) {
        let results = &mut self.state().copy_results;
        results.retain(|known| known.of != result.of);
        if results.len() == MAX_COPY_RESULTS {
            results.pop_front();
        }
        results.push_back(result);
        debug_assert!(results.len() <= MAX_COPY_RESULTS);
    }

    /// Takes the result of the copy of this session and list identifier.
    pub fn take_copy_result(&self, of: (u64, u8)) -> Option<CopyResult> {
        let results = &mut self.state().copy_results;
        let at = results.iter().position(|known| known.of == of)?;
        results.remove(at)
    }

    /// Session that holds the unit with RESERVE.
    pub fn reserved_by(&self) -> Option<u64> {
        self.state().reserved_by
    }

    /// Reserves the unit for a session if no other one holds it. Returns whether it holds it now.
    pub fn reserve(&self, session: u64) -> bool {
        let mut state = self.state();
        *state.reserved_by.get_or_insert(session) == session
    }

    /// Ends the RESERVE of a session.
    pub fn release(&self, session: u64) {
        let mut state = self.state();
        state.reserved_by = state.reserved_by.filter(|holder| *holder != session);
    }

    /// Calls `read` with the persistent reservations.
    pub fn with_reservations<T>(&self, read: impl FnOnce(&Reservations) -> T) -> T {
        read(&self.state().reservations)
    }

    /// Replaces the persistent reservations; the caller holds [`Unit::reserving`].
    pub fn set_reservations(&self, reservations: Reservations) {
        debug_assert!(self.reserving.try_lock().is_err(), "reservations change under their lock");
        self.state().reservations = reservations;
    }
}

fn push(nexus: &mut NexusState, code: u16) {
    if nexus.attentions.contains(&code) {
        return;
    }
    if nexus.attentions.len() == MAX_ATTENTIONS {
        nexus.attentions.pop();
    }
    nexus.attentions.push(code);
    debug_assert!(nexus.attentions.len() <= MAX_ATTENTIONS);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nexus(session: u64) -> Nexus {
        Nexus { session, initiator: "iqn.a".into(), isid: [0x80, 0, 0, 0, 0, session as u8], target: "iqn.t".into() }
    }

    #[test]
    fn each_nexus_learns_what_changed_once() {
        let unit = Unit::new(7, Reservations::default());
        unit.attach(&nexus(1), 100);
        unit.attach(&nexus(2), 100);
        assert_eq!(unit.take_attention(1, 100), Some(code::POWER_ON));
        assert_eq!(unit.take_attention(1, 100), None);
        unit.set_mode(1, ModeParameters { descriptor_sense: true, ..ModeParameters::default() });
        assert_eq!(unit.take_attention(1, 100), None, "the one that changed it knows");
        assert_eq!(unit.take_attention(2, 200), Some(code::POWER_ON));
        assert_eq!(unit.take_attention(2, 200), Some(code::MODE_CHANGED));
        assert_eq!(unit.take_attention(2, 200), Some(code::CAPACITY_CHANGED));
        assert_eq!(unit.take_attention(2, 200), None);
        assert_eq!(unit.take_attention(3, 200), None, "no such nexus");
    }

    #[test]
    fn a_reserve_ends_with_its_session_and_with_a_reset() {
        let unit = Unit::new(7, Reservations::default());
        (1..=2).for_each(|session| unit.attach(&nexus(session), 0));
        assert!(unit.reserve(1) && unit.reserve(1) && !unit.reserve(2));
        unit.release(2);
        assert_eq!(unit.reserved_by(), Some(1));
        unit.detach(1);
        assert!(unit.reserve(2));
        unit.reset();
        assert_eq!(unit.reserved_by(), None);
    }
}
