//! A session that is running: what its reader, its commands, and other sessions share.

use super::writer::Outgoing;
use crate::login::Established;
use crate::scsi::inquiry::decode_lun;
use crate::scsi::unit::{Nexus, OpenUnit};
use crate::server::Server;
use crate::session::{Pdu, Session, logout_requested};
use crate::targets::LunConfig;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, mpsc};
use weir_front::{BlockError, ConnectionHandle, HostPermit};
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Accounts, BytePermit, ByteSemaphore, Client, Clock, Protocol, Request, Tasks};

/// Memory for the data of a command.
pub type Memory = (BytePermit, HostPermit);
/// Maximum size of one session's data that was asked for or is being sent, in bytes.
pub const MAX_SESSION_BYTES: usize = 32 << 20;
/// Seconds in which an initiator may log out after the target has announced the end of its session.
const LOGOUT_SECONDS: u16 = 1;

/// An opened unit and how it is configured.
struct OpenLun {
    config: LunConfig,
    open: OpenUnit,
}

/// A running session.
pub struct Running {
    /// Number, which no other session has had.
    pub number: u64,
    /// TSIH.
    pub tsih: u16,
    /// ISID.
    pub isid: [u8; 6],
    /// Name of the initiator.
    pub initiator: String,
    /// The nexus; `None` for a discovery session.
    pub nexus: Option<Nexus>,
    /// The server.
    pub server: Arc<Server>,
    /// Spawns tasks.
    pub tasks: Tasks,
    /// The clock.
    pub clock: Clock,
    /// Accounts of the server.
    own: Account,
    /// Accounts of the pool, once a unit is open.
    of_pool: OnceLock<Account>,
    /// The connection.
    pub handle: ConnectionHandle,
    /// Address that the server listens on.
    pub portal: SocketAddr,
    /// Memory for data that was asked for or is being sent.
    pub memory: ByteSemaphore,
    /// Number of units that were received.
    pub received: AtomicU64,
    /// A task has ended.
    pub task_ended: Notify,
    /// The session is to end.
    pub ending: Notify,
    is_ending: AtomicBool,
    state: Mutex<Session<Memory>>,
    outgoing: mpsc::WeakUnboundedSender<Outgoing>,
    luns: Mutex<BTreeMap<u16, OpenLun>>,
    /// Held while a unit is opened.
    opening: tokio::sync::Mutex<()>,
}

/// Accounts with the client in them.
pub struct Account {
    /// The accounts.
    pub accounts: Arc<Accounts>,
    /// The client.
    pub client: Client,
}

impl Account {
    fn new(accounts: &Arc<Accounts>, handle: &ConnectionHandle) -> Self {
        let client = accounts.client(Protocol::Iscsi, &handle.peer().ip().to_string());
        Account { accounts: accounts.clone(), client }
    }
}

/// Handles that a session is made of.
pub struct Parts {
    /// The server.
    pub server: Arc<Server>,
    /// Spawns tasks.
    pub tasks: Tasks,
    /// The clock.
    pub clock: Clock,
    /// The connection.
    pub handle: ConnectionHandle,
    /// Address that the server listens on.
    pub portal: SocketAddr,
    /// To the writer.
    pub outgoing: mpsc::WeakUnboundedSender<Outgoing>,
}

impl Running {
    /// A session that a login has established.
    pub fn new(parts: Parts, (number, tsih): (u64, u16), established: Established, window: u32) -> Self {
        let Parts { server, tasks, clock, handle, portal, outgoing } = parts;
        let state = Mutex::new(Session::new(&established, window));
        let Established { initiator, target, isid, .. } = established;
        let nexus = target.map(|target| Nexus { session: number, initiator: initiator.clone(), isid, target });
        let own = Account::new(&server.accounts, &handle);
        Running {
            number,
            tsih,
            isid,
            initiator,
            nexus,
            server,
            tasks,
            clock,
            own,
            of_pool: OnceLock::new(),
            handle,
            portal,
            memory: ByteSemaphore::new(MAX_SESSION_BYTES),
            received: AtomicU64::new(0),
            task_ended: Notify::new(),
            ending: Notify::new(),
            is_ending: AtomicBool::new(false),
            state,
            outgoing,
            luns: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Where requests are recorded: in the pool of the target's first unit that was opened, once there is one.
    pub fn account(&self) -> &Account {
        self.of_pool.get().unwrap_or(&self.own)
    }

    /// Locks the state; the lock is held for a few instructions, never across an await.
    pub fn state(&self) -> MutexGuard<'_, Session<Memory>> {
        self.state.lock()
    }

    fn luns(&self) -> MutexGuard<'_, BTreeMap<u16, OpenLun>> {
        self.luns.lock()
    }

    /// Address of the initiator.
    pub fn host(&self) -> IpAddr {
        self.handle.peer().ip()
    }

    /// Sends units. After the end of the connection they are dropped.
    pub fn send(&self, outgoing: Outgoing) {
        if let Some(sender) = self.outgoing.upgrade() {
            // If the writer has ended, the connection is closed.
            let _ = sender.send(outgoing);
        }
    }

    /// Sends one unit.
    pub fn send_one(&self, pdu: Pdu, held: impl Send + 'static) {
        self.send(Outgoing { pdus: smallvec![pdu], held: Box::new(held) });
    }

    /// Tells the initiator that the session ends, and ends it.
    pub fn end(&self, why: &str) {
        if !self.is_ending.swap(true, Ordering::AcqRel) {
            tracing::info!(peer = %self.handle.peer(), initiator = self.initiator, "session ends: {why}");
            self.send_one(logout_requested(LOGOUT_SECONDS), ());
            self.ending.notify_one();
        }
    }

    /// Records that no unit is read any more.
    pub fn set_over(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Whether the session has ended, or is to end.
    pub fn is_over(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Acquires memory for the data of a command.
    pub async fn acquire(&self, bytes: usize) -> Memory {
        (self.memory.acquire(bytes).await, self.handle.acquire(&self.server.memory, bytes).await)
    }

    /// The unit with this number, opened if necessary; `None` if the target has none.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub async fn unit(&self, lun: u16, rq: &Request) -> Result<Option<OpenUnit>, BlockError> {
        if let Some(known) = self.luns().get(&lun) {
            return Ok(Some(known.open.clone()));
        }
        let Some(nexus) = &self.nexus else { return Ok(None) };
        let _opening = self.opening.lock().await;
        if let Some(known) = self.luns().get(&lun) {
            return Ok(Some(known.open.clone()));
        }
        let target = self.server.target(&nexus.target);
        let config = target.as_ref().and_then(|target| target.luns.iter().find(|config| config.lun == lun));
        let Some(config) = config else { return Ok(None) };
        let device = self.server.exports.open(rq, &config.export).await?;
        let unit =
            self.server.unit(device.id(), &config.export).await.map_err(|error: io::Error| BlockError::io(error))?;
        if !unit.is_attached(self.number) {
            unit.attach(nexus, device.size_bytes());
        }
        if let Some(accounts) = device.accounts() {
            // Later units are of the same pool: a target has units of one pool.
            let _ = self.of_pool.set(Account::new(&accounts, &self.handle));
        }
        let open = OpenUnit { unit, device, write_cache: config.write_cache };
        self.luns().insert(lun, OpenLun { config: config.clone(), open: open.clone() });
        Ok(Some(open))
    }

    /// The opened units.
    pub fn open_units(&self) -> Vec<OpenUnit> {
        self.luns().values().map(|known| known.open.clone()).collect()
    }

    /// Closes the units that are configured differently now; the next command opens them again.
    pub fn retain_units(&self, luns: &[LunConfig]) {
        let mut known = self.luns();
        known.retain(|_, known| luns.contains(&known.config));
        debug_assert!(known.len() <= luns.len(), "{} of {} units", known.len(), luns.len());
    }

    /// The numbers of the session's units on a device.
    pub fn luns_of(&self, unit: u64) -> Vec<u16> {
        self.luns().iter().filter(|(_, known)| known.open.unit.id == unit).map(|(lun, _)| *lun).collect()
    }

    /// Waits until none of these tasks is in execution.
    pub async fn wait_ended(&self, itts: &[u32]) {
        loop {
            let ended = self.task_ended.notified();
            if !self.state().has_any(itts) {
                return;
            }
            ended.await;
        }
    }

    /// Aborts the tasks that `select` chooses by tag and number of the unit. Returns those in execution.
    pub fn abort(&self, select: impl Fn(u32, Option<u16>) -> bool) -> Vec<u32> {
        let mut state = self.state();
        let (freed, executing) = state.abort(|itt, bhs| select(itt, decode_lun(bhs.lun())));
        (0..freed).for_each(|_| state.numbers().answered());
        executing
    }

    /// Waits until all tasks that are in execution have ended and were answered; those that wait for data are given up.
    pub async fn drain(&self) {
        let executing = self.state().give_up();
        self.wait_ended(&executing).await;
    }

    /// Ends the session after its connection: waits for its commands, which are not answered, and leaves its units.
    pub async fn close(&self) {
        let executing = self.abort(|_, _| true);
        self.wait_ended(&executing).await;
        let closed = std::mem::take(&mut *self.luns());
        for known in closed.values() {
            known.open.unit.detach(self.number);
        }
        debug_assert!(self.state().is_empty(), "all tasks have ended");
    }
}
