//! Probability of loss in a year, from the rate at which drives fail and the time that a vdev is without redundancy.
//!
//! A vdev of n drives that survives r failures is lost if r more fail before the first one is replaced and resilvered:
//!
//! ```text
//!   λ = −ln(1 − AFR)                          failures of a drive in a year
//!   T = (waiting + resilver) / 8766 h         years without full redundancy
//!   rate of loss of a vdev = n λ · Π (n − i) λ T,   i = 1 … r
//!   rate of lost blocks    = n λ · Π (n − i) λ T · P,   i = 1 … r − 1;   P = 1 − (1 − u)^bits of the remaining drives
//! ```
//!
//! Rates of vdevs add, and a rate x is a probability of 1 − e⁻ˣ in a year. Failures are assumed to be independent: drives of one
//! batch, a power supply or a controller that fails are not, so the truth is worse. Lost blocks are files that `zpool status`
//! names; the rest of the pool stays.

use super::description::Failures;
use crate::simulate::server::VdevLayout;
use serde::Serialize;

const HOURS_OF_A_YEAR: f64 = 8766.0;

/// Probabilities of loss in a year, and what they follow from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Risk {
    /// The assumptions.
    pub failures: Failures,
    /// Failures of a drive in a year.
    pub lambda: f64,
    /// Hours from a failure to the end of the resilver.
    pub exposed_hours: f64,
    /// Probability that the pool is lost within a year.
    pub pool: f64,
    /// Probability that a resilver without redundancy finds a sector that cannot be read.
    pub unreadable: f64,
    /// Probability that blocks are lost within a year, the pool not.
    pub blocks: f64,
}

/// The risk of `vdevs` vdevs whose drives each hold `drive_bytes`.
pub fn risk(layout: VdevLayout, vdevs: usize, drive_bytes: u64, resilver_hours: f64, failures: Failures) -> Risk {
    let n = layout.disks() as f64;
    let redundancy = layout.redundancy();
    let lambda = -(1.0 - failures.annual_failure_percent.min(99.999) / 100.0).ln();
    let exposed_hours = if redundancy == 0 { 0.0 } else { failures.replacement_days * 24.0 + resilver_hours };
    let years = exposed_hours / HOURS_OF_A_YEAR;
    let down =
        |failed: usize| (1..=failed).fold(n * lambda, |rate, i| rate * ((n - i as f64) * lambda * years).min(1.0));
    // A mirror reads one of the remaining drives, RAID-Z all.
    let read_drives = if matches!(layout, VdevLayout::Mirror(_)) { 1.0 } else { n - redundancy as f64 };
    let bits = read_drives * drive_bytes as f64 * 8.0;
    let unreadable = -(bits * (-failures.unrecoverable_read_per_bit).ln_1p()).exp_m1();
    let yearly = |rate: f64| -(-rate * vdevs as f64).exp_m1();
    let blocks = if redundancy == 0 { 0.0 } else { yearly(down(redundancy - 1) * unreadable) };
    Risk { failures, lambda, exposed_hours, pool: yearly(down(redundancy)), unreadable, blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSUMED: Failures =
        Failures { annual_failure_percent: 2.0, unrecoverable_read_per_bit: 1e-15, replacement_days: 0.0 };

    #[test]
    fn risks_follow_the_formula() {
        let lambda = -(0.98f64.ln());
        let single = risk(VdevLayout::Single, 1, 1 << 40, 0.0, ASSUMED);
        assert!((single.pool - 0.02).abs() < 1e-12, "{single:?}");
        let mirror = risk(VdevLayout::Mirror(2), 1, 1_000_000_000_000, 87.66, ASSUMED);
        let expected = 2.0 * lambda * lambda * 0.01;
        assert!((mirror.pool / expected - 1.0).abs() < 1e-4, "{mirror:?}");
        // 8 × 10¹² bits at 10⁻¹⁵.
        assert!((mirror.unreadable / 0.008 - 1.0).abs() < 0.005, "{mirror:?}");
        assert!((mirror.blocks / (2.0 * lambda * mirror.unreadable) - 1.0).abs() < 0.001, "{mirror:?}");
        let raidz2 = risk(VdevLayout::Raidz(2, 6), 2, 1_000_000_000_000, 87.66, ASSUMED);
        let expected = 2.0 * 6.0 * 5.0 * 4.0 * lambda.powi(3) * 1e-4;
        assert!((raidz2.pool / expected - 1.0).abs() < 1e-4, "{raidz2:?}");
    }

    #[test]
    fn more_redundancy_and_shorter_repair_reduce_the_risk() {
        let of = |layout, hours| risk(layout, 1, 4_000_000_000_000, hours, ASSUMED).pool;
        assert!(of(VdevLayout::Raidz(1, 6), 24.0) > 100.0 * of(VdevLayout::Raidz(2, 6), 24.0));
        assert!(of(VdevLayout::Raidz(2, 6), 48.0) > of(VdevLayout::Raidz(2, 6), 24.0));
    }
}
