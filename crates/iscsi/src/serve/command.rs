//! Executes the commands of a session, each in a task of its own.

use super::running::Account;
use super::running::{Memory, Running};
use super::writer::Outgoing;
use crate::scsi::cdb::{self, Command};
use crate::scsi::execute::{self, Context, Outcome, Surroundings};
use crate::scsi::inquiry::{MAX_TRANSFER_BLOCKS, decode_lun};
use crate::scsi::reservations::Port;
use crate::scsi::sense::{Sense, code, key};
use crate::scsi::unit::OpenUnit;
use crate::session::{Action, Ready, response};
use crate::wire::bhs::FLAG_READ;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_front::CallGuard;
use weir_machine::{Operation, Request};

/// Starts a command: on this thread until it waits.
pub fn start(session: &Arc<Running>, ready: Ready<Memory>) {
    let guard = session.handle.begin_call();
    let running = session.clone();
    session.tasks.start(async move { run(running, ready, guard).await });
}

/// Memory in bytes that the answer of a command holds until it is sent.
fn answer_bytes(ready: &Ready<Memory>) -> usize {
    const MAX_BYTES: usize = MAX_TRANSFER_BLOCKS as usize * cdb::BLOCK_BYTES as usize;
    if ready.bhs.has(FLAG_READ) { (ready.bhs.expected_bytes() as usize).min(MAX_BYTES) } else { 0 }
}

async fn run(session: Arc<Running>, ready: Ready<Memory>, guard: CallGuard) {
    let Ready { bhs, data, r2ts, frees_slot, is_aborted, memory } = match answer_bytes(&ready) {
        0 => ready,
        bytes => Ready { memory: Some(session.acquire(bytes).await), ..ready },
    };
    let cdb = bhs.cdb();
    let Account { accounts, client } = session.account();
    let rq = accounts.begin(client, operation(&cdb));
    let outcome = execute(&session, &bhs, data.freeze(), &is_aborted, &rq).await;
    accounts.record(&rq);
    drop(rq);
    {
        let mut state = session.state();
        // The answer is queued under the lock: no other task sees this one gone before its answer is queued.
        if state.finish(bhs.itt()) {
            let pdus = response(&bhs, outcome, r2ts, frees_slot, state.parameters());
            session.send(Outgoing { pdus, held: Box::new((memory, guard)) });
        } else if frees_slot {
            state.numbers().answered();
        }
    }
    session.task_ended.notify_waiters();
}

async fn execute(
    session: &Arc<Running>,
    bhs: &crate::wire::Bhs,
    data: bytes::Bytes,
    is_aborted: &Arc<AtomicBool>,
    rq: &Request,
) -> Outcome {
    let cdb = bhs.cdb();
    let around = Around { session: session.clone(), itt: bhs.itt(), is_aborted: is_aborted.clone() };
    let opened = match decode_lun(bhs.lun()) {
        Some(lun) => session.unit(lun, rq).await,
        None => Ok(None),
    };
    match (opened, &session.nexus) {
        (Ok(Some(open)), Some(nexus)) => {
            let announced_bytes = bhs.expected_bytes();
            let context = Context { open: &open, nexus, rq, cdb: &cdb, announced_bytes, around: &around };
            execute::execute(&context, data).await
        }
        (Err(error), _) => {
            tracing::warn!(client = rq.client.name(), %error, "a unit cannot be opened");
            Outcome::check(&Sense::new(key::NOT_READY, code::NOT_READY), false)
        }
        _ => execute::without_unit(&cdb, around.luns()),
    }
}

/// Operation of a command, for the request's context.
fn operation(cdb: &[u8; 16]) -> Operation {
    match cdb::decode(cdb) {
        Ok(Command::Read(_) | Command::Verify(..)) => Operation::Read,
        Ok(Command::Write(_) | Command::WriteVerify(..) | Command::OrWrite(_) | Command::CompareAndWrite(_)) => {
            Operation::Write
        }
        Ok(Command::WriteSame { .. }) => Operation::WriteZeroes,
        Ok(Command::Unmap { .. }) => Operation::Trim,
        Ok(Command::SynchronizeCache(_)) => Operation::Flush,
        Ok(Command::Prefetch(_)) => Operation::Cache,
        Ok(Command::GetLbaStatus { .. }) => Operation::BlockStatus,
        Ok(Command::ExtendedCopy { .. }) => Operation::Copy,
        Ok(Command::TestUnitReady) => Operation::Null,
        Ok(Command::ModeSelect { .. } | Command::ReserveOut { .. } | Command::Reserve | Command::Release) => {
            Operation::SetAttr
        }
        Ok(_) => Operation::GetAttr,
        Err(_) => Operation::Unknown,
    }
}

/// The target around a command.
struct Around {
    session: Arc<Running>,
    itt: u32,
    is_aborted: Arc<AtomicBool>,
}

impl Surroundings for Around {
    fn luns(&self) -> Vec<u16> {
        let nexus = self.session.nexus.as_ref();
        let target = nexus.and_then(|nexus| self.session.server.target(&nexus.target));
        let mut luns: Vec<u16> = target.iter().flat_map(|target| target.luns.iter().map(|config| config.lun)).collect();
        luns.sort_unstable();
        luns
    }

    fn unit<'a>(&'a self, lun: u16, rq: &'a Request) -> BoxFuture<'a, Option<OpenUnit>> {
        async move { self.session.unit(lun, rq).await.ok().flatten() }.boxed()
    }

    fn store<'a>(&'a self, device: u64, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<()>> {
        self.session.server.store.store(device, bytes)
    }

    fn abort_commands<'a>(&'a self, unit: u64, ports: &'a [Port]) -> BoxFuture<'a, ()> {
        async move {
            for session in self.session.server.all_sessions() {
                let port = session.nexus.as_ref().map(|nexus| nexus.port());
                if !port.is_some_and(|port| ports.contains(&port)) {
                    continue;
                }
                let own = (session.number == self.session.number).then_some(self.itt);
                let luns = session.luns_of(unit);
                let aborted = session.abort(|itt, lun| Some(itt) != own && lun.is_some_and(|lun| luns.contains(&lun)));
                session.wait_ended(&aborted).await;
            }
        }
        .boxed()
    }

    fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }
}

/// Gets memory for the data of a task, and asks for them.
pub fn acquire(session: &Arc<Running>, itt: u32, bytes: usize) {
    let session = session.clone();
    let tasks = session.tasks.clone();
    tasks.start(async move {
        let memory = session.acquire(bytes).await;
        let actions = session.state().granted(itt, memory);
        for action in actions {
            match action {
                Action::Send(pdu) => session.send_one(pdu, ()),
                Action::Execute(ready) => start(&session, ready),
                _ => debug_assert!(false, "memory for data leads to data"),
            }
        }
    });
}
