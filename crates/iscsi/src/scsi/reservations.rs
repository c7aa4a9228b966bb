//! Persistent reservations (SPC-4, 5.12): registrations of ports with keys, and at most one reservation. Pure.
//!
//! ```text
//!   PERSISTENT RESERVE OUT ─► Reservations::change ─► the new state, unit attentions, ports whose commands end
//!                                                       │
//!                                    Reservations::encode ─► ReservationStore (if APTPL) ─► answer
//! ```
//!
//! A change makes a copy, which replaces the state after it was stored: a change that cannot be stored does not happen.
//! Every decision depends on the ports (initiator's name and ISID, target's name), never on sessions, so registrations
//! outlive them. Not supported, and reported so: SPEC_I_PT, ALL_TG_PT, REGISTER AND MOVE.
//!
//! Bounds: [`MAX_REGISTRATIONS`] registrations, and with APTPL an encoding of [`MAX_ENCODED_BYTES`], which fits into a user
//! property.

mod report;
mod stored;
#[cfg(test)]
mod tests;

pub use stored::MAX_ENCODED_BYTES;

use super::sense::{Sense, code};

/// Maximum number of registrations of a unit.
pub const MAX_REGISTRATIONS: usize = 128;

/// An initiator port and the target port that it is connected to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// `name,i,0xISID`.
    pub initiator: String,
    /// Name of the target.
    pub target: String,
}

/// A registered port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The port.
    pub port: Port,
    /// The port's key, not 0.
    pub key: u64,
}

/// Type of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Registrants write.
    WriteExclusiveRegistrants = 5,
    /// Registrants read and write.
    ExclusiveAccessRegistrants = 6,
    /// Registrants write, and each holds the reservation.
    WriteExclusiveAll = 7,
    /// Registrants read and write, and each holds the reservation.
    ExclusiveAccessAll = 8,
}

impl Kind {
    /// The type with this number.
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Kind::WriteExclusive,
            3 => Kind::ExclusiveAccess,
            5 => Kind::WriteExclusiveRegistrants,
            6 => Kind::ExclusiveAccessRegistrants,
            7 => Kind::WriteExclusiveAll,
            8 => Kind::ExclusiveAccessAll,
            _ => return None,
        })
    }

    fn is_of_registrants(self) -> bool {
        !matches!(self, Kind::WriteExclusive | Kind::ExclusiveAccess)
    }

    fn is_held_by_all(self) -> bool {
        matches!(self, Kind::WriteExclusiveAll | Kind::ExclusiveAccessAll)
    }

    fn excludes_readers(self) -> bool {
        matches!(self, Kind::ExclusiveAccess | Kind::ExclusiveAccessRegistrants | Kind::ExclusiveAccessAll)
    }
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reservation {
    kind: Kind,
    /// The port that reserved. If all registrants hold the reservation, it is one of them.
    holder: Port,
}

/// How a command concerns a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No reservation excludes it.
    Free,
    /// Reads: only exclusive access excludes it.
    Read,
    /// Writes, or changes the state of the unit.
    Write,
}

/// A service action of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// REGISTER, or REGISTER AND IGNORE EXISTING KEY.
    Register {
        /// Whether the port's present key need not be given.
        ignore_existing: bool,
    },
    /// RESERVE.
    Reserve(Kind),
    /// RELEASE.
    Release(Kind),
    /// CLEAR.
    Clear,
    /// PREEMPT, and PREEMPT AND ABORT.
    Preempt(Kind),
}

/// Parameters of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The key that the port is registered with.
    pub key: u64,
    /// The key to register, or to preempt.
    pub new_key: u64,
    /// Whether the state survives a restart (APTPL).
    pub persists: bool,
}

/// Why a PERSISTENT RESERVE OUT was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Invalid(Sense),
}

/// Effects of a change on other ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Ports and the unit attention that each gets.
    pub attentions: Vec<(Port, u16)>,
    /// Ports whose registration was preempted.
    pub preempted: Vec<Port>,
}

/// Registrations and the reservation of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<Reservation>,
    persists: bool,
}

impl Reservations {
    /// Whether any port is registered.
    pub fn has_registrations(&self) -> bool {
        !self.registrations.is_empty()
    }

    fn key_of(&self, port: &Port) -> Option<u64> {
        self.registrations.iter().find(|known| known.port == *port).map(|known| known.key)
    }

    fn holds(&self, port: &Port) -> bool {
        let is_holder = |held: &Reservation| held.kind.is_held_by_all() || held.holder == *port;
        self.key_of(port).is_some() && self.held.as_ref().is_some_and(is_holder)
    }

    /// Whether a command of `port` conflicts with the reservation.
    pub fn conflicts(&self, port: &Port, access: Access) -> bool {
        let Some(held) = &self.held else { return false };
        let is_registered = self.key_of(port).is_some();
        if held.holder == *port || is_registered && held.kind.is_of_registrants() {
            return false;
        }
        match access {
            Access::Free => false,
            Access::Read => held.kind.excludes_readers(),
            Access::Write => true,
        }
    }

    /// Makes a change for `port`; the caller stores the result, and then replaces the state by it.
    ///
    /// # Errors
    /// RESERVATION CONFLICT, if the key or the holder does not permit the change; CHECK CONDITION for invalid parameters.
    pub fn change(&self, port: &Port, action: Action, with: &Parameters) -> Result<(Reservations, Effects), Refusal> {
        let mut new = self.clone();
        let mut effects = Effects::default();
        match action {
            Action::Register { ignore_existing } => new.register(port, with, ignore_existing, &mut effects)?,
            _ if self.key_of(port) != Some(with.key) => return Err(Refusal::Conflict),
            Action::Reserve(kind) => new.reserve(port, kind)?,
            Action::Release(kind) => new.release(port, kind, &mut effects)?,
            Action::Clear => {
                let others = new.registrations.drain(..).filter(|other| other.port != *port);
                effects.attentions.extend(others.map(|other| (other.port, code::RESERVATIONS_PREEMPTED)));
                new.held = None;
            }
            Action::Preempt(kind) => new.preempt(port, kind, with.new_key, &mut effects)?,
        }
        if !matches!(action, Action::Reserve(_) | Action::Release(_)) {
            new.generation = new.generation.wrapping_add(1);
        }
        new.check();
        if new.persists && new.encode().len() > MAX_ENCODED_BYTES {
            return Err(Refusal::Invalid(Sense::illegal(code::NO_REGISTRATION_RESOURCES)));
        }
        Ok((new, effects))
    }

    fn check(&self) {
        debug_assert!(self.registrations.iter().all(|known| known.key != 0), "key 0 is not registered");
        debug_assert!(
            self.held.as_ref().is_none_or(|held| self.key_of(&held.holder).is_some()),
            "only a registered port holds a reservation"
        );
    }

    fn register(
        &mut self,
        port: &Port,
        with: &Parameters,
        ignore_existing: bool,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        let registered = self.registrations.iter().position(|known| known.port == *port);
        let key = registered.map_or(0, |at| self.registrations[at].key);
        if !ignore_existing && with.key != key {
            return Err(Refusal::Conflict);
        }
        match (registered, with.new_key) {
            (None, 0) => {}
            (None, _) if self.registrations.len() == MAX_REGISTRATIONS => {
                return Err(Refusal::Invalid(Sense::illegal(code::NO_REGISTRATION_RESOURCES)));
            }
            (None, key) => self.registrations.push(Registration { port: port.clone(), key }),
            (Some(at), 0) => {
                self.registrations.remove(at);
                self.left_by(port, effects);
            }
            (Some(at), key) => self.registrations[at].key = key,
        }
        self.persists = with.persists;
        Ok(())
    }

    /// Ends or passes on the reservation after `port` was unregistered.
    fn left_by(&mut self, port: &Port, effects: &mut Effects) {
        let Some(held) = self.held.as_mut().filter(|held| held.holder == *port) else { return };
        match self.registrations.first() {
            Some(other) if held.kind.is_held_by_all() => held.holder = other.port.clone(),
            _ => {
                let kind = held.kind;
                self.held = None;
                self.released(kind, port, effects);
            }
        }
    }

    /// Tells the other registrants that a reservation of their kind was released.
    fn released(&self, kind: Kind, by: &Port, effects: &mut Effects) {
        if kind.is_of_registrants() {
            let others = self.registrations.iter().filter(|other| other.port != *by);
            effects.attentions.extend(others.map(|other| (other.port.clone(), code::RESERVATIONS_RELEASED)));
        }
    }

    fn reserve(&mut self, port: &Port, kind: Kind) -> Result<(), Refusal> {
        match &self.held {
            Some(held) if held.kind != kind || !self.holds(port) => Err(Refusal::Conflict),
            Some(_) => Ok(()),
            None => {
                self.held = Some(Reservation { kind, holder: port.clone() });
                Ok(())
            }
        }
    }

    fn release(&mut self, port: &Port, kind: Kind, effects: &mut Effects) -> Result<(), Refusal> {
        if !self.holds(port) {
            return Ok(());
        }
        if self.held.as_ref().is_some_and(|held| held.kind != kind) {
            return Err(Refusal::Invalid(Sense::illegal(code::INVALID_RELEASE)));
        }
        self.held = None;
        self.released(kind, port, effects);
        Ok(())
    }

    fn preempt(&mut self, port: &Port, kind: Kind, victim: u64, effects: &mut Effects) -> Result<(), Refusal> {
        let held = self.held.clone();
        let is_of_all = held.as_ref().is_some_and(|held| held.kind.is_held_by_all());
        // The reservation is taken over if its holder is preempted.
        let takes_over = match &held {
            Some(_) if is_of_all => victim == 0,
            Some(held) => self.key_of(&held.holder) == Some(victim),
            None => false,
        };
        if victim == 0 && !takes_over {
            return Err(Refusal::Invalid(Sense::in_list(8)));
        }
        let is_victim = |known: &Registration| is_of_all && victim == 0 || known.key == victim;
        if !self.registrations.iter().any(is_victim) {
            return Err(Refusal::Conflict);
        }
        let removed = self.registrations.extract_if(.., |known| is_victim(known) && known.port != *port);
        let removed: Vec<Port> = removed.map(|known| known.port).collect();
        if takes_over {
            self.held = Some(Reservation { kind, holder: port.clone() });
            if let Some(was) = held.filter(|held| held.kind != kind) {
                self.released(was.kind, port, effects);
            }
        } else if let Some(first) = self.registrations.first()
            && let Some(held) = self.held.as_mut().filter(|held| removed.contains(&held.holder))
        {
            // All registrants hold it: another one stands for them.
            held.holder = first.port.clone();
        }
        effects.attentions.extend(removed.iter().map(|port| (port.clone(), code::REGISTRATIONS_PREEMPTED)));
        effects.preempted = removed;
        Ok(())
    }
}
