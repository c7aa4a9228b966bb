//! MODE SENSE and MODE SELECT: the pages *read-write error recovery*, *caching*, *control* and *informational exceptions*.
//!
//! Three bits can be changed: WCE (the write cache can be switched off, not on beyond what the target permits), D_SENSE
//! (format of sense data) and SWP (software write protection). Nothing is saved.

use super::cdb::BLOCK_BYTES;
use super::inquiry::blocks_of;
use super::sense::{Sense, code};
use super::unit::{ModeParameters, OpenUnit};

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
/// Supported pages.
const PAGES: [u8; 4] = [0x01, 0x08, 0x0a, 0x1c];
const WRITE_CACHE: u8 = 0x04;
const DESCRIPTOR_SENSE: u8 = 0x04;
const SOFTWARE_WRITE_PROTECT: u8 = 0x08;

/// A MODE SENSE, without its room.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Ten bytes.
    pub is_long: bool,
    /// No block descriptor.
    pub no_descriptors: bool,
    /// A block descriptor with a block number of 64 bits.
    pub long_lba: bool,
    /// Which values.
    pub control: u8,
    /// Page.
    pub page: u8,
    /// Subpage.
    pub subpage: u8,
}

/// A page with these parameters.
fn page(number: u8, mode: ModeParameters, has_write_cache: bool) -> Vec<u8> {
    let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
    match number {
        0x01 => vec![0x01, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        0x08 => {
            let mut page = vec![0; 20];
            page[..3].copy_from_slice(&[0x08, 18, bit(WRITE_CACHE, has_write_cache)]);
            page
        }
        0x0a => {
            let sense = bit(DESCRIPTOR_SENSE, mode.descriptor_sense);
            let protect = bit(SOFTWARE_WRITE_PROTECT, mode.software_write_protect);
            // Commands may be reordered; the busy time-out is unlimited.
            vec![0x0a, 10, sense, 0x10, protect, 0, 0, 0, 0xff, 0xff, 0, 0]
        }
        _ => vec![0x1c, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// A page with ones where it can be changed.
fn changeable(number: u8, may_cache: bool) -> Vec<u8> {
    let mut mask = page(number, ModeParameters::default(), false);
    mask[2..].fill(0);
    match number {
        0x08 if may_cache => mask[2] = WRITE_CACHE,
        0x0a => (mask[2], mask[4]) = (DESCRIPTOR_SENSE, SOFTWARE_WRITE_PROTECT),
        _ => {}
    }
    mask
}

/// MODE SENSE data.
///
/// # Errors
/// Unknown pages, and saved values.
pub fn sense(open: &OpenUnit, query: &Query) -> Result<Vec<u8>, Sense> {
    let mode = open.unit.mode();
    let is_known = query.page == ALL_PAGES || PAGES.contains(&query.page);
    if !is_known {
        return Err(Sense::in_cdb(2));
    }
    if query.subpage != 0 && query.subpage != ALL_SUBPAGES {
        return Err(Sense::in_cdb(3));
    }
    let pages = PAGES.into_iter().filter(|number| query.page == ALL_PAGES || query.page == *number);
    let body: Vec<u8> = match query.control {
        0 => pages.flat_map(|number| page(number, mode, open.has_write_cache())).collect(),
        1 => pages.flat_map(|number| changeable(number, open.write_cache)).collect(),
        2 => pages.flat_map(|number| page(number, ModeParameters::default(), open.write_cache)).collect(),
        _ => return Err(Sense::illegal(code::SAVING_NOT_SUPPORTED)),
    };
    let descriptor = descriptor(open, query);
    const WRITE_PROTECTED: u8 = 0x80;
    const DPO_FUA: u8 = 0x10;
    let is_protected = !open.device.is_writable() || mode.software_write_protect;
    let specific = DPO_FUA | if is_protected { WRITE_PROTECTED } else { 0 };
    let after_length = if query.is_long { 6 } else { 3 } + descriptor.len() + body.len();
    let mut out = match query.is_long {
        true => {
            let [high, low] = (after_length as u16).to_be_bytes();
            let is_long_lba = u8::from(descriptor.len() == 16);
            vec![high, low, 0, specific, is_long_lba, 0, 0, descriptor.len() as u8]
        }
        false => vec![after_length as u8, 0, specific, descriptor.len() as u8],
    };
    out.extend(descriptor);
    out.extend(body);
    Ok(out)
}

fn descriptor(open: &OpenUnit, query: &Query) -> Vec<u8> {
    let blocks = blocks_of(&*open.device);
    let block_bytes = (BLOCK_BYTES as u32).to_be_bytes();
    match (query.no_descriptors, query.long_lba) {
        (true, _) => Vec::new(),
        (false, true) => [&blocks.to_be_bytes()[..], &[0; 4], &block_bytes].concat(),
        (false, false) => [u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes(), block_bytes].concat(),
    }
}

/// The mode parameters that a MODE SELECT list sets.
///
/// # Errors
/// A list that is too short, or changes what cannot be changed.
pub fn select(open: &OpenUnit, is_long: bool, list: &[u8]) -> Result<ModeParameters, Sense> {
    let mut mode = open.unit.mode();
    if list.is_empty() {
        return Ok(mode);
    }
    let too_short = Sense::illegal(code::PARAMETER_LIST_LENGTH);
    let header_bytes = if is_long { 8 } else { 4 };
    let (header, rest) = list.split_at_checked(header_bytes).ok_or(too_short)?;
    let descriptor_bytes = match is_long {
        true => usize::from(u16::from_be_bytes([header[6], header[7]])),
        false => usize::from(header[3]),
    };
    let (descriptor, mut rest) = rest.split_at_checked(descriptor_bytes).ok_or(too_short)?;
    let keeps_size = match descriptor {
        [] => true,
        [.., a, b, c] if matches!(descriptor.len(), 8 | 16) => [0, *a, *b, *c] == (BLOCK_BYTES as u32).to_be_bytes(),
        _ => false,
    };
    if !keeps_size {
        return Err(Sense::in_list(header_bytes as u16));
    }
    while let [number, len, ..] = *rest {
        let at = (list.len() - rest.len()) as u16;
        let (given, next) = rest.split_at_checked(usize::from(len) + 2).ok_or(too_short)?;
        // The most significant bit is that of MODE SENSE (PS), and reserved here.
        let current = page(number, mode, open.has_write_cache());
        if !PAGES.contains(&number) || given.len() != current.len() {
            return Err(Sense::in_list(at));
        }
        let mask = changeable(number, open.write_cache);
        let differing =
            given.iter().zip(&current).zip(&mask).skip(2).position(|((new, old), mask)| (new ^ old) & !mask != 0);
        if let Some(differing) = differing {
            return Err(Sense::in_list(at + 2 + differing as u16));
        }
        match number {
            0x08 => mode.no_write_cache = open.write_cache && given[2] & WRITE_CACHE == 0,
            0x0a => {
                mode.descriptor_sense = given[2] & DESCRIPTOR_SENSE != 0;
                mode.software_write_protect = given[4] & SOFTWARE_WRITE_PROTECT != 0;
            }
            _ => {}
        }
        rest = next;
    }
    if rest.is_empty() { Ok(mode) } else { Err(too_short) }
}

#[cfg(test)]
mod tests {
    use super::super::reservations::Reservations;
    use super::super::unit::Unit;
    use super::*;
    use std::sync::Arc;
    use weir_front::memory::MemoryDevice;

    fn unit(write_cache: bool) -> OpenUnit {
        let device = Arc::new(MemoryDevice::new(vec![0; 8192]).with_writing(true));
        OpenUnit { unit: Arc::new(Unit::new(1, Reservations::default())), device, write_cache }
    }

    fn query(control: u8, page: u8) -> Query {
        Query { is_long: false, no_descriptors: true, long_lba: false, control, page, subpage: 0 }
    }

    #[test]
    fn the_caching_page_says_what_is() {
        for write_cache in [false, true] {
            let open = unit(write_cache);
            let bit = if write_cache { 4 } else { 0 };
            for control in 0..3 {
                assert_eq!(sense(&open, &query(control, 8)).unwrap()[6], bit, "control {control}");
            }
        }
        let open = unit(true);
        let mut list = sense(&open, &query(0, 8)).unwrap();
        list[6] = 0;
        open.unit.set_mode(1, select(&open, false, &list).unwrap());
        assert!(!open.has_write_cache());
        assert_eq!(sense(&open, &query(0, 8)).unwrap()[6], 0);
        assert_eq!(sense(&open, &query(3, 8)), Err(Sense::illegal(code::SAVING_NOT_SUPPORTED)));
    }

    #[test]
    fn only_changeable_bits_are_changed() {
        let open = unit(false);
        let all = sense(&open, &query(0, ALL_PAGES)).unwrap();
        assert_eq!(usize::from(all[0]) + 1, all.len());
        assert_eq!(select(&open, false, &all), Ok(ModeParameters::default()));
        let mut caching = sense(&open, &query(0, 8)).unwrap();
        caching[6] = 4;
        assert_eq!(select(&open, false, &caching), Err(Sense::in_list(6)), "the cache is not to be switched on");
        let mut control = sense(&open, &query(0, 10)).unwrap();
        control[8] |= 8;
        assert!(select(&open, false, &control).unwrap().software_write_protect);
        assert_eq!(select(&open, false, &control[..9]), Err(Sense::illegal(code::PARAMETER_LIST_LENGTH)));
        assert_eq!(select(&open, true, &[0; 3]), Err(Sense::illegal(code::PARAMETER_LIST_LENGTH)));
    }
}
