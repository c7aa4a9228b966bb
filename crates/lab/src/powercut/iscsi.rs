//! A small iSCSI initiator: one session of one connection, one command at a time, data with the command (RFC 7143, SBC-3, SPC-4).

use super::client::{Client, array, connect};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Length of a basic header segment in bytes.
const HEADER: usize = 48;
const BLOCK_BYTES: u64 = 512;
/// Data that every target accepts with a command: the default of MaxRecvDataSegmentLength.
const MAX_SEGMENT_BYTES: usize = 8192;
/// Largest data segment that is accepted.
const MAX_RECEIVED_BYTES: usize = 1 << 20;
/// Login requests until a target that never agrees is given up.
const MAX_LOGIN_STEPS: usize = 8;
/// Commands until a unit without an end of unit attentions is given up.
const MAX_ATTENTIONS: usize = 8;

/// Operation codes of PDUs; bit 6 of a request is the immediate delivery.
const LOGIN_REQUEST: u8 = 0x43;
const LOGIN_RESPONSE: u8 = 0x23;
const SCSI_COMMAND: u8 = 0x01;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
const REJECT: u8 = 0x3f;

const TEST_UNIT_READY: u8 = 0x00;
const MODE_SENSE_6: u8 = 0x1a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
/// Bit of byte 1 of WRITE(16): force unit access.
const FUA: u8 = 0x08;
/// Caching mode page, and its bit WCE in byte 2.
const CACHING_PAGE: u8 = 0x08;
const WCE: u8 = 0x04;

/// A logical unit.
pub struct IscsiUnit {
    stream: TcpStream,
    lun: u8,
    /// Number of the next command, and of the next status.
    command: u32,
    status: u32,
    is_write_through: bool,
}

fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("iSCSI: {what}"))
}

impl IscsiUnit {
    /// Logs in with a session of its own for each `number`, takes the unit attentions, and asks whether there is a write cache.
    ///
    /// # Errors
    /// If the target refuses, or has no such unit.
    pub fn open(server: SocketAddr, target: &str, lun: u8, number: u32) -> io::Result<Self> {
        let mut unit = Self { stream: connect(server)?, lun, command: 1, status: 0, is_write_through: false };
        unit.login(target, number)?;
        for _ in 0..MAX_ATTENTIONS {
            // Each command reports one unit attention: sense key 6.
            match unit.execute(&[TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], &mut [])? {
                (0, _) => break,
                (_, 6) => {}
                (status, key) => return Err(broken(format!("unit {lun}: status {status:#x}, sense key {key}"))),
            }
        }
        // Without block descriptors.
        let mut page = [0; 64];
        unit.succeed(&[MODE_SENSE_6, 0x08, CACHING_PAGE, 0, page.len() as u8, 0], &[], &mut page)?;
        let from = 4 + page[3] as usize;
        let caching = page.get(from..from + 3).filter(|page| page[0] & 0x3f == CACHING_PAGE);
        unit.is_write_through = caching.is_some_and(|page| page[2] & WCE == 0);
        Ok(unit)
    }

    fn login(&mut self, target: &str, number: u32) -> io::Result<()> {
        let keys = format!(
            "InitiatorName=iqn.2000-01.org.example:weir-bench-{number}\0SessionType=Normal\0TargetName={target}\0\
             HeaderDigest=None\0DataDigest=None\0ImmediateData=Yes\0InitialR2T=Yes\0MaxRecvDataSegmentLength=262144\0"
        );
        let mut text = keys.as_bytes();
        for _ in 0..MAX_LOGIN_STEPS {
            let mut header = [0; HEADER];
            // The login request asks to leave the operational stage and to enter the full feature phase (RFC 7143, 6.1).
            (header[0], header[1]) = (LOGIN_REQUEST, 0x80 | 1 << 2 | 3);
            // ISID of the format "random", different for each session.
            header[8] = 0x80;
            header[10..14].copy_from_slice(&number.to_be_bytes());
            header[24..28].copy_from_slice(&self.command.to_be_bytes());
            header[28..32].copy_from_slice(&self.status.to_be_bytes());
            self.send(header, text)?;
            let (header, _) = self.receive()?;
            if header[0] & 0x3f != LOGIN_RESPONSE || header[36] != 0 {
                return Err(broken(format!("{target}: the login is refused ({:#x} {:#x})", header[36], header[37])));
            }
            self.note_status(&header);
            if header[1] & 0x83 == 0x83 {
                return Ok(());
            }
            text = &[];
        }
        Err(broken(format!("{target}: the login does not end")))
    }

    fn note_status(&mut self, header: &[u8; HEADER]) {
        self.status = u32::from_be_bytes([header[24], header[25], header[26], header[27]]).wrapping_add(1);
    }

    fn send(&mut self, mut header: [u8; HEADER], data: &[u8]) -> io::Result<()> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
        self.stream.write_all(&[&header[..], data, &padding].concat())
    }

    fn receive(&mut self) -> io::Result<([u8; HEADER], Vec<u8>)> {
        let header: [u8; HEADER] = array(&mut self.stream)?;
        let extra = header[4] as usize * 4;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        if len > MAX_RECEIVED_BYTES {
            return Err(broken(format!("a segment of {len} bytes")));
        }
        let mut data = vec![0; extra + len.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        data.drain(..extra);
        data.truncate(len);
        Ok((header, data))
    }

    /// Executes a command with its data, or one that fills `read`. Returns the status and the sense key.
    fn execute(&mut self, cdb: &[u8], data: &[u8], read: &mut [u8]) -> io::Result<(u8, u8)> {
        if data.len() > MAX_SEGMENT_BYTES {
            return Err(broken(format!("{} bytes do not fit into one command", data.len())));
        }
        let mut header = [0; HEADER];
        let direction = if !data.is_empty() { 0x20 } else { u8::from(!read.is_empty()) << 6 };
        (header[0], header[1], header[9]) = (SCSI_COMMAND, 0x80 | direction, self.lun);
        header[16..20].copy_from_slice(&self.command.to_be_bytes());
        header[20..24].copy_from_slice(&(data.len().max(read.len()) as u32).to_be_bytes());
        header[24..28].copy_from_slice(&self.command.to_be_bytes());
        header[28..32].copy_from_slice(&self.status.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.command = self.command.wrapping_add(1);
        self.send(header, data)?;
        loop {
            let (header, data) = self.receive()?;
            match header[0] & 0x3f {
                DATA_IN => {
                    let offset = u32::from_be_bytes([header[40], header[41], header[42], header[43]]) as usize;
                    let place = read.get_mut(offset..).and_then(|rest| rest.get_mut(..data.len()));
                    place.ok_or_else(|| broken("data that was not asked for"))?.copy_from_slice(&data);
                    // The status comes with the last data.
                    if header[1] & 1 != 0 {
                        self.note_status(&header);
                        return Ok((header[3], 0));
                    }
                }
                SCSI_RESPONSE => {
                    self.note_status(&header);
                    if header[2] != 0 {
                        return Err(broken(format!("response {:#x}", header[2])));
                    }
                    return Ok((header[3], data.get(4).map_or(0, |byte| byte & 0xf)));
                }
                REJECT => return Err(broken("the command is rejected")),
                _ => {}
            }
        }
    }

    fn succeed(&mut self, cdb: &[u8], data: &[u8], read: &mut [u8]) -> io::Result<()> {
        match self.execute(cdb, data, read)? {
            (0, _) => Ok(()),
            (status, key) => Err(broken(format!("command {:#x}: status {status:#x}, sense key {key}", cdb[0]))),
        }
    }
}

fn long_cdb(code: u8, flags: u8, offset: u64, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&(offset / BLOCK_BYTES).to_be_bytes());
    cdb[10..14].copy_from_slice(&((len as u64 / BLOCK_BYTES) as u32).to_be_bytes());
    cdb
}

impl Client for IscsiUnit {
    fn write(&mut self, offset: u64, data: &[u8], is_stable: bool) -> io::Result<bool> {
        let flags = if is_stable { FUA } else { 0 };
        self.succeed(&long_cdb(WRITE_16, flags, offset, data.len()), data, &mut [])?;
        // A unit that says that it has no write cache promises every write.
        Ok(is_stable || self.is_write_through)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.succeed(&[SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], &mut [])
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.succeed(&long_cdb(READ_16, 0, offset, buffer.len()), &[], buffer)
    }
}
