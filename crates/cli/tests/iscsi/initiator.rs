//! A small initiator.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Length of a header in bytes.
const HEADER: usize = 48;

/// Status, key and code of the sense data, and data.
pub type Answer = (u8, Option<(u8, u16)>, Vec<u8>);

/// An initiator that has logged in.
pub struct Initiator {
    stream: TcpStream,
    cmd_sn: u32,
}

impl Initiator {
    /// Logs in as `iqn.2000-01.org.example:NAME`, always with the same ISID, and takes the unit attentions of the units.
    pub fn login(port: u16, name: &str, target: &str, luns: &[u8]) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut initiator = Initiator { stream, cmd_sn: 1 };
        let text = format!("InitiatorName=iqn.2000-01.org.example:{name}\0SessionType=Normal\0TargetName={target}\0");
        let mut header = [0; HEADER];
        // Immediate; from the operational stage to the full feature phase.
        (header[0], header[1], header[8]) = (0x43, 0x87, 0x80);
        header[24..28].copy_from_slice(&1u32.to_be_bytes());
        initiator.send(header, text.as_bytes());
        let (header, _) = initiator.unit();
        assert_eq!(header[36..38], [0, 0], "login of {name}");
        for lun in luns {
            assert_eq!(initiator.command(*lun, &[0; 6], &[], 0).1, Some((6, 0x2900)), "the session is new");
        }
        initiator
    }

    fn send(&mut self, mut header: [u8; HEADER], data: &[u8]) {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
        self.stream.write_all(&[&header[..], data, &padding].concat()).unwrap();
    }

    fn unit(&mut self) -> ([u8; HEADER], Vec<u8>) {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        self.stream.read_exact(&mut data).unwrap();
        data.truncate(len);
        (header, data)
    }

    /// Executes a command with immediate data, or one that returns up to `expected` bytes.
    pub fn command(&mut self, lun: u8, cdb: &[u8], data: &[u8], expected: u32) -> Answer {
        let mut header = [0; HEADER];
        let direction = if data.is_empty() { u8::from(expected > 0) << 6 } else { 0x20 };
        (header[0], header[1], header[9]) = (0x01, 0x80 | direction, lun);
        header[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let transfer = if data.is_empty() { expected } else { data.len() as u32 };
        header[20..24].copy_from_slice(&transfer.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        self.send(header, data);
        let mut read = Vec::new();
        loop {
            let (header, data) = self.unit();
            match header[0] & 0x3f {
                0x25 => {
                    read.extend(data);
                    if header[1] & 1 != 0 {
                        return (header[3], None, read);
                    }
                }
                0x21 => {
                    let sense = (data.len() > 15).then(|| (data[4] & 0xf, u16::from_be_bytes([data[14], data[15]])));
                    return (header[3], sense, read);
                }
                _ => {}
            }
        }
    }

    /// Executes a command that succeeds, and returns its data.
    pub fn done(&mut self, lun: u8, cdb: &[u8], data: &[u8], expected: u32) -> Vec<u8> {
        let (status, sense, data) = self.command(lun, cdb, data, expected);
        assert_eq!((status, sense), (0, None), "{cdb:x?}");
        data
    }

    /// WRITE(16) of blocks of 512 bytes: its status.
    pub fn write(&mut self, lun: u8, lba: u64, data: &[u8]) -> u8 {
        self.command(lun, &long_cdb(0x8a, lba, data.len()), data, 0).0
    }

    /// READ(16) of blocks of 512 bytes.
    pub fn read(&mut self, lun: u8, lba: u64, len: usize) -> Vec<u8> {
        self.done(lun, &long_cdb(0x88, lba, len), &[], len as u32)
    }
}

fn long_cdb(code: u8, lba: u64, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&((len / 512) as u32).to_be_bytes());
    cdb
}
