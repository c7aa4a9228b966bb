//! The lock table: decisions about requests. See the [module](super) for the rules.
//!
//! Invariants: no two held ranges of different owners conflict; a file without ranges, requests and reservations has no
//! entry; the counts of a client are those of its entries; each waiting request has a holder in its way.
//!
//! Cost: a request looks at the owners that hold locks of the file, each in logarithmic time; a release looks at the requests
//! that wait for the file.

use super::ranges::Ranges;
use super::shares::Share;
use super::{LockClient, LockError, LockKind, LockOwner, LockRange, LockRequest, LockedFile};
use std::collections::{BTreeMap, BTreeSet};
use weir_machine::invariant;

/// Limits of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimits {
    /// Maximum number of locks and reservations of one client.
    pub per_client: usize,
    /// Maximum number of locks and reservations.
    pub total: usize,
    /// Maximum number of waiting requests of one client.
    pub waiting_per_client: usize,
    /// Maximum number of waiting requests.
    pub waiting: usize,
}

impl Default for LockLimits {
    /// Some 30 MB at most.
    fn default() -> Self {
        LockLimits { per_client: 1 << 16, total: 1 << 18, waiting_per_client: 1 << 10, waiting: 1 << 12 }
    }
}

/// Number of a waiting request; later requests have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitId(pub u64);

/// A lock that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Owner of the lock.
    pub owner: LockOwner,
    /// Range and kind of the lock, and the process that set it.
    pub lock: LockRequest,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The owner holds the lock.
    Granted,
    /// Another lock is in the way.
    Denied(Conflict),
    /// The request waits; [`LockTable::take_granted`] will name it.
    Waiting(WaitId),
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiter {
    owner: LockOwner,
    request: LockRequest,
}

/// Locks of one file.
#[derive(Debug, Default)]
struct FileLocks {
    held: BTreeMap<LockOwner, Ranges>,
    waiters: BTreeMap<WaitId, Waiter>,
    shares: Vec<Share>,
}

impl FileLocks {
    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiters.is_empty() && self.shares.is_empty()
    }

    /// The locks of other owners that are in the way, one per owner.
    fn conflicts<'a>(&'a self, owner: &'a LockOwner, request: LockRequest) -> impl Iterator<Item = Conflict> + 'a {
        self.held.iter().filter(move |(holder, _)| *holder != owner).filter_map(move |(holder, ranges)| {
            let held = ranges.conflict(request.range, request.kind)?;
            let lock = LockRequest { range: held.range, kind: held.kind, process: held.process };
            Some(Conflict { owner: holder.clone(), lock })
        })
    }
}

/// Counts of a client, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    locks: usize,
    waiting: usize,
}

/// All locks.
#[derive(Debug, Default)]
pub struct LockTable {
    limits: LockLimits,
    files: BTreeMap<LockedFile, FileLocks>,
    clients: BTreeMap<LockClient, Counts>,
    total: Counts,
    /// The files for which requests of an owner wait.
    waiting: BTreeMap<LockOwner, BTreeMap<WaitId, LockedFile>>,
    granted: Vec<WaitId>,
    next: u64,
}

impl LockTable {
    /// An empty table with these limits.
    pub fn new(limits: LockLimits) -> Self {
        LockTable { limits, ..LockTable::default() }
    }

    /// The first lock that is in the way of a request, if there is one.
    pub fn test(&self, file: LockedFile, owner: &LockOwner, request: LockRequest) -> Option<Conflict> {
        self.files.get(&file)?.conflicts(owner, request).next()
    }

    /// Locks a range, or waits for it if `wait`.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] if the request would wait for itself, [`LockError::TooMany`] beyond the limits.
    pub fn lock(
        &mut self,
        file: LockedFile,
        owner: &LockOwner,
        request: LockRequest,
        wait: bool,
    ) -> Result<LockOutcome, LockError> {
        match self.test(file, owner, request) {
            None => {
                self.change(file, owner, request.range, Some(request.kind), request.process)?;
                invariant!(self.test(file, owner, request).is_none(), "a lock was granted against another one");
                Ok(LockOutcome::Granted)
            }
            Some(conflict) if !wait => Ok(LockOutcome::Denied(conflict)),
            Some(_) => self.wait(file, owner, request).map(LockOutcome::Waiting),
        }
    }

    /// Releases a range; what is not held is ignored.
    ///
    /// # Errors
    /// [`LockError::TooMany`] if it would split a range beyond the limits.
    pub fn unlock(&mut self, file: LockedFile, owner: &LockOwner, range: LockRange) -> Result<(), LockError> {
        self.change(file, owner, range, None, 0)
    }

    /// Holds or releases a range without a test for conflicts.
    fn change(
        &mut self,
        file: LockedFile,
        owner: &LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        process: u32,
    ) -> Result<(), LockError> {
        let none = Ranges::default();
        let held = self.files.get(&file).and_then(|locks| locks.held.get(owner)).unwrap_or(&none);
        let change = held.plan(range, kind, process);
        if change.growth() > 0 && !self.has_room(&owner.client(), change.growth()) {
            return Err(LockError::TooMany);
        }
        if change.growth() == 0 && kind.is_none() && held.is_empty() {
            return Ok(());
        }
        let loosens = change.loosens;
        self.count(&owner.client(), change.growth(), 0);
        let locks = self.files.entry(file).or_default();
        let held = locks.held.entry(owner.clone()).or_default();
        held.apply(change);
        if held.is_empty() {
            locks.held.remove(owner);
        }
        if loosens {
            self.wake(file);
        }
        self.forget_if_empty(file);
        Ok(())
    }

    fn has_room(&self, client: &LockClient, more: i64) -> bool {
        let of_client = self.clients.get(client).map_or(0, |counts| counts.locks) as i64;
        of_client + more <= self.limits.per_client as i64 && self.total.locks as i64 + more <= self.limits.total as i64
    }

    fn count(&mut self, client: &LockClient, locks: i64, waiting: i64) {
        let counts = self.clients.entry(client.clone()).or_default();
        for counts in [&mut *counts, &mut self.total] {
            invariant!(counts.locks as i64 + locks >= 0, "more locks were released than held");
            invariant!(counts.waiting as i64 + waiting >= 0, "more requests ended than waited");
            counts.locks = (counts.locks as i64 + locks).max(0) as usize;
            counts.waiting = (counts.waiting as i64 + waiting).max(0) as usize;
        }
        if *counts == Counts::default() {
            self.clients.remove(client);
        }
    }

    fn forget_if_empty(&mut self, file: LockedFile) {
        if self.files.get(&file).is_some_and(FileLocks::is_empty) {
            self.files.remove(&file);
        }
    }

    fn wait(&mut self, file: LockedFile, owner: &LockOwner, request: LockRequest) -> Result<WaitId, LockError> {
        // A client that asks again for what it waits for keeps its place.
        if let Some(id) = self.waiter(file, owner, request) {
            return Ok(id);
        }
        if self.waits_for_itself(file, owner, request) {
            return Err(LockError::Deadlock);
        }
        let client = owner.client();
        let of_client = self.clients.get(&client).map_or(0, |counts| counts.waiting);
        if of_client >= self.limits.waiting_per_client || self.total.waiting >= self.limits.waiting {
            return Err(LockError::TooMany);
        }
        self.count(&client, 0, 1);
        let id = WaitId(self.next);
        self.next += 1;
        let locks = self.files.entry(file).or_default();
        let replaced = locks.waiters.insert(id, Waiter { owner: owner.clone(), request });
        invariant!(replaced.is_none(), "two requests have one number");
        self.waiting.entry(owner.clone()).or_default().insert(id, file);
        Ok(id)
    }

    /// Whether a chain of holders that wait for others leads from the request to its own owner. It visits each owner once.
    fn waits_for_itself(&self, file: LockedFile, owner: &LockOwner, request: LockRequest) -> bool {
        let mut visited = BTreeSet::new();
        let mut to_visit: Vec<LockOwner> = Vec::new();
        let holders = |file: &LockedFile, owner: &LockOwner, request| -> Vec<LockOwner> {
            let locks = self.files.get(file);
            locks.map_or(Vec::new(), |locks| locks.conflicts(owner, request).map(|conflict| conflict.owner).collect())
        };
        to_visit.extend(holders(&file, owner, request));
        while let Some(holder) = to_visit.pop() {
            if holder == *owner {
                return true;
            }
            if !visited.insert(holder.clone()) {
                continue;
            }
            for (id, file) in self.waiting.get(&holder).into_iter().flatten() {
                let waiter = self.files.get(file).and_then(|locks| locks.waiters.get(id));
                let request = waiter.map(|waiter| waiter.request);
                to_visit.extend(request.into_iter().flat_map(|request| holders(file, &holder, request)));
            }
        }
        false
    }

    /// Grants the requests that wait for a file, in order of arrival, as far as no lock is in their way.
    fn wake(&mut self, file: LockedFile) {
        loop {
            let Some(locks) = self.files.get(&file) else { return };
            let possible = |waiter: &Waiter| locks.conflicts(&waiter.owner, waiter.request).next().is_none();
            let next = locks.waiters.iter().find(|(_, waiter)| possible(waiter));
            let Some((id, waiter)) = next.map(|(id, waiter)| (*id, waiter.clone())) else { return };
            self.remove_waiter(file, id);
            self.hold_granted(file, &waiter);
            self.granted.push(id);
        }
    }

    /// Holds the lock of a request that waited. The limit does not count: it waited within the limit of its own.
    fn hold_granted(&mut self, file: LockedFile, waiter: &Waiter) {
        let LockRequest { range, kind, process } = waiter.request;
        let locks = self.files.entry(file).or_default();
        let held = locks.held.entry(waiter.owner.clone()).or_default();
        let change = held.plan(range, Some(kind), process);
        let growth = change.growth();
        held.apply(change);
        self.count(&waiter.owner.client(), growth, 0);
    }

    fn remove_waiter(&mut self, file: LockedFile, id: WaitId) -> bool {
        let waiter = self.files.get_mut(&file).and_then(|locks| locks.waiters.remove(&id));
        let Some(Waiter { owner, .. }) = waiter else { return false };
        if let Some(of_owner) = self.waiting.get_mut(&owner) {
            let known = of_owner.remove(&id);
            invariant!(known == Some(file), "a request waits for another file than its owner");
            if of_owner.is_empty() {
                self.waiting.remove(&owner);
            }
        }
        self.count(&owner.client(), 0, -1);
        true
    }

    /// The waiting request that equals this one.
    pub fn waiter(&self, file: LockedFile, owner: &LockOwner, request: LockRequest) -> Option<WaitId> {
        let of_owner = self.waiting.get(owner)?;
        let waiters = &self.files.get(&file)?.waiters;
        let equal = |id: &&WaitId| {
            waiters.get(id).is_some_and(|w| w.request.range == request.range && w.request.kind == request.kind)
        };
        of_owner.iter().filter(|(_, of)| **of == file).map(|(id, _)| id).find(equal).copied()
    }

    /// Ends a waiting request; false if it does not wait any more.
    pub fn cancel(&mut self, file: LockedFile, id: WaitId) -> bool {
        let was_waiting = self.remove_waiter(file, id);
        self.forget_if_empty(file);
        was_waiting
    }

    /// The requests that were granted since the last call, in the order in which they were granted.
    pub fn take_granted(&mut self) -> Vec<WaitId> {
        std::mem::take(&mut self.granted)
    }

    /// Releases everything of a client; returns its requests that waited.
    pub fn release_client(&mut self, client: &LockClient) -> Vec<WaitId> {
        let mut ended = Vec::new();
        if !self.clients.contains_key(client) {
            return ended;
        }
        let files: Vec<LockedFile> = self.files.keys().copied().collect();
        for file in files {
            let Some(locks) = self.files.get_mut(&file) else { continue };
            let shares = locks.shares.len();
            locks.shares.retain(|share| share.owner.client() != *client);
            let mut released = shares - locks.shares.len();
            locks.held.retain(|owner, ranges| {
                let keep = owner.client() != *client;
                released += if keep { 0 } else { ranges.len() };
                keep
            });
            let waiters = locks.waiters.iter().filter(|(_, waiter)| waiter.owner.client() == *client);
            let waiters: Vec<WaitId> = waiters.map(|(id, _)| *id).collect();
            if released > 0 {
                self.count(client, -(released as i64), 0);
            }
            for id in &waiters {
                self.remove_waiter(file, *id);
            }
            ended.extend(waiters);
            if released > 0 {
                self.wake(file);
            }
            self.forget_if_empty(file);
        }
        invariant!(!self.clients.contains_key(client), "a client keeps locks after all were released");
        ended
    }

    /// Reserves a file; false if a reservation of another owner excludes it. It replaces the owner's former one.
    ///
    /// # Errors
    /// [`LockError::TooMany`] beyond the limits.
    pub fn share(&mut self, file: LockedFile, share: Share) -> Result<bool, LockError> {
        let shares = self.files.get(&file).map_or(&[][..], |locks| &locks.shares);
        if shares.iter().any(|other| other.conflicts(&share)) {
            return Ok(false);
        }
        let client = share.owner.client();
        let replaces = shares.iter().any(|other| other.owner == share.owner);
        if !replaces && !self.has_room(&client, 1) {
            return Err(LockError::TooMany);
        }
        self.count(&client, if replaces { 0 } else { 1 }, 0);
        let shares = &mut self.files.entry(file).or_default().shares;
        shares.retain(|other| other.owner != share.owner);
        shares.push(share);
        debug_assert!(shares.iter().all(|a| !shares.iter().any(|b| a.conflicts(b))), "reservations conflict");
        Ok(true)
    }

    /// Ends an owner's reservation of a file.
    pub fn unshare(&mut self, file: LockedFile, owner: &LockOwner) {
        let Some(locks) = self.files.get_mut(&file) else { return };
        let before = locks.shares.len();
        locks.shares.retain(|share| share.owner != *owner);
        let ended = before - locks.shares.len();
        debug_assert!(ended <= 1, "an owner had two reservations");
        if ended > 0 {
            self.count(&owner.client(), -(ended as i64), 0);
        }
        self.forget_if_empty(file);
    }

    /// Whether a client has a lock, a reservation or a waiting request.
    pub fn has_client(&self, client: &LockClient) -> bool {
        self.clients.contains_key(client)
    }

    /// Clients with a lock, a reservation or a waiting request.
    pub fn clients(&self) -> Vec<LockClient> {
        self.clients.keys().cloned().collect()
    }

    /// Number of held ranges and reservations.
    pub fn len(&self) -> usize {
        self.total.locks
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.total.waiting
    }

    /// Whether nothing is held and nothing waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The ranges that an owner holds of a file, in ascending order.
    pub fn held(&self, file: LockedFile, owner: &LockOwner) -> Vec<(LockRange, LockKind)> {
        let ranges = self.files.get(&file).and_then(|locks| locks.held.get(owner));
        ranges.into_iter().flat_map(|ranges| ranges.iter().map(|held| (held.range, held.kind))).collect()
    }
}
