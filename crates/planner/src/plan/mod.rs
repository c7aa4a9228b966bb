//! Plans: hardware and a load in, predictions out.
//!
//! ```text
//!   description (TOML) ─┬─► load       the load on the modelled server: throughput, latency, the limit      by simulation
//!                       ├─► capacity   usable space                                        by arithmetic, and by the engine
//!                       ├─► resilver   the rate at which a new drive is filled                              by simulation
//!                       ├─► risk       probability of loss in a year                                        by a formula
//!                       ├─► prices     price, watts, slots and noise                                  by the user's list
//!                       └─► advice     sentences with reasons, and figures of simulations with one change
//! ```
//!
//! The same description and seed give the same plan.

pub mod advice;
pub mod capacity;
pub mod check;
pub mod description;
pub mod load;
pub mod prices;
pub mod resilver;
pub mod risk;
pub mod sweep;
pub mod text;
pub mod what_if;

use crate::simulate::SimulationError;
use capacity::Capacity;
use description::Description;
use load::Prediction;
use prices::Bill;
use resilver::Resilver;
use risk::Risk;
use serde::Serialize;
use thiserror::Error;

/// A description with all keys and their meaning.
pub const EXAMPLE: &str = include_str!("example.toml");

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The description is not of the right form.
    #[error("{0}")]
    Toml(String),
    /// A value is outside its range.
    #[error("{key}: {why}")]
    Value {
        /// `section.key`.
        key: String,
        /// The range or the alternatives.
        why: String,
    },
    /// The series is not of the right form.
    #[error("{0}")]
    Sweep(String),
    /// The simulation.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

/// How to make a plan.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything that is random follows from this.
    pub seed: u64,
    /// Virtual seconds of a measurement at most.
    pub seconds: f64,
    /// Only the load and the space: no resilver, no copies, no changes.
    pub quick: bool,
}

/// Hours for all data over the link, by simulations of one client that reads or writes 1 MiB after 1 MiB, eight at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Copies {
    /// Bytes in use.
    pub bytes: u64,
    /// Rate of reading in MB/s, and the hours of a full backup.
    pub read: [f64; 2],
    /// Rate of writing in MB/s, and the hours of a full copy to this server.
    pub write: [f64; 2],
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Name.
    pub name: String,
    /// Pool in words: `2 × raidz2 of 6 × 10 TB`.
    pub pool: String,
    /// Bytes of the ARC.
    pub arc_bytes: u64,
    /// Usable space.
    pub capacity: Capacity,
    /// The load.
    pub prediction: Prediction,
    /// The resilver of one drive.
    pub resilver: Option<Resilver>,
    /// Copies over the link.
    pub copies: Option<Copies>,
    /// Risk; only with a resilver, or without redundancy.
    pub risk: Option<Risk>,
    /// Sums of the user's prices.
    pub bill: Option<Bill>,
    /// Advice.
    pub advice: Vec<String>,
}

/// A count with thousands separated.
pub(crate) fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes of a description's pool that are in use: of an empty pool all, so that hours are those of a full one.
fn used_bytes(description: &Description, capacity: &Capacity) -> u64 {
    let percent = if description.pool.fill_percent > 0.0 { description.pool.fill_percent } else { 100.0 };
    (capacity.usable_bytes as f64 * percent / 100.0) as u64
}

fn copies(description: &Description, bytes: u64, options: &Options) -> Result<Copies, PlanError> {
    let rate = |read_percent: u64| {
        let mut copy = description.clone();
        copy.workload = description::WorkloadSection {
            operation_kib: 1024.0,
            read_percent,
            // More than the ARC, which holds little of what is read once.
            file_mib: ((description.arc_bytes() * 4) >> 20) as f64,
            ..Default::default()
        };
        copy.workload.file_mib = copy.workload.file_mib.min(bytes as f64 / 1048576.0 * 0.8).max(1.0);
        let mb_s = load::predict(&copy, options.seed, options.seconds)?.outcome.mb_s();
        Ok::<_, PlanError>([mb_s, bytes as f64 / (mb_s * 1e6) / 3600.0])
    };
    Ok(Copies { bytes, read: rate(100)?, write: rate(0)? })
}

/// Steps of a plan in their order, each with the share of the time that it takes of a usual plan, in percent.
pub const STEPS: [(&str, u32); 5] = [(SPACE, 1), (LOAD, 30), (COPIES, 32), (RESILVER, 15), (ADVICE, 22)];
const SPACE: &str = "usable space";
const LOAD: &str = "load";
const COPIES: &str = "copies";
const RESILVER: &str = "resilver";
const ADVICE: &str = "advice";

/// Makes the plan of a description; `show` is called with the name of each step.
///
/// # Errors
/// [`PlanError`].
pub fn plan(description: &Description, options: &Options, show: &mut dyn FnMut(&str)) -> Result<Plan, PlanError> {
    let pool = description.pool_spec()?;
    show(SPACE);
    let capacity = capacity::created(&pool)?;
    show(LOAD);
    let prediction = load::predict(description, options.seed, options.seconds)?;
    let used = used_bytes(description, &capacity);
    let mut copied = None;
    let mut resilver = None;
    let (server, _, _) = load::specs(description, options.seconds)?;
    if !options.quick {
        show(COPIES);
        copied = Some(copies(description, used, options)?);
        show(RESILVER);
        resilver = resilver::simulated(&server, used, options.seed)?;
    }
    // Without a simulated resilver, a drive holds an equal part of the data of its vdev.
    let on_each = used / pool.vdevs.max(1) as u64 / pool.layout.data_disks() as u64;
    let (hours, drive_bytes) = resilver.map_or((0.0, on_each), |one| (one.hours, one.drive_bytes));
    let risk = risk::risk(pool.layout, pool.vdevs, drive_bytes, hours, description.failures);
    show(ADVICE);
    let compares = !options.quick;
    let settings = (options.seed, options.seconds, compares);
    let advice = advice::advice(description, &capacity, &prediction, &risk, settings)?;
    let iops = prediction.outcome.operations_per_second;
    let bill = description.prices.as_ref().map(|prices| prices.bill(&pool, capacity.usable_bytes, iops));
    Ok(Plan {
        name: description.name.clone().unwrap_or_default(),
        pool: text::pool_words(description, &pool),
        arc_bytes: description.arc_bytes(),
        capacity,
        prediction,
        risk: (resilver.is_some() || pool.layout.redundancy() == 0).then_some(risk),
        resilver,
        copies: copied,
        bill,
        advice,
    })
}
