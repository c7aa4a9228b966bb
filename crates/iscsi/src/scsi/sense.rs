//! Sense data (SPC-4, 4.5): why a command was not executed, and what has changed since the last one.

/// Sense keys.
pub mod key {
    /// No error.
    pub const NO_SENSE: u8 = 0;
    /// The logical unit cannot be accessed.
    pub const NOT_READY: u8 = 2;
    /// Data cannot be read or written.
    pub const MEDIUM_ERROR: u8 = 3;
    /// The target failed.
    pub const HARDWARE_ERROR: u8 = 4;
    /// The command is invalid.
    pub const ILLEGAL_REQUEST: u8 = 5;
    /// Something has changed that the initiator should know.
    pub const UNIT_ATTENTION: u8 = 6;
    /// The data may not be changed.
    pub const DATA_PROTECT: u8 = 7;
    /// A copy was not completed.
    pub const COPY_ABORTED: u8 = 0xa;
    /// The target ended the command.
    pub const ABORTED_COMMAND: u8 = 0xb;
    /// The data differ from those of the initiator.
    pub const MISCOMPARE: u8 = 0xe;
}

/// Additional sense codes with their qualifiers: the code in the upper byte.
pub mod code {
    /// No information.
    pub const NONE: u16 = 0x0000;
    /// The data of a command did not arrive as they were sent.
    pub const PROTOCOL_CRC_ERROR: u16 = 0x4705;
    /// The unit cannot be accessed, for another reason than those that have codes.
    pub const NOT_READY: u16 = 0x0400;
    /// The medium was stopped.
    pub const INITIALIZING_COMMAND_REQUIRED: u16 = 0x0402;
    /// Data cannot be written.
    pub const WRITE_ERROR: u16 = 0x0c00;
    /// A target or segment descriptor refers to a unit that cannot be accessed.
    pub const COPY_TARGET_NOT_REACHABLE: u16 = 0x0d02;
    /// The unit of a copy has the wrong type.
    pub const INCORRECT_COPY_TARGET_TYPE: u16 = 0x0d03;
    /// Data cannot be read.
    pub const UNRECOVERED_READ_ERROR: u16 = 0x1100;
    /// The parameter list is too short.
    pub const PARAMETER_LIST_LENGTH: u16 = 0x1a00;
    /// The data differ.
    pub const MISCOMPARE: u16 = 0x1d00;
    /// The operation code is not supported.
    pub const INVALID_OPCODE: u16 = 0x2000;
    /// A range extends past the end of the unit.
    pub const LBA_OUT_OF_RANGE: u16 = 0x2100;
    /// A field of the CDB is invalid.
    pub const INVALID_FIELD_IN_CDB: u16 = 0x2400;
    /// There is no such logical unit.
    pub const LUN_NOT_SUPPORTED: u16 = 0x2500;
    /// A field of the parameter list is invalid.
    pub const INVALID_FIELD_IN_LIST: u16 = 0x2600;
    /// A RELEASE names another reservation than the held one.
    pub const INVALID_RELEASE: u16 = 0x2604;
    /// Too many target descriptors.
    pub const TOO_MANY_TARGETS: u16 = 0x2606;
    /// The type of a target descriptor is not supported.
    pub const UNSUPPORTED_TARGET_DESCRIPTOR: u16 = 0x2607;
    /// Too many segment descriptors.
    pub const TOO_MANY_SEGMENTS: u16 = 0x2608;
    /// The type of a segment descriptor is not supported.
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR: u16 = 0x2609;
    /// A copy carries data of its own.
    pub const INLINE_DATA_TOO_LONG: u16 = 0x260b;
    /// The unit is read-only.
    pub const WRITE_PROTECTED: u16 = 0x2700;
    /// Writing is switched off in the control mode page.
    pub const SOFTWARE_WRITE_PROTECTED: u16 = 0x2702;
    /// The pool or the quota is full.
    pub const SPACE_ALLOCATION_FAILED: u16 = 0x2707;
    /// The target was started, or was reset.
    pub const POWER_ON: u16 = 0x2900;
    /// The logical unit was reset.
    pub const BUS_DEVICE_RESET: u16 = 0x2903;
    /// The session was lost.
    pub const NEXUS_LOSS: u16 = 0x2907;
    /// Another initiator changed mode parameters.
    pub const MODE_CHANGED: u16 = 0x2a01;
    /// Another initiator preempted reservations.
    pub const RESERVATIONS_PREEMPTED: u16 = 0x2a03;
    /// Another initiator released reservations.
    pub const RESERVATIONS_RELEASED: u16 = 0x2a04;
    /// Another initiator removed registrations.
    pub const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
    /// The size has changed.
    pub const CAPACITY_CHANGED: u16 = 0x2a09;
    /// Commands in progress were ended by another initiator.
    pub const COMMANDS_CLEARED: u16 = 0x2f00;
    /// Parameters are not saved over restarts.
    pub const SAVING_NOT_SUPPORTED: u16 = 0x3900;
    /// The list of logical units has changed.
    pub const LUNS_CHANGED: u16 = 0x3f0e;
    /// The unit has no medium.
    pub const MEDIUM_NOT_PRESENT: u16 = 0x3a00;
    /// The medium may not be removed.
    pub const REMOVAL_PREVENTED: u16 = 0x5302;
    /// No room for another registration.
    pub const NO_REGISTRATION_RESOURCES: u16 = 0x5504;
    /// The target failed.
    pub const INTERNAL_FAILURE: u16 = 0x4400;
}

/// Sense data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code and qualifier.
    pub code: u16,
    /// Block, or offset of differing data.
    pub information: Option<u64>,
    /// Invalid field: whether it is in the CDB (else in the parameter list), and its byte.
    pub field: Option<(bool, u16)>,
}

impl Sense {
    /// Sense data with this key and code.
    pub const fn new(key: u8, code: u16) -> Self {
        Sense { key, code, information: None, field: None }
    }

    /// An invalid command.
    pub const fn illegal(code: u16) -> Self {
        Sense::new(key::ILLEGAL_REQUEST, code)
    }

    /// An invalid field of the CDB at this byte.
    pub const fn in_cdb(byte: u16) -> Self {
        Sense { field: Some((true, byte)), ..Sense::illegal(code::INVALID_FIELD_IN_CDB) }
    }

    /// An invalid field of the parameter list at this byte.
    pub const fn in_list(byte: u16) -> Self {
        Sense { field: Some((false, byte)), ..Sense::illegal(code::INVALID_FIELD_IN_LIST) }
    }

    /// A unit attention.
    pub const fn attention(code: u16) -> Self {
        Sense::new(key::UNIT_ATTENTION, code)
    }

    /// Adds the information field.
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Encodes the sense data, in descriptor format if `descriptors`, else in fixed format.
    pub fn encode(&self, descriptors: bool) -> Vec<u8> {
        let [asc, ascq] = self.code.to_be_bytes();
        let key_specific = self.field.map(|(in_cdb, byte)| {
            let [high, low] = byte.to_be_bytes();
            [0x80 | u8::from(in_cdb) << 6, high, low]
        });
        if !descriptors {
            let information = self.information.and_then(|word| u32::try_from(word).ok());
            let mut out = vec![0x70 | u8::from(information.is_some()) << 7, 0, self.key];
            out.extend_from_slice(&information.unwrap_or(0).to_be_bytes());
            out.extend_from_slice(&[10, 0, 0, 0, 0, asc, ascq, 0]);
            out.extend_from_slice(&key_specific.unwrap_or_default());
            return out;
        }
        let mut out = vec![0x72, self.key, asc, ascq, 0, 0, 0, 0];
        if let Some(information) = self.information {
            out.extend_from_slice(&[0, 10, 0x80, 0]);
            out.extend_from_slice(&information.to_be_bytes());
        }
        if let Some([flags, high, low]) = key_specific {
            out.extend_from_slice(&[2, 6, 0, 0, flags, high, low, 0]);
        }
        out[7] = (out.len() - 8) as u8;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_carry_the_same() {
        let fixed = Sense::in_cdb(2).encode(false);
        assert_eq!(fixed, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xc0, 0, 2]);
        let sense = Sense::new(key::MEDIUM_ERROR, code::UNRECOVERED_READ_ERROR).with_information(0x1_0000_0002);
        assert_eq!(sense.encode(false)[..8], [0x70, 0, 3, 0, 0, 0, 0, 10], "a block number that does not fit");
        let descriptors = sense.encode(true);
        assert_eq!(descriptors[..8], [0x72, 3, 0x11, 0, 0, 0, 0, 12]);
        assert_eq!(descriptors[8..], [0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(Sense::in_list(9).encode(true)[8..], [2, 6, 0, 0, 0x80, 0, 9, 0]);
    }
}
