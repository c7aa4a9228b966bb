//! Contents that the agent writes and checks: units of a file, each with a version.

/// Size of a unit in bytes.
pub const UNIT_BYTES: usize = 8 << 10;
/// Number of units of a file.
pub const UNITS: usize = 128;

/// Bytes of a unit in a version; every word depends on all three.
pub fn content(seed: u64, unit: usize, version: u64) -> Vec<u8> {
    let mut word = seed ^ (unit as u64) << 40 ^ version;
    let mut bytes = Vec::with_capacity(UNIT_BYTES);
    while bytes.len() < UNIT_BYTES {
        word = crate::kill::mixed(word);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Unit that a version overwrites.
pub fn next_unit(seed: u64, version: u64) -> usize {
    (crate::kill::mixed(seed.rotate_left(32) ^ version) % UNITS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_differ_by_seed_unit_and_version() {
        let one = content(1, 2, 3);
        assert_eq!(one.len(), UNIT_BYTES);
        assert_eq!(one, content(1, 2, 3));
        for other in [content(2, 2, 3), content(1, 3, 3), content(1, 2, 4)] {
            assert_ne!(one, other);
        }
        assert!((1..1000).all(|version| next_unit(5, version) < UNITS));
    }
}
