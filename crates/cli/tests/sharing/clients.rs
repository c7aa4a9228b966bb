//! Small clients of NFS and NBD that connect from a chosen address of this machine.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// NFS3ERR_ACCES and NFS3ERR_STALE.
pub const ACCES: u32 = 13;
pub const STALE: u32 = 70;
pub const NOENT: u32 = 2;
pub const ROFS: u32 = 30;

/// Connects to a port of 127.0.0.1 from an address.
fn connect(from: [u8; 4], port: u16) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from(from), 0)).unwrap();
        socket.connect(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port)).await.unwrap().into_std().unwrap()
    });
    connected.set_nonblocking(false).unwrap();
    connected
}

/// An NFS client.
pub struct Nfs {
    stream: TcpStream,
    uid: u32,
    xid: u32,
}

/// XDR: words and opaque values.
#[derive(Default)]
pub struct Xdr(Vec<u8>);

impl Xdr {
    pub fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub fn opaque(self, bytes: &[u8]) -> Self {
        let mut out = self.word(bytes.len() as u32);
        out.0.extend(bytes);
        out.0.resize(out.0.len().next_multiple_of(4), 0);
        out
    }
}

/// Reads words and opaque values.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn word(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        u32::from_be_bytes(*word)
    }

    pub fn opaque(&mut self) -> Vec<u8> {
        let len = self.word() as usize;
        let out = self.0[..len].to_vec();
        self.0 = &self.0[len.next_multiple_of(4)..];
        out
    }
}

impl Nfs {
    pub fn connect(from: [u8; 4], port: u16, uid: u32) -> Self {
        Nfs { stream: connect(from, port), uid, xid: 0 }
    }

    /// The results of a call.
    fn call(&mut self, program: u32, procedure: u32, arguments: Xdr) -> Vec<u8> {
        self.xid += 1;
        let credential = Xdr::default().word(0).opaque(b"test").word(self.uid).word(self.uid).word(0);
        let head = Xdr::default().word(self.xid).word(0).word(2).word(program).word(3).word(procedure).word(1);
        let mut message = head.opaque(&credential.0).word(0).word(0).0;
        message.extend(arguments.0);
        let length = (message.len() as u32) | 1 << 31;
        self.stream.write_all(&[&length.to_be_bytes()[..], &message].concat()).unwrap();
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(length) & 0x7fff_ffff) as usize];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[20..24], [0; 4], "accepted");
        reply[24..].to_vec()
    }

    fn status(results: &[u8]) -> Result<Input<'_>, u32> {
        let mut input = Input(results);
        match input.word() {
            0 => Ok(input),
            status => Err(status),
        }
    }

    pub fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let results = self.call(100_005, 1, Xdr::default().opaque(path.as_bytes()));
        Self::status(&results).map(|mut input| input.opaque())
    }

    /// The paths of the export list.
    pub fn exports(&mut self) -> Vec<String> {
        let results = self.call(100_005, 5, Xdr::default());
        let mut input = Input(&results);
        let mut out = Vec::new();
        while input.word() == 1 {
            out.push(String::from_utf8(input.opaque()).unwrap());
            assert_eq!(input.word(), 0, "no groups");
        }
        out
    }

    pub fn getattr(&mut self, handle: &[u8]) -> Result<(), u32> {
        let results = self.call(100_003, 1, Xdr::default().opaque(handle));
        Self::status(&results).map(|_| ())
    }

    pub fn lookup(&mut self, dir: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let results = self.call(100_003, 3, Xdr::default().opaque(dir).opaque(name.as_bytes()));
        Self::status(&results).map(|mut input| input.opaque())
    }

    /// Creates a file, and returns its handle.
    pub fn create(&mut self, dir: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let unchecked = Xdr::default().opaque(dir).opaque(name.as_bytes()).word(0);
        let arguments = (0..6).fold(unchecked, |arguments, _| arguments.word(0));
        let results = self.call(100_003, 8, arguments);
        Self::status(&results).map(|mut input| {
            assert_eq!(input.word(), 1, "a handle");
            input.opaque()
        })
    }

    pub fn write(&mut self, file: &[u8], data: &[u8]) -> Result<(), u32> {
        let arguments = Xdr::default().opaque(file).word(0).word(0).word(data.len() as u32).word(2).opaque(data);
        let results = self.call(100_003, 7, arguments);
        Self::status(&results).map(|_| ())
    }

    /// Owner of a file.
    pub fn owner(&mut self, file: &[u8]) -> Result<u32, u32> {
        let results = self.call(100_003, 1, Xdr::default().opaque(file));
        Self::status(&results).map(|mut input| {
            let words: Vec<u32> = (0..4).map(|_| input.word()).collect();
            words[3]
        })
    }

    /// Names in a directory.
    pub fn list(&mut self, dir: &[u8]) -> Vec<String> {
        let arguments = Xdr::default().opaque(dir).word(0).word(0).word(0).word(0).word(1 << 16);
        let results = self.call(100_003, 16, arguments);
        let mut input = Self::status(&results).unwrap();
        assert_eq!(input.word(), 1, "attributes");
        input.0 = &input.0[84 + 8..];
        let mut out = Vec::new();
        while input.word() == 1 {
            input.0 = &input.0[8..];
            out.push(String::from_utf8(input.opaque()).unwrap());
            input.0 = &input.0[8..];
        }
        out.sort();
        out
    }
}

/// An NBD client.
pub struct Nbd(TcpStream);

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

impl Nbd {
    pub fn connect(from: [u8; 4], port: u16) -> Self {
        let mut stream = connect(from, port);
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        Nbd(stream)
    }

    fn send(&mut self, option: u32, data: &[u8]) {
        let head = [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes()];
        self.0.write_all(&[&head.concat(), data].concat()).unwrap();
    }

    /// Kind and data of a reply.
    fn reply(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 20];
        self.0.read_exact(&mut head).unwrap();
        let mut input = Input(&head[12..]);
        let kind = input.word();
        let mut data = vec![0; input.word() as usize];
        self.0.read_exact(&mut data).unwrap();
        (kind, data)
    }

    /// Names of the exports.
    pub fn list(&mut self) -> Vec<String> {
        self.send(3, &[]);
        let mut out = Vec::new();
        loop {
            match self.reply() {
                (2, data) => out.push(String::from_utf8(data[4..].to_vec()).unwrap()),
                (kind, _) => {
                    assert_eq!(kind, 1, "acknowledged");
                    return out;
                }
            }
        }
    }

    /// Opens an export; returns whether it is read-only, or `None` if there is none of this name.
    pub fn open(&mut self, name: &str) -> Option<bool> {
        let data = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat();
        self.send(7, &data);
        let mut is_read_only = None;
        loop {
            match self.reply() {
                (3, data) if data[..2] == [0, 0] => is_read_only = Some(data[11] & 2 != 0),
                (3, _) => {}
                (1, _) => return is_read_only,
                _ => return None,
            }
        }
    }

    /// Reads the first block; returns whether the server answered without an error, or `None` if it closed the connection.
    pub fn read(&mut self) -> Option<bool> {
        let request = [&0x2560_9513u32.to_be_bytes()[..], &[0; 20], &512u32.to_be_bytes()].concat();
        self.0.write_all(&request).ok()?;
        let mut head = [0; 16];
        self.0.read_exact(&mut head).ok()?;
        let is_good = head[4..8] == [0; 4];
        if is_good {
            self.0.read_exact(&mut [0; 512]).ok()?;
        }
        Some(is_good)
    }

    /// Waits until the server closes the connection.
    pub fn wait_for_end(mut self) {
        let mut rest = Vec::new();
        self.0.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}
