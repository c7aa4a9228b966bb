//! Servers that answer every request at once and store nothing, for the ceiling of a client: the same client and load, with the
//! protocol and a connection, without storage and without a network.

use super::iscsi::{self, HEADER};
use super::nfs;
use super::wire::Wire;
use super::xdr::{Arguments, Results};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait of an acceptor and of a connection until they look whether the work is over.
const POLL: Duration = Duration::from_millis(50);
/// Data in one unit of iSCSI, and in one answer of NFS.
const SEGMENT_BYTES: usize = 256 << 10;
/// Size of the unit and of each file in bytes.
const SIZE_BYTES: u64 = 1 << 40;
const BLOCK_BYTES: u32 = 512;
/// Commands of a session in flight.
const WINDOW: u32 = 1024;
/// Largest unit that the peer takes: one of this process's own clients is at the other end.
const MAX_UNIT_BYTES: usize = 4 << 20;

/// Protocol of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// iSCSI, with any target and unit.
    Iscsi,
    /// NFS version 3 and MOUNT, with any directory and file.
    Nfs,
}

/// Runs `work` while a peer listens on a port of the loopback interface, which `work` is given.
///
/// # Errors
/// If no port can be opened, and errors of `work`.
#[allow(clippy::disallowed_methods, reason = "a server for a client of this process")]
pub fn with_peer<T>(protocol: Protocol, work: impl FnOnce(u16) -> io::Result<T>) -> io::Result<T> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    let is_over = &is_over;
                    // The client learns of a connection that ends.
                    scope.spawn(move || Wire::new(stream).and_then(|wire| serve(protocol, wire, is_over)));
                } else {
                    let time = Timespec { tv_sec: 0, tv_nsec: POLL.subsec_nanos().into() };
                    let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&time));
                }
            }
        });
        let out = work(port);
        is_over.store(true, Ordering::Relaxed);
        out
    })
}

fn serve(protocol: Protocol, mut wire: Wire, is_over: &AtomicBool) -> io::Result<()> {
    let zeros = vec![0; SEGMENT_BYTES.max(1 << 20)];
    let mut target = Target::default();
    loop {
        while match protocol {
            Protocol::Iscsi => target.answer(&mut wire, &zeros)?,
            Protocol::Nfs => answer_call(&mut wire, &zeros)?,
        } {}
        if is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        // A peer waits for requests as long as the work goes on.
        wire.expects();
        wire.pump(POLL)?;
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.iter().skip(at).take(4).fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Side of the target of a session.
#[derive(Default)]
struct Target {
    status: u32,
    /// Bytes that writes still lack, by tag.
    awaited: BTreeMap<u32, usize>,
}

impl Target {
    /// Answers the first unit, if there is one.
    fn answer(&mut self, wire: &mut Wire, zeros: &[u8]) -> io::Result<bool> {
        let Some(header) = wire.received().first_chunk::<HEADER>().copied() else { return Ok(false) };
        let len = word(&[0, header[5], header[6], header[7]], 0) as usize;
        let whole = HEADER + header[4] as usize * 4 + len.next_multiple_of(4);
        if whole > MAX_UNIT_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if wire.received().len() < whole {
            return Ok(false);
        }
        wire.take(whole);
        match header[0] & 0x3f {
            0x03 => {
                let text = b"MaxRecvDataSegmentLength=262144\0FirstBurstLength=65536\0ImmediateData=Yes\0";
                self.send(wire, &header, [0x23, 0x87, 0], text);
            }
            0x01 => self.command(wire, &header, len, zeros),
            0x05 => {
                let tag = word(&header, 16);
                let left = self.awaited.remove(&tag).unwrap_or_default().saturating_sub(len);
                if left > 0 {
                    self.awaited.insert(tag, left);
                } else {
                    self.send(wire, &header, [0x21, 0x80, 0], &[]);
                }
            }
            _ => {}
        }
        Ok(true)
    }

    fn command(&mut self, wire: &mut Wire, header: &[u8; HEADER], len: usize, zeros: &[u8]) {
        let expected = word(header, 20) as usize;
        match header[32] {
            // READ CAPACITY(16): the last block, the size of a block.
            0x9e => {
                let last = (SIZE_BYTES / u64::from(BLOCK_BYTES) - 1).to_be_bytes();
                let data = [&last[..], &BLOCK_BYTES.to_be_bytes(), &[0; 20]].concat();
                self.send(wire, header, [0x25, 0x81, 0], &data);
            }
            // MODE SENSE(6): an illegal request.
            0x1a => self.send(wire, header, [0x21, 0x80, 2], &[0, 18, 0x70, 0, 5]),
            0x88 => {
                let mut at = 0;
                while at < expected {
                    let piece = (expected - at).min(SEGMENT_BYTES);
                    let is_last = at + piece == expected;
                    let mut answer = self.header(header, [0x25, if is_last { 0x81 } else { 0 }, 0]);
                    answer[40..44].copy_from_slice(&(at as u32).to_be_bytes());
                    iscsi::queue(wire, answer, &zeros[..piece]);
                    at += piece;
                }
            }
            0x8a if expected > len => {
                let tag = word(header, 16);
                self.awaited.insert(tag, expected - len);
                let mut answer = self.header(header, [0x31, 0x80, 0]);
                answer[40..44].copy_from_slice(&(len as u32).to_be_bytes());
                answer[44..48].copy_from_slice(&((expected - len) as u32).to_be_bytes());
                iscsi::queue(wire, answer, &[]);
            }
            _ => self.send(wire, header, [0x21, 0x80, 0], &[]),
        }
    }

    /// Header of an answer: operation code, flags and status, the tag and numbers of the request.
    fn header(&mut self, to: &[u8; HEADER], [code, flags, status]: [u8; 3]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (code, flags);
        // The status of a login is elsewhere, and 0.
        header[3] = status;
        header[16..20].copy_from_slice(&to[16..20]);
        self.status = self.status.wrapping_add(1);
        header[24..28].copy_from_slice(&self.status.to_be_bytes());
        let command = word(to, 24);
        header[28..32].copy_from_slice(&command.wrapping_add(1).to_be_bytes());
        header[32..36].copy_from_slice(&command.wrapping_add(WINDOW).to_be_bytes());
        header
    }

    fn send(&mut self, wire: &mut Wire, to: &[u8; HEADER], what: [u8; 3], data: &[u8]) {
        let header = self.header(to, what);
        iscsi::queue(wire, header, data);
    }
}

/// Answers the first call, if there is one.
fn answer_call(wire: &mut Wire, zeros: &[u8]) -> io::Result<bool> {
    let Some(mark) = wire.received().first_chunk::<4>() else { return Ok(false) };
    let len = (u32::from_be_bytes(*mark) & !(1 << 31)) as usize;
    if len > MAX_UNIT_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let Some(call) = wire.received().get(4..4 + len) else { return Ok(false) };
    let (answer, data_bytes) = answer_to(Results(call))?;
    let data = zeros.get(..data_bytes).unwrap_or(zeros);
    let padding = data.len().next_multiple_of(4) - data.len();
    let mark = ((answer.0.len() + data.len() + padding) as u32 | 1 << 31).to_be_bytes();
    wire.take(4 + len);
    wire.queue(&[&mark, &answer.0, data, &[0; 3][..padding]]);
    Ok(true)
}

/// The answer to a call, and the number of bytes of a file that follow it.
fn answer_to(mut call: Results<'_>) -> io::Result<(Arguments, usize)> {
    let id = call.u32()?;
    let [_kind, _rpc, program, _version, procedure] = [call.u32()?, call.u32()?, call.u32()?, call.u32()?, call.u32()?];
    for _ in ["credential", "verifier"] {
        let _ = (call.u32()?, call.opaque()?);
    }
    // Accepted, no verifier, executed; then the status.
    let answer = Arguments::default().u32(id).u32(1).u32(0).u32(0).u32(0).u32(0).u32(0);
    let none = 0;
    let verifier = 1;
    Ok(match (program, procedure) {
        (nfs::MOUNT_PROGRAM, nfs::MOUNT_MNT) | (nfs::NFS_PROGRAM, nfs::LOOKUP) => (answer.opaque(b"file"), 0),
        (nfs::NFS_PROGRAM, nfs::FSINFO) => {
            let size = 1 << 20;
            (answer.u32(none).u32(size).u32(size).u32(1).u32(size), 0)
        }
        (nfs::NFS_PROGRAM, nfs::READ) => {
            let _place = (call.opaque()?, call.u64()?);
            let count = call.u32()?.min(1 << 20);
            (answer.u32(none).u32(count).u32(0).u32(count), count as usize)
        }
        (nfs::NFS_PROGRAM, nfs::WRITE) => {
            let _place = (call.opaque()?, call.u64()?);
            let count = call.u32()?;
            let stable = call.u32()?;
            (answer.u32(none).u32(none).u32(count).u32(stable).u64(verifier), 0)
        }
        (nfs::NFS_PROGRAM, nfs::COMMIT) => (answer.u32(none).u32(none).u64(verifier), 0),
        _ => (answer, 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::network::iscsi::{INITIATOR_NAME, Initiator, Wanted};
    use crate::native::network::nfs::{Access, Mounted};
    use crate::native::network::wire::connect;
    use crate::native::network::{Operation, Pipeline};

    /// Has reads and writes of several sizes in flight at once, and ends them all.
    fn exercise(client: &mut dyn Pipeline) -> io::Result<()> {
        let sizes = [512, 4096, 64 << 10, 1 << 20, 3 << 20];
        for (tag, len) in (0..).zip(sizes) {
            client.submit(2 * tag, Operation::Read { offset: 0, len, keeps_data: true })?;
            client.submit(2 * tag + 1, Operation::Write { offset: 512, data: &vec![7; len], is_stable: true })?;
        }
        let mut ended = Vec::new();
        while ended.len() < 2 * sizes.len() {
            if let Some(done) = client.complete(Duration::from_secs(5))? {
                if done.tag % 2 == 0 {
                    assert_eq!(done.data, vec![0; sizes[done.tag as usize / 2]]);
                } else {
                    assert!(done.is_stable);
                }
                ended.push(done.tag);
            }
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..2 * sizes.len() as u32).collect::<Vec<_>>());
        client.execute(Operation::Flush).map(|_| ())
    }

    #[test]
    fn an_initiator_reads_and_writes_with_many_commands_in_flight() {
        let iqn = "iqn.2000-01.org.example:null";
        let wanted = Wanted { iqn, lun: 300, user: None, initiator: INITIATOR_NAME, session: 1 };
        with_peer(Protocol::Iscsi, |port| {
            let mut unit = Initiator::open(connect("127.0.0.1", port)?, &wanted)?;
            assert_eq!((unit.size_bytes(), unit.block_bytes()), (SIZE_BYTES, 512));
            let odd = unit.submit(9, Operation::Read { offset: 100, len: 512, keeps_data: false });
            assert!(odd.unwrap_err().to_string().contains("whole blocks of 512 bytes"));
            exercise(&mut unit)
        })
        .unwrap();
    }

    #[test]
    fn a_client_of_nfs_splits_operations_into_calls() {
        with_peer(Protocol::Nfs, |port| {
            let mounted = Mounted::mount("127.0.0.1", Access { nfs: Some(port), ..Access::default() }, "/any")?;
            exercise(&mut mounted.open("file", true)?)
        })
        .unwrap();
    }

    #[test]
    fn a_server_that_ends_is_an_error_of_its_client() {
        let mut left = None;
        with_peer(Protocol::Nfs, |port| {
            let mounted = Mounted::mount("127.0.0.1", Access { nfs: Some(port), ..Access::default() }, "/any")?;
            left = Some(mounted.open("file", true)?);
            Ok(())
        })
        .unwrap();
        let error = left.unwrap().execute(Operation::Flush).unwrap_err();
        assert_eq!(error.to_string(), "the server closed the connection");
    }
}
