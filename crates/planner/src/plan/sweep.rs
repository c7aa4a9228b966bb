//! A series of plans in which one value changes, and the knee of its curve.

use super::PlanError;
use super::description::Description;
use super::load::predict;
use crate::simulate::outcome::Limit;
use serde::Serialize;

/// Share of the proportional gain below which more does not pay.
const PAYS: f64 = 0.5;
/// Values of a series at most.
const MAX_VALUES: usize = 64;

/// One key and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// `section.key`.
    pub key: String,
    /// Values as in the description.
    pub values: Vec<toml::Value>,
}

/// The result for one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The value.
    pub value: String,
    /// Payload in MB/s.
    pub mb_s: f64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Median and 99th percentile of the latency in microseconds.
    pub latency_us: [f64; 2],
    /// The limit.
    pub limit: Limit,
}

/// A series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The key.
    pub key: String,
    /// The results.
    pub points: Vec<Point>,
    /// Index of the knee: the last value up to which each step gave at least half of the gain that is proportional to it.
    /// `None`: values are not numbers that grow, or every step pays.
    pub knee: Option<usize>,
}

fn value_of(text: &str) -> toml::Value {
    let text = text.trim();
    if let Ok(number) = text.parse::<i64>() {
        return toml::Value::Integer(number);
    }
    match text {
        "true" => toml::Value::Boolean(true),
        "false" => toml::Value::Boolean(false),
        _ => text.parse::<f64>().map_or_else(|_| toml::Value::String(text.to_owned()), toml::Value::Float),
    }
}

/// A value as it is written on the command line.
fn words(value: &toml::Value) -> String {
    match value {
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(value) => value.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

impl Sweep {
    /// Reads `section.key=value,value…`.
    ///
    /// # Errors
    /// [`PlanError::Sweep`].
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let wrong = || PlanError::Sweep(format!("'{text}' is not of the form pool.vdevs=1,2,4"));
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let values: Vec<toml::Value> =
            values.split(',').filter(|value| !value.trim().is_empty()).map(value_of).collect();
        if key.split('.').count() != 2 || values.len() < 2 || values.len() > MAX_VALUES {
            return Err(wrong());
        }
        Ok(Sweep { key: key.trim().to_owned(), values })
    }

    /// Number of values.
    pub fn values(&self) -> usize {
        self.values.len()
    }

    /// The description in `text` with each of the values.
    ///
    /// # Errors
    /// [`PlanError::Toml`], [`PlanError::Value`], or [`PlanError::Sweep`] if the key is no key of a section.
    pub fn descriptions(&self, text: &str) -> Result<Vec<Description>, PlanError> {
        Description::parse(text)?;
        let table: toml::Table = toml::from_str(text).map_err(|error| PlanError::Toml(error.to_string()))?;
        let (section, key) = self.key.split_once('.').unwrap_or_default();
        let with = |value: &toml::Value| {
            let mut table = table.clone();
            let entry = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            let inner = entry.as_table_mut().ok_or_else(|| PlanError::Sweep(format!("'{section}' is no section")))?;
            inner.insert(key.to_owned(), value.clone());
            Description::of_table(table)
        };
        self.values.iter().map(with).collect()
    }

    /// Simulates the load for each value; `show` is called before each.
    ///
    /// # Errors
    /// As [`Sweep::descriptions`], and those of simulations.
    pub fn run(&self, text: &str, seed: u64, seconds: f64, show: &mut dyn FnMut(&str)) -> Result<Series, PlanError> {
        let descriptions = self.descriptions(text)?;
        let mut points = Vec::new();
        for (value, description) in self.values.iter().zip(&descriptions) {
            let value = words(value);
            show(&value);
            let outcome = predict(description, seed, seconds)?.outcome;
            points.push(Point {
                value,
                mb_s: outcome.mb_s(),
                operations_per_second: outcome.operations_per_second,
                latency_us: [outcome.latency_us[1], outcome.latency_us[3]],
                limit: outcome.limit,
            });
        }
        let numbers: Option<Vec<f64>> =
            self.values.iter().map(|value| value.as_float().or(value.as_integer().map(|n| n as f64))).collect();
        // Operations, because the bytes of one may be what changes.
        let by_size = self.key == "workload.operation_kib";
        let rates: Vec<f64> =
            points.iter().map(|point| if by_size { point.mb_s } else { point.operations_per_second }).collect();
        let knee = numbers.and_then(|numbers| knee(&numbers, &rates));
        Ok(Series { key: self.key.clone(), points, knee })
    }
}

/// Index of the last value before the first step that gives less than half of the gain that is proportional to it.
pub fn knee(values: &[f64], rates: &[f64]) -> Option<usize> {
    let grows = values.windows(2).all(|pair| pair[0] > 0.0 && pair[1] > pair[0]);
    let steps = values.windows(2).zip(rates.windows(2));
    let pays = |(value, rate): (&[f64], &[f64])| {
        let gain = rate[1] / rate[0].max(f64::MIN_POSITIVE) - 1.0;
        gain >= PAYS * (value[1] / value[0] - 1.0)
    };
    if grows { steps.into_iter().position(|step| !pays(step)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_the_last_value_that_paid() {
        assert_eq!(knee(&[1.0, 2.0, 4.0, 8.0], &[100.0, 198.0, 390.0, 420.0]), Some(2));
        assert_eq!(knee(&[1.0, 2.0, 4.0], &[100.0, 101.0, 400.0]), Some(0));
        assert_eq!(knee(&[1.0, 2.0, 4.0], &[100.0, 200.0, 400.0]), None);
        assert_eq!(knee(&[2.0, 1.0], &[1.0, 1.0]), None);
        // Half as many again has to give a quarter more.
        assert_eq!(knee(&[2.0, 3.0], &[100.0, 124.0]), Some(0));
        assert_eq!(knee(&[2.0, 3.0], &[100.0, 126.0]), None);
    }

    #[test]
    fn sweeps_change_one_value_and_refuse_keys_that_do_not_exist() {
        let text = "[pool]\ndrive = \"nvme\"\ndrive_tb = 1\nlayout = \"mirror\"\n";
        let sweep = |sweep: &str| Sweep::parse(sweep).and_then(|sweep| sweep.descriptions(text));
        let vdevs: Vec<usize> = sweep("pool.vdevs=1,2,4").unwrap().iter().map(|d| d.pool.vdevs).collect();
        assert_eq!(vdevs, [1, 2, 4]);
        let links: Vec<f64> = sweep("link.gbit=1, 2.5").unwrap().iter().map(|d| d.link.unwrap().gbit).collect();
        assert_eq!(links, [1.0, 2.5]);
        assert_eq!(sweep("pool.layout=single,mirror").unwrap().len(), 2);
        for (wrong, says) in [
            ("pool.vdevs", "is not of the form"),
            ("vdevs=1,2", "is not of the form"),
            ("pool.vdevs=1", "is not of the form"),
            ("pool.vdves=1,2", "unknown field `vdves`"),
            ("pool.vdevs=0,1", "pool.vdevs: 0 is not between"),
            ("name.x=1,2", "unknown field"),
        ] {
            let error = sweep(wrong).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(says) || wrong.starts_with("name"), "{wrong}: {error}");
        }
    }
}
