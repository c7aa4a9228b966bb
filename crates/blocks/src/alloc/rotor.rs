//! Whose turn it is: the vdevs of a class in a ring.
//!
//! Each vdev takes a share in its turn, in proportion to its free space, so that all become full at the same time; a
//! share is large enough for neighbouring blocks to lie on the same vdev.

/// The share of a vdev with average free space, in bytes.
const SHARE_BYTES: u64 = 2 << 20;

/// The ring of one class.
#[derive(Clone, Debug, Default)]
pub struct Rotor {
    vdevs: Vec<u32>,
    /// Index of the vdev whose turn it is.
    turn: usize,
    /// What it took in this turn.
    taken_bytes: u64,
}

impl Rotor {
    /// Adds a vdev.
    pub fn add(&mut self, vdev: u32) {
        if let Err(at) = self.vdevs.binary_search(&vdev) {
            self.vdevs.insert(at, vdev);
        }
    }

    /// Takes a vdev out.
    pub fn remove(&mut self, vdev: u32) {
        self.vdevs.retain(|v| *v != vdev);
        self.turn = 0;
    }

    /// Whether there are no vdevs.
    pub fn is_empty(&self) -> bool {
        self.vdevs.is_empty()
    }

    /// The vdevs in the order in which to ask them: from the one whose turn it is, or, for a further copy, from the one
    /// after that of the copy before. Those without any space are left out.
    pub fn ring(&self, after: Option<u32>, free: impl Fn(u32) -> u64) -> Vec<u32> {
        let start = match after.and_then(|v| self.vdevs.iter().position(|&o| o == v)) {
            Some(at) => at + 1,
            None => self.turn,
        };
        let count = self.vdevs.len();
        (0..count).filter_map(|i| self.vdevs.get((start + i) % count)).copied().filter(|&v| free(v) > 0).collect()
    }

    /// Takes note that `vdev` took so many bytes, and passes the turn on when it has had its share.
    pub fn took(&mut self, vdev: u32, bytes: u64, free: impl Fn(u32) -> u64) {
        if self.vdevs.get(self.turn) != Some(&vdev) {
            // The one whose turn it was had nothing that fits.
            self.turn = self.vdevs.iter().position(|&v| v == vdev).unwrap_or(0);
            self.taken_bytes = 0;
        }
        self.taken_bytes += bytes;
        let all: u128 = self.vdevs.iter().map(|&v| u128::from(free(v))).sum();
        let mine = u128::from(free(vdev)) * self.vdevs.len() as u128 * u128::from(SHARE_BYTES);
        if u128::from(self.taken_bytes) >= mine / all.max(1) {
            self.turn = (self.turn + 1) % self.vdevs.len().max(1);
            self.taken_bytes = 0;
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
            let vdev = rotor.ring(None, free)[0];
            rotor.took(vdev, 128 << 10, free);
            got[vdev as usize] += 1;
        }
        assert_eq!(got[9], 0);
        assert!((29..=31).contains(&(got[5] * 10 / got[1])), "{got:?}");
        assert_eq!(rotor.ring(Some(1), |_| 1), [5, 9, 1]);
        rotor.remove(5);
        assert_eq!(rotor.ring(Some(9), |_| 1), [1, 9]);
    }
}
