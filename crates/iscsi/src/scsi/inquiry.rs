//! INQUIRY, READ CAPACITY and REPORT LUNS data: what a unit is.
//!
//! Identifiers come from the identity of the device, so they are the same after a rename, a restart, or on another machine:
//! an NAA designator (locally assigned), a T10 vendor designator, and the serial number.

use super::cdb::BLOCK_BYTES;
use super::sense::Sense;
use weir_front::BlockDevice;

/// Vendor of every unit.
const VENDOR: &[u8; 8] = b"WEIR    ";
/// Product name of every unit.
const PRODUCT: &[u8; 16] = b"VOLUME          ";
/// Revision of the target, which changes with what it reports.
const REVISION: &[u8; 4] = b"0001";
/// Versions that the unit conforms to: SAM-5, iSCSI, SPC-4, SBC-3.
const VERSION_DESCRIPTORS: [u16; 4] = [0x00a0, 0x0960, 0x0460, 0x04c0];
/// Maximum length of one READ or WRITE in blocks.
pub const MAX_TRANSFER_BLOCKS: u32 = (32 << 20) / BLOCK_BYTES as u32;
/// Length in blocks up to which longer transfers are faster.
const OPTIMAL_TRANSFER_BLOCKS: u32 = (1 << 20) / BLOCK_BYTES as u32;
/// Maximum length of one COMPARE AND WRITE in blocks.
pub const MAX_COMPARE_BLOCKS: u32 = 255;
/// Maximum number of descriptors of one UNMAP.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;
/// The only portal group, the only target port group, and the only relative port.
pub const PORT_GROUP: u16 = 1;
/// Supported pages of vital product data.
const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2];

/// The serial number.
pub fn serial(id: u64) -> String {
    format!("{id:016x}")
}

/// The NAA designator: locally assigned, 60 bits of the identity. Identities of datasets have 56.
fn naa(id: u64) -> [u8; 8] {
    let folded = (id & (u64::MAX >> 4)) ^ (id >> 60);
    (3 << 60 | folded).to_be_bytes()
}

/// Number of logical blocks; a rest at the end is not accessible.
pub fn blocks_of(device: &dyn BlockDevice) -> u64 {
    device.size_bytes() / BLOCK_BYTES
}

/// Logical blocks of one physical block, which is the volume's block size.
fn blocks_per_physical(device: &dyn BlockDevice) -> u32 {
    (device.block_bytes() / BLOCK_BYTES as u32).max(1)
}

/// The standard data, for a unit or for a number without unit.
pub fn standard(is_unit: bool) -> Vec<u8> {
    // Peripheral qualifier 3, type 1Fh: the target has no such unit.
    let kind = if is_unit { 0 } else { 0x7f };
    const IMPLICIT_ALUA: u8 = 0x10;
    const THIRD_PARTY_COPY: u8 = 0x08;
    const MULTI_PORT: u8 = 0x10;
    const COMMAND_QUEUE: u8 = 0x02;
    let mut out = vec![kind, 0, 6, 0x12, 0, IMPLICIT_ALUA | THIRD_PARTY_COPY, MULTI_PORT, COMMAND_QUEUE];
    out.extend_from_slice(VENDOR);
    out.extend_from_slice(PRODUCT);
    out.extend_from_slice(REVISION);
    out.resize(58, 0);
    out.extend(VERSION_DESCRIPTORS.iter().flat_map(|version| version.to_be_bytes()));
    out.resize(96, 0);
    out[4] = (out.len() - 5) as u8;
    out
}

/// A page of vital product data of a unit.
///
/// # Errors
/// INVALID FIELD IN CDB for an unknown page.
pub fn page(device: &dyn BlockDevice, target: &str, page: u8) -> Result<Vec<u8>, Sense> {
    let body = match page {
        0x00 => PAGES.to_vec(),
        0x80 => serial(device.id()).into_bytes(),
        0x83 => identification(device.id(), target),
        0x86 => extended(),
        0x8f => super::copy::third_party_page(),
        0xb0 => limits(device),
        0xb1 => characteristics(),
        0xb2 => provisioning(),
        _ => return Err(Sense::in_cdb(2)),
    };
    let mut out = vec![0, page];
    out.extend_from_slice(&(body.len() as u16).to_be_bytes());
    out.extend(body);
    Ok(out)
}

/// Whether a designator of this type, or its start, is one of a unit.
pub fn is_designator(id: u64, kind: u8, value: &[u8]) -> bool {
    const LEAST_BYTES: usize = 8;
    match kind & 0x3f {
        1 => value.len() > VENDOR.len() && [VENDOR, serial(id).as_bytes()].concat().starts_with(value),
        3 => value.len() == LEAST_BYTES && value == naa(id),
        _ => false,
    }
}

fn designator(out: &mut Vec<u8>, head: [u8; 2], value: &[u8]) {
    out.extend_from_slice(&head);
    out.extend_from_slice(&[0, value.len() as u8]);
    out.extend_from_slice(value);
}

/// A name, ended by a zero byte and padded.
fn padded(name: &str) -> Vec<u8> {
    let mut name = name.as_bytes().to_vec();
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    name
}

/// Page 83h: designators of the unit, then of the target port (association 1), then of the target (association 2).
fn identification(id: u64, target: &str) -> Vec<u8> {
    const BINARY: u8 = 0x51;
    const UTF8: u8 = 0x53;
    const OF_PORT: u8 = 0x90;
    const OF_TARGET: u8 = 0xa0;
    let group = [0, 0, 0, PORT_GROUP as u8];
    let mut out = Vec::new();
    designator(&mut out, [0x01, 0x03], &naa(id));
    let vendor = [VENDOR, serial(id).as_bytes()].concat();
    designator(&mut out, [0x02, 0x01], &vendor);
    designator(&mut out, [BINARY, OF_PORT | 4], &group);
    designator(&mut out, [BINARY, OF_PORT | 5], &group);
    designator(&mut out, [UTF8, OF_PORT | 8], &padded(&format!("{target},t,0x{PORT_GROUP:04x}")));
    designator(&mut out, [UTF8, OF_TARGET | 8], &padded(target));
    out
}

/// Page 86h: simple tasks only; unit attentions are cleared when they are reported.
fn extended() -> Vec<u8> {
    let mut out = vec![0; 60];
    const SIMPLE_TASKS: u8 = 1;
    out[1] = SIMPLE_TASKS;
    // The write cache is volatile if there is one.
    out[2] = 1;
    out
}

/// Page B0h.
fn limits(device: &dyn BlockDevice) -> Vec<u8> {
    let physical = blocks_per_physical(device);
    // WRITE SAME does not take a length of 0 for "up to the end".
    const WRITE_SAME_NON_ZERO: u8 = 1;
    let mut out = vec![WRITE_SAME_NON_ZERO, MAX_COMPARE_BLOCKS as u8];
    out.extend_from_slice(&u16::try_from(physical).unwrap_or(u16::MAX).to_be_bytes());
    let no_limit = u32::MAX;
    let words = [
        MAX_TRANSFER_BLOCKS,
        OPTIMAL_TRANSFER_BLOCKS,
        0, // PRE-FETCH without limit
        no_limit,
        MAX_UNMAP_DESCRIPTORS,
        physical,
        0x8000_0000, // granularity with alignment 0
    ];
    out.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    out.resize(60, 0);
    out
}

/// Page B1h: not rotating.
fn characteristics() -> Vec<u8> {
    let mut out = vec![0; 60];
    out[1] = 1;
    out
}

/// Page B2h: thin; UNMAP and WRITE SAME free blocks, and freed blocks read as zeros.
fn provisioning() -> Vec<u8> {
    const UNMAP: u8 = 0x80;
    const WRITE_SAME: u8 = 0x60;
    const READS_ZEROS: u8 = 0x04;
    const THIN: u8 = 2;
    vec![0, UNMAP | WRITE_SAME | READS_ZEROS, THIN, 0]
}

/// READ CAPACITY (10) data.
pub fn capacity_10(device: &dyn BlockDevice) -> Vec<u8> {
    let last = u32::try_from(blocks_of(device).saturating_sub(1)).unwrap_or(u32::MAX);
    let mut out = last.to_be_bytes().to_vec();
    out.extend_from_slice(&(BLOCK_BYTES as u32).to_be_bytes());
    out
}

/// READ CAPACITY (16) data.
pub fn capacity_16(device: &dyn BlockDevice) -> Vec<u8> {
    const THIN_READS_ZEROS: u8 = 0xc0;
    let mut out = blocks_of(device).saturating_sub(1).to_be_bytes().to_vec();
    out.extend_from_slice(&(BLOCK_BYTES as u32).to_be_bytes());
    out.extend_from_slice(&[0, blocks_per_physical(device).ilog2() as u8, THIN_READS_ZEROS, 0]);
    out.resize(32, 0);
    out
}

/// REPORT TARGET PORT GROUPS data: one group with one port, always active and optimised.
pub fn port_groups(is_extended: bool) -> Vec<u8> {
    let [high, low] = PORT_GROUP.to_be_bytes();
    // All states but those that need a transition are supported: active and optimised only.
    let descriptor = [0, 1, high, low, 0, 0, 0, 1, 0, 0, high, low];
    let head: &[u8] = if is_extended { &[0x10, 0, 0, 0] } else { &[] };
    let mut out = ((head.len() + descriptor.len()) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(head);
    out.extend_from_slice(&descriptor);
    out
}

/// A logical unit number in a header: below 256 with peripheral addressing, else with flat addressing.
pub fn encode_lun(lun: u16) -> [u8; 8] {
    let [high, low] = lun.to_be_bytes();
    let method = if lun < 256 { 0 } else { 0x40 };
    [method | high, low, 0, 0, 0, 0, 0, 0]
}

/// The number in a header; `None` for other ways of addressing, which no unit has.
pub fn decode_lun(bytes: [u8; 8]) -> Option<u16> {
    let [first, second, rest @ ..] = bytes;
    match first >> 6 {
        _ if rest != [0; 6] => None,
        0 if first == 0 => Some(second.into()),
        1 => Some(u16::from_be_bytes([first & 0x3f, second])),
        _ => None,
    }
}

/// REPORT LUNS data.
pub fn luns(luns: impl Iterator<Item = u16>) -> Vec<u8> {
    let list: Vec<u8> = luns.flat_map(encode_lun).collect();
    let mut out = (list.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&[0; 4]);
    out.extend(list);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_front::memory::MemoryDevice;

    #[test]
    fn identifiers_depend_on_the_identity_only() {
        let device = MemoryDevice::new(vec![0; 8192]).with_id(0xab_cdef);
        let page = page(&device, "iqn.t", 0x83).unwrap();
        assert_eq!(usize::from(page[3]) + 4, page.len());
        assert_eq!(page[4..16], [1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(page[20..44], *b"WEIR    0000000000abcdef");
        let bigger = MemoryDevice::new(vec![0; 65536]).with_id(0xab_cdef);
        assert_eq!(super::page(&bigger, "iqn.t", 0x83).unwrap(), page);
        assert_eq!(super::page(&device, "iqn.t", 0xb7), Err(Sense::in_cdb(2)));
        for code in PAGES {
            let page = super::page(&device, "iqn.t", code).unwrap();
            assert_eq!((page[1], usize::from(page[3]) + 4), (code, page.len()));
        }
    }

    #[test]
    fn sizes_are_reported_in_blocks() {
        let device = MemoryDevice::new(vec![0; 8192 + 511]);
        assert_eq!(capacity_10(&device), [0, 0, 0, 15, 0, 0, 2, 0]);
        let capacity = capacity_16(&device);
        assert_eq!((capacity[7], capacity[13], capacity.len()), (15, 3, 32), "blocks of 4 KiB");
    }

    #[test]
    fn numbers_of_units_are_read_back() {
        for lun in [0, 1, 255, 256, 0x3fff] {
            assert_eq!(decode_lun(encode_lun(lun)), Some(lun));
        }
        assert_eq!(decode_lun([0, 1, 0, 0, 0, 0, 0, 1]), None);
        assert_eq!(decode_lun([0x80, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(luns([0, 2].into_iter()).len(), 24);
    }
}
