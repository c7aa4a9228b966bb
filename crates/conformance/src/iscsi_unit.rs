//! A small initiator for judging the server: one session, one command at a time, data as the target asks for it.
#![allow(clippy::disallowed_methods, reason = "a client of its own, over real connections")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weir_iscsi::wire::bhs::{FLAG_FINAL, FLAG_READ, FLAG_STATUS, FLAG_WRITE, NO_TAG, opcode, padding};
use weir_iscsi::wire::{Bhs, Keys};

use crate::tree::TreeError;

/// Bytes that are sent with a command (FirstBurstLength, whose default this is), and with a Data-Out PDU.
const IMMEDIATE_BYTES: usize = 64 << 10;
/// Offset of four bytes of a login in which two sessions of one initiator differ: the ISID's qualifier and random part.
pub const ISID_AT: usize = 9;
const BLOCK_BYTES: u64 = 512;

/// A unit behind iSCSI.
pub struct IscsiUnit {
    stream: TcpStream,
    next: u32,
    /// Length of the target's answer to the login.
    pub login_bytes: usize,
}

fn broken(what: impl std::fmt::Display) -> TreeError {
    TreeError::Other(format!("iSCSI: {what}"))
}

/// The bytes of a login.
pub fn login(initiator: &str, target: &str) -> Vec<u8> {
    let mut keys = Keys::default();
    keys.push("InitiatorName", initiator);
    keys.push("TargetName", target);
    // Immediate; from the operational stage to the full feature phase.
    let mut bhs = Bhs::new(opcode::LOGIN | 0x40).with_flags(FLAG_FINAL | 1 << 2 | 3).with_byte(8, 0x80);
    let text = keys.encode();
    bhs.set_data_bytes(text.len());
    [&bhs.0[..], &text, &vec![0; padding(text.len())]].concat()
}

/// A READ(16) or WRITE(16) with the number `number`, and its first data.
pub fn command(number: u32, offset: u64, len: usize, data: Option<&[u8]>) -> Vec<u8> {
    let immediate = data.map_or(&[][..], |data| data.get(..IMMEDIATE_BYTES).unwrap_or(data));
    let direction = if data.is_some() { FLAG_WRITE } else { FLAG_READ };
    let mut bhs = Bhs::new(opcode::COMMAND).with_flags(FLAG_FINAL | direction).with_itt(number).with_word(24, number);
    bhs.set_word(20, len as u32);
    bhs.0[32] = if data.is_some() { 0x8a } else { 0x88 };
    bhs.0[34..42].copy_from_slice(&(offset / BLOCK_BYTES).to_be_bytes());
    bhs.set_word(42, (len as u64 / BLOCK_BYTES) as u32);
    bhs.set_data_bytes(immediate.len());
    [&bhs.0[..], immediate].concat()
}

impl IscsiUnit {
    /// Logs in, and takes the unit attention of the new session.
    ///
    /// # Errors
    /// If the target refuses, or closes the connection.
    pub fn open(address: SocketAddr, target: &str, initiator: &str) -> Result<IscsiUnit, TreeError> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        stream.set_read_timeout(Some(Duration::from_secs(120))).map_err(broken)?;
        let mut unit = IscsiUnit { stream, next: 0, login_bytes: 0 };
        unit.stream.write_all(&login(initiator, target)).map_err(broken)?;
        let (bhs, data) = unit.unit()?;
        if bhs.opcode() != opcode::LOGIN_RESPONSE || bhs.word(36) >> 16 != 0 {
            return Err(broken("the login is refused"));
        }
        unit.login_bytes = bhs.0.len() + data.len() + padding(data.len());
        // The first command reports that the session is new.
        let _attention = unit.read(0, BLOCK_BYTES as usize);
        unit.read(0, BLOCK_BYTES as usize)?;
        Ok(unit)
    }

    fn unit(&mut self) -> Result<(Bhs, Vec<u8>), TreeError> {
        let mut bhs = Bhs::new(0);
        self.stream.read_exact(&mut bhs.0).map_err(broken)?;
        let len = bhs.data_bytes();
        let mut data = vec![0; len + padding(len)];
        self.stream.read_exact(&mut data).map_err(broken)?;
        data.truncate(len);
        Ok((bhs, data))
    }

    /// Sends the part that the target asked for.
    fn send(&mut self, asked: &Bhs, data: &[u8]) -> Result<(), TreeError> {
        let offset = asked.word(40) as usize;
        let part = data.get(offset..).and_then(|rest| rest.get(..asked.word(44) as usize));
        let part = part.ok_or_else(|| broken("data was asked for that the command does not have"))?;
        let mut at = 0;
        for (number, piece) in (0..).zip(part.chunks(IMMEDIATE_BYTES)) {
            let last = if at + piece.len() == part.len() { FLAG_FINAL } else { 0 };
            let mut bhs = Bhs::new(opcode::DATA_OUT).with_flags(last).with_itt(asked.itt()).with_ttt(asked.ttt());
            bhs.set_word(36, number);
            bhs.set_word(40, (offset + at) as u32);
            bhs.set_data_bytes(piece.len());
            self.stream.write_all(&[&bhs.0[..], piece].concat()).map_err(broken)?;
            at += piece.len();
        }
        Ok(())
    }

    fn execute(&mut self, offset: u64, len: usize, data: Option<&[u8]>) -> Result<Vec<u8>, TreeError> {
        let number = self.next;
        self.next += 1;
        self.stream.write_all(&command(number, offset, len, data)).map_err(broken)?;
        let mut read = Vec::new();
        loop {
            let (bhs, bytes) = self.unit()?;
            let ends = match bhs.opcode() {
                opcode::DATA_IN => {
                    read.extend(bytes);
                    bhs.has(FLAG_STATUS)
                }
                opcode::R2T => {
                    self.send(&bhs, data.unwrap_or_default())?;
                    false
                }
                opcode::NOP_IN if bhs.ttt() != NO_TAG => {
                    let pong = Bhs::new(opcode::NOP_OUT | 0x40).with_flags(FLAG_FINAL).with_itt(NO_TAG);
                    let pong = pong.with_ttt(bhs.ttt()).with_word(24, self.next);
                    self.stream.write_all(&pong.0).map_err(broken)?;
                    false
                }
                opcode::RESPONSE => true,
                _ => false,
            };
            match (ends, bhs.0[3]) {
                (false, _) => {}
                (true, 0) => return Ok(read),
                (true, status) => return Err(broken(format!("status {status}"))),
            }
        }
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// If the command fails or the connection ends.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, TreeError> {
        self.execute(offset, len, None)
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// As for [`IscsiUnit::read`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), TreeError> {
        self.execute(offset, data.len(), Some(data)).map(drop)
    }
}
