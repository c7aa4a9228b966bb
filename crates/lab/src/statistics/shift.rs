//! Hodges–Lehmann shift of two samples, with a bootstrap interval.

use super::rank::standard_normal;
use super::{Seeded, quantile_of_sorted};
use statrs::distribution::ContinuousCDF;

/// Resamples of a bootstrap interval.
pub const RESAMPLES: usize = 10_000;

/// Difference of two samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// Median of all differences between a value of the second sample and one of the first.
    pub estimate: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// Hodges–Lehmann shift from the first sample to the second: the median of all differences `second − first`.
/// `None` if a sample is empty.
#[must_use]
pub fn hodges_lehmann(first: &[f64], second: &[f64]) -> Option<f64> {
    let mut differences: Vec<f64> = Vec::with_capacity(first.len() * second.len());
    differences.extend(second.iter().flat_map(|b| first.iter().map(move |a| b - a)));
    middle(&mut differences)
}

/// Shift with its 95 % bootstrap interval: bias-corrected and accelerated (BCa), [`RESAMPLES`] resamples of both samples.
///
/// Same samples and seed, same interval. With fewer than two values in a sample the interval is the estimate itself. `None` if a sample is
/// empty.
#[must_use]
pub fn shift(first: &[f64], second: &[f64], seed: u64) -> Option<Shift> {
    resampled(first, second, seed, RESAMPLES)
}

fn resampled(first: &[f64], second: &[f64], seed: u64, resamples: usize) -> Option<Shift> {
    let estimate = hodges_lehmann(first, second)?;
    if first.len() < 2 || second.len() < 2 {
        return Some(Shift { estimate, low: estimate, high: estimate });
    }
    let mut seeded = Seeded::new(seed);
    let mut estimates = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        let a = resample(first, &mut seeded);
        let b = resample(second, &mut seeded);
        estimates.push(hodges_lehmann(&a, &b)?);
    }
    estimates.sort_by(f64::total_cmp);
    let normal = standard_normal();
    // Half of the ties count as below: the median of differences is discrete.
    let below = estimates.partition_point(|value| *value < estimate);
    let not_above = estimates.partition_point(|value| *value <= estimate);
    let share = ((below + not_above) as f64 / (2 * resamples) as f64).clamp(1e-6, 1.0 - 1e-6);
    let bias = normal.inverse_cdf(share);
    let acceleration = acceleration(first, second);
    let end = |level: f64| {
        let z = bias + normal.inverse_cdf(level);
        let adjusted = normal.cdf(bias + z / (1.0 - acceleration * z));
        quantile_of_sorted(&estimates, adjusted).unwrap_or(estimate)
    };
    Some(Shift { estimate, low: end(0.025), high: end(0.975) })
}

fn resample(sample: &[f64], seeded: &mut Seeded) -> Vec<f64> {
    (0..sample.len()).map(|_| sample[seeded.below(sample.len())]).collect()
}

/// Skewness of the estimate's influence: each value is left out once.
fn acceleration(first: &[f64], second: &[f64]) -> f64 {
    let mut influences = Vec::with_capacity(first.len() + second.len());
    for (sample, other, is_first) in [(first, second, true), (second, first, false)] {
        let mut left_out = Vec::with_capacity(sample.len());
        for omitted in 0..sample.len() {
            let rest: Vec<f64> =
                sample.iter().enumerate().filter(|(place, _)| *place != omitted).map(|(_, value)| *value).collect();
            let estimate = if is_first { hodges_lehmann(&rest, other) } else { hodges_lehmann(other, &rest) };
            left_out.extend(estimate);
        }
        let centre = super::mean(&left_out).unwrap_or_default();
        // Weights of the two-sample jackknife: each sample's influences are divided by its size.
        influences
            .extend(left_out.iter().map(|value| (centre - value) * (sample.len() - 1) as f64 / sample.len() as f64));
    }
    let squares: f64 = influences.iter().map(|value| value.powi(2)).sum();
    let cubes: f64 = influences.iter().map(|value| value.powi(3)).sum();
    if squares > 0.0 { cubes / (6.0 * squares.powf(1.5)) } else { 0.0 }
}

fn middle(values: &mut [f64]) -> Option<f64> {
    let half = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (lower, upper, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    let upper = *upper;
    if !is_even {
        return Some(upper);
    }
    let lower = lower.iter().copied().max_by(f64::total_cmp)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_is_the_median_of_all_differences() {
        assert_eq!(hodges_lehmann(&[], &[1.0]), None);
        assert_eq!(hodges_lehmann(&[1.0, 2.0], &[11.0, 14.0]), Some(11.0));
        assert_eq!(hodges_lehmann(&[1.0, 2.0, 3.0], &[5.0]), Some(3.0));
    }

    #[test]
    fn the_interval_holds_the_planted_shift_in_about_19_of_20_samples() {
        let mut seeded = Seeded::new(11);
        let mut held = 0;
        for round in 0..200 {
            // Sums of twelve uniform numbers: nearly normal, deviation 1.
            let mut draw = || (0..12).map(|_| seeded.unit()).sum::<f64>();
            let first: Vec<f64> = (0..12).map(|_| draw()).collect();
            let second: Vec<f64> = (0..12).map(|_| draw() + 2.0).collect();
            let got = resampled(&first, &second, round, 1_000).unwrap();
            assert!(got.low <= got.estimate && got.estimate <= got.high);
            held += u32::from((got.low..=got.high).contains(&2.0));
        }
        assert!((178..=198).contains(&held), "{held} of 200");
    }

    #[test]
    fn a_sample_of_one_value_has_no_spread() {
        assert_eq!(shift(&[1.0], &[3.0, 4.0], 0), Some(Shift { estimate: 2.5, low: 2.5, high: 2.5 }));
    }
}
