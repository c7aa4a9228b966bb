//! ONC remote procedure calls over TCP (RFC 5531) with XDR (RFC 4506): as much as an NFSv3 client needs.
//!
//! Written apart from the server's own wire code and sharing nothing with it, so that a mistake there is not repeated
//! here. One call at a time on one connection; a call is one record of one fragment, an answer may be of several.

#![allow(clippy::disallowed_methods, reason = "a client runs in real time")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::net::TcpSocket;

use crate::tree::TreeError;

/// The longest answer taken, in bytes.
const ANSWER_BYTES: usize = 8 << 20;

/// Time for a server to accept a connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);

/// A connection to one program.
pub struct Rpc {
    stream: TcpStream,
    next_id: u32,
}

fn broken(what: impl std::fmt::Display) -> TreeError {
    TreeError::Other(format!("RPC: {what}"))
}

impl Rpc {
    /// Connects.
    ///
    /// # Errors
    /// Errors of connecting, including a timeout of ten seconds.
    pub fn connect(address: SocketAddr) -> Result<Rpc, TreeError> {
        Self::over(TcpStream::connect_timeout(&address, CONNECTS_WITHIN).map_err(broken)?)
    }

    /// Connects from a host of this machine, such as 127.0.0.7.
    ///
    /// # Errors
    /// As [`Rpc::connect`]; if the address is not one of this machine.
    pub fn connect_from(host: IpAddr, address: SocketAddr) -> Result<Rpc, TreeError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
        let connected = runtime.block_on(async {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.bind(SocketAddr::new(host, 0))?;
            tokio::time::timeout(CONNECTS_WITHIN, socket.connect(address)).await?
        });
        let stream = connected.and_then(tokio::net::TcpStream::into_std).map_err(broken)?;
        stream.set_nonblocking(false).map_err(broken)?;
        Self::over(stream)
    }

    fn over(stream: TcpStream) -> Result<Rpc, TreeError> {
        stream.set_nodelay(true).map_err(broken)?;
        stream.set_read_timeout(Some(Duration::from_secs(120))).map_err(broken)?;
        Ok(Rpc { stream, next_id: 1 })
    }

    /// Calls a procedure with its arguments in XDR and gives the results in XDR.
    ///
    /// # Errors
    /// If the connection breaks or the call is refused as such. A status inside the results is the caller's affair.
    pub fn call(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &Writer,
    ) -> Result<Reader, TreeError> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let mut call = Writer::default();
        for word in [id, 0, 2, program, version, procedure] {
            call.u32(word);
        }
        // AUTH_SYS: stamp, machine name, uid 0, gid 0, no further groups; then no verifier.
        let mut credential = Writer::default();
        credential.u32(0).opaque(b"weir-judge").u32(0).u32(0).u32(0);
        call.u32(1).opaque(&credential.0).u32(0).u32(0);
        call.0.extend_from_slice(&arguments.0);
        let length = u32::try_from(call.0.len()).map_err(broken)?;
        let mut record = (length | 0x8000_0000).to_be_bytes().to_vec();
        record.extend_from_slice(&call.0);
        self.stream.write_all(&record).map_err(broken)?;

        let mut answer = self.record()?;
        if answer.u32()? != id {
            return Err(broken("an answer to another call"));
        }
        if answer.u32()? != 1 || answer.u32()? != 0 {
            return Err(broken("call denied"));
        }
        let _verifier = (answer.u32()?, answer.opaque()?);
        match answer.u32()? {
            0 => Ok(answer),
            status => Err(broken(format!("program {program} procedure {procedure} not accepted: {status}"))),
        }
    }

    fn record(&mut self) -> Result<Reader, TreeError> {
        let mut bytes = Vec::new();
        loop {
            let mut mark = [0; 4];
            self.stream.read_exact(&mut mark).map_err(broken)?;
            let mark = u32::from_be_bytes(mark);
            let length = (mark & 0x7fff_ffff) as usize;
            if bytes.len() + length > ANSWER_BYTES {
                return Err(broken(format!("an answer of more than {ANSWER_BYTES} bytes")));
            }
            let start = bytes.len();
            bytes.resize(start + length, 0);
            self.stream.read_exact(bytes.get_mut(start..).unwrap_or_default()).map_err(broken)?;
            if mark & 0x8000_0000 != 0 {
                return Ok(Reader { bytes, at: 0 });
            }
        }
    }
}

/// XDR being written.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// An unsigned word.
    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A double word.
    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Bytes with their length, padded to words.
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// XDR being read.
pub struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    fn take(&mut self, length: usize) -> Result<&[u8], TreeError> {
        let end = self.at.checked_add(length).ok_or_else(|| broken("a length out of range"))?;
        let bytes = self.bytes.get(self.at..end).ok_or_else(|| broken("an answer that ends early"))?;
        self.at = end;
        Ok(bytes)
    }

    /// An unsigned word.
    ///
    /// # Errors
    /// If the answer ends early, as for all of these.
    pub fn u32(&mut self) -> Result<u32, TreeError> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    /// A double word.
    ///
    /// # Errors
    /// If the answer ends early.
    pub fn u64(&mut self) -> Result<u64, TreeError> {
        let high = self.u32()?;
        Ok(u64::from(high) << 32 | u64::from(self.u32()?))
    }

    /// Bytes with their length.
    ///
    /// # Errors
    /// If the answer ends early.
    pub fn opaque(&mut self) -> Result<Vec<u8>, TreeError> {
        let length = self.u32()? as usize;
        let bytes = self.take(length)?.to_vec();
        self.take(length.next_multiple_of(4) - length)?;
        Ok(bytes)
    }

    /// A fixed number of bytes.
    ///
    /// # Errors
    /// If the answer ends early.
    pub fn fixed(&mut self, length: usize) -> Result<Vec<u8>, TreeError> {
        Ok(self.take(length)?.to_vec())
    }

    /// Whether everything was read.
    pub fn at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}
