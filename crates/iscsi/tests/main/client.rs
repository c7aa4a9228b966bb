//! A small initiator.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use weir_iscsi::wire::bhs::{FLAG_FINAL, FLAG_READ, FLAG_WRITE, NO_TAG, opcode, padding};
use weir_iscsi::wire::{Bhs, Keys, digest};

/// Status, key and code of the sense data, and data.
pub type Answer = (u8, Option<(u8, u16)>, Vec<u8>);

/// An initiator that has logged in.
pub struct Client {
    stream: TcpStream,
    digests: bool,
    cmd_sn: u32,
    itt: u32,
    /// The next data segment has a wrong digest.
    pub breaks_data_digest: bool,
}

impl Client {
    /// Logs in as `iqn.NAME`, always with the same ISID.
    pub fn login(address: SocketAddr, name: &str, target: &str, more: &[(&str, &str)]) -> Result<Client, u16> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream, digests: false, cmd_sn: 1, itt: 0, breaks_data_digest: false };
        let mut keys = Keys::default();
        keys.push("InitiatorName", format!("iqn.{name}"));
        keys.push("TargetName", target);
        more.iter().for_each(|(key, value)| keys.push(key, *value));
        let mut bhs = Bhs::new(opcode::LOGIN | 0x40).with_flags(FLAG_FINAL | 1 << 2 | 3).with_word(24, 1);
        bhs.0[8] = 0x80;
        client.send(bhs, &keys.encode());
        let (bhs, _) = client.unit().ok_or(0u16)?;
        let status = (bhs.word(36) >> 16) as u16;
        client.digests = more.iter().any(|(key, _)| *key == "HeaderDigest");
        if status == 0 { Ok(client) } else { Err(status) }
    }

    fn send(&mut self, mut bhs: Bhs, data: &[u8]) {
        bhs.set_data_bytes(data.len());
        let mut bytes = bhs.0.to_vec();
        if self.digests {
            bytes.extend(digest::of([&bhs.0[..]]));
        }
        let start = bytes.len();
        bytes.extend(data);
        bytes.resize(bytes.len() + padding(data.len()), 0);
        if self.digests && !data.is_empty() {
            let mut digest = digest::of([&bytes[start..]]);
            digest[0] ^= u8::from(std::mem::take(&mut self.breaks_data_digest));
            bytes.extend(digest);
        }
        // The server may have closed the connection.
        let _ = self.stream.write_all(&bytes);
    }

    fn read(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).ok().map(|()| bytes)
    }

    /// The next unit; `None` if the connection is closed.
    pub fn unit(&mut self) -> Option<(Bhs, Vec<u8>)> {
        let header = self.read(48)?;
        let bhs = Bhs(header.try_into().unwrap());
        if self.digests {
            assert_eq!(self.read(4)?, digest::of([&bhs.0[..]]));
        }
        let len = bhs.data_bytes();
        let mut data = self.read(len + padding(len))?;
        if self.digests && len > 0 {
            assert_eq!(self.read(4)?, digest::of([&data[..]]));
        }
        data.truncate(len);
        Some((bhs, data))
    }

    /// Sends a command that expects `expected` bytes, or sends `data`.
    pub fn send_command(&mut self, cdb: &[u8], data: &[u8], expected: u32, flags: u8) {
        self.itt += 1;
        let direction = match (data.is_empty() && cdb[0] != 0x8a, expected) {
            (false, _) => FLAG_WRITE,
            (true, 0) => 0,
            (true, _) => FLAG_READ,
        };
        let mut bhs = Bhs::new(opcode::COMMAND).with_flags(flags | direction).with_itt(self.itt);
        bhs.set_word(20, if data.is_empty() { expected } else { data.len() as u32 });
        bhs.set_word(24, self.cmd_sn);
        bhs.0[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        self.send(bhs, data);
    }

    /// Executes a command: status, key and code of the sense data, data. `None` if the connection ends.
    pub fn try_command(&mut self, cdb: &[u8], data: &[u8], expected: u32) -> Option<Answer> {
        self.send_command(cdb, data, expected, FLAG_FINAL);
        let mut read = Vec::new();
        loop {
            let (bhs, data) = self.unit()?;
            match bhs.opcode() {
                opcode::DATA_IN => {
                    read.extend(data);
                    if bhs.flags() & 1 != 0 {
                        return Some((bhs.0[3], None, read));
                    }
                }
                opcode::RESPONSE => {
                    let sense = (data.len() > 15).then(|| (data[4] & 0xf, u16::from_be_bytes([data[14], data[15]])));
                    return Some((bhs.0[3], sense, read));
                }
                _ => {}
            }
        }
    }

    /// Executes a command whose connection does not end.
    pub fn command(&mut self, cdb: &[u8], data: &[u8], expected: u32) -> Answer {
        self.try_command(cdb, data, expected).expect("the connection ended")
    }

    /// TEST UNIT READY: status, key and code of the sense data.
    pub fn test_unit_ready(&mut self) -> (u8, Option<(u8, u16)>) {
        let (status, sense, _) = self.command(&[0; 6], &[], 0);
        (status, sense)
    }

    /// A task management function for unit 0: its response.
    pub fn manage(&mut self, function: u8) -> u8 {
        let bhs = Bhs::new(opcode::TASK_MANAGEMENT | 0x40).with_flags(FLAG_FINAL | function).with_itt(9999);
        self.send(bhs.with_ttt(NO_TAG).with_word(24, self.cmd_sn), &[]);
        self.unit().unwrap().0.0[2]
    }

    /// The connection.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}
