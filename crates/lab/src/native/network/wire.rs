//! A TCP connection that sends and receives at the same time, without a thread for each direction.
//!
//! A client that only wrote while it has requests to send would stop a server that does not read on while its answers are not
//! taken. So the socket does not block, and [`Wire::pump`] moves bytes in both directions.

use crate::clock::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longest wait for an answer.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for a connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// Bytes that one call receives at most.
const RECEIVE_BYTES: usize = 256 << 10;
/// Sent bytes from which on they are removed from the buffer.
const COMPACT_BYTES: usize = 1 << 20;

/// A connection. What it receives is held until it is taken.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    begin: usize,
    end: usize,
    /// Since when nothing has been received.
    silent: Stopwatch,
}

/// Connects over TCP to one of a host's addresses, tried in their order.
///
/// # Errors
/// If the name has no address, or no address answers within ten seconds; the message names host and port.
pub fn connect(host: &str, port: u16) -> io::Result<Wire> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{host} port {port}: {error}"));
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs().map_err(named)? {
        match Wire::connect(address) {
            Ok(wire) => return Ok(wire),
            Err(error) => last = error,
        }
    }
    Err(named(last))
}

impl Wire {
    /// Connects to an address.
    ///
    /// # Errors
    /// If it does not answer within ten seconds.
    #[allow(clippy::disallowed_methods, reason = "a client of a real server")]
    pub fn connect(server: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect_timeout(&server, CONNECTS_WITHIN)?)
    }

    /// A connection that exists.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            outgoing: Vec::new(),
            sent: 0,
            incoming: vec![0; RECEIVE_BYTES],
            begin: 0,
            end: 0,
            silent: Stopwatch::start(),
        })
    }

    /// Queues bytes, which [`Wire::pump`] sends.
    pub fn queue(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.outgoing.extend_from_slice(part);
        }
    }

    /// Bytes that are received and not taken.
    #[must_use]
    pub fn received(&self) -> &[u8] {
        self.incoming.get(self.begin..self.end).unwrap_or_default()
    }

    /// Drops the first bytes of what is received.
    pub fn take(&mut self, bytes: usize) {
        self.begin = (self.begin + bytes).min(self.end);
    }

    /// Starts to wait for an answer.
    pub fn expects(&mut self) {
        self.silent = Stopwatch::start();
    }

    /// Sends what is queued and receives what is there; if nothing moves, waits at most for `within`. Whether bytes were
    /// received.
    ///
    /// # Errors
    /// If the connection fails or is closed, or nothing was received for [`ANSWERS_WITHIN`].
    pub fn pump(&mut self, within: Duration) -> io::Result<bool> {
        let moved = self.send()?;
        let got = self.receive()?;
        if got || moved {
            return Ok(got);
        }
        if self.silent.elapsed() > ANSWERS_WITHIN {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("no answer for {} s", ANSWERS_WITHIN.as_secs())));
        }
        let wanted = if self.is_sent() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let time = Timespec { tv_sec: within.as_secs().min(3600) as i64, tv_nsec: within.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.stream, wanted)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.send()?;
        self.receive()
    }

    /// Receives until at least `bytes` are there.
    ///
    /// # Errors
    /// As [`Wire::pump`].
    pub fn need(&mut self, bytes: usize) -> io::Result<&[u8]> {
        while self.end - self.begin < bytes {
            self.pump(ANSWERS_WITHIN)?;
        }
        Ok(self.received())
    }

    fn is_sent(&self) -> bool {
        self.sent == self.outgoing.len()
    }

    fn send(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while let Some(rest) = self.outgoing.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
        if self.is_sent() || self.sent >= COMPACT_BYTES {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(moved)
    }

    fn receive(&mut self) -> io::Result<bool> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        if self.incoming.len() - self.end < RECEIVE_BYTES / 2 {
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            // What is not taken is bounded by the largest unit that the protocol's client accepts.
            if self.incoming.len() - self.end < RECEIVE_BYTES {
                self.incoming.resize(self.end + RECEIVE_BYTES, 0);
            }
        }
        loop {
            match self.stream.read(&mut self.incoming[self.end..]) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
                Ok(count) => {
                    self.end += count;
                    self.expects();
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
    }
}

/// Says what the errors of a connection whose server ended mean.
fn gone(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            io::Error::new(error.kind(), "the server closed the connection")
        }
        _ => error,
    }
}
