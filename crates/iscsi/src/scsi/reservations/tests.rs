use super::*;
use proptest::prelude::*;

fn port(n: u8) -> Port {
    Port { initiator: format!("iqn.2000-01.com.example:{n},i,0x80000000000{n}"), target: "iqn.t".into() }
}

fn keys(key: u64, new_key: u64) -> Parameters {
    Parameters { key, new_key, persists: true }
}

const REGISTER: Action = Action::Register { ignore_existing: false };

/// Reservations with ports 1 to `n` registered under keys 0x11, 0x12, and so on.
fn registered(n: u8) -> Reservations {
    (1..=n).fold(Reservations::default(), |all, n| {
        all.change(&port(n), REGISTER, &keys(0, 0x10 + u64::from(n))).unwrap().0
    })
}

fn done(all: &Reservations, n: u8, action: Action, with: Parameters) -> (Reservations, Effects) {
    all.change(&port(n), action, &with).unwrap()
}

#[test]
fn a_port_registers_changes_its_key_and_leaves() {
    let all = Reservations::default();
    assert_eq!(all.change(&port(1), REGISTER, &keys(5, 6)), Err(Refusal::Conflict), "not registered with 5");
    let (all, _) = done(&all, 1, REGISTER, keys(0, 0x11));
    assert_eq!(all.change(&port(1), REGISTER, &keys(0, 0x12)), Err(Refusal::Conflict));
    let (all, _) = done(&all, 1, REGISTER, keys(0x11, 0x12));
    assert_eq!(all.keys()[8..], 0x12u64.to_be_bytes());
    let (all, _) = done(&all, 1, Action::Register { ignore_existing: true }, keys(99, 0x13));
    assert_eq!(all.key_of(&port(1)), Some(0x13));
    let (all, _) = done(&all, 1, REGISTER, keys(0x13, 0));
    assert!(!all.has_registrations() && all.generation == 4);
}

#[test]
fn each_type_admits_whom_it_should() {
    // Type, then conflicts of: a registrant reading and writing, a stranger reading and writing.
    let table = [
        (1, [false, true], [false, true]),
        (3, [true, true], [true, true]),
        (5, [false, false], [false, true]),
        (6, [false, false], [true, true]),
        (7, [false, false], [false, true]),
        (8, [false, false], [true, true]),
    ];
    for (kind, registrant, stranger) in table {
        let kind = Kind::of(kind).unwrap();
        let (all, _) = done(&registered(2), 1, Action::Reserve(kind), keys(0x11, 0));
        let conflicts = |n| [Access::Read, Access::Write].map(|access| all.conflicts(&port(n), access));
        assert_eq!((conflicts(1), conflicts(2), conflicts(3)), ([false; 2], registrant, stranger), "{kind:?}");
        assert!(!all.conflicts(&port(3), Access::Free));
        let again = all.change(&port(2), Action::Reserve(kind), &keys(0x12, 0));
        assert_eq!(again.is_ok(), kind.is_held_by_all(), "each registrant holds only a reservation of all");
    }
}

#[test]
fn a_release_tells_the_other_registrants() {
    let kind = Kind::WriteExclusiveRegistrants;
    let (all, _) = done(&registered(2), 1, Action::Reserve(kind), keys(0x11, 0));
    let wrong = all.change(&port(1), Action::Release(Kind::ExclusiveAccess), &keys(0x11, 0));
    assert_eq!(wrong, Err(Refusal::Invalid(Sense::illegal(code::INVALID_RELEASE))));
    let (same, effects) = done(&all, 2, Action::Release(kind), keys(0x12, 0));
    assert!(same.held.is_some() && effects == Effects::default(), "not the holder");
    let (free, effects) = done(&all, 1, Action::Release(kind), keys(0x11, 0));
    assert!(free.held.is_none());
    assert_eq!(effects.attentions, [(port(2), code::RESERVATIONS_RELEASED)]);
    let (left, effects) = done(&all, 1, REGISTER, keys(0x11, 0));
    assert!(left.held.is_none(), "the holder left");
    assert_eq!(effects.attentions, [(port(2), code::RESERVATIONS_RELEASED)]);
}

#[test]
fn a_reservation_of_all_ends_with_the_last_registrant() {
    let (all, _) = done(&registered(2), 1, Action::Reserve(Kind::ExclusiveAccessAll), keys(0x11, 0));
    assert_eq!(all.reservation()[8..16], [0; 8], "no single key");
    let (all, _) = done(&all, 1, REGISTER, keys(0x11, 0));
    assert!(all.holds(&port(2)) && all.conflicts(&port(1), Access::Read));
    let (all, _) = done(&all, 2, REGISTER, keys(0x12, 0));
    assert!(all.held.is_none());
}

#[test]
fn a_preempting_port_takes_over() {
    let (all, _) = done(&registered(3), 1, Action::Reserve(Kind::WriteExclusive), keys(0x11, 0));
    let preempt = Action::Preempt(Kind::ExclusiveAccess);
    let (taken, effects) = done(&all, 2, preempt, keys(0x12, 0x11));
    assert!(taken.holds(&port(2)) && taken.key_of(&port(1)).is_none());
    assert_eq!(effects.attentions, [(port(1), code::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(effects.preempted, [port(1)]);
    let (removed, _) = done(&all, 2, preempt, keys(0x12, 0x13));
    assert!(removed.holds(&port(1)) && removed.key_of(&port(3)).is_none(), "only the registration");
    assert_eq!(all.change(&port(2), preempt, &keys(0x12, 0x99)), Err(Refusal::Conflict), "no such key");
    assert_eq!(all.change(&port(2), preempt, &keys(0x12, 0)), Err(Refusal::Invalid(Sense::in_list(8))));
    assert_eq!(all.change(&port(4), preempt, &keys(0x14, 0x11)), Err(Refusal::Conflict), "not registered");
    let (of_all, _) = done(&registered(3), 1, Action::Reserve(Kind::WriteExclusiveAll), keys(0x11, 0));
    let (taken, effects) = done(&of_all, 3, preempt, keys(0x13, 0));
    assert_eq!((taken.registrations.len(), effects.preempted.len()), (1, 2));
    assert!(taken.holds(&port(3)));
}

#[test]
fn clear_removes_everything() {
    let (all, _) = done(&registered(2), 2, Action::Reserve(Kind::WriteExclusive), keys(0x12, 0));
    let (all, effects) = done(&all, 1, Action::Clear, keys(0x11, 0));
    assert!(!all.has_registrations() && all.held.is_none());
    assert_eq!(effects.attentions, [(port(2), code::RESERVATIONS_PREEMPTED)]);
}

#[test]
fn registrations_are_bounded() {
    let mut all = Reservations::default();
    let mut kept = 0;
    for n in 0..200u16 {
        let port = Port { initiator: format!("{}{n}", "i".repeat(200)), target: "t".repeat(200) };
        let with = Parameters { key: 0, new_key: 1, persists: true };
        match all.change(&port, REGISTER, &with) {
            Ok((new, _)) => (all, kept) = (new, kept + 1),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Invalid(Sense::illegal(code::NO_REGISTRATION_RESOURCES)));
                break;
            }
        }
    }
    assert!((15..25).contains(&kept) && all.encode().len() <= MAX_ENCODED_BYTES, "{kept}");
}

#[test]
fn the_status_names_every_port() {
    let (all, _) = done(&registered(2), 1, Action::Reserve(Kind::WriteExclusive), keys(0x11, 0));
    let status = all.full_status();
    assert_eq!(status.len(), 8 + u32::from_be_bytes(status[4..8].try_into().unwrap()) as usize);
    assert_eq!((status[8 + 12], status[8 + 13]), (1, 1), "the first one holds type 1");
    assert_eq!(all.capabilities(), [0, 8, 1, 0x81, 0xea, 1, 0, 0]);
}

#[test]
fn only_what_is_stored_is_decoded() {
    assert_eq!(Reservations::decode(b""), Some(Reservations::default()));
    assert!(Reservations::decode(b"1;0;0;0000000000000001,i,t").is_some_and(|all| all.persists));
    for malformed in ["1;0;100", "1;1;0", "2;0;0;0000000000000001,i,t", "1;1;1;0000000000000001,i,t"] {
        assert_eq!(Reservations::decode(malformed.as_bytes()), None, "{malformed}");
    }
}

proptest! {
    #[test]
    fn stored_reservations_are_read_back(steps in proptest::collection::vec((1u8..6, 0u8..6, 0u8..6, 1u8..9), 0..40)) {
        let mut all = Reservations::default();
        for (who, action, victim, kind) in steps {
            let Some(kind) = Kind::of(kind) else { continue };
            let action = match action {
                0 | 1 => Action::Register { ignore_existing: true },
                2 => Action::Reserve(kind),
                3 => Action::Release(kind),
                4 => Action::Clear,
                _ => Action::Preempt(kind),
            };
            let key = 0x10 + u64::from(who);
            let victim = if victim == 0 { 0 } else { 0x10 + u64::from(victim) };
            let new_key = if action == (Action::Register { ignore_existing: true }) { key } else { victim };
            if let Ok((new, _)) = all.change(&port(who), action, &keys(key, new_key)) {
                all = new;
            }
            let stored = Reservations::decode(&all.encode()).unwrap();
            prop_assert_eq!((&stored.registrations, &stored.held), (&all.registrations, &all.held));
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Reservations::decode(&bytes);
    }
}
