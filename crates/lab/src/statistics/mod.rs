//! Statistics of samples of measurements: order statistics, rank tests, and intervals by resampling.
//!
//! Measurements of storage are skewed and have outliers, so nothing here assumes a normal distribution: the centre is the
//! median, a difference is the Hodges–Lehmann shift with a bootstrap interval ([`shift`]), a test is the one of Mann and
//! Whitney ([`rank`]), and several tests of one comparison are corrected by Holm's method. The same sample and seed give the same
//! figures on every machine.
//!
//! Sources: Hodges and Lehmann, *Estimates of location based on rank tests* (1963); Mann and Whitney, *On a test of whether
//! one of two random variables is stochastically larger than the other* (1947); Holm, *A simple sequentially rejective
//! multiple test procedure* (1979); Efron, *Better bootstrap confidence intervals* (1987). The tests compare with SciPy's values.

pub mod rank;
pub mod shift;

/// Median of a sample; the mean of the two middle values if their number is even. `None` of an empty sample.
///
/// ```
/// assert_eq!(weir_lab::statistics::median(&[3.0, 1.0, 2.0, 10.0]), Some(2.5));
/// ```
#[must_use]
pub fn median(sample: &[f64]) -> Option<f64> {
    quantile(sample, 0.5)
}

/// Quantile of a sample by linear interpolation between order statistics; `share` is clamped to 0..=1.
/// `None` of an empty sample.
#[must_use]
pub fn quantile(sample: &[f64], share: f64) -> Option<f64> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, share)
}

/// As [`quantile`], of a sample in ascending order.
#[must_use]
pub fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    let weight = place - place.floor();
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

/// Mean of a sample; `None` of an empty one.
#[must_use]
pub fn mean(sample: &[f64]) -> Option<f64> {
    (!sample.is_empty()).then(|| sample.iter().sum::<f64>() / sample.len() as f64)
}

/// Standard deviation of a sample with the divisor n − 1; `None` of fewer than two values.
#[must_use]
pub fn deviation(sample: &[f64]) -> Option<f64> {
    let centre = mean(sample).filter(|_| sample.len() > 1)?;
    let squares: f64 = sample.iter().map(|value| (value - centre).powi(2)).sum();
    Some((squares / (sample.len() - 1) as f64).sqrt())
}

/// Generator of pseudo-random numbers (SplitMix64), so that a resampled interval is the same in every run.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Seeded {
    /// Generator that begins at a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Fills a buffer; bytes that neither compress nor repeat.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_interpolate() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0]), Some(4.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95), Some(4.8));
        assert_eq!(quantile(&[1.0, 2.0], 7.0), Some(2.0));
    }

    #[test]
    fn deviation_divides_by_one_less_than_the_number_of_values() {
        assert_eq!(deviation(&[1.0]), None);
        let got = deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((got - 2.138_089_935).abs() < 1e-8, "{got}");
    }

    #[test]
    fn the_generator_is_even_and_repeats_with_its_seed() {
        let mut one = Seeded::new(7);
        let mut other = Seeded::new(7);
        let mut counts = [0_u32; 10];
        for _ in 0..10_000 {
            let number = one.below(10);
            assert_eq!(number, other.below(10));
            counts[number] += 1;
        }
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
