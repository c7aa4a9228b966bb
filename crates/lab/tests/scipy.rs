//! Statistics beside SciPy's, if it is installed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use weir_lab::statistics::rank::mann_whitney;
use weir_lab::statistics::shift::{hodges_lehmann, shift};
use weir_lab::statistics::{Seeded, quantile};

/// Reads pairs of samples, and writes U, p, the median of differences, a quantile, and the ends of SciPy's BCa interval for the shift.
const PROGRAM: &str = "
import json, sys
import numpy as np
from scipy import stats
def hl(a, b, axis=-1):
    d = np.expand_dims(b, -1) - np.expand_dims(a, -2)
    return np.median(d.reshape(*d.shape[:-2], -1), axis=-1)
out = []
for number, (a, b) in enumerate(json.load(sys.stdin)):
    test = stats.mannwhitneyu(a, b, alternative='two-sided')
    row = [test.statistic, test.pvalue, float(hl(np.array(a), np.array(b))), float(np.quantile(a, 0.95))]
    if number < 20:
        interval = stats.bootstrap((np.array(a), np.array(b)), hl, n_resamples=4000, method='BCa', vectorized=True, random_state=1).confidence_interval
        row += [interval.low, interval.high]
    out.append(row)
print(json.dumps(out))
";

fn scipy(samples: &Value) -> Option<Vec<Vec<f64>>> {
    // The system's Python has the system's packages, whatever other one comes first in the path.
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        Command::new(python)
            .args(["-c", "import scipy"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    let Some(python) = python else {
        eprintln!("skipped: SciPy is not installed");
        return None;
    };
    let mut child =
        Command::new(python).args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(samples.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// A hundred pairs of samples: small and large, with and without ties, equal and shifted, skewed as latencies are.
fn samples() -> Vec<(Vec<f64>, Vec<f64>)> {
    let mut seeded = Seeded::new(2026);
    (0..100)
        .map(|number| {
            let mut draw = |count: usize, shift: f64| -> Vec<f64> {
                let value = |seeded: &mut Seeded| {
                    let skewed = -(1.0 - seeded.unit()).ln() * 10.0 + 100.0 + shift;
                    if number % 3 == 0 { skewed.round() } else { skewed }
                };
                (0..count).map(|_| value(&mut seeded)).collect()
            };
            let (first, second) = [(5, 5), (8, 30), (20, 20), (9, 12), (3, 4)][number % 5];
            (draw(first, 0.0), draw(second, [0.0, 5.0, -20.0][number % 3]))
        })
        .collect()
}

#[test]
fn tests_and_shifts_agree_with_scipy_on_a_hundred_samples() {
    let samples = samples();
    let Some(expected) = scipy(&json!(samples)) else { return };
    assert_eq!(expected.len(), samples.len());
    for ((a, b), row) in samples.iter().zip(&expected) {
        let test = mann_whitney(a, b).unwrap();
        assert_eq!(test.u, row[0], "{a:?} {b:?}");
        assert!((test.p - row[1]).abs() <= 1e-9 * row[1].max(1e-3), "p {} is not {} for {a:?} {b:?}", test.p, row[1]);
        assert!((hodges_lehmann(a, b).unwrap() - row[2]).abs() < 1e-9);
        assert!((quantile(a, 0.95).unwrap() - row[3]).abs() < 1e-9);
    }
}

#[test]
fn intervals_agree_with_scipy_within_the_noise_of_resampling() {
    let samples = samples();
    let Some(expected) = scipy(&json!(samples)) else { return };
    let mut compared = 0;
    // Samples with ties or of few values have coarse resamples, whose ends jump from value to value.
    for ((a, b), row) in
        samples.iter().zip(&expected).filter(|((a, b), row)| row.len() == 6 && a.len() > 8 && b.len() > 8)
    {
        let got = shift(a, b, 7).unwrap();
        let width = row[5] - row[4];
        assert!(
            (got.low - row[4]).abs() < 0.12 * width && (got.high - row[5]).abs() < 0.12 * width,
            "{got:?} is not {row:?}"
        );
        compared += 1;
    }
    assert!(compared >= 8, "{compared}");
}
