//! The canary of the network: a minimal protocol of calls that survives every cut and every delay, and variants of it with
//! one bug each.
//!
//! ```text
//!   call    number (4 bytes) | length (4) | bytes      a client sends it again, on a new connection, until it is answered
//!   reply   number (4)
//!   server  executes calls in the order of their numbers, each once: a call appends its bytes to a log
//! ```
//!
//! Whatever happens to the connections, the log is in the end the bytes of all calls, once each and in order. A server that
//! executes a part of a call, that forgets that it has executed one, or that takes the order of arrival for the order of
//! the calls, must be detected: by a cut to the server, by a cut to the client, and by delays.

use crate::net::{Direction, SimStream};
use crate::scheduler::SimError;
use crate::world::SimWorld;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use weir_machine::Machine;
use weir_machine::net::Accepted;

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2);
const CALLS: u32 = 4;
const CALL_BYTES: u32 = 5;
const HEADER_BYTES: u64 = 8;
const REPLY_BYTES: u64 = 4;
const MAX_DELAY: Duration = Duration::from_millis(10);

/// The bug of a variant of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetBug {
    /// None: the correct server.
    Nothing,
    /// Executes a call of which only a part has arrived.
    ExecutesParts,
    /// Executes a call again that is sent again.
    ForgetsReplies,
    /// Executes calls in the order of their arrival.
    TrustsArrival,
}

/// A violated guarantee of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetViolation {
    /// The log is not the bytes of all calls, once each and in order.
    #[error("the log is {log:?}")]
    Log {
        /// The log.
        log: Vec<u8>,
    },
    /// The run itself failed.
    #[error("{0}")]
    Run(SimError),
}

/// State of the server: the log, the calls that were executed, and the number of the next one.
#[derive(Clone)]
struct Server {
    bug: NetBug,
    log: Arc<Mutex<Vec<u8>>>,
    executed: Arc<Mutex<BTreeSet<u32>>>,
    next: Arc<watch::Sender<u32>>,
}

impl Server {
    fn append(&self, bytes: &[u8]) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
    }

    async fn session(self, accepted: Accepted) -> io::Result<()> {
        let Accepted { mut reader, mut writer, .. } = accepted;
        loop {
            let number = reader.read_u32().await?;
            let len = reader.read_u32().await?;
            let mut bytes = Vec::new();
            (&mut reader).take(len.into()).read_to_end(&mut bytes).await?;
            if bytes.len() < len as usize && self.bug != NetBug::ExecutesParts {
                return Ok(());
            }
            if self.bug != NetBug::TrustsArrival {
                // The sender is the server's: it lives as long as this session.
                let _ = self.next.subscribe().wait_for(|next| *next >= number).await;
            }
            let is_new = self.executed.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
            if is_new || self.bug == NetBug::ForgetsReplies {
                self.append(&bytes);
            }
            self.next.send_if_modified(|next| std::mem::replace(next, (number + 1).max(*next)) <= number);
            writer.write_u32(number).await?;
        }
    }
}

/// Sends a call until it is answered; the first connection has the fault.
async fn call(world: &SimWorld, number: u32, fault: impl FnOnce(SimStream) -> SimStream) {
    let mut fault = Some(fault);
    let mut message = number.to_be_bytes().to_vec();
    message.extend(CALL_BYTES.to_be_bytes());
    message.extend([number as u8; CALL_BYTES as usize]);
    loop {
        let Ok(stream) = world.net().connect(CLIENT, SERVER) else { continue };
        let mut stream = match fault.take() {
            Some(fault) => fault(stream),
            None => stream,
        };
        let sent = stream.write_all(&message).await;
        if sent.is_ok() && stream.read_u32().await.is_ok() {
            return;
        }
        // The server has read to the end of a connection that was cut before the client connects again.
        world.machine().clock.sleep(MAX_DELAY).await;
    }
}

/// Runs a server and clients; the log must be complete in the end.
fn run(seed: u64, bug: NetBug, clients: impl AsyncFnOnce(SimWorld, Machine)) -> Result<(), NetViolation> {
    let world = SimWorld::new(seed);
    let machine = world.machine();
    let server = Server { bug, log: Arc::default(), executed: Arc::default(), next: Arc::new(watch::Sender::new(0)) };
    let log = server.log.clone();
    let ended = world.run(async {
        let Ok(listener) = machine.net.listen(SERVER).await else { return };
        let tasks = machine.tasks.clone();
        drop(machine.tasks.spawn(async move {
            while let Ok(accepted) = listener.accept().await {
                drop(tasks.spawn(server.clone().session(accepted)));
            }
        }));
        clients(world.clone(), machine).await;
    });
    // Tasks that have not ended hold the world.
    world.power_failure();
    ended.map_err(NetViolation::Run)?;
    let log = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let wanted: Vec<u8> = (0..CALLS as u8).flat_map(|number| [number; CALL_BYTES as usize]).collect();
    if log == wanted { Ok(()) } else { Err(NetViolation::Log { log }) }
}

/// Cuts the connection at every byte of every call and of every reply. Returns the number of cuts, or the first violation.
pub fn survive_net_cuts(seed: u64, bug: NetBug) -> Result<u64, NetViolation> {
    let mut cuts = 0;
    let ends = [(Direction::ToServer, HEADER_BYTES + u64::from(CALL_BYTES)), (Direction::ToClient, REPLY_BYTES)];
    for (direction, bytes) in ends.into_iter().flat_map(|(direction, len)| (0..len).map(move |at| (direction, at))) {
        for cut in 0..CALLS {
            run(seed, bug, async |world, _| {
                for number in 0..CALLS {
                    call(&world, number, |mut stream| {
                        if number == cut {
                            stream.cut_after(direction, bytes);
                        }
                        stream
                    })
                    .await;
                }
            })?;
            cuts += 1;
        }
    }
    Ok(cuts)
}

/// Sends all calls at once, each on a connection of its own with delays.
pub fn survive_delays(seed: u64, bug: NetBug) -> Result<(), NetViolation> {
    run(seed, bug, async |world, machine| {
        let calls = (0..CALLS).map(|number| {
            let seed = seed.wrapping_mul(u64::from(CALLS)).wrapping_add(number.into());
            let clock = machine.clock.clone();
            call(&world, number, move |stream| stream.delayed(&clock, seed, MAX_DELAY))
        });
        join_all(calls).await;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_survives_every_fault() {
        for seed in 0..4 {
            let cuts = survive_net_cuts(seed, NetBug::Nothing).unwrap();
            assert_eq!(cuts, u64::from(CALLS) * (HEADER_BYTES + u64::from(CALL_BYTES) + REPLY_BYTES));
            survive_delays(seed, NetBug::Nothing).unwrap();
        }
    }

    #[test]
    fn each_bug_is_detected_by_its_fault_alone() {
        for seed in 0..4 {
            let bugs = [NetBug::ExecutesParts, NetBug::ForgetsReplies];
            assert!(bugs.into_iter().all(|bug| survive_net_cuts(seed, bug).is_err()), "seed {seed}");
            assert!(bugs.into_iter().all(|bug| survive_delays(seed, bug).is_ok()), "seed {seed}");
            assert!(survive_net_cuts(seed, NetBug::TrustsArrival).is_ok(), "seed {seed}");
        }
        assert!((0..8).any(|seed| survive_delays(seed, NetBug::TrustsArrival).is_err()));
    }
}
