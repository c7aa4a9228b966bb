//! Price, power, slots and noise of a server, from a list that the user gives.

use super::PlanError;
use crate::simulate::server::PoolSpec;
use serde::{Deserialize, Serialize};

/// `[prices]`: what is not given counts as 0.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Currency, for the text.
    pub currency: String,
    /// Price of a drive.
    pub drive: f64,
    /// Price of the log device.
    pub log: f64,
    /// Price of the server without drives.
    pub server: f64,
    /// Power of a drive in watts.
    pub drive_watts: f64,
    /// Power of the log device in watts.
    pub log_watts: f64,
    /// Power of the server without drives in watts.
    pub server_watts: f64,
    /// Noise of a drive in dB(A).
    pub drive_db: Option<f64>,
    /// Noise of the server without drives in dB(A).
    pub server_db: Option<f64>,
}

/// Sums for a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bill {
    /// Currency.
    pub currency: String,
    /// Price.
    pub price: f64,
    /// Power in watts.
    pub watts: f64,
    /// Slots for drives and log device.
    pub slots: usize,
    /// Noise in dB(A): levels add as powers.
    pub noise_db: Option<f64>,
    /// Price, watts and slots for each TB (10¹² bytes) of usable space.
    pub per_tb: [f64; 3],
    /// Price, watts and slots for each 1000 operations per second of the load.
    pub per_1000_iops: [f64; 3],
}

impl Prices {
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let each = [
            ("prices.drive", self.drive),
            ("prices.log", self.log),
            ("prices.server", self.server),
            ("prices.drive_watts", self.drive_watts),
            ("prices.log_watts", self.log_watts),
            ("prices.server_watts", self.server_watts),
            ("prices.drive_db", self.drive_db.unwrap_or(0.0)),
            ("prices.server_db", self.server_db.unwrap_or(0.0)),
        ];
        for (key, value) in each {
            if !(0.0..=1e9).contains(&value) {
                let why = format!("{value} is not between 0 and 1000000000");
                return Err(PlanError::Value { key: key.to_owned(), why });
            }
        }
        Ok(())
    }

    /// The bill of a server with this pool.
    pub fn bill(&self, pool: &PoolSpec, usable_bytes: u64, iops: f64) -> Bill {
        let drives = pool.vdevs * pool.layout.disks();
        let logs = usize::from(pool.log.is_some());
        let price = self.server + self.drive * drives as f64 + self.log * logs as f64;
        let watts = self.server_watts + self.drive_watts * drives as f64 + self.log_watts * logs as f64;
        let slots = drives + logs;
        let power = |db: f64| 10f64.powf(db / 10.0);
        let noise = self.drive_db.map_or(0.0, |db| power(db) * drives as f64) + self.server_db.map_or(0.0, power);
        let all = [price, watts, slots as f64];
        let per = |unit: f64| all.map(|value| if unit > 0.0 { value / unit } else { 0.0 });
        Bill {
            currency: self.currency.clone(),
            price,
            watts,
            slots,
            noise_db: (noise > 0.0).then(|| 10.0 * noise.log10()),
            per_tb: per(usable_bytes as f64 / 1e12),
            per_1000_iops: per(iops / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::drive::DriveSpec;
    use crate::simulate::server::VdevLayout;

    #[test]
    fn a_bill_counts_drives_log_and_server() {
        let prices = Prices {
            drive: 200.0,
            log: 300.0,
            server: 1000.0,
            drive_watts: 8.0,
            drive_db: Some(30.0),
            ..Prices::default()
        };
        let mut pool = PoolSpec::new(DriveSpec::named("hdd-7k").unwrap(), VdevLayout::Raidz(2, 5), 2);
        pool.log = DriveSpec::named("log-device");
        let bill = prices.bill(&pool, 10_000_000_000_000, 500.0);
        assert_eq!((bill.price, bill.watts, bill.slots), (3300.0, 80.0, 11));
        assert_eq!((bill.per_tb, bill.per_1000_iops), ([330.0, 8.0, 1.1], [6600.0, 160.0, 22.0]));
        // Ten equal sources are 10 dB louder than one.
        assert!((bill.noise_db.unwrap() - 40.0).abs() < 1e-9, "{bill:?}");
    }
}
