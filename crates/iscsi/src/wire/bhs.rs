//! The basic header segment (RFC 7143, 11.2): 48 bytes, of which any value is valid input here.
//!
//! ```text
//!    0  .I opcode (6 bits)  1  flags, by opcode      2  by opcode         3  by opcode
//!    4  additional header length in words            5..8  data segment length in bytes
//!    8..16  logical unit number, or by opcode        16..20  initiator task tag (ITT)
//!   20..24  target transfer tag (TTT), or by opcode  24..28  CmdSN (initiator), StatSN (target)
//!   28..32  ExpStatSN (initiator), ExpCmdSN (target) 32..36  MaxCmdSN (target)
//!   36..40  DataSN, R2TSN                            40..44  buffer offset     44..48  length, residual count
//! ```
//!
//! A command descriptor block (CDB) takes bytes 32 to 48 of a SCSI Command, and the expected data transfer length bytes 20
//! to 24.

/// Length of the header in bytes.
pub const BHS_BYTES: usize = 48;
/// A tag that means "none".
pub const NO_TAG: u32 = 0xffff_ffff;
/// Flag "final" of most units; in login and text units "transit" and "final".
pub const FLAG_FINAL: u8 = 0x80;
/// Flag "continue" of login and text units: more text follows.
pub const FLAG_CONTINUE: u8 = 0x40;
/// Flag of a SCSI Command: data is read.
pub const FLAG_READ: u8 = 0x40;
/// Flag of a SCSI Command: data is written.
pub const FLAG_WRITE: u8 = 0x20;
/// Flag of a SCSI Response or Data-In: the initiator expected less data than there is.
pub const FLAG_OVERFLOW: u8 = 0x04;
/// Flag of a SCSI Response or Data-In: the initiator expected more data than there is.
pub const FLAG_UNDERFLOW: u8 = 0x02;
/// Flag of a Data-In: the unit carries the status of the command.
pub const FLAG_STATUS: u8 = 0x01;

/// Opcodes.
pub mod opcode {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const TASK_MANAGEMENT: u8 = 0x02;
    /// Login Request.
    pub const LOGIN: u8 = 0x03;
    /// Text Request.
    pub const TEXT: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT: u8 = 0x06;
    /// SNACK Request.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const RESPONSE: u8 = 0x21;
    /// Task Management Function Response.
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message.
    pub const ASYNC: u8 = 0x32;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

/// Reasons of a Reject (RFC 7143, 11.17.1).
pub mod reject {
    /// A data segment does not match its digest.
    pub const DATA_DIGEST: u8 = 0x02;
    /// Retransmission is not supported.
    pub const SNACK: u8 = 0x03;
    /// The unit is not allowed here.
    pub const PROTOCOL_ERROR: u8 = 0x04;
    /// The opcode is not supported.
    pub const UNSUPPORTED: u8 = 0x05;
    /// Too many immediate commands are in progress.
    pub const TOO_MANY_IMMEDIATE: u8 = 0x06;
    /// The task tag is in use.
    pub const TASK_IN_PROGRESS: u8 = 0x07;
    /// A field has an invalid value.
    pub const INVALID_FIELD: u8 = 0x09;
}

/// A basic header segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bhs(pub [u8; BHS_BYTES]);

impl Bhs {
    /// A header of the target with the flag "final".
    pub fn new(opcode: u8) -> Self {
        let mut bhs = Bhs([0; BHS_BYTES]);
        bhs.0[0] = opcode;
        bhs.0[1] = FLAG_FINAL;
        bhs
    }

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Whether the unit is delivered immediately: it has no place in the order of commands.
    pub fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The flags.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Whether this flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.0[1] & flag != 0
    }

    /// Sets the flags.
    pub fn with_flags(mut self, flags: u8) -> Self {
        self.0[1] = flags;
        self
    }

    /// Sets one byte.
    pub fn with_byte(mut self, at: usize, byte: u8) -> Self {
        self.0[at] = byte;
        self
    }

    /// Length of the additional header segments in bytes: at most 1020.
    pub fn ahs_bytes(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// Length of the data segment in bytes, without padding: below 16 MiB.
    pub fn data_bytes(&self) -> usize {
        (self.word(4) & 0x00ff_ffff) as usize
    }

    /// Sets the length of the data segment.
    pub fn set_data_bytes(&mut self, len: usize) {
        debug_assert!(len < 1 << 24, "a data segment of {len} bytes");
        self.0[5..8].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    }

    /// Logical unit number as in the header.
    pub fn lun(&self) -> [u8; 8] {
        std::array::from_fn(|at| self.0[8 + at])
    }

    /// Sets the logical unit number.
    pub fn with_lun(mut self, lun: [u8; 8]) -> Self {
        self.0[8..16].copy_from_slice(&lun);
        self
    }

    /// The 32 bits at `at`.
    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|byte| self.0[at + byte]))
    }

    /// Sets the 32 bits at `at`.
    pub fn set_word(&mut self, at: usize, word: u32) {
        self.0[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Sets the 32 bits at `at`.
    pub fn with_word(mut self, at: usize, word: u32) -> Self {
        self.set_word(at, word);
        self
    }

    /// Initiator task tag.
    pub fn itt(&self) -> u32 {
        self.word(16)
    }

    /// Sets the initiator task tag.
    pub fn with_itt(self, itt: u32) -> Self {
        self.with_word(16, itt)
    }

    /// Target transfer tag.
    pub fn ttt(&self) -> u32 {
        self.word(20)
    }

    /// Sets the target transfer tag.
    pub fn with_ttt(self, ttt: u32) -> Self {
        self.with_word(20, ttt)
    }

    /// Expected data transfer length of a SCSI Command, in bytes.
    pub fn expected_bytes(&self) -> u32 {
        self.word(20)
    }

    /// Sequence number of a command.
    pub fn cmd_sn(&self) -> u32 {
        self.word(24)
    }

    /// Sequence number of the next status that the initiator expects.
    pub fn exp_stat_sn(&self) -> u32 {
        self.word(28)
    }

    /// The command descriptor block of a SCSI Command.
    pub fn cdb(&self) -> [u8; 16] {
        std::array::from_fn(|at| self.0[32 + at])
    }
}

/// Bytes of padding after a segment of `len` bytes.
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Whether sequence number `a` is before `b` (RFC 1982, 32 bits).
pub fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let mut bhs = Bhs::new(opcode::R2T).with_lun([1; 8]).with_itt(2).with_ttt(3).with_word(24, 4);
        bhs.set_data_bytes(0xab_cdef);
        assert_eq!((bhs.opcode(), bhs.flags(), bhs.ahs_bytes(), bhs.data_bytes()), (0x31, 0x80, 0, 0xab_cdef));
        assert_eq!((bhs.lun(), bhs.itt(), bhs.ttt(), bhs.cmd_sn()), ([1; 8], 2, 3, 4));
        let bhs = bhs.with_byte(4, 255);
        assert_eq!((bhs.ahs_bytes(), bhs.data_bytes()), (1020, 0xab_cdef));
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert!(is_before(u32::MAX, 0) && is_before(0, 1) && !is_before(1, 1) && !is_before(0, u32::MAX));
        assert_eq!([0, 1, 2, 3, 4].map(padding), [0, 3, 2, 1, 0]);
    }
}
