//! Command descriptor blocks (SPC-4, SBC-3): a total decoder.
//!
//! Bounds: none of what is decoded here is checked against a device; [`super::execute`] does that.

use super::sense::{Sense, code};

/// Size of a logical block in bytes.
pub const BLOCK_BYTES: u64 = 512;

/// A range of logical blocks, and how it is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// First block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Force unit access: data is stable before the command is answered.
    pub fua: bool,
}

impl Transfer {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Offset of the first byte; saturates far beyond any device.
    pub fn offset(&self) -> u64 {
        self.lba.saturating_mul(BLOCK_BYTES)
    }
}

/// How verified data is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The medium is only read.
    Nothing,
    /// All blocks are compared with the data sent.
    All,
    /// Each block is compared with the one block sent.
    One,
}

/// A command. `room` is the allocation length in bytes: more data is not returned. The other fields are named as in the
/// standards.
#[allow(missing_docs, reason = "the fields are those of the standards")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// TEST UNIT READY.
    TestUnitReady,
    /// REQUEST SENSE.
    RequestSense { descriptors: bool, room: u32 },
    /// INQUIRY; a page of vital product data, or the standard data.
    Inquiry { page: Option<u8>, room: u32 },
    /// REPORT LUNS.
    ReportLuns { select: u8, room: u32 },
    /// READ CAPACITY (10).
    ReadCapacity10,
    /// READ CAPACITY (16).
    ReadCapacity16 { room: u32 },
    /// READ.
    Read(Transfer),
    /// WRITE.
    Write(Transfer),
    /// WRITE AND VERIFY.
    WriteVerify(Transfer, Compare),
    /// VERIFY.
    Verify(Transfer, Compare),
    /// ORWRITE.
    OrWrite(Transfer),
    /// COMPARE AND WRITE.
    CompareAndWrite(Transfer),
    /// WRITE SAME.
    WriteSame { range: Transfer, unmap: bool, anchor: bool, has_data: bool },
    /// UNMAP.
    Unmap { anchor: bool, list_bytes: u16 },
    /// GET LBA STATUS.
    GetLbaStatus { lba: u64, room: u32 },
    /// SYNCHRONIZE CACHE; `blocks` of 0 means up to the end.
    SynchronizeCache(Transfer),
    /// PRE-FETCH; `blocks` of 0 means up to the end.
    Prefetch(Transfer),
    /// READ DEFECT DATA, with 12 or 10 bytes.
    ReadDefectData { is_long: bool, format: u8, room: u32 },
    /// MODE SENSE, with 10 or 6 bytes.
    ModeSense { is_long: bool, no_descriptors: bool, long_lba: bool, control: u8, page: u8, subpage: u8, room: u32 },
    /// MODE SELECT, with 10 or 6 bytes.
    ModeSelect { is_long: bool, page_format: bool, save: bool, list_bytes: u16 },
    /// EXTENDED COPY (LID1).
    ExtendedCopy { list_bytes: u32 },
    /// RECEIVE COPY RESULTS.
    ReceiveCopyResults { action: u8, list: u8, room: u32 },
    /// REPORT SUPPORTED OPERATION CODES.
    ReportOpcodes { options: u8, timeouts: bool, opcode: u8, action: u16, room: u32 },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    ReportTaskManagement { is_extended: bool, room: u32 },
    /// REPORT TARGET PORT GROUPS.
    ReportPortGroups { is_extended: bool, room: u32 },
    /// PERSISTENT RESERVE IN.
    ReserveIn { action: u8, room: u32 },
    /// PERSISTENT RESERVE OUT.
    ReserveOut { action: u8, scope: u8, kind: u8, list_bytes: u32 },
    /// RESERVE (6), RESERVE (10).
    Reserve,
    /// RELEASE (6), RELEASE (10).
    Release,
    /// START STOP UNIT.
    StartStop { load_eject: bool, start: bool, power: u8 },
    /// PREVENT ALLOW MEDIUM REMOVAL.
    PreventAllow { prevent: bool },
}

/// A CDB with big-endian numbers.
struct Fields<'a>(&'a [u8; 16]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|byte| self.0[at + byte]))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|byte| self.0[at + byte]))
    }

    fn bit(&self, at: usize, bit: u8) -> bool {
        self.0[at] & 1 << bit != 0
    }

    fn action(&self) -> u8 {
        self.0[1] & 0x1f
    }

    /// Range of a command of 6, 10, 12 or 16 bytes.
    fn transfer(&self) -> Transfer {
        let fua = self.bit(1, 3);
        match self.0[0] >> 5 {
            0 => Transfer {
                lba: u64::from(self.u32(0) & 0x001f_ffff),
                blocks: match self.0[4] {
                    0 => 256,
                    blocks => blocks.into(),
                },
                fua: false,
            },
            1 | 2 => Transfer { lba: self.u32(2).into(), blocks: self.u16(7).into(), fua },
            5 => Transfer { lba: self.u32(2).into(), blocks: self.u32(6), fua },
            _ => Transfer { lba: self.u64(2), blocks: self.u32(10), fua },
        }
    }

    /// Range of a command that has protection information switched off, as the format of the device requires.
    fn unprotected(&self) -> Result<Transfer, Sense> {
        if self.0[1] >> 5 != 0 { Err(Sense::in_cdb(1)) } else { Ok(self.transfer()) }
    }

    fn compare(&self) -> Result<Compare, Sense> {
        match self.0[1] >> 1 & 3 {
            0 => Ok(Compare::Nothing),
            1 => Ok(Compare::All),
            3 => Ok(Compare::One),
            _ => Err(Sense::in_cdb(1)),
        }
    }
}

/// Position of the CONTROL byte of a CDB with this opcode.
fn control_at(opcode: u8) -> usize {
    match opcode >> 5 {
        0 => 5,
        1 | 2 => 9,
        5 => 11,
        _ => 15,
    }
}

/// Decodes a command.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE or INVALID FIELD IN CDB.
pub fn decode(cdb: &[u8; 16]) -> Result<Command, Sense> {
    let command = match cdb[0] {
        0x00..=0x1f => six_bytes(cdb),
        0x28 | 0x2a | 0x2e | 0x2f | 0x88 | 0x8a | 0x8b | 0x8e | 0x8f | 0xa8 | 0xaa | 0xae | 0xaf => transfers(cdb),
        _ => others(cdb),
    }?;
    // Auto contingent allegiance is not supported.
    if cdb[control_at(cdb[0])] & 4 != 0 {
        return Err(Sense::in_cdb(control_at(cdb[0]) as u16));
    }
    Ok(command)
}

fn six_bytes(cdb: &[u8; 16]) -> Result<Command, Sense> {
    let fields = Fields(cdb);
    Ok(match cdb[0] {
        0x00 => Command::TestUnitReady,
        0x03 => Command::RequestSense { descriptors: fields.bit(1, 0), room: cdb[4].into() },
        0x08 => Command::Read(fields.transfer()),
        0x0a => Command::Write(fields.transfer()),
        0x12 => match (fields.bit(1, 0), cdb[2]) {
            (true, page) => Command::Inquiry { page: Some(page), room: fields.u16(3).into() },
            (false, 0) => Command::Inquiry { page: None, room: fields.u16(3).into() },
            (false, _) => return Err(Sense::in_cdb(2)),
        },
        0x15 => Command::ModeSelect {
            is_long: false,
            page_format: fields.bit(1, 4),
            save: fields.bit(1, 0),
            list_bytes: cdb[4].into(),
        },
        0x16 => Command::Reserve,
        0x17 => Command::Release,
        0x1a => Command::ModeSense {
            is_long: false,
            no_descriptors: fields.bit(1, 3),
            long_lba: false,
            control: cdb[2] >> 6,
            page: cdb[2] & 0x3f,
            subpage: cdb[3],
            room: cdb[4].into(),
        },
        0x1b => Command::StartStop { load_eject: fields.bit(4, 1), start: fields.bit(4, 0), power: cdb[4] >> 4 },
        0x1e => Command::PreventAllow { prevent: fields.bit(4, 0) },
        _ => return Err(Sense::illegal(code::INVALID_OPCODE)),
    })
}

/// READ, WRITE, VERIFY, WRITE AND VERIFY and ORWRITE, of 10, 12 and 16 bytes.
fn transfers(cdb: &[u8; 16]) -> Result<Command, Sense> {
    let fields = Fields(cdb);
    let range = fields.unprotected()?;
    Ok(match cdb[0] {
        0x28 | 0x88 | 0xa8 => Command::Read(range),
        0x2a | 0x8a | 0xaa => Command::Write(range),
        0x8b => Command::OrWrite(range),
        0x2e | 0x8e | 0xae => Command::WriteVerify(Transfer { fua: true, ..range }, fields.compare()?),
        _ => Command::Verify(Transfer { fua: false, ..range }, fields.compare()?),
    })
}

fn others(cdb: &[u8; 16]) -> Result<Command, Sense> {
    let fields = Fields(cdb);
    Ok(match cdb[0] {
        0x25 => Command::ReadCapacity10,
        0x34 | 0x90 => Command::Prefetch(fields.transfer()),
        0x35 | 0x91 => Command::SynchronizeCache(fields.transfer()),
        0x37 => Command::ReadDefectData { is_long: false, format: cdb[2] & 0x1f, room: fields.u16(7).into() },
        0xb7 => Command::ReadDefectData { is_long: true, format: cdb[1] & 0x1f, room: fields.u32(6) },
        0x41 | 0x93 => Command::WriteSame {
            range: Transfer { fua: false, ..fields.unprotected()? },
            unmap: fields.bit(1, 3),
            anchor: fields.bit(1, 4),
            has_data: cdb[0] == 0x41 || !fields.bit(1, 0),
        },
        0x42 => Command::Unmap { anchor: fields.bit(1, 0), list_bytes: fields.u16(7) },
        0x55 => Command::ModeSelect {
            is_long: true,
            page_format: fields.bit(1, 4),
            save: fields.bit(1, 0),
            list_bytes: fields.u16(7),
        },
        0x56 => Command::Reserve,
        0x57 => Command::Release,
        0x5a => Command::ModeSense {
            is_long: true,
            no_descriptors: fields.bit(1, 3),
            long_lba: fields.bit(1, 4),
            control: cdb[2] >> 6,
            page: cdb[2] & 0x3f,
            subpage: cdb[3],
            room: fields.u16(7).into(),
        },
        0x5e => Command::ReserveIn { action: fields.action(), room: fields.u16(7).into() },
        0x5f => Command::ReserveOut {
            action: fields.action(),
            scope: cdb[2] >> 4,
            kind: cdb[2] & 0xf,
            list_bytes: fields.u32(5),
        },
        0x83 if fields.action() == 0 => Command::ExtendedCopy { list_bytes: fields.u32(10) },
        0x84 => Command::ReceiveCopyResults { action: fields.action(), list: cdb[2], room: fields.u32(10) },
        0x89 => {
            let range = fields.unprotected()?;
            Command::CompareAndWrite(Transfer { blocks: cdb[13].into(), ..range })
        }
        0x9e if fields.action() == 0x10 => Command::ReadCapacity16 { room: fields.u32(10) },
        0x9e if fields.action() == 0x12 => Command::GetLbaStatus { lba: fields.u64(2), room: fields.u32(10) },
        0xa0 => Command::ReportLuns { select: cdb[2], room: fields.u32(6) },
        0xa3 => return maintenance_in(&fields),
        0x83 | 0x9e => return Err(Sense::in_cdb(1)),
        _ => return Err(Sense::illegal(code::INVALID_OPCODE)),
    })
}

fn maintenance_in(fields: &Fields<'_>) -> Result<Command, Sense> {
    let room = fields.u32(6);
    let is_extended = fields.0[1] >> 5 == 1;
    Ok(match fields.action() {
        0x0a if fields.0[1] >> 5 > 1 => return Err(Sense::in_cdb(1)),
        0x0a => Command::ReportPortGroups { is_extended, room },
        0x0c => Command::ReportOpcodes {
            options: fields.0[2] & 7,
            timeouts: fields.bit(2, 7),
            opcode: fields.0[3],
            action: fields.u16(4),
            room,
        },
        0x0d => Command::ReportTaskManagement { is_extended: fields.bit(2, 7), room },
        _ => return Err(Sense::in_cdb(1)),
    })
}

impl Command {
    /// Length in bytes of the data that the command sends to the target.
    pub fn data_out_bytes(&self) -> u64 {
        match *self {
            Command::Write(range) | Command::OrWrite(range) | Command::WriteVerify(range, _) => range.bytes(),
            Command::Verify(range, Compare::All) => range.bytes(),
            Command::Verify(range, Compare::One) if range.blocks > 0 => BLOCK_BYTES,
            Command::CompareAndWrite(range) => 2 * range.bytes(),
            Command::WriteSame { has_data: true, .. } => BLOCK_BYTES,
            Command::Unmap { list_bytes, .. } | Command::ModeSelect { list_bytes, .. } => list_bytes.into(),
            Command::ExtendedCopy { list_bytes } | Command::ReserveOut { list_bytes, .. } => list_bytes.into(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(bytes: &[u8]) -> [u8; 16] {
        std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
    }

    #[test]
    fn ranges_of_every_length_are_decoded() {
        let range = |lba, blocks, fua| Transfer { lba, blocks, fua };
        let read = |bytes: &[u8]| decode(&cdb(bytes));
        assert_eq!(read(&[0x08, 0xff, 1, 2, 0]), Ok(Command::Read(range(0x1f_0102, 256, false))));
        assert_eq!(read(&[0x28, 8, 0, 0, 1, 0, 0, 0, 9]), Ok(Command::Read(range(256, 9, true))));
        assert_eq!(read(&[0xa8, 0, 0, 0, 1, 0, 0, 1, 0, 0]), Ok(Command::Read(range(256, 65536, false))));
        let long = [0x88, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3];
        assert_eq!(read(&long), Ok(Command::Read(range(1 << 56 | 2, 3, false))));
        assert_eq!(read(&[0x28, 0x20]), Err(Sense::in_cdb(1)), "protection information");
        assert_eq!(read(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 4]), Err(Sense::in_cdb(9)), "NACA");
        assert_eq!(read(&[0xff]), Err(Sense::illegal(code::INVALID_OPCODE)));
        assert_eq!(read(&[0x12, 0, 1]), Err(Sense::in_cdb(2)), "a page without EVPD");
    }

    #[test]
    fn the_length_of_data_follows_from_the_command() {
        let out = |bytes: &[u8]| decode(&cdb(bytes)).unwrap().data_out_bytes();
        assert_eq!(out(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 8]), 4096);
        assert_eq!(out(&[0x2f, 2, 0, 0, 0, 0, 0, 0, 8]), 4096);
        assert_eq!(out(&[0x2f, 6, 0, 0, 0, 0, 0, 0, 8]), 512);
        assert_eq!(out(&[0x2f, 0, 0, 0, 0, 0, 0, 0, 8]), 0);
        assert_eq!(out(&[0x93, 1]), 0, "NDOB");
        assert_eq!(out(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]), 2048);
    }
}
