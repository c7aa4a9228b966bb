//! The least of NFS version 3 and NBD that the tests need, over blocking sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const NFS: (u32, u32) = (100_003, 3);
const MOUNT: (u32, u32) = (100_005, 3);

/// A connection of an NFS client with root's credentials, which the server squashes.
pub struct Nfs {
    stream: TcpStream,
    xid: u32,
}

/// XDR: words and opaque bytes.
#[derive(Default)]
struct Xdr(Vec<u8>);

impl Xdr {
    fn word(mut self, word: u32) -> Self {
        self.0.extend_from_slice(&word.to_be_bytes());
        self
    }

    fn opaque(self, bytes: &[u8]) -> Self {
        let mut out = self.word(bytes.len() as u32);
        out.0.extend_from_slice(bytes);
        out.0.resize(out.0.len().next_multiple_of(4), 0);
        out
    }
}

/// Reads a word, and leaves the rest.
fn word(reply: &mut &[u8]) -> u32 {
    let (head, rest) = reply.split_first_chunk::<4>().unwrap();
    *reply = rest;
    u32::from_be_bytes(*head)
}

fn opaque(reply: &mut &[u8]) -> Vec<u8> {
    let len = word(reply) as usize;
    let (head, rest) = reply.split_at(len.next_multiple_of(4));
    *reply = rest;
    head[..len].to_vec()
}

impl Nfs {
    pub fn connect(address: &str) -> Nfs {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Nfs { stream, xid: 0 }
    }

    /// Sends a call, and returns its results.
    fn call(&mut self, (program, version): (u32, u32), procedure: u32, arguments: Xdr) -> Vec<u8> {
        self.xid += 1;
        // AUTH_SYS: stamp, machine name, user, group, groups.
        let user = Xdr::default().word(0).opaque(b"test").word(0).word(0).word(0);
        let head = Xdr::default().word(self.xid).word(0).word(2).word(program).word(version).word(procedure);
        let mut call = head.word(1).opaque(&user.0).word(0).word(0).0;
        call.extend(arguments.0);
        self.stream.write_all(&(1 << 31 | call.len() as u32).to_be_bytes()).unwrap();
        self.stream.write_all(&call).unwrap();
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(length) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut reply).unwrap();
        let mut rest = &reply[..];
        assert_eq!([word(&mut rest), word(&mut rest), word(&mut rest)], [self.xid, 1, 0], "accepted");
        word(&mut rest);
        opaque(&mut rest);
        assert_eq!(word(&mut rest), 0, "executed");
        rest.to_vec()
    }

    /// The handle of an export, or the status.
    pub fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let reply = self.call(MOUNT, 1, Xdr::default().opaque(path.as_bytes()));
        let mut rest = &reply[..];
        match word(&mut rest) {
            0 => Ok(opaque(&mut rest)),
            status => Err(status),
        }
    }

    pub fn unmount(&mut self, path: &str) {
        self.call(MOUNT, 3, Xdr::default().opaque(path.as_bytes()));
    }

    /// Paths of all exports, sorted.
    pub fn exports(&mut self) -> Vec<String> {
        let reply = self.call(MOUNT, 5, Xdr::default());
        let mut rest = &reply[..];
        let mut out = Vec::new();
        while word(&mut rest) == 1 {
            out.push(String::from_utf8(opaque(&mut rest)).unwrap());
            while word(&mut rest) == 1 {
                opaque(&mut rest);
            }
        }
        out.sort();
        out
    }

    /// The handle of a name in a directory, or the status.
    pub fn lookup(&mut self, dir: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let reply = self.call(NFS, 3, Xdr::default().opaque(dir).opaque(name.as_bytes()));
        let mut rest = &reply[..];
        match word(&mut rest) {
            0 => Ok(opaque(&mut rest)),
            status => Err(status),
        }
    }

    /// Status of READDIR.
    pub fn status_of_listing(&mut self, dir: &[u8]) -> u32 {
        let from_start = Xdr::default().opaque(dir).word(0).word(0).word(0).word(0);
        word(&mut &self.call(NFS, 16, from_start.word(4096))[..])
    }

    /// Status of READ at the start of a file.
    pub fn status_of_read(&mut self, file: &[u8]) -> u32 {
        word(&mut &self.call(NFS, 6, Xdr::default().opaque(file).word(0).word(0).word(16))[..])
    }

    /// Overwrites the start of a file, as an unstable write; returns the status.
    pub fn write(&mut self, file: &[u8], data: &[u8]) -> u32 {
        let count = data.len() as u32;
        let to = Xdr::default().opaque(file).word(0).word(0).word(count).word(0).opaque(data);
        word(&mut &self.call(NFS, 7, to)[..])
    }

    /// Renames within a directory; returns the status.
    pub fn rename(&mut self, dir: &[u8], old: &str, new: &str) -> u32 {
        let names = Xdr::default().opaque(dir).opaque(old.as_bytes()).opaque(dir).opaque(new.as_bytes());
        word(&mut &self.call(NFS, 14, names)[..])
    }

    /// Status of GETATTR.
    pub fn status_of(&mut self, handle: &[u8]) -> u32 {
        let reply = self.call(NFS, 1, Xdr::default().opaque(handle));
        word(&mut &reply[..])
    }
}

/// A client attached to an NBD export.
pub struct Nbd {
    stream: TcpStream,
    pub size_bytes: u64,
}

impl Nbd {
    pub fn attach(address: &str, export: &str) -> Nbd {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        let size_bytes = u64::from_be_bytes(answer[..8].try_into().unwrap());
        Nbd { stream, size_bytes }
    }

    /// Writes at an offset.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut request = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1].to_vec();
        request.extend_from_slice(&7u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        request.extend_from_slice(bytes);
        self.stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    /// Reads at an offset.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut request = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0].to_vec();
        request.extend_from_slice(&8u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&(len as u32).to_be_bytes());
        self.stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server has not closed the connection.
    pub fn is_connected(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Waits for the server to close the connection; false if it does not.
    pub fn is_disconnected(&mut self) -> bool {
        self.stream.read_to_end(&mut Vec::new()).is_ok()
    }
}
