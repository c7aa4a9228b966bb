//! Mann–Whitney test of two samples, and Holm's correction of several tests.

use statrs::distribution::{ContinuousCDF, Normal};

/// Largest size of both samples up to which the distribution of U is counted instead of approximated. SciPy's rule.
const EXACT_UP_TO: usize = 8;

/// Outcome of a Mann–Whitney test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Pairs in which the value of the first sample is larger; a tie counts half.
    pub u: f64,
    /// Probability of a U at least as far from its mean, in either direction, if both samples come from one distribution.
    pub p: f64,
}

/// Tests whether two samples come from one distribution, two-sided.
///
/// As SciPy's `mannwhitneyu`: the exact distribution if one sample has at most eight values and no value occurs twice, else the normal
/// approximation with corrections for ties and continuity. `None` if a sample is empty.
#[must_use]
pub fn mann_whitney(first: &[f64], second: &[f64]) -> Option<MannWhitney> {
    if first.is_empty() || second.is_empty() {
        return None;
    }
    let larger = first.iter().flat_map(|a| second.iter().map(move |b| pair(*a, *b)));
    let u: f64 = larger.sum();
    let mut pooled: Vec<f64> = first.iter().chain(second).copied().collect();
    pooled.sort_by(f64::total_cmp);
    let ties: Vec<usize> = pooled.chunk_by(|a, b| a == b).map(<[f64]>::len).collect();
    let has_ties = ties.iter().any(|&count| count > 1);
    let is_exact = first.len().min(second.len()) <= EXACT_UP_TO && !has_ties;
    let p =
        if is_exact { exact(u, first.len(), second.len()) } else { asymptotic(u, first.len(), second.len(), &ties) };
    Some(MannWhitney { u, p })
}

/// Smallest p that [`mann_whitney`] can give two samples of these sizes: that of samples which do not overlap.
#[must_use]
pub fn smallest_p(first: usize, second: usize) -> f64 {
    if first == 0 || second == 0 {
        return 1.0;
    }
    if first.min(second) <= EXACT_UP_TO {
        return exact(0.0, first, second);
    }
    asymptotic(0.0, first, second, &vec![1; first + second])
}

fn pair(a: f64, b: f64) -> f64 {
    match a.partial_cmp(&b) {
        Some(std::cmp::Ordering::Greater) => 1.0,
        Some(std::cmp::Ordering::Equal) => 0.5,
        _ => 0.0,
    }
}

/// Two-sided p from the number of orders of two samples without ties that give each U.
fn exact(u: f64, first: usize, second: usize) -> f64 {
    let pairs = first * second;
    // U is a sum of `first` numbers, each of which tells how many values of the second sample are smaller. `ways[m][sum]` counts the
    // multisets of m such numbers; numbers 0..=second are admitted one after the other.
    let mut ways = vec![vec![0.0_f64; pairs + 1]; first + 1];
    ways[0][0] = 1.0;
    for number in 0..=second {
        for m in 1..=first {
            for sum in number..=pairs {
                let more = ways[m - 1][sum - number];
                ways[m][sum] += more;
            }
        }
    }
    let total: f64 = ways[first].iter().sum();
    // The distribution is symmetric, so the upper tail is doubled.
    let far = u.max(pairs as f64 - u).ceil() as usize;
    let tail: f64 = ways[first].iter().skip(far).sum();
    (2.0 * tail / total).min(1.0)
}

/// Two-sided p from the normal approximation.
fn asymptotic(u: f64, first: usize, second: usize, ties: &[usize]) -> f64 {
    let n1 = first as f64;
    let n2 = second as f64;
    let n = n1 + n2;
    let tied: f64 = ties.iter().map(|&count| (count as f64).powi(3) - count as f64).sum();
    let variance = n1 * n2 / 12.0 * (n + 1.0 - tied / (n * (n - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = u.max(n1 * n2 - u) - n1 * n2 / 2.0 - 0.5;
    (2.0 * standard_normal().sf(distance / variance.sqrt())).clamp(0.0, 1.0)
}

/// Normal distribution with mean 0 and deviation 1.
pub(super) fn standard_normal() -> Normal {
    Normal::standard()
}

/// Corrects the p of several tests by Holm's method, so that the probability of any false alarm among them stays at the level
/// at which the results are read. The order of the answers is that of the tests.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![1.0; p.len()];
    let mut largest = 0.0_f64;
    for (place, &test) in order.iter().enumerate() {
        largest = largest.max(p[test] * (p.len() - place) as f64).min(1.0);
        corrected[test] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, expected: f64) -> bool {
        (got - expected).abs() <= 1e-9 * expected.abs().max(1e-3)
    }

    #[test]
    fn small_samples_get_the_exact_probability() {
        // Of the 20 orders of three and three values, one has U = 0 and one U = 9.
        let apart = mann_whitney(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]).unwrap();
        assert_eq!(apart.u, 0.0);
        assert!(close(apart.p, 0.1), "{apart:?}");
        let mixed = mann_whitney(&[1.0, 3.0, 5.0, 7.0], &[2.0, 4.0, 6.0, 8.0]).unwrap();
        assert_eq!(mixed.u, 6.0);
        assert!(close(mixed.p, 48.0 / 70.0), "{mixed:?}");
        assert_eq!(smallest_p(3, 3), 0.1);
        assert_eq!(mann_whitney(&[], &[1.0]), None);
    }

    #[test]
    fn equal_samples_are_no_evidence() {
        assert_eq!(mann_whitney(&[5.0; 12], &[5.0; 12]).unwrap().p, 1.0);
        assert_eq!(mann_whitney(&[5.0; 3], &[5.0; 3]).unwrap().p, 1.0);
    }

    #[test]
    fn holm_multiplies_by_the_tests_that_remain_and_keeps_the_order() {
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(corrected.iter().zip(expected).all(|(got, want)| close(*got, want)), "{corrected:?}");
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }
}
