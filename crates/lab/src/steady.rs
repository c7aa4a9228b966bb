//! Steady window of a run: the part in which the rate neither drifts nor swings, whose mean may stand for the run.
//!
//! The criterion is the one of the SNIA Solid State Storage Performance Test Specification, section 3.4.2: within the window the largest
//! and smallest rate differ by at most 20 % of the mean, and the straight line of best fit rises or falls by at most 10 % of the mean.
//! A run whose longest such window is shorter than half the run is not steady.

use serde::{Deserialize, Serialize};

/// Largest permitted difference between the highest and the lowest rate, as a share of the mean.
pub const MAX_RANGE: f64 = 0.2;

/// Largest permitted rise or fall of the line of best fit over the window, as a share of the mean.
pub const MAX_SLOPE: f64 = 0.1;

/// Fewest points of a window.
pub const MIN_POINTS: usize = 5;

/// Points to which a longer run is reduced by averaging neighbours.
const MAX_POINTS: usize = 30;

/// The longest steady window of a run, or the whole run if it has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Whether the window satisfies the criterion and covers at least half of the run.
    pub steady: bool,
    /// Seconds from the beginning of the run to that of the window.
    pub from_seconds: f64,
    /// Seconds from the beginning of the run to the end of the window.
    pub to_seconds: f64,
    /// Mean rate in the window, in the unit of the run.
    pub mean: f64,
    /// Largest minus smallest rate, as a share of the mean.
    pub range: f64,
    /// Rise (or fall, below 0) of the line of best fit over the window, as a share of the mean.
    pub slope: f64,
}

/// Finds the steady window of a run of rates, one per `seconds_per_point`. `None` if there are fewer than [`MIN_POINTS`].
#[must_use]
pub fn window(rates: &[f64], seconds_per_point: f64) -> Option<Window> {
    if rates.len() < MIN_POINTS {
        return None;
    }
    let merged = rates.len().div_ceil(MAX_POINTS);
    // A last group with fewer points would weigh more than the others.
    let points: Vec<f64> = rates.chunks_exact(merged).filter_map(super::statistics::mean).collect();
    let seconds = seconds_per_point * merged as f64;
    let at_least = points.len().div_ceil(2).max(MIN_POINTS);
    for length in (at_least..=points.len()).rev() {
        let steady = (0..=points.len() - length)
            .map(|from| measure(&points, from, length, seconds))
            .filter(|window| window.range <= MAX_RANGE && window.slope.abs() <= MAX_SLOPE)
            .min_by(|a, b| a.range.total_cmp(&b.range));
        if let Some(window) = steady {
            return Some(Window { steady: true, ..window });
        }
    }
    Some(measure(&points, 0, points.len(), seconds))
}

/// Describes a window of points; it is not yet judged.
fn measure(points: &[f64], from: usize, length: usize, seconds: f64) -> Window {
    let within = &points[from..from + length];
    let mean = super::statistics::mean(within).unwrap_or_default();
    let low = within.iter().copied().fold(f64::INFINITY, f64::min);
    let high = within.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let relative = |value: f64| if mean > 0.0 { value / mean } else { 0.0 };
    let range = if mean > 0.0 { relative(high - low) } else { f64::from(u8::from(high > low)) };
    Window {
        steady: false,
        from_seconds: from as f64 * seconds,
        to_seconds: (from + length) as f64 * seconds,
        mean,
        range,
        slope: relative(rise(within)),
    }
}

/// Rise of the line of best fit (least squares) from the first to the last point.
fn rise(points: &[f64]) -> f64 {
    let n = points.len() as f64;
    let centre = (n - 1.0) / 2.0;
    let mean = points.iter().sum::<f64>() / n;
    let mut product = 0.0;
    let mut squares = 0.0;
    for (place, value) in points.iter().enumerate() {
        let distance = place as f64 - centre;
        product += distance * (value - mean);
        squares += distance * distance;
    }
    if squares > 0.0 { product / squares * (n - 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_run_is_steady_as_a_whole() {
        let got = window(&[100.0, 104.0, 98.0, 101.0, 99.0, 102.0], 1.0).unwrap();
        assert!(got.steady, "{got:?}");
        assert_eq!((got.from_seconds, got.to_seconds), (0.0, 6.0));
        assert!((got.mean - 100.666).abs() < 0.01);
    }

    #[test]
    fn the_peak_of_a_write_buffer_is_left_out() {
        // The first seconds go to memory, the rest to the device.
        let mut rates = vec![1000.0, 990.0, 700.0];
        rates.extend([250.0, 255.0, 248.0, 252.0, 251.0, 249.0, 250.0]);
        let got = window(&rates, 1.0).unwrap();
        assert!(got.steady, "{got:?}");
        assert_eq!(got.from_seconds, 3.0);
        assert!((got.mean - 250.7).abs() < 0.5);
    }

    #[test]
    fn a_drift_within_the_range_is_not_steady() {
        let falling: Vec<f64> = (0..20).map(|second| 100.0 - f64::from(second)).collect();
        let got = window(&falling, 1.0).unwrap();
        // A fall of 19 % over the run: a window of half of it, the shortest that counts, still falls by less than 10 %.
        assert!(got.steady && (10.0..=11.0).contains(&(got.to_seconds - got.from_seconds)), "{got:?}");
        let steeper: Vec<f64> = falling.iter().map(|rate| 2.0 * rate - 100.0).collect();
        assert!(!window(&steeper, 1.0).unwrap().steady);
    }

    #[test]
    fn swings_are_not_steady_and_the_mean_covers_the_run() {
        let swinging: Vec<f64> = (0..20).map(|second| if second % 2 == 0 { 50.0 } else { 150.0 }).collect();
        let got = window(&swinging, 1.0).unwrap();
        assert!(!got.steady);
        assert_eq!((got.from_seconds, got.to_seconds, got.mean), (0.0, 20.0, 100.0));
    }

    #[test]
    fn long_runs_are_averaged_first_and_short_ones_not_judged() {
        assert_eq!(window(&[1.0; 4], 1.0), None);
        let got = window(&[7.0; 3600], 1.0).unwrap();
        assert!(got.steady && got.to_seconds == 3600.0, "{got:?}");
        assert!(!window(&[0.0, 0.0, 0.0, 0.0, 5.0], 1.0).unwrap().steady);
    }
}
