//! Units of the target.

use super::Management;
use crate::login::Parameters;
use crate::scsi::cdb;
use crate::scsi::execute::{Outcome, status};
use crate::wire::Bhs;
use crate::wire::bhs::{FLAG_FINAL, FLAG_OVERFLOW, FLAG_STATUS, FLAG_UNDERFLOW, FLAG_WRITE, NO_TAG, opcode};
use bytes::Bytes;
use smallvec::SmallVec;
use std::cmp::Ordering;
use weir_front::Pieces;

/// The status number of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatSn {
    /// The unit carries none.
    Without,
    /// The unit carries the number that the next status will have.
    Current,
    /// The unit is a status: it takes the next number.
    Next,
}

/// A unit to be sent. Its numbers are filled in when it is.
#[derive(Clone, Debug)]
pub struct Pdu {
    /// Header.
    pub bhs: Bhs,
    /// Data segment.
    pub data: Pieces,
    /// Status number.
    pub stat_sn: StatSn,
    /// Whether it answers a command, so that another one may be sent.
    pub frees_slot: bool,
}

impl Pdu {
    /// A unit with data in one piece.
    pub fn with_data(mut bhs: Bhs, data: Bytes, stat_sn: StatSn, frees_slot: bool) -> Self {
        bhs.set_data_bytes(data.len());
        let data = if data.is_empty() { Pieces::new() } else { Pieces::from_iter([data]) };
        Pdu { bhs, data, stat_sn, frees_slot }
    }
}

/// Rejects a unit.
pub fn reject(bhs: &Bhs, reason: u8, frees_slot: bool) -> Pdu {
    let out = Bhs::new(opcode::REJECT).with_byte(2, reason).with_itt(NO_TAG);
    Pdu::with_data(out, Bytes::copy_from_slice(&bhs.0), StatSn::Next, frees_slot)
}

/// Answers a ping.
pub(super) fn ping_response(bhs: &Bhs, data: Bytes, frees_slot: bool) -> Pdu {
    let out = Bhs::new(opcode::NOP_IN).with_lun(bhs.lun()).with_itt(bhs.itt()).with_ttt(NO_TAG);
    Pdu::with_data(out, data, StatSn::Next, frees_slot)
}

/// Answers a logout request.
pub fn logout_response(bhs: &Bhs, response: u8, frees_slot: bool) -> Pdu {
    const TIME_TO_WAIT: u32 = 2;
    let out = Bhs::new(opcode::LOGOUT_RESPONSE).with_itt(bhs.itt()).with_byte(2, response);
    Pdu::with_data(out.with_word(40, TIME_TO_WAIT << 16), Bytes::new(), StatSn::Next, frees_slot)
}

/// Answers a task management function.
pub fn management_response(request: &Management, response: u8) -> Pdu {
    let out = Bhs::new(opcode::TASK_MANAGEMENT_RESPONSE).with_itt(request.bhs.itt()).with_byte(2, response);
    Pdu::with_data(out, Bytes::new(), StatSn::Next, request.frees_slot)
}

/// Tells the initiator that the session ends: it may log out within `seconds`.
pub fn logout_requested(seconds: u16) -> Pdu {
    const LOGOUT_REQUESTED: u8 = 1;
    let out = Bhs::new(opcode::ASYNC).with_itt(NO_TAG).with_byte(36, LOGOUT_REQUESTED).with_word(40, 0);
    let mut out = out.with_word(44, 0);
    out.0[42..44].copy_from_slice(&seconds.to_be_bytes());
    Pdu::with_data(out, Bytes::new(), StatSn::Next, false)
}

/// Flags and count of what the initiator expected beyond what there is, or the other way round.
fn residual(there_is: u64, expected: u64) -> (u8, u32) {
    let count = u32::try_from(there_is.abs_diff(expected)).unwrap_or(u32::MAX);
    match there_is.cmp(&expected) {
        Ordering::Less => (FLAG_UNDERFLOW, count),
        Ordering::Equal => (0, 0),
        Ordering::Greater => (FLAG_OVERFLOW, count),
    }
}

/// Answers a command: data units, and the status, with the last of them if the command succeeded.
pub fn response(
    command: &Bhs,
    outcome: Outcome,
    r2ts: u32,
    frees_slot: bool,
    parameters: &Parameters,
) -> SmallVec<[Pdu; 2]> {
    let expected = u64::from(command.expected_bytes());
    let mut data_bytes: u64 = outcome.data.iter().map(|piece| piece.len() as u64).sum();
    let there_is = match command.has(FLAG_WRITE) {
        true => cdb::decode(&command.cdb()).map_or(0, |command| command.data_out_bytes()),
        false => data_bytes,
    };
    let (flags, count) = residual(there_is, expected);
    let mut data = outcome.data;
    if command.has(FLAG_WRITE) {
        data.clear();
        data_bytes = 0;
    }
    let mut out = SmallVec::new();
    data_units(&mut out, command, data, data_bytes.min(expected), parameters);
    let data_units = out.len() as u32;
    if let Some(last) = out.last_mut().filter(|_| outcome.status == status::GOOD) {
        // The status comes with the last data unit.
        last.bhs.0[1] |= FLAG_STATUS | flags;
        last.bhs.0[3] = outcome.status;
        last.bhs.set_word(44, count);
        last.stat_sn = StatSn::Next;
        last.frees_slot = frees_slot;
        return out;
    }
    let mut bhs = Bhs::new(opcode::RESPONSE).with_flags(FLAG_FINAL | flags).with_byte(3, outcome.status);
    bhs =
        bhs.with_itt(command.itt()).with_word(36, if data_units > 0 { data_units } else { r2ts }).with_word(44, count);
    let mut sense = Vec::new();
    if !outcome.sense.is_empty() {
        sense.extend_from_slice(&(outcome.sense.len() as u16).to_be_bytes());
        sense.extend(outcome.sense);
    }
    out.push(Pdu::with_data(bhs, sense.into(), StatSn::Next, frees_slot));
    out
}

/// Splits data into units that the initiator accepts, and sequences of at most the agreed length.
fn data_units(out: &mut SmallVec<[Pdu; 2]>, command: &Bhs, data: Pieces, len: u64, parameters: &Parameters) {
    let mut pieces = data.into_iter().filter(|piece| !piece.is_empty());
    let mut piece = Bytes::new();
    let mut offset = 0;
    let mut burst_left = u64::from(parameters.max_burst_bytes);
    while offset < len {
        let unit_bytes = (len - offset).min(parameters.max_send_bytes.into()).min(burst_left);
        let mut unit = Pieces::new();
        let mut missing = unit_bytes as usize;
        while missing > 0 {
            if piece.is_empty() {
                let Some(next) = pieces.next() else { break };
                piece = next;
            }
            let part = piece.split_to(missing.min(piece.len()));
            missing -= part.len();
            unit.push(part);
        }
        debug_assert_eq!(missing, 0, "the pieces have {len} bytes");
        burst_left -= unit_bytes;
        let ends_burst = burst_left == 0 || offset + unit_bytes == len;
        let mut bhs = Bhs::new(opcode::DATA_IN).with_flags(if ends_burst { FLAG_FINAL } else { 0 });
        bhs = bhs.with_itt(command.itt()).with_ttt(NO_TAG).with_word(36, out.len() as u32).with_word(40, offset as u32);
        bhs.set_data_bytes(unit_bytes as usize);
        out.push(Pdu { bhs, data: unit, stat_sn: StatSn::Without, frees_slot: false });
        if burst_left == 0 {
            burst_left = parameters.max_burst_bytes.into();
        }
        offset += unit_bytes;
    }
}
