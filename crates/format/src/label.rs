//! The vdev label (`vdev_label_t`, OpenZFS `include/sys/vdev_impl.h`, `module/zfs/vdev_label.c`): 256 KiB, stored
//! four times on each leaf device. A label identifies the pool; labels are updated in two pairs, so that an
//! interrupted update leaves two valid ones.
//!
//! ```text
//!  device   |L0|L1| boot 3.5 MiB |  allocatable space …                    |L2|L3|
//!            0  256K 512K         4 MiB                    size-512K, size-256K   (size rounded down to 256 KiB)
//!  label    | blank 8K | boot environment 8K | configuration nvlist 112K | uberblock ring 128K |
//!            0           8K                    16K                          128K               256K
//! ```
//!
//! Boot environment, configuration and each uberblock slot end in a self-checksum ([`SelfChecksum`]): SHA-256 over
//! the area with the stored checksum replaced by a *verifier*, here the area's byte offset on the device
//! ([`verifier`]), so that a label copied to another offset is invalid.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::nvlist::NvList;
use std::ops::Range;

/// Size of a label in bytes.
pub const LABEL_BYTES: u64 = 256 << 10;
/// Number of labels on a device.
pub const LABELS: usize = 4;
/// Bytes before the allocatable space: two labels and the boot area.
pub const FRONT_BYTES: u64 = 4 << 20;
/// Bytes after the allocatable space: two labels.
pub const BACK_BYTES: u64 = 2 * LABEL_BYTES;
/// Byte range of the boot loader area on the device; RAID-Z expansion uses it as scratch space.
pub const BOOT_AREA: Range<u64> = 2 * LABEL_BYTES..FRONT_BYTES;
/// Minimum size in bytes of a device in a vdev (`SPA_MINDEVSIZE`).
pub const MIN_DEVICE_BYTES: u64 = 64 << 20;

/// Byte range of the boot environment in the label.
pub const BOOT_ENV: Range<usize> = 8 << 10..16 << 10;
/// Byte range of the configuration nvlist in the label.
pub const CONFIG: Range<usize> = 16 << 10..128 << 10;
/// Byte range of the uberblock ring in the label.
pub const RING: Range<usize> = 128 << 10..256 << 10;

/// The device size rounded down to a multiple of the label size, which labels and allocation are based on.
pub fn usable_device_bytes(device_bytes: u64) -> u64 {
    device_bytes & !(LABEL_BYTES - 1)
}

/// Byte offset of label `index` (0–3) on a device of `device_bytes`; `None` if the device is too small for four
/// labels.
pub fn label_offset(index: usize, device_bytes: u64) -> Option<u64> {
    let size = usable_device_bytes(device_bytes);
    if size < LABELS as u64 * LABEL_BYTES || index >= LABELS {
        return None;
    }
    let index = index as u64;
    Some(if index < 2 { index * LABEL_BYTES } else { size - (LABELS as u64 - index) * LABEL_BYTES })
}

/// log2 of the size in bytes of an uberblock slot on a top-level vdev with this ashift.
pub fn uberblock_shift(ashift: u64) -> u32 {
    ashift.clamp(10, 13) as u32
}

/// Number of uberblock slots in the ring on a top-level vdev with this ashift.
pub fn uberblock_slots(ashift: u64) -> usize {
    RING.len() >> uberblock_shift(ashift)
}

/// Byte range of a slot in the label; the last one is [reserved](heartbeat_range) at times. `None` if there is no such slot.
pub fn uberblock_range(slot: usize, ashift: u64) -> Option<Range<usize>> {
    if slot >= uberblock_slots(ashift) {
        return None;
    }
    let start = RING.start + (slot << uberblock_shift(ashift));
    Some(start..start + (1 << uberblock_shift(ashift)))
}

/// Byte range of the slot that is reserved for heartbeats while the property multihost is on: the last one of the ring
/// (`MMP_BLOCKS_PER_LABEL`).
pub fn heartbeat_range(ashift: u64) -> Range<usize> {
    let bytes = 1 << uberblock_shift(ashift);
    RING.end - bytes..RING.end
}

/// The verifier that replaces the stored checksum words while the self-checksum of a label's area at byte `offset` of
/// the device is computed. Gang headers and log blocks have other verifiers.
pub fn verifier(offset: u64) -> [u64; 4] {
    [offset, 0, 0, 0]
}

/// The self-checksum at the end of an area (`zio_eck_t`, `include/sys/zio.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfChecksum {
    /// Byte order of the writer and of the checksum words.
    pub endian: Endian,
    /// The checksum.
    pub checksum: [u64; 4],
}

impl SelfChecksum {
    /// Bytes on disk.
    pub const SIZE: usize = 40;
    /// The magic number.
    pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;

    /// Decodes 40 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "embedded checksum";
        let raw = Cursor::new(bytes, Endian::Little, WHAT).array::<8>()?;
        let endian = match (u64::from_le_bytes(raw), u64::from_be_bytes(raw)) {
            (Self::MAGIC, _) => Endian::Little,
            (_, Self::MAGIC) => Endian::Big,
            (found, _) => return Err(DecodeError::Magic { what: WHAT, found }),
        };
        let mut c = Cursor::new(bytes, endian, WHAT);
        c.skip(8)?;
        Ok(SelfChecksum { endian, checksum: c.words()? })
    }

    /// Decodes the last 40 bytes of an area.
    pub fn at_end_of(area: &[u8]) -> Result<Self, DecodeError> {
        let start = area.len().saturating_sub(Self::SIZE);
        SelfChecksum::decode(area.get(start..).unwrap_or_default())
    }

    /// The bytes on disk.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new(self.endian);
        e.u64(Self::MAGIC);
        e.words(&self.checksum);
        e.finish()
    }
}

/// Decodes the configuration from the area [`CONFIG`] of a label (or just its nvlist bytes).
pub fn decode_config(area: &[u8]) -> Result<NvList, DecodeError> {
    NvList::decode(area)
}

/// The boot environment: data that boot loaders keep in the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootEnv {
    /// Text, as GRUB keeps it.
    Raw(Vec<u8>),
    /// An nvlist.
    List(NvList),
    /// The boot block header that older software kept there (pools of version 1 to 15).
    OldHeader {
        /// Byte offset of the boot block on the device.
        offset_bytes: u64,
        /// Bytes of the boot block.
        size_bytes: u64,
    },
}

impl BootEnv {
    /// The magic number of the old boot block header.
    const OLD_MAGIC: u64 = 0x2f5_b007_b10c;

    /// Decodes the area [`BOOT_ENV`] of a label. Its version is always big-endian. The blank area of an older pool
    /// decodes as empty text.
    pub fn decode(area: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "boot environment";
        let mut c = Cursor::new(area, Endian::Big, WHAT);
        let version = c.u64()?;
        for (found, endian) in [(version, Endian::Big), (version.swap_bytes(), Endian::Little)] {
            if found == Self::OLD_MAGIC {
                let [_, _, offset_bytes, size_bytes] = Cursor::new(area, endian, WHAT).words()?;
                return Ok(BootEnv::OldHeader { offset_bytes, size_bytes });
            }
        }
        let body = c.bytes(c.remaining().saturating_sub(SelfChecksum::SIZE))?;
        match version {
            0 => Ok(BootEnv::Raw(body.iter().copied().take_while(|b| *b != 0).collect())),
            1 => NvList::decode(body).map(BootEnv::List),
            value => Err(DecodeError::Field { what: WHAT, field: "version", value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        let mib = 1 << 20;
        assert_eq!(label_offset(0, 64 * mib), Some(0));
        assert_eq!(label_offset(1, 64 * mib), Some(LABEL_BYTES));
        assert_eq!(label_offset(2, 64 * mib + 1000), Some(64 * mib - 512 * 1024));
        assert_eq!(label_offset(3, 64 * mib + 1000), Some(64 * mib - 256 * 1024));
        assert_eq!(label_offset(4, 64 * mib), None);
        assert_eq!(label_offset(0, mib - 1), None);
    }

    #[test]
    fn slots() {
        assert_eq!((uberblock_slots(9), uberblock_slots(12), uberblock_slots(16)), (128, 32, 16));
        assert_eq!(uberblock_range(1, 9), Some(132096..133120));
        assert_eq!(uberblock_range(31, 12), Some(RING.end - 4096..RING.end));
        assert_eq!(uberblock_range(32, 12), None);
    }

    #[test]
    fn self_checksum_round_trips() {
        for endian in [Endian::Little, Endian::Big] {
            let s = SelfChecksum { endian, checksum: [1, 2, 3, u64::MAX] };
            assert_eq!(SelfChecksum::decode(&s.encode()).unwrap(), s);
        }
        assert!(SelfChecksum::decode(&[0; 40]).is_err());
        assert!(SelfChecksum::at_end_of(&[0; 7]).is_err());
    }
}
