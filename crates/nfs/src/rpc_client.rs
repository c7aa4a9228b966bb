//! Calls to services of other hosts: their rpcbind, their lock manager, their status monitor.
//!
//! Each call has a connection of its own: such calls are rare, and the services close idle connections anyway. A call ends
//! after [`CALL_TIMEOUT`]; replies longer than a record's limit end it, too.

use crate::record::{Assembler, LAST};
use crate::rpc;
use crate::wire::Encoder;
use bytes::{Buf, BytesMut};
use futures_util::future::{Either, select};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_machine::net::{Connected, Net, Remote};
use weir_machine::{Clock, Entropy, Machine};

/// Maximum time of a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 4096;

/// A procedure of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Procedure {
    /// RPC program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub number: u32,
}

/// Why a call failed.
#[derive(Debug, Error)]
pub enum CallError {
    /// The service cannot be reached, or it closed the connection.
    #[error("{0}")]
    Connection(#[from] io::Error),
    /// There was no reply in time.
    #[error("no reply within {} s", CALL_TIMEOUT.as_secs())]
    TimedOut,
    /// The service is not registered with the host's rpcbind.
    #[error("the host's rpcbind does not know the program {program} version {version} over TCP")]
    NotRegistered {
        /// RPC program number.
        program: u32,
        /// Version of the program.
        version: u32,
    },
    /// The service did not execute the call.
    #[error("the service answered: {why}")]
    Refused {
        /// Reason that the service gave.
        why: &'static str,
    },
}

/// Results of a call.
pub struct CallResults {
    /// The results, in XDR.
    pub bytes: Vec<u8>,
    /// This machine's address as the service sees it; `None` over a local socket.
    pub local: Option<IpAddr>,
}

/// Makes calls.
#[derive(Clone)]
pub struct RpcClient {
    net: Arc<dyn Net>,
    clock: Clock,
    entropy: Entropy,
}

impl RpcClient {
    /// Calls over the network of this machine.
    pub fn new(machine: &Machine) -> Self {
        RpcClient { net: machine.net.clone(), clock: machine.clock.clone(), entropy: machine.entropy.clone() }
    }

    /// Calls a procedure and waits for its results.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(&self, to: &Remote, procedure: Procedure, arguments: &Encoder) -> Result<CallResults, CallError> {
        let mut xid = [0; 4];
        self.entropy.fill(&mut xid);
        let xid = u32::from_be_bytes(xid);
        let message = rpc::call_message(xid, procedure, arguments);
        let exchanged = pin!(self.exchange(to, &message));
        let (reply, local) = match select(exchanged, pin!(self.clock.sleep(CALL_TIMEOUT))).await {
            Either::Left((reply, _)) => reply?,
            Either::Right(_) => return Err(CallError::TimedOut),
        };
        let bytes = rpc::results(&reply, xid).map_err(|why| CallError::Refused { why })?.to_vec();
        Ok(CallResults { bytes, local })
    }

    async fn exchange(&self, to: &Remote, message: &[u8]) -> io::Result<(Vec<u8>, Option<IpAddr>)> {
        let Connected { mut reader, mut writer, local } = self.net.connect(to).await?;
        let mark = (LAST | message.len() as u32).to_be_bytes();
        writer.write_all(&[&mark, message].concat()).await?;
        writer.flush().await?;
        let mut assembler = Assembler::default();
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            if reader.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut input: &[u8] = &buffer;
            let reply = assembler.take(&mut input);
            let consumed = buffer.len() - input.len();
            buffer.advance(consumed);
            if let Some(reply) = reply.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                return Ok((reply, local));
            }
        }
    }
}
