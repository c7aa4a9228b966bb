//! The rotor: chooses the vdevs of a class in turn.
//!
//! Each vdev allocates a share in proportion to its free space before the rotor advances, so that all become full at the
//! same time. A share is large enough for neighbouring blocks to be on the same vdev.

/// The share of a vdev with average free space, in bytes.
const SHARE_BYTES: u64 = 2 << 20;

/// The rotor of one class.
#[derive(Clone, Debug, Default)]
pub struct Rotor {
    vdevs: Vec<u32>,
    /// Index of the current vdev.
    current: usize,
    /// Bytes allocated on the current vdev since the rotor advanced to it.
    allocated_bytes: u64,
}

impl Rotor {
    /// Adds a vdev.
    pub fn add(&mut self, vdev: u32) {
        if let Err(at) = self.vdevs.binary_search(&vdev) {
            self.vdevs.insert(at, vdev);
        }
    }

    /// Removes a vdev.
    pub fn remove(&mut self, vdev: u32) {
        self.vdevs.retain(|v| *v != vdev);
        self.current = 0;
    }

    /// Whether there are no vdevs.
    pub fn is_empty(&self) -> bool {
        self.vdevs.is_empty()
    }

    /// The vdevs in the order of preference: from the current one on, or, for a further copy, from the one after the
    /// previous copy's vdev. Vdevs without free space are left out.
    pub fn candidates(&self, after: Option<u32>, free: impl Fn(u32) -> u64) -> Vec<u32> {
        let start = match after.and_then(|v| self.vdevs.iter().position(|&o| o == v)) {
            Some(at) => at + 1,
            None => self.current,
        };
        let count = self.vdevs.len();
        (0..count).filter_map(|i| self.vdevs.get((start + i) % count)).copied().filter(|&v| free(v) > 0).collect()
    }

    /// Records that `bytes` were allocated on `vdev`, and advances the rotor when the vdev's share is used up.
    pub fn record(&mut self, vdev: u32, bytes: u64, free: impl Fn(u32) -> u64) {
        if self.vdevs.get(self.current) != Some(&vdev) {
            // The current vdev had no segment that was long enough.
            self.current = self.vdevs.iter().position(|&v| v == vdev).unwrap_or(0);
            self.allocated_bytes = 0;
        }
        self.allocated_bytes += bytes;
        let all: u128 = self.vdevs.iter().map(|&v| u128::from(free(v))).sum();
        let mine = u128::from(free(vdev)) * self.vdevs.len() as u128 * u128::from(SHARE_BYTES);
        if u128::from(self.allocated_bytes) >= mine / all.max(1) {
            self.current = (self.current + 1) % self.vdevs.len().max(1);
            self.allocated_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_proportion_to_free_space() {
        let mut rotor = Rotor::default();
        [5, 1, 9].into_iter().for_each(|v| rotor.add(v));
        let free = |v| [(1, 1u64 << 40), (5, 3 << 40), (9, 0)].iter().find(|f| f.0 == v).unwrap().1;
        let mut got = [0u64; 10];
        for _ in 0..10_000 {
            let vdev = rotor.candidates(None, free)[0];
            rotor.record(vdev, 128 << 10, free);
            got[vdev as usize] += 1;
        }
        assert_eq!(got[9], 0);
        assert!((29..=31).contains(&(got[5] * 10 / got[1])), "{got:?}");
        assert_eq!(rotor.candidates(Some(1), |_| 1), [5, 9, 1]);
        rotor.remove(5);
        assert_eq!(rotor.candidates(Some(9), |_| 1), [1, 9]);
    }
}
