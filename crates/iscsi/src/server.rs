//! The state of the server: targets, units, sessions.

use crate::login::Admission;
use crate::scsi::reservations::Reservations;
use crate::scsi::sense::code;
use crate::scsi::unit::Unit;
use crate::serve::running::Running;
use crate::targets::{TargetConfig, Targets};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use weir_front::{BlockExports, ClientConnection, FrontEnd, HostBudget};
use weir_machine::lock::{Mutex, order};
use weir_machine::{Accounts, Protocol, RequestTotals};

/// Maximum size of the data of all connections that was asked for or is being sent, in bytes.
pub const MAX_TOTAL_BYTES: usize = 256 << 20;
/// Maximum size of unsolicited data of all connections, in bytes: what their windows and first bursts permit.
pub const MAX_UNSOLICITED_BYTES: usize = 512 << 20;

/// Where persistent reservations are kept over restarts.
pub trait ReservationStore: Send + Sync {
    /// The stored reservations of a device; empty if there are none.
    fn load(&self, device: u64) -> BoxFuture<'_, io::Result<Vec<u8>>>;
    /// Stores the reservations of a device, stable on return. Empty: there are none any more. The bytes are one line of
    /// printable ASCII of at most [`crate::scsi::reservations::MAX_ENCODED_BYTES`].
    fn store(&self, device: u64, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>>;
}

/// A store for reservations that need not survive a restart.
pub struct NoReservations;

impl ReservationStore for NoReservations {
    fn load(&self, _: u64) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn store(&self, _: u64, _: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        ready(Ok(())).boxed()
    }
}

/// The server.
pub struct Server {
    pub(crate) exports: Arc<dyn BlockExports>,
    pub(crate) store: Arc<dyn ReservationStore>,
    pub(crate) accounts: Arc<Accounts>,
    /// Budget for data that was asked for or is being sent.
    pub(crate) memory: Arc<HostBudget>,
    /// Budget for unsolicited data.
    pub(crate) unsolicited: Arc<HostBudget>,
    targets: Mutex<Targets>,
    /// Whether targets will be added that are not known yet.
    expects_targets: AtomicBool,
    units: Mutex<BTreeMap<u64, Arc<Unit>>, { order::ISCSI_UNITS }>,
    sessions: Mutex<BTreeMap<u64, Arc<Running>>>,
    /// A session has ended.
    session_ended: Notify,
    next_session: AtomicU64,
    /// Set while [`crate::serve`] runs.
    front: OnceLock<Arc<FrontEnd>>,
}

impl Server {
    /// A server without targets.
    pub fn new(exports: Arc<dyn BlockExports>, reservations: Arc<dyn ReservationStore>) -> Self {
        Server {
            exports,
            store: reservations,
            accounts: Arc::default(),
            expects_targets: AtomicBool::new(false),
            memory: Arc::new(HostBudget::new(MAX_TOTAL_BYTES)),
            unsolicited: Arc::new(HostBudget::new(MAX_UNSOLICITED_BYTES)),
            targets: Mutex::default(),
            units: Mutex::default(),
            sessions: Mutex::default(),
            session_ended: Notify::new(),
            next_session: AtomicU64::new(1),
            front: OnceLock::new(),
        }
    }

    /// The open connections; each uses the target that it names.
    pub fn connections(&self) -> Vec<ClientConnection> {
        self.front.get().map(|front| front.shown()).unwrap_or_default()
    }

    /// Sets the front end whose connections [`Server::connections`] shows; only the first call has an effect.
    pub(crate) fn set_front(&self, front: &Arc<FrontEnd>) {
        // A server is served once.
        let _ = self.front.set(front.clone());
    }

    /// Records requests on devices without accounts of their own in these accounts instead of in accounts of the server.
    pub fn with_accounts(self, accounts: &Arc<Accounts>) -> Self {
        Server { accounts: accounts.clone(), ..self }
    }

    /// Totals of all requests so far.
    pub fn served(&self) -> RequestTotals {
        self.accounts.protocol(Protocol::Iscsi)
    }

    /// Number of sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Waits until a session ends. The future counts from its creation on, before it is awaited.
    pub fn session_ended(&self) -> tokio::sync::futures::Notified<'_> {
        self.session_ended.notified()
    }

    /// Whether targets will be added that are not known yet, because their pools are not open.
    pub fn expect_targets(&self, expects: bool) {
        self.expects_targets.store(expects, Ordering::Relaxed);
    }

    /// Replaces all targets. Sessions that the new ones do not admit end; the others learn of changed units.
    pub fn set_targets(&self, targets: Vec<TargetConfig>) {
        let new = Targets::new(targets);
        let old = std::mem::replace(&mut *self.targets.lock(), new.clone());
        for session in self.all_sessions() {
            let Some(nexus) = &session.nexus else { continue };
            let admission = new.admission(&nexus.initiator, session.host(), &nexus.target);
            let (Admission::Admitted(_), Some(target)) = (admission, new.get(&nexus.target)) else {
                session.end("its target is gone, or no longer admits it");
                continue;
            };
            let before = old.get(&nexus.target);
            if before.is_some_and(|old| old.chap != target.chap) {
                session.end("its target demands another authentication now");
                continue;
            }
            // A unit that may only be read from now on is another one, and is opened again.
            if before.is_some_and(|old| old.luns == target.luns) {
                continue;
            }
            let units = session.open_units();
            session.retain_units(&target.luns);
            for open in units {
                open.unit.raise(code::LUNS_CHANGED, |other, _| other == nexus.session);
            }
        }
    }

    /// A target.
    pub(crate) fn target(&self, iqn: &str) -> Option<Arc<TargetConfig>> {
        self.targets.lock().get(iqn).cloned()
    }

    /// Whether an initiator may use a target.
    pub(crate) fn admission(&self, initiator: &str, host: IpAddr, target: &str) -> Admission {
        match self.targets.lock().admission(initiator, host, target) {
            Admission::NotFound if self.expects_targets.load(Ordering::Relaxed) => Admission::NotYet,
            admission => admission,
        }
    }

    /// The names of the targets that an initiator may use.
    pub(crate) fn visible(&self, initiator: &str, host: IpAddr) -> Vec<String> {
        self.targets.lock().visible(initiator, host)
    }

    /// The unit of a device, which is exported under the name `export`.
    pub(crate) async fn unit(&self, device: u64, export: &str) -> io::Result<Arc<Unit>> {
        if let Some(unit) = self.units.lock().get(&device) {
            return Ok(unit.clone());
        }
        let stored = self.store.load(device).await?;
        let reservations = Reservations::decode(&stored);
        let is_malformed = reservations.is_none();
        let new = Arc::new(Unit::new(device, reservations.unwrap_or_default()));
        // Another session may have been faster.
        let unit = self.units.lock().entry(device).or_insert(new.clone()).clone();
        if is_malformed && Arc::ptr_eq(&unit, &new) {
            tracing::error!(
                export,
                "its stored reservations are malformed and are ignored; a new registration replaces them"
            );
        }
        Ok(unit)
    }

    /// Forgets the state of units whose devices leave this server. If such a device comes back, perhaps after another server had
    /// it, what is stored with it counts.
    pub fn forget_units(&self, leaves: impl Fn(u64) -> bool) {
        self.units.lock().retain(|device, _| !leaves(*device));
    }

    /// Numbers for a new session: its own, and its TSIH.
    pub(crate) fn new_session(&self) -> (u64, u16) {
        loop {
            let session = self.next_session.fetch_add(1, Ordering::Relaxed);
            let tsih = session as u16;
            if tsih != 0 && !self.sessions.lock().values().any(|other| other.tsih == tsih) {
                return (session, tsih);
            }
        }
    }

    /// All sessions.
    pub(crate) fn all_sessions(&self) -> Vec<Arc<Running>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Adds a session.
    pub(crate) fn begin_session(&self, session: &Arc<Running>) {
        let before = self.sessions.lock().insert(session.number, session.clone());
        debug_assert!(before.is_none(), "session numbers are not reused");
    }

    /// Removes a session whose commands have ended.
    pub(crate) fn end_session(&self, number: u64) {
        let removed = self.sessions.lock().remove(&number);
        debug_assert!(removed.is_some(), "a session ends once");
        self.session_ended.notify_waiters();
    }
}
