//! The supported commands as a table, and what depends on the kind of command alone.

use super::cdb::Command;
use super::reservations::Access;
use super::sense::Sense;

/// A supported command: opcode, service action, and the bits of the CDB that matter.
struct Supported(u8, Option<u8>, &'static [u8]);

const fn plain(opcode: u8, usage: &'static [u8]) -> Supported {
    Supported(opcode, None, usage)
}

const fn with(opcode: u8, action: u8, usage: &'static [u8]) -> Supported {
    Supported(opcode, Some(action), usage)
}

/// Bits of RDPROTECT or WRPROTECT, DPO and FUA.
const RANGE_10: &[u8] = &[0, 0xf8, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 4];
const RANGE_12: &[u8] = &[0, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const RANGE_16: &[u8] = &[0, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
/// Bits of VRPROTECT, DPO and BYTCHK.
const VERIFY_10: &[u8] = &[0, 0xf6, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 4];
const VERIFY_12: &[u8] = &[0, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const VERIFY_16: &[u8] = &[0, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const CACHE_10: &[u8] = &[0, 0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 4];
const CACHE_16: &[u8] = &[0, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const SAME_10: &[u8] = &[0, 0xf8, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 4];
const SAME_16: &[u8] = &[0, 0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const COMPARE: &[u8] = &[0, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0, 4];
const ROOM_32: &[u8] = &[0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const LBA_ROOM_16: &[u8] = &[0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const COPY: &[u8] = &[0, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const COPY_RESULTS: &[u8] = &[0, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const RESERVE_IN: &[u8] = &[0, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
const RESERVE_OUT: &[u8] = &[0, 0x1f, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 4];

const SUPPORTED: &[Supported] = &[
    plain(0x00, &[0, 0, 0, 0, 0, 4]),
    plain(0x03, &[0, 1, 0, 0, 0xff, 4]),
    plain(0x08, &[0, 0x1f, 0xff, 0xff, 0xff, 4]),
    plain(0x0a, &[0, 0x1f, 0xff, 0xff, 0xff, 4]),
    plain(0x12, &[0, 1, 0xff, 0xff, 0xff, 4]),
    plain(0x15, &[0, 0x11, 0, 0, 0xff, 4]),
    plain(0x16, &[0, 0, 0, 0, 0, 4]),
    plain(0x17, &[0, 0, 0, 0, 0, 4]),
    plain(0x1a, &[0, 8, 0xff, 0xff, 0xff, 4]),
    plain(0x1b, &[0, 1, 0, 0x0f, 0xf7, 4]),
    plain(0x1e, &[0, 0, 0, 0, 3, 4]),
    plain(0x25, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 4]),
    plain(0x28, RANGE_10),
    plain(0x2a, RANGE_10),
    plain(0x2e, VERIFY_10),
    plain(0x2f, VERIFY_10),
    plain(0x34, CACHE_10),
    plain(0x35, CACHE_10),
    plain(0x37, &[0, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 4]),
    plain(0x41, SAME_10),
    plain(0x42, &[0, 1, 0, 0, 0, 0, 0, 0xff, 0xff, 4]),
    plain(0x55, &[0, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 4]),
    plain(0x56, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 4]),
    plain(0x57, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 4]),
    plain(0x5a, &[0, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 4]),
    with(0x5e, 0, RESERVE_IN),
    with(0x5e, 1, RESERVE_IN),
    with(0x5e, 2, RESERVE_IN),
    with(0x5e, 3, RESERVE_IN),
    with(0x5f, 0, RESERVE_OUT),
    with(0x5f, 1, RESERVE_OUT),
    with(0x5f, 2, RESERVE_OUT),
    with(0x5f, 3, RESERVE_OUT),
    with(0x5f, 4, RESERVE_OUT),
    with(0x5f, 5, RESERVE_OUT),
    with(0x5f, 6, RESERVE_OUT),
    with(0x83, 0, COPY),
    with(0x84, 0, COPY_RESULTS),
    with(0x84, 3, COPY_RESULTS),
    with(0x84, 4, COPY_RESULTS),
    plain(0x88, RANGE_16),
    plain(0x89, COMPARE),
    plain(0x8a, RANGE_16),
    plain(0x8b, RANGE_16),
    plain(0x8e, VERIFY_16),
    plain(0x8f, VERIFY_16),
    plain(0x90, CACHE_16),
    plain(0x91, CACHE_16),
    plain(0x93, SAME_16),
    with(0x9e, 0x10, LBA_ROOM_16),
    with(0x9e, 0x12, LBA_ROOM_16),
    plain(0xa0, &[0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4]),
    with(0xa3, 0x0a, &[0, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4]),
    with(0xa3, 0x0c, &[0, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4]),
    with(0xa3, 0x0d, &[0, 0x1f, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4]),
    plain(0xa8, RANGE_12),
    plain(0xaa, RANGE_12),
    plain(0xae, VERIFY_12),
    plain(0xaf, VERIFY_12),
    plain(0xb7, ROOM_32),
];

/// How a command concerns a persistent reservation (SPC-4, table 49; SBC-3, table 13).
pub fn access(command: &Command) -> Access {
    match command {
        Command::TestUnitReady
        | Command::RequestSense { .. }
        | Command::Inquiry { .. }
        | Command::ReportLuns { .. }
        | Command::ReadCapacity10
        | Command::ReadCapacity16 { .. }
        | Command::ReportTaskManagement { .. }
        | Command::ReportPortGroups { .. }
        | Command::ReportOpcodes { .. }
        | Command::ReceiveCopyResults { .. }
        // Its own rules decide.
        | Command::ReserveIn { .. }
        | Command::ReserveOut { .. }
        | Command::Reserve
        | Command::Release
        | Command::StartStop { start: true, power: 0, .. }
        | Command::PreventAllow { prevent: false } => Access::Free,
        Command::Read(_)
        | Command::Verify(..)
        | Command::Prefetch(_)
        | Command::GetLbaStatus { .. }
        | Command::ReadDefectData { .. } => Access::Read,
        _ => Access::Write,
    }
}

/// Whether a command fails while the medium is stopped.
pub fn needs_medium(command: &Command) -> bool {
    matches!(access(command), Access::Read | Access::Write)
        && !matches!(command, Command::ModeSense { .. } | Command::ModeSelect { .. } | Command::StartStop { .. })
        || matches!(command, Command::TestUnitReady)
}

/// Time-outs of a command: none are stated.
fn timeouts(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// REPORT SUPPORTED OPERATION CODES data.
///
/// # Errors
/// INVALID FIELD IN CDB for a question that does not fit the opcode.
pub fn report(options: u8, with_timeouts: bool, opcode: u8, action: u16) -> Result<Vec<u8>, Sense> {
    if options == 0 {
        let mut list = Vec::new();
        for Supported(opcode, action, usage) in SUPPORTED {
            let flags = u8::from(action.is_some()) | u8::from(with_timeouts) << 1;
            list.extend_from_slice(&[*opcode, 0, 0, action.unwrap_or(0), 0, flags, 0, usage.len() as u8]);
            if with_timeouts {
                timeouts(&mut list);
            }
        }
        return Ok([&(list.len() as u32).to_be_bytes()[..], &list].concat());
    }
    let has_actions = SUPPORTED.iter().any(|known| known.0 == opcode && known.1.is_some());
    let asks_action = match options {
        1 if has_actions => return Err(Sense::in_cdb(2)),
        2 if !has_actions && SUPPORTED.iter().any(|known| known.0 == opcode) => return Err(Sense::in_cdb(2)),
        1 => false,
        2 => true,
        3 => has_actions,
        _ => return Err(Sense::in_cdb(2)),
    };
    let wanted = asks_action.then(|| u8::try_from(action).unwrap_or(u8::MAX));
    let found = SUPPORTED.iter().find(|known| known.0 == opcode && known.1 == wanted);
    const SUPPORTED_AS_STANDARD: u8 = 3;
    const NOT_SUPPORTED: u8 = 1;
    let Some(Supported(opcode, action, usage)) = found else { return Ok(vec![0, NOT_SUPPORTED, 0, 0]) };
    let mut out = vec![0, SUPPORTED_AS_STANDARD | u8::from(with_timeouts) << 7, 0, usage.len() as u8];
    out.push(*opcode);
    out.extend_from_slice(&usage[1..]);
    if let Some(action) = action {
        out[5] = out[5] & !0x1f | action;
    }
    if with_timeouts {
        timeouts(&mut out);
    }
    Ok(out)
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS data.
pub fn task_management(is_extended: bool) -> Vec<u8> {
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
    let mut out = vec![0b1101_1010, 0, 0, 0];
    if is_extended {
        out[3] = 12;
        out.resize(16, 0);
    }
    out
}

/// READ DEFECT DATA data: empty lists.
pub fn defects(is_long: bool, format: u8) -> Vec<u8> {
    if is_long { vec![0, format, 0, 0, 0, 0, 0, 0] } else { vec![0, format, 0, 0] }
}

#[cfg(test)]
mod tests {
    use super::super::cdb;
    use super::*;

    /// The table and the decoder agree.
    #[test]
    fn what_is_reported_is_decoded() {
        for Supported(opcode, action, usage) in SUPPORTED {
            let mut bytes = [0; 16];
            (bytes[0], bytes[1]) = (*opcode, action.unwrap_or(0));
            assert!(cdb::decode(&bytes).is_ok(), "{opcode:#x} {action:?}");
            let len = match opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                5 => 12,
                _ => 16,
            };
            assert_eq!(usage.len(), len, "{opcode:#x}");
        }
        for opcode in 0..=255u8 {
            let mut bytes = [0; 16];
            bytes[0] = opcode;
            let is_listed = SUPPORTED.iter().any(|known| known.0 == opcode);
            let unknown = Err(Sense::illegal(super::super::sense::code::INVALID_OPCODE));
            assert_eq!(cdb::decode(&bytes) != unknown, is_listed, "{opcode:#x}");
        }
    }

    #[test]
    fn one_command_or_all_are_reported() {
        let all = report(0, false, 0, 0).unwrap();
        assert_eq!(all.len(), 4 + 8 * SUPPORTED.len());
        assert_eq!(report(1, false, 0x28, 0).unwrap()[..6], [0, 3, 0, 10, 0x28, 0xf8]);
        assert_eq!(report(2, true, 0x9e, 0x10).unwrap()[..6], [0, 0x83, 0, 16, 0x9e, 0x10]);
        assert_eq!(report(3, false, 0x9e, 0x11).unwrap(), [0, 1, 0, 0]);
        assert_eq!(report(1, false, 0xff, 0).unwrap(), [0, 1, 0, 0]);
        assert!(
            report(1, false, 0x9e, 0).is_err() && report(2, false, 0x28, 0).is_err() && report(4, false, 0, 0).is_err()
        );
    }
}
