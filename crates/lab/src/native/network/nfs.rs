//! A client of NFS version 3 (RFC 1813) with many calls in flight, in ONC RPC over TCP (RFC 5531).
//!
//! An operation that is larger than the server's READ or WRITE (FSINFO: rtmax, wtmax) is as many calls as it needs, and ends with
//! the last of them. Calls carry the user and group of this process (AUTH_SYS).
//!
//! The client keeps RFC 1813's rule for unstable writes: a COMMIT promises something only if the write verifier is the one that
//! the writes were answered with (section 4.8). A client of the kernel would write the data again; this one ends with an error.

use super::wire::{self, Wire, connect};
use super::xdr::{Arguments, Results, broken};
use super::{Completion, Operation, Pipeline};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

pub(super) const MOUNT_PROGRAM: u32 = 100_005;
pub(super) const NFS_PROGRAM: u32 = 100_003;
const PORTMAP_PROGRAM: u32 = 100_000;
const PORTMAP_PORT: u16 = 111;
const PORTMAP_GETPORT: u32 = 3;
const NFS_PORT: u16 = 2049;
pub(super) const MOUNT_MNT: u32 = 1;
pub(super) const LOOKUP: u32 = 3;
pub(super) const READ: u32 = 6;
pub(super) const WRITE: u32 = 7;
pub(super) const CREATE: u32 = 8;
const REMOVE: u32 = 12;
const FSSTAT: u32 = 18;
pub(super) const FSINFO: u32 = 19;
pub(super) const COMMIT: u32 = 21;
const NFS3ERR_NOENT: u32 = 2;
/// Bytes of `fattr3`, of the size's place in it, and of the three fields before a change (`wcc_attr`).
pub(super) const ATTRIBUTES_BYTES: usize = 84;
const BEFORE_BYTES: usize = 24;
/// `stable_how`: not, the data, and all of the file's data and metadata.
const UNSTABLE: u32 = 0;
const DATA_SYNC: u32 = 1;
const FILE_SYNC: u32 = 2;
/// Largest call of READ or WRITE in bytes, whatever the server offers.
const MAX_CALL_BYTES: u32 = 1 << 20;
/// Largest answer that is accepted.
const MAX_ANSWER_BYTES: usize = 2 << 20;
/// Largest handle of a file in bytes (RFC 1813, 2.4).
const MAX_HANDLE_BYTES: usize = 64;

/// Ports of a server, and the user of the calls. Ports that are not known are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// Port of NFS.
    pub nfs: Option<u16>,
    /// Port of MOUNT.
    pub mount: Option<u16>,
    /// Number of user and group; without one, those of this process.
    pub user: Option<u32>,
}

/// A directory of a server.
#[derive(Debug, Clone)]
pub struct Mounted {
    host: String,
    port: u16,
    user: Option<u32>,
    root: Vec<u8>,
    /// Largest READ and WRITE in bytes.
    read_bytes: u32,
    write_bytes: u32,
}

/// A connection for calls.
#[derive(Debug)]
struct Rpc {
    wire: Wire,
    id: u32,
    credential: Vec<u8>,
}

impl Rpc {
    fn new(wire: Wire, user: Option<u32>) -> Self {
        let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let (user, group) = user.map_or(own, |user| (user, user));
        // AUTH_SYS: stamp, machine name, user, group, no further groups.
        let credential = Arguments::default().u32(0).opaque(b"weir-bench").u32(user).u32(group).u32(0);
        Self { wire, id: 0, credential: credential.0 }
    }

    /// Queues a call of version 3, or of version 2 of rpcbind; `data` ends its arguments. Returns its number.
    fn queue(&mut self, program: u32, procedure: u32, arguments: &Arguments, data: &[u8]) -> u32 {
        self.id = self.id.wrapping_add(1);
        let version = if program == PORTMAP_PROGRAM { 2 } else { 3 };
        let head = Arguments::default().u32(self.id).u32(0).u32(2).u32(program).u32(version).u32(procedure);
        // No verifier.
        let head = head.u32(1).opaque(&self.credential).u32(0).u32(0);
        let padding = data.len().next_multiple_of(4) - data.len();
        let len = head.0.len() + arguments.0.len() + data.len() + padding;
        // One record of one fragment.
        let mark = (len as u32 | 1 << 31).to_be_bytes();
        self.wire.queue(&[&mark, &head.0, &arguments.0, data, &[0; 3][..padding]]);
        self.id
    }

    /// Hands the number and the results of an answer to `use_it`, if one has been received as a whole.
    fn answer<T>(&mut self, use_it: impl FnOnce(u32, Results<'_>) -> io::Result<T>) -> io::Result<Option<T>> {
        let Some((whole, assembled)) = record(self.wire.received())? else { return Ok(None) };
        let body = match &assembled {
            Some(bytes) => bytes,
            None => &self.wire.received()[4..whole],
        };
        let out = accepted(body).and_then(|(id, results)| use_it(id, results));
        self.wire.take(whole);
        out.map(Some)
    }

    /// Calls a procedure while no other call is in flight, and hands its results to `use_it`.
    fn call<T>(
        &mut self,
        program: u32,
        procedure: u32,
        arguments: &Arguments,
        use_it: impl FnOnce(Results<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let sent = self.queue(program, procedure, arguments, &[]);
        self.wire.expects();
        let mut use_it = Some(use_it);
        loop {
            let done = self.answer(|id, results| match use_it.take() {
                Some(use_it) if id == sent => use_it(results),
                _ => Err(broken("an answer to no call")),
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
            self.wire.pump(wire::ANSWERS_WITHIN)?;
        }
    }
}

/// The first record (RFC 5531, 11): its length with its marks, and its content if it has several fragments. `None` if it is not
/// there as a whole.
fn record(received: &[u8]) -> io::Result<Option<(usize, Option<Vec<u8>>)>> {
    let mut at = 0;
    let mut assembled: Option<Vec<u8>> = None;
    loop {
        let Some(mark) = received.get(at..).and_then(|rest| rest.first_chunk::<4>()) else { return Ok(None) };
        let mark = u32::from_be_bytes(*mark);
        let len = (mark & !(1 << 31)) as usize;
        if at + len > MAX_ANSWER_BYTES {
            return Err(broken(format!("an answer of {} bytes", at + len)));
        }
        let Some(fragment) = received.get(at + 4..at + 4 + len) else { return Ok(None) };
        let is_last = mark >> 31 == 1;
        if at > 0 || !is_last {
            assembled.get_or_insert_default().extend_from_slice(fragment);
        }
        at += 4 + len;
        if is_last {
            return Ok(Some((at, assembled)));
        }
    }
}

/// Number and results of an answer to a call that was executed.
fn accepted(body: &[u8]) -> io::Result<(u32, Results<'_>)> {
    let mut answer = Results(body);
    let id = answer.u32()?;
    let kind = answer.u32()?;
    let is_denied = answer.u32()?;
    if kind != 1 || is_denied != 0 {
        return Err(broken("the server refuses the caller"));
    }
    let _verifier = (answer.u32()?, answer.opaque()?);
    match answer.u32()? {
        0 => Ok((id, answer)),
        1 | 2 => Err(broken("the server does not offer version 3 of NFS and MOUNT at this port")),
        _ => Err(broken("the server cannot execute a call")),
    }
}

fn succeeded(results: &mut Results<'_>, what: impl std::fmt::Display) -> io::Result<()> {
    match results.u32()? {
        0 => Ok(()),
        status => Err(broken(format!("{what}: {}", status_text(status)))),
    }
}

/// Meaning of a status (RFC 1813, 2.6 and appendix I).
fn status_text(status: u32) -> String {
    let what = match status {
        1 => "not the owner",
        2 => "no such file or directory",
        5 => "input or output error",
        13 => "permission denied",
        20 => "not a directory",
        28 => "no space left",
        30 => "read-only file system",
        69 => "quota exceeded",
        70 => "stale handle",
        _ => return format!("status {status}"),
    };
    format!("{what} (status {status})")
}

fn handle(results: &mut Results<'_>) -> io::Result<Vec<u8>> {
    let bytes = results.opaque()?;
    match bytes.len() {
        1..=MAX_HANDLE_BYTES => Ok(bytes.to_vec()),
        len => Err(broken(format!("a handle of {len} bytes"))),
    }
}

/// Skips the attributes before and after a change.
fn skip_changes(results: &mut Results<'_>) -> io::Result<()> {
    results.skip_optional(BEFORE_BYTES)?;
    results.skip_optional(ATTRIBUTES_BYTES)
}

/// Asks rpcbind for the port of a program over TCP; `None` if it does not know, or does not answer.
fn ask_port(host: &str, program: u32) -> Option<u16> {
    let mut rpc = Rpc::new(connect(host, PORTMAP_PORT).ok()?, None);
    // Program, version, TCP, no port.
    let arguments = Arguments::default().u32(program).u32(3).u32(6).u32(0);
    let port = rpc.call(PORTMAP_PROGRAM, PORTMAP_GETPORT, &arguments, |mut results| results.u32()).ok()?;
    u16::try_from(port).ok().filter(|port| *port > 0)
}

impl Mounted {
    /// Mounts a directory of a server.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn mount(host: &str, access: Access, path: &str) -> io::Result<Self> {
        let port = access.nfs.or_else(|| ask_port(host, NFS_PROGRAM)).unwrap_or(NFS_PORT);
        let mount_port = match (access.mount, access.nfs) {
            (Some(port), _) | (None, Some(port)) => port,
            (None, None) => ask_port(host, MOUNT_PROGRAM).unwrap_or(port),
        };
        let mut mount = Rpc::new(connect(host, mount_port)?, access.user);
        let arguments = Arguments::default().opaque(path.as_bytes());
        let root = mount.call(MOUNT_PROGRAM, MOUNT_MNT, &arguments, |mut results| {
            succeeded(&mut results, format_args!("mount of {path}"))?;
            handle(&mut results)
        })?;
        let sizes = MAX_CALL_BYTES;
        let mut mounted =
            Self { host: host.to_owned(), port, user: access.user, root, read_bytes: sizes, write_bytes: sizes };
        let arguments = Arguments::default().opaque(&mounted.root);
        let sizes = mounted.rpc()?.call(NFS_PROGRAM, FSINFO, &arguments, |mut results| {
            succeeded(&mut results, "FSINFO")?;
            results.skip_optional(ATTRIBUTES_BYTES)?;
            // rtmax, rtpref, rtmult, wtmax.
            Ok([results.u32()?, results.u32()?, results.u32()?, results.u32()?])
        })?;
        let bounded = |bytes: u32| bytes.clamp(512, MAX_CALL_BYTES);
        (mounted.read_bytes, mounted.write_bytes) = (bounded(sizes[0]), bounded(sizes[3]));
        Ok(mounted)
    }

    fn rpc(&self) -> io::Result<Rpc> {
        Ok(Rpc::new(connect(&self.host, self.port)?, self.user))
    }

    /// Bytes that new files may take.
    ///
    /// # Errors
    /// If the server refuses, or is gone.
    pub fn room_bytes(&self) -> io::Result<u64> {
        let arguments = Arguments::default().opaque(&self.root);
        self.rpc()?.call(NFS_PROGRAM, FSSTAT, &arguments, |mut results| {
            succeeded(&mut results, "FSSTAT")?;
            results.skip_optional(ATTRIBUTES_BYTES)?;
            // All bytes, free ones, and those that are free for this user.
            let _others = (results.u64()?, results.u64()?);
            results.u64()
        })
    }

    /// Opens a file of the directory over a connection of its own; it is made if it is not there and `makes`.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn open(&self, name: &str, makes: bool) -> io::Result<NfsFile> {
        let mut rpc = self.rpc()?;
        let place = || Arguments::default().opaque(&self.root).opaque(name.as_bytes());
        let found = rpc.call(NFS_PROGRAM, LOOKUP, &place(), |mut results| match results.u32()? {
            0 => handle(&mut results).map(Some),
            NFS3ERR_NOENT if makes => Ok(None),
            status => Err(broken(format!("lookup of {name}: {}", status_text(status)))),
        })?;
        let handle = match found {
            Some(handle) => handle,
            None => {
                // GUARDED, mode 0644, nothing else set.
                let arguments = place().u32(1).u32(1).u32(0o644).u32(0).u32(0).u32(0).u32(0).u32(0);
                rpc.call(NFS_PROGRAM, CREATE, &arguments, |mut results| {
                    succeeded(&mut results, format_args!("creation of {name}"))?;
                    match results.u32()? {
                        0 => Err(broken(format!("creation of {name}: no handle"))),
                        _ => handle(&mut results),
                    }
                })?
            }
        };
        Ok(NfsFile {
            rpc,
            handle,
            read_bytes: self.read_bytes,
            write_bytes: self.write_bytes,
            verifier: None,
            calls: BTreeMap::new(),
            operations: BTreeMap::new(),
        })
    }

    /// Removes a file of the directory. Whether it was there.
    ///
    /// # Errors
    /// If the server refuses, or is gone.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        let arguments = Arguments::default().opaque(&self.root).opaque(name.as_bytes());
        self.rpc()?.call(NFS_PROGRAM, REMOVE, &arguments, |mut results| match results.u32()? {
            0 => Ok(true),
            NFS3ERR_NOENT => Ok(false),
            status => Err(broken(format!("removal of {name}: {}", status_text(status)))),
        })
    }
}

/// A file of an NFS server.
#[derive(Debug)]
pub struct NfsFile {
    rpc: Rpc,
    handle: Vec<u8>,
    read_bytes: u32,
    write_bytes: u32,
    /// Verifier of the unstable writes since the file was opened.
    verifier: Option<u64>,
    calls: BTreeMap<u32, Call>,
    operations: BTreeMap<u32, InFlight>,
}

/// A call in flight: the operation that it is a part of, and what it asks for.
#[derive(Debug, Clone, Copy)]
struct Call {
    tag: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Read { offset: u64, count: u32 },
    Write { count: u32, stable: u32 },
    Commit,
}

/// An operation in flight.
#[derive(Debug)]
struct InFlight {
    calls: u32,
    offset: u64,
    kept: Option<Vec<u8>>,
    is_stable: bool,
}

/// Content of an answer to a call.
enum Answer<'a> {
    Read(&'a [u8], bool),
    Written { verifier: u64, is_stable: bool },
    Committed(u64),
}

/// Reads the answer to a call, and compares it with what was asked for.
fn answered<'a>(kind: Kind, mut results: Results<'a>) -> io::Result<Answer<'a>> {
    match kind {
        Kind::Read { count, .. } => {
            succeeded(&mut results, "READ")?;
            results.skip_optional(ATTRIBUTES_BYTES)?;
            let _count = results.u32()?;
            let is_end = results.u32()? != 0;
            let data = results.opaque()?;
            match data.len() <= count as usize {
                true => Ok(Answer::Read(data, is_end)),
                false => Err(broken("READ: more than was asked for")),
            }
        }
        Kind::Write { count, stable } => {
            succeeded(&mut results, "WRITE")?;
            skip_changes(&mut results)?;
            let written = results.u32()?;
            let committed = results.u32()?;
            if written != count || committed < stable {
                return Err(broken(format!("WRITE of {count} bytes: {written} written, committed {committed}")));
            }
            // A server may do more than it was asked for.
            Ok(Answer::Written { verifier: results.u64()?, is_stable: committed >= DATA_SYNC })
        }
        Kind::Commit => {
            succeeded(&mut results, "COMMIT")?;
            skip_changes(&mut results)?;
            results.u64().map(Answer::Committed)
        }
    }
}

impl NfsFile {
    fn note(&mut self, verifier: u64) -> io::Result<()> {
        match self.verifier.replace(verifier) {
            Some(before) if before != verifier => {
                Err(broken("the write verifier changed: the server lost unstable writes while it ran"))
            }
            _ => Ok(()),
        }
    }

    fn read(&mut self, tag: u32, offset: u64, count: u32) {
        let arguments = Arguments::default().opaque(&self.handle).u64(offset).u32(count);
        let id = self.rpc.queue(NFS_PROGRAM, READ, &arguments, &[]);
        self.calls.insert(id, Call { tag, kind: Kind::Read { offset, count } });
    }

    /// Handles one answer. `Some` with the operation's tag if it ended.
    fn take_answer(&mut self) -> io::Result<Option<Option<u32>>> {
        // What is left of a READ that was answered in part, and the verifier of a change.
        let (calls, operations) = (&mut self.calls, &mut self.operations);
        let mut rest = None;
        let mut verifier = None;
        let mut ended = None;
        let found = self.rpc.answer(|id, results| {
            let call = calls.remove(&id).ok_or_else(|| broken("an answer to no call"))?;
            let operation = operations.get_mut(&call.tag).ok_or_else(|| broken("an answer to no operation"))?;
            match (answered(call.kind, results)?, call.kind) {
                (Answer::Read(data, is_end), Kind::Read { offset, count }) => {
                    if let Some(kept) = &mut operation.kept {
                        let from = (offset - operation.offset) as usize;
                        let place = kept.get_mut(from..from + data.len());
                        place.ok_or_else(|| broken("READ: data outside of the operation"))?.copy_from_slice(data);
                    }
                    let left = count - data.len() as u32;
                    if left > 0 && !is_end && !data.is_empty() {
                        rest = Some((call.tag, offset + data.len() as u64, left));
                        return Ok(());
                    }
                    if left > 0 && operation.kept.is_none() {
                        return Err(broken(format!("the file ends at byte {}", offset + data.len() as u64)));
                    }
                }
                (Answer::Written { verifier: found, is_stable }, _) => {
                    verifier = Some(found);
                    operation.is_stable &= is_stable;
                }
                (Answer::Committed(found), _) => verifier = Some(found),
                (Answer::Read(..), _) => return Err(broken("an answer of another kind")),
            }
            operation.calls -= 1;
            ended = (operation.calls == 0).then_some(call.tag);
            Ok(())
        })?;
        if let Some((tag, offset, count)) = rest {
            self.read(tag, offset, count);
        }
        if let Some(verifier) = verifier {
            self.note(verifier)?;
        }
        Ok(found.map(|()| ended))
    }
}

impl Pipeline for NfsFile {
    fn submit(&mut self, tag: u32, operation: Operation<'_>) -> io::Result<()> {
        if self.calls.is_empty() {
            self.rpc.wire.expects();
        }
        let mut operation_in_flight = InFlight { calls: 0, offset: 0, kept: None, is_stable: true };
        match operation {
            Operation::Read { offset, len, keeps_data } => {
                operation_in_flight.offset = offset;
                operation_in_flight.kept = keeps_data.then(|| vec![0; len]);
                for from in (0..len).step_by(self.read_bytes as usize) {
                    self.read(tag, offset + from as u64, self.read_bytes.min((len - from) as u32));
                    operation_in_flight.calls += 1;
                }
            }
            Operation::Write { offset, data, is_stable } => {
                let stable = if is_stable { FILE_SYNC } else { UNSTABLE };
                let mut at = offset;
                for part in data.chunks(self.write_bytes as usize) {
                    let count = part.len() as u32;
                    let arguments = Arguments::default().opaque(&self.handle).u64(at).u32(count).u32(stable).u32(count);
                    let id = self.rpc.queue(NFS_PROGRAM, WRITE, &arguments, part);
                    self.calls.insert(id, Call { tag, kind: Kind::Write { count, stable } });
                    operation_in_flight.calls += 1;
                    at += u64::from(count);
                }
            }
            Operation::Flush => {
                let arguments = Arguments::default().opaque(&self.handle).u64(0).u32(0);
                let id = self.rpc.queue(NFS_PROGRAM, COMMIT, &arguments, &[]);
                self.calls.insert(id, Call { tag, kind: Kind::Commit });
                operation_in_flight.calls = 1;
            }
        }
        if operation_in_flight.calls == 0 {
            return Err(broken("an operation without bytes"));
        }
        self.operations.insert(tag, operation_in_flight);
        self.rpc.wire.pump(Duration::ZERO).map(|_| ())
    }

    fn complete(&mut self, within: Duration) -> io::Result<Option<Completion>> {
        loop {
            match self.take_answer()? {
                Some(Some(tag)) => {
                    let done = self.operations.remove(&tag).ok_or_else(|| broken("the end of an unknown operation"))?;
                    let data = done.kept.unwrap_or_default();
                    return Ok(Some(Completion { tag, data, is_stable: done.is_stable }));
                }
                Some(None) => {}
                None => {
                    if !self.rpc.wire.pump(within)? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// Fuzz body of the answers of a server.
pub fn fuzz(input: &[u8]) {
    let Ok(Some((whole, assembled))) = record(input) else { return };
    let body = assembled.as_deref().unwrap_or(&input[4..whole]);
    let Ok((_, results)) = accepted(body) else { return };
    let mut copy = results;
    let _ = handle(&mut copy);
    for kind in [Kind::Read { offset: 0, count: 4096 }, Kind::Write { count: 4096, stable: 2 }, Kind::Commit] {
        if let Ok(Answer::Read(data, _)) = answered(kind, results) {
            assert!(data.len() <= 4096, "no more is accepted than was asked for");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_assembled_from_fragments() {
        let mark = |len: u32, last: bool| (len | u32::from(last) << 31).to_be_bytes().to_vec();
        let one = [mark(4, true), b"abcd".to_vec(), b"rest".to_vec()].concat();
        assert_eq!(record(&one).unwrap(), Some((8, None)));
        let two = [mark(2, false), b"ab".to_vec(), mark(2, true), b"cd".to_vec()].concat();
        assert_eq!(record(&two).unwrap(), Some((12, Some(b"abcd".to_vec()))));
        for len in 0..two.len() {
            assert_eq!(record(&two[..len]).unwrap(), None, "{len}");
        }
        assert!(record(&mark(3 << 20, true)).is_err());
    }
}
