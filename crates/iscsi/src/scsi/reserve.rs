//! PERSISTENT RESERVE IN and OUT: decodes parameters, stores the change, and tells the other initiators.

use super::execute::{Context, Failure};
use super::reservations::{Action, Kind, Parameters, Refusal};
use super::sense::{Sense, code, key};
use super::unit::Unit;

/// Length of the parameter list in bytes, without TransportIDs.
const LIST_BYTES: u32 = 24;

/// Fields of a PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Service action.
    pub action: u8,
    /// Scope.
    pub scope: u8,
    /// Type.
    pub kind: u8,
    /// Length of the parameter list.
    pub list_bytes: u32,
}

/// Data of PERSISTENT RESERVE IN.
///
/// # Errors
/// INVALID FIELD IN CDB for an unknown service action.
pub fn report(unit: &Unit, action: u8) -> Result<Vec<u8>, Sense> {
    unit.with_reservations(|all| {
        Ok(match action {
            0 => all.keys(),
            1 => all.reservation(),
            2 => all.capabilities(),
            3 => all.full_status(),
            _ => return Err(Sense::in_cdb(1)),
        })
    })
}

/// Decodes a service action. The type and the scope matter for those that concern a reservation.
fn decode(fields: &Fields) -> Result<Action, Sense> {
    let kind = || Kind::of(fields.kind).filter(|_| fields.scope == 0).ok_or(Sense::in_cdb(2));
    Ok(match fields.action {
        0 => Action::Register { ignore_existing: false },
        1 => Action::Reserve(kind()?),
        2 => Action::Release(kind()?),
        3 => Action::Clear,
        4 | 5 => Action::Preempt(kind()?),
        6 => Action::Register { ignore_existing: true },
        _ => return Err(Sense::in_cdb(1)),
    })
}

fn parameters(list: &[u8], action: Action) -> Result<Parameters, Sense> {
    let word = |at: usize| list.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u64::from_be_bytes(*word));
    let too_short = Sense::illegal(code::PARAMETER_LIST_LENGTH);
    let key = word(0).ok_or(too_short)?;
    let new_key = word(8).ok_or(too_short)?;
    let flags = *list.get(20).ok_or(too_short)?;
    const PERSISTS: u8 = 1;
    const ALL_PORTS_OR_OTHERS: u8 = 0x0c;
    let registers = matches!(action, Action::Register { .. });
    if registers && flags & ALL_PORTS_OR_OTHERS != 0 {
        return Err(Sense::in_list(20));
    }
    Ok(Parameters { key, new_key, persists: registers && flags & PERSISTS != 0 })
}

/// Executes a PERSISTENT RESERVE OUT. A change that cannot be stored does not happen.
pub async fn change(context: &Context<'_>, fields: Fields, list: &[u8]) -> Result<(), Failure> {
    let action = decode(&fields)?;
    if fields.list_bytes != LIST_BYTES {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH).into());
    }
    let parameters = parameters(list, action)?;
    let unit = &context.open.unit;
    let port = context.nexus.port();
    let effects = {
        let _reserving = unit.reserving.lock().await;
        let was = unit.with_reservations(Clone::clone);
        let (new, effects) = was.change(&port, action, &parameters).map_err(|refusal| match refusal {
            Refusal::Conflict => Failure::Conflict,
            Refusal::Invalid(sense) => sense.into(),
        })?;
        let encoded = new.encode();
        if encoded != was.encode()
            && let Err(error) = context.around.store(unit.id, encoded).await
        {
            tracing::error!(device = unit.id, %error, "reservations cannot be stored");
            return Err(Sense::new(key::HARDWARE_ERROR, code::INTERNAL_FAILURE).into());
        }
        unit.set_reservations(new);
        effects
    };
    const PREEMPT_AND_ABORT: u8 = 5;
    if fields.action == PREEMPT_AND_ABORT {
        context.around.abort_commands(unit.id, &effects.preempted).await;
    }
    for (told, attention) in &effects.attentions {
        unit.raise(*attention, |session, port| session != context.nexus.session && port == told);
    }
    Ok(())
}
