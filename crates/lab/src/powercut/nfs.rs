//! A client of NFS version 3 (RFC 1813) over TCP: MOUNT, LOOKUP, CREATE, WRITE, COMMIT and READ, in calls of ONC RPC (RFC 5531).
//!
//! The client keeps RFC 1813's rule for unstable writes: a COMMIT promises something only if the write verifier is the one that the writes
//! were answered with (section 4.8). A client of the kernel would write the data again; this one ends with an error.

use super::client::{Client, array, connect};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

const MOUNT_PROGRAM: u32 = 100_005;
const NFS_PROGRAM: u32 = 100_003;
const MOUNT_MNT: u32 = 1;
const LOOKUP: u32 = 3;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const COMMIT: u32 = 21;
const NFS3ERR_NOENT: u32 = 2;
/// Bytes of `fattr3` and of the three fields before a change (`wcc_attr`).
const ATTRIBUTES_BYTES: usize = 84;
const BEFORE_BYTES: usize = 24;
/// `stable_how`: not, the data, and all of the file's data and metadata.
const UNSTABLE: u32 = 0;
const DATA_SYNC: u32 = 1;
const FILE_SYNC: u32 = 2;
/// Largest answer that is accepted.
const MAX_ANSWER_BYTES: usize = 2 << 20;

/// A file of an NFS server.
pub struct NfsFile {
    rpc: Rpc,
    handle: Vec<u8>,
    /// Verifier of the unstable writes since the last COMMIT.
    verifier: Option<u64>,
}

fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("NFS: {what}"))
}

/// A connection for calls.
struct Rpc {
    stream: TcpStream,
    id: u32,
}

/// Arguments of a call in XDR.
#[derive(Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// Results of a call in XDR.
struct Results(io::Cursor<Vec<u8>>);

impl Results {
    fn u32(&mut self) -> io::Result<u32> {
        array(&mut self.0).map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        array(&mut self.0).map(u64::from_be_bytes)
    }

    fn opaque(&mut self) -> io::Result<Vec<u8>> {
        let len = self.u32()? as usize;
        let rest = self.0.get_ref().len() as u64 - self.0.position();
        if len as u64 > rest {
            return Err(broken("an answer that ends within its data"));
        }
        let mut bytes = vec![0; len.next_multiple_of(4).min(rest as usize)];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Skips a part that is preceded by whether it is there.
    fn skip_optional(&mut self, bytes: usize) -> io::Result<()> {
        if self.u32()? != 0 {
            self.0.read_exact(&mut vec![0; bytes])?;
        }
        Ok(())
    }

    /// Skips the attributes before and after a change.
    fn skip_changes(&mut self) -> io::Result<()> {
        self.skip_optional(BEFORE_BYTES)?;
        self.skip_optional(ATTRIBUTES_BYTES)
    }

    fn succeeded(&mut self, what: &str) -> io::Result<()> {
        match self.u32()? {
            0 => Ok(()),
            status => Err(broken(format!("{what}: status {status}"))),
        }
    }
}

impl Rpc {
    fn connect(server: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: connect(server)?, id: 0 })
    }

    /// Calls a procedure as user 0, and returns its results.
    fn call(&mut self, program: u32, procedure: u32, arguments: Arguments) -> io::Result<Results> {
        self.id += 1;
        // AUTH_SYS: stamp, machine name, user, group, no further groups. No verifier.
        let credential = Arguments::default().u32(0).opaque(b"weir-bench").u32(0).u32(0).u32(0);
        let mut call = Arguments::default().u32(self.id).u32(0).u32(2).u32(program).u32(3).u32(procedure);
        call = call.u32(1).opaque(&credential.0).u32(0).u32(0);
        call.0.extend_from_slice(&arguments.0);
        // One record of one fragment.
        let length = u32::try_from(call.0.len()).map_err(broken)? | 1 << 31;
        self.stream.write_all(&[&length.to_be_bytes()[..], &call.0].concat())?;
        let mut answer = Results(io::Cursor::new(self.record()?));
        let is_reply = answer.u32()? == self.id && answer.u32()? == 1;
        // Accepted, a verifier, executed.
        let is_accepted = is_reply && answer.u32()? == 0 && answer.u32().is_ok() && answer.opaque().is_ok();
        match is_accepted && answer.u32()? == 0 {
            true => Ok(answer),
            false => Err(broken(format!("call {procedure} is refused"))),
        }
    }

    fn record(&mut self) -> io::Result<Vec<u8>> {
        let mut record = Vec::new();
        loop {
            let head = u32::from_be_bytes(array(&mut self.stream)?);
            let length = (head & !(1 << 31)) as usize;
            if record.len() + length > MAX_ANSWER_BYTES {
                return Err(broken(format!("an answer of {} bytes", record.len() + length)));
            }
            let from = record.len();
            record.resize(from + length, 0);
            self.stream.read_exact(&mut record[from..])?;
            if head >> 31 == 1 {
                return Ok(record);
            }
        }
    }
}

impl NfsFile {
    /// Opens a file in the root of an export; it is made if it is not there. NFS and MOUNT are at one port.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn open(server: SocketAddr, export: &str, name: &str) -> io::Result<Self> {
        let mut mount = Rpc::connect(server)?;
        let mut answer = mount.call(MOUNT_PROGRAM, MOUNT_MNT, Arguments::default().opaque(export.as_bytes()))?;
        answer.succeeded(&format!("mount of {export}"))?;
        let root = answer.opaque()?;
        let mut rpc = Rpc::connect(server)?;
        let place = || Arguments::default().opaque(&root).opaque(name.as_bytes());
        let mut answer = rpc.call(NFS_PROGRAM, LOOKUP, place())?;
        match answer.u32()? {
            0 => {
                let handle = answer.opaque()?;
                return Ok(Self { rpc, handle, verifier: None });
            }
            NFS3ERR_NOENT => {}
            status => return Err(broken(format!("lookup of {name}: status {status}"))),
        }
        // GUARDED, mode 0644, nothing else set.
        let attributes = place().u32(1).u32(1).u32(0o644).u32(0).u32(0).u32(0).u32(0).u32(0);
        let mut answer = rpc.call(NFS_PROGRAM, CREATE, attributes)?;
        answer.succeeded(&format!("creation of {name}"))?;
        if answer.u32()? == 0 {
            return Err(broken(format!("creation of {name}: no handle")));
        }
        let handle = answer.opaque()?;
        Ok(Self { rpc, handle, verifier: None })
    }

    fn note(&mut self, verifier: u64) -> io::Result<()> {
        match self.verifier.replace(verifier) {
            Some(before) if before != verifier => {
                Err(broken("the write verifier changed: the server lost unstable writes while it ran"))
            }
            _ => Ok(()),
        }
    }
}

impl Client for NfsFile {
    fn write(&mut self, offset: u64, data: &[u8], is_stable: bool) -> io::Result<bool> {
        let stable = if is_stable { FILE_SYNC } else { UNSTABLE };
        let count = data.len() as u32;
        let arguments = Arguments::default().opaque(&self.handle).u64(offset).u32(count).u32(stable).opaque(data);
        let mut answer = self.rpc.call(NFS_PROGRAM, WRITE, arguments)?;
        answer.succeeded("WRITE")?;
        answer.skip_changes()?;
        let written = answer.u32()?;
        let committed = answer.u32()?;
        if written != count || committed < stable {
            return Err(broken(format!("WRITE of {count} bytes: {written} written, committed {committed}")));
        }
        let verifier = answer.u64()?;
        self.note(verifier)?;
        // A server may do more than it was asked for.
        Ok(committed >= DATA_SYNC)
    }

    fn flush(&mut self) -> io::Result<()> {
        let arguments = Arguments::default().opaque(&self.handle).u64(0).u32(0);
        let mut answer = self.rpc.call(NFS_PROGRAM, COMMIT, arguments)?;
        answer.succeeded("COMMIT")?;
        answer.skip_changes()?;
        let verifier = answer.u64()?;
        self.note(verifier)
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let count = (buffer.len() - done) as u32;
            let arguments = Arguments::default().opaque(&self.handle).u64(offset + done as u64).u32(count);
            let mut answer = self.rpc.call(NFS_PROGRAM, READ, arguments)?;
            answer.succeeded("READ")?;
            answer.skip_optional(ATTRIBUTES_BYTES)?;
            let _count = answer.u32()?;
            let is_end = answer.u32()? != 0;
            let data = answer.opaque()?;
            let place = buffer.get_mut(done..done + data.len());
            place.ok_or_else(|| broken("READ: more than was asked for"))?.copy_from_slice(&data);
            done += data.len();
            if is_end || data.is_empty() {
                break;
            }
        }
        buffer[done..].fill(0);
        Ok(())
    }
}
