//! The planner about itself: loads that were measured, each beside its prediction.
//!
//! ```text
//!   description (drives, layout, costs) ─┐
//!   measured loads ──────────────────────┴─► a simulation of each load ─► predicted over measured ─► median and worst deviation
//! ```

use super::PlanError;
use super::description::{Description, WorkloadSection};
use super::load::predict;
use serde::Serialize;

/// A load that was measured.
#[derive(Clone, Debug)]
pub struct MeasuredLoad {
    /// Name of the load.
    pub name: String,
    /// The load.
    pub workload: WorkloadSection,
    /// Operations per second.
    pub operations_per_second: f64,
}

/// A load, measured and predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedLoad {
    /// Name of the load.
    pub name: String,
    /// KiB of an operation.
    pub operation_kib: f64,
    /// Operations per second that were measured.
    pub measured: f64,
    /// Operations per second that the planner predicts.
    pub predicted: f64,
    /// Predicted over measured, less 1.
    pub deviation: f64,
    /// Resource that limits the predicted load.
    pub limit: String,
}

/// Predictions beside measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The loads in their order.
    pub loads: Vec<CheckedLoad>,
    /// Median of the deviations without their signs.
    pub median: f64,
    /// The greatest deviation without its sign.
    pub worst: f64,
}

/// Predicts each load on the described server, for at most `seconds` virtual seconds. `show` gets the name of each before it begins.
///
/// # Errors
/// [`PlanError`]: a load that cannot be described or simulated, or none.
pub fn check(
    description: &Description,
    loads: &[MeasuredLoad],
    seed: u64,
    seconds: f64,
    show: &mut dyn FnMut(&str),
) -> Result<Check, PlanError> {
    let mut checked = Vec::new();
    for load in loads {
        show(&load.name);
        let workload = load.workload.clone();
        let operation_kib = workload.operation_kib;
        let of = |error| PlanError::Value { key: load.name.clone(), why: format!("{error}") };
        let described = Description { workload, ..description.clone() }.checked().map_err(of)?;
        let outcome = predict(&described, seed, seconds)?.outcome;
        let measured = load.operations_per_second;
        let predicted = outcome.operations_per_second;
        let deviation = predicted / measured - 1.0;
        let limit = outcome.limit.words().to_owned();
        checked.push(CheckedLoad { name: load.name.clone(), operation_kib, measured, predicted, deviation, limit });
    }
    let mut deviations: Vec<f64> = checked.iter().map(|load| load.deviation.abs()).collect();
    deviations.sort_by(f64::total_cmp);
    let (Some(worst), count) = (deviations.last().copied(), deviations.len()) else {
        return Err(PlanError::Value { key: "result".into(), why: "it has no load that was measured".into() });
    };
    let median = (deviations[(count - 1) / 2] + deviations[count / 2]) / 2.0;
    Ok(Check { loads: checked, median, worst })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> Description {
        Description::parse("[pool]\ndrive = \"nvme\"\ndrive_tb = 1\nlayout = \"single\"\n[server]\narc_gb = 0.03\n")
            .unwrap()
    }

    fn load(order: &str, operations_per_second: f64) -> MeasuredLoad {
        let section = WorkloadSection { order: order.to_owned(), file_mib: 64.0, ..WorkloadSection::default() };
        MeasuredLoad { name: order.to_owned(), workload: section, operations_per_second }
    }

    #[test]
    fn a_load_that_was_measured_as_predicted_deviates_by_nothing_and_the_median_is_of_all() {
        let loads = [load("sequential", 1.0), load("random", 1.0)];
        let first = check(&described(), &loads, 1, 0.05, &mut |_| {}).unwrap();
        let [sequential, random] = [first.loads[0].predicted, first.loads[1].predicted];
        let loads = [load("sequential", sequential), load("random", random / 2.0)];
        let mut names = Vec::new();
        let second = check(&described(), &loads, 1, 0.05, &mut |name| names.push(name.to_owned())).unwrap();
        assert_eq!(names, ["sequential", "random"]);
        assert_eq!((second.loads[0].deviation, second.loads[1].deviation), (0.0, 1.0));
        assert_eq!((second.median, second.worst), (0.5, 1.0));
    }

    #[test]
    fn results_without_loads_and_loads_that_cannot_be_described_are_refused() {
        assert!(check(&described(), &[], 1, 0.05, &mut |_| {}).is_err());
        let error = check(&described(), &[load("backwards", 1.0)], 1, 0.05, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("backwards"), "{error}");
    }
}
