//! The lock table against a naive model that keeps one cell per byte, owner and file.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const BYTES: u64 = 12;
const OWNERS: u64 = 4;

fn owner(number: u64) -> LockOwner {
    match number % 2 {
        0 => LockOwner::Fuse { mount: 1, owner: number },
        _ => LockOwner::Nlm { client: "192.0.2.7".into(), process: number as u32, handle: Arc::from(&b"host"[..]) },
    }
}

fn file(object: u64) -> LockedFile {
    LockedFile { file_system: 5, object, generation: 1 }
}

fn range(start: u64, end: u64) -> LockRange {
    LockRange::new(start, end).unwrap()
}

fn request(start: u64, end: u64, kind: LockKind) -> LockRequest {
    LockRequest { range: range(start, end), kind, process: 7 }
}

use LockKind::{Exclusive, Shared};

/// Which kind each owner holds of each byte of each file, and the requests that wait in order of arrival.
#[derive(Default)]
struct Model {
    cells: BTreeMap<(u64, u64, u64), LockKind>,
    waiting: Vec<(WaitId, u64, u64, LockRequest)>,
}

use std::collections::BTreeMap;

impl Model {
    fn blockers(&self, file: u64, owner: u64, request: LockRequest) -> BTreeSet<u64> {
        let in_way = self.cells.iter().filter(|((of, who, byte), kind)| {
            *of == file
                && *who != owner
                && (request.range.start..=request.range.end).contains(byte)
                && (**kind == Exclusive || request.kind == Exclusive)
        });
        in_way.map(|((_, who, _), _)| *who).collect()
    }

    fn set(&mut self, file: u64, owner: u64, range: LockRange, kind: Option<LockKind>) {
        for byte in range.start..=range.end {
            match kind {
                Some(kind) => drop(self.cells.insert((file, owner, byte), kind)),
                None => drop(self.cells.remove(&(file, owner, byte))),
            }
        }
    }

    /// Grants what can be granted, the request that came first before all others.
    fn wake(&mut self) -> Vec<WaitId> {
        let mut granted = Vec::new();
        loop {
            let first = self.waiting.iter().position(|(_, f, o, r)| self.blockers(*f, *o, *r).is_empty());
            let Some(first) = first else { return granted };
            let (id, file, owner, request) = self.waiting.remove(first);
            self.set(file, owner, request.range, Some(request.kind));
            granted.push(id);
        }
    }

    /// Whether waiting would close a circle: the owners that are reachable from the request.
    fn deadlocks(&self, file: u64, owner: u64, request: LockRequest) -> bool {
        let mut reached = self.blockers(file, owner, request);
        loop {
            let more: BTreeSet<u64> = self
                .waiting
                .iter()
                .filter(|(_, _, who, _)| reached.contains(who))
                .flat_map(|(_, file, who, request)| self.blockers(*file, *who, *request))
                .collect();
            if reached.contains(&owner) || more.contains(&owner) {
                return true;
            }
            if more.is_subset(&reached) {
                return false;
            }
            reached.extend(more);
        }
    }

    /// The cells as ranges.
    fn held(&self, file: u64, owner: u64) -> Vec<(LockRange, LockKind)> {
        let mut out: Vec<(LockRange, LockKind)> = Vec::new();
        for ((of, who, byte), kind) in &self.cells {
            if (*of, *who) != (file, owner) {
                continue;
            }
            match out.last_mut() {
                Some((range, last)) if last == kind && range.end + 1 == *byte => range.end = *byte,
                _ => out.push((range(*byte, *byte), *kind)),
            }
        }
        out
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lock { file: u64, owner: u64, request: LockRequest, wait: bool },
    Unlock { file: u64, owner: u64, range: LockRange },
    Cancel { which: usize },
    Release { client: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let span = (0..BYTES, 0..BYTES).prop_map(|(a, b)| range(a.min(b), a.max(b)));
    let lock =
        (0..2u64, 0..OWNERS, span.clone(), any::<bool>(), any::<bool>()).prop_map(|(file, owner, range, x, wait)| {
            let kind = if x { Exclusive } else { Shared };
            Step::Lock { file, owner, request: LockRequest { range, kind, process: 1 }, wait }
        });
    let unlock = (0..2u64, 0..OWNERS, span).prop_map(|(file, owner, range)| Step::Unlock { file, owner, range });
    let cancel = any::<usize>().prop_map(|which| Step::Cancel { which });
    let release = (0..2u64).prop_map(|client| Step::Release { client });
    prop::collection::vec(prop_oneof![8 => lock, 6 => unlock, 1 => cancel, 1 => release], 1..120)
}

fn check(steps: Vec<Step>) {
    let mut table = LockTable::default();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Lock { file: f, owner: o, request, wait } => {
                let blockers = model.blockers(f, o, request);
                let tested = table.test(file(f), &owner(o), request);
                assert_eq!(tested.is_some(), !blockers.is_empty());
                let waiting = model.waiting.iter().find(|(_, of, who, r)| (*of, *who, *r) == (f, o, request));
                let waiting = waiting.map(|(id, ..)| *id);
                match table.lock(file(f), &owner(o), request, wait) {
                    Ok(LockOutcome::Granted) => {
                        assert!(blockers.is_empty());
                        model.set(f, o, request.range, Some(request.kind));
                    }
                    Ok(LockOutcome::Denied(conflict)) => {
                        assert!(!wait && blockers.iter().any(|who| owner(*who) == conflict.owner));
                        assert!(conflict.lock.range.overlaps(request.range));
                    }
                    Ok(LockOutcome::Waiting(id)) if waiting == Some(id) => {}
                    Ok(LockOutcome::Waiting(id)) => {
                        assert!(wait && !blockers.is_empty() && !model.deadlocks(f, o, request));
                        model.waiting.push((id, f, o, request));
                    }
                    Err(error) => {
                        assert_eq!(error, LockError::Deadlock);
                        assert!(wait && model.deadlocks(f, o, request));
                    }
                }
            }
            Step::Unlock { file: f, owner: o, range } => {
                table.unlock(file(f), &owner(o), range).unwrap();
                model.set(f, o, range, None);
            }
            Step::Cancel { which } if !model.waiting.is_empty() => {
                let (id, f, ..) = model.waiting.remove(which % model.waiting.len());
                assert!(table.cancel(file(f), id));
                assert!(!table.cancel(file(f), id));
            }
            Step::Cancel { .. } => {}
            Step::Release { client } => {
                let ended = table.release_client(&owner(client).client());
                let of_client = |o: u64| o % 2 == client % 2;
                let waited = model.waiting.iter().filter(|(_, _, o, _)| of_client(*o)).map(|(id, ..)| *id);
                let waited: Vec<WaitId> = waited.collect();
                // The table ends the requests of a file before it grants those of others, file by file.
                assert_eq!(BTreeSet::from_iter(ended), BTreeSet::from_iter(waited));
                model.waiting.retain(|(_, _, o, _)| !of_client(*o));
                model.cells.retain(|(_, o, _), _| !of_client(*o));
            }
        }
        let granted = table.take_granted();
        let wanted = model.wake();
        // Requests of two files are granted in the order of the files after a release, so only their set is compared.
        assert_eq!(BTreeSet::from_iter(granted), BTreeSet::from_iter(wanted));
        let mut held = 0;
        for f in 0..2 {
            for o in 0..OWNERS {
                let of_owner = table.held(file(f), &owner(o));
                held += of_owner.len();
                assert_eq!(of_owner, model.held(f, o));
            }
        }
        assert_eq!(table.len(), held);
    }
    for client in 0..2 {
        table.release_client(&owner(client).client());
    }
    assert_eq!((table.is_empty(), table.len()), (true, 0));
}

proptest! {
    #[test]
    fn the_table_decides_as_the_model_does(steps in steps()) {
        check(steps);
    }
}

#[test]
fn locks_are_split_merged_and_reach_the_last_byte() {
    let mut table = LockTable::default();
    let me = owner(1);
    let lock = |table: &mut LockTable, start, end, kind| {
        assert_eq!(table.lock(file(1), &me, request(start, end, kind), false), Ok(LockOutcome::Granted));
    };
    lock(&mut table, 0, u64::MAX, Exclusive);
    table.unlock(file(1), &me, range(10, 19)).unwrap();
    assert_eq!(table.held(file(1), &me), [(range(0, 9), Exclusive), (range(20, u64::MAX), Exclusive)]);
    lock(&mut table, 10, 19, Shared);
    assert_eq!(table.len(), 3);
    lock(&mut table, 10, 19, Exclusive);
    assert_eq!(table.held(file(1), &me), [(LockRange::ALL, Exclusive)]);
    lock(&mut table, u64::MAX, u64::MAX, Shared);
    assert_eq!(table.len(), 2);
    assert_eq!(table.clients(), [me.client()]);
    table.unlock(file(1), &me, LockRange::ALL).unwrap();
    assert_eq!(table.clients(), []);
}

#[test]
fn waiting_requests_are_granted_in_order_of_arrival() {
    let mut table = LockTable::default();
    let lock = |table: &mut LockTable, who, start, end, kind| {
        table.lock(file(1), &owner(who), request(start, end, kind), true)
    };
    assert_eq!(lock(&mut table, 0, 0, 9, Exclusive), Ok(LockOutcome::Granted));
    let Ok(LockOutcome::Waiting(writer)) = lock(&mut table, 1, 0, 9, Exclusive) else { panic!("it waits") };
    let Ok(LockOutcome::Waiting(reader)) = lock(&mut table, 2, 0, 4, Shared) else { panic!("it waits") };
    assert_eq!(
        lock(&mut table, 1, 0, 9, Exclusive),
        Ok(LockOutcome::Waiting(writer)),
        "a repeated request keeps its place"
    );
    table.unlock(file(1), &owner(0), LockRange::ALL).unwrap();
    assert_eq!(table.take_granted(), [writer]);
    // The writer goes on as a reader: that admits the reader.
    assert_eq!(lock(&mut table, 1, 0, 9, Shared), Ok(LockOutcome::Granted));
    assert_eq!(table.take_granted(), [reader]);
}

#[test]
fn a_circle_of_waiting_owners_is_refused() {
    let mut table = LockTable::default();
    let lock =
        |table: &mut LockTable, object, who| table.lock(file(object), &owner(who), request(0, 9, Exclusive), true);
    for who in 0..3 {
        assert_eq!(lock(&mut table, who, who), Ok(LockOutcome::Granted));
    }
    assert!(matches!(lock(&mut table, 1, 0), Ok(LockOutcome::Waiting(_))));
    assert!(matches!(lock(&mut table, 2, 1), Ok(LockOutcome::Waiting(_))));
    assert_eq!(lock(&mut table, 0, 2), Err(LockError::Deadlock));
    // Two that hold a range shared, and both want it exclusive.
    let upgrade = |table: &mut LockTable, who, kind| table.lock(file(9), &owner(who), request(0, 0, kind), true);
    assert_eq!(
        (upgrade(&mut table, 2, Shared), upgrade(&mut table, 3, Shared)),
        (Ok(LockOutcome::Granted), Ok(LockOutcome::Granted))
    );
    assert!(matches!(upgrade(&mut table, 2, Exclusive), Ok(LockOutcome::Waiting(_))));
    assert_eq!(upgrade(&mut table, 3, Exclusive), Err(LockError::Deadlock));
}

#[test]
fn locks_and_requests_are_bounded() {
    let limits = LockLimits { per_client: 3, total: 4, waiting_per_client: 1, waiting: 2 };
    let mut table = LockTable::new(limits);
    let lock = |table: &mut LockTable, who, start, wait| {
        table.lock(file(1), &owner(who), request(start, start + 1, Exclusive), wait)
    };
    for start in [0, 10, 20] {
        assert_eq!(lock(&mut table, 1, start, false), Ok(LockOutcome::Granted));
    }
    assert_eq!(lock(&mut table, 1, 30, false), Err(LockError::TooMany));
    assert_eq!(table.unlock(file(1), &owner(1), range(1, 1)), Ok(()), "what splits nothing is released at the limit");
    assert_eq!(lock(&mut table, 0, 40, false), Ok(LockOutcome::Granted));
    assert_eq!(lock(&mut table, 0, 50, false), Err(LockError::TooMany), "in total");
    assert!(matches!(lock(&mut table, 0, 10, true), Ok(LockOutcome::Waiting(_))));
    assert_eq!(lock(&mut table, 0, 20, true), Err(LockError::TooMany));
    let whole = request(0, u64::MAX, Shared);
    table.release_client(&owner(0).client());
    assert_eq!(table.lock(file(1), &owner(1), whole, false), Ok(LockOutcome::Granted));
    assert_eq!(table.len(), 1);
    table.unlock(file(1), &owner(1), range(5, 5)).unwrap();
    table.unlock(file(1), &owner(1), range(8, 8)).unwrap();
    assert_eq!(table.unlock(file(1), &owner(1), range(11, 11)), Err(LockError::TooMany), "a split beyond the limit");
}

#[test]
fn reservations_exclude_what_they_deny() {
    let mut table = LockTable::default();
    let all = ShareModes { read: true, write: true };
    let read = ShareModes { read: true, write: false };
    let none = ShareModes::default();
    let share = |who, access, deny| Share { owner: owner(who), access, deny };
    let write = ShareModes { read: false, write: true };
    assert_eq!(table.share(file(1), share(0, read, write)), Ok(true));
    assert_eq!(table.share(file(1), share(1, all, none)), Ok(false), "writing is denied");
    assert_eq!(table.share(file(1), share(1, read, read)), Ok(false), "another reads");
    assert_eq!(table.share(file(1), share(1, read, none)), Ok(true));
    assert_eq!(table.share(file(1), share(0, read, none)), Ok(true), "it replaces the former one");
    assert_eq!((table.share(file(1), share(1, all, none)), table.len()), (Ok(true), 2));
    table.unshare(file(1), &owner(0));
    table.release_client(&owner(1).client());
    assert!(table.is_empty());
}

#[test]
fn a_request_that_waits_is_woken_or_ended() {
    use futures_util::FutureExt;
    let locks = Arc::new(Locks::default());
    let wait = |who| match locks.lock_or_wait(file(1), &owner(who), request(0, 9, Exclusive)).unwrap() {
        Requested::Granted => None,
        Requested::Waits(wait) => Some(wait),
    };
    assert!(wait(0).is_none());
    let mut second = wait(2).unwrap();
    let third = wait(1).unwrap();
    assert!((&mut second).now_or_never().is_none());
    drop(third);
    assert!(!locks.cancel_request(file(1), &owner(1), request(0, 9, Exclusive)), "it ended when it was dropped");
    locks.unlock(file(1), &owner(0), LockRange::ALL).unwrap();
    assert!((&mut second).now_or_never().is_some());
    drop(second);
    assert!(locks.test(file(1), &owner(0), request(3, 3, Shared)).is_some(), "the second holds it");
}
