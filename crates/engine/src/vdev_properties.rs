//! Changes of properties of vdevs (`zpool set … VDEV`), which are in the ZAPs of the vdevs.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_prop_set`, `vdev_props_set_sync`).

use super::VdevProperties;
use super::syncing::TxgSync;
use weir_dmu::zap::{self, Key, Value};
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;
use weir_pool::vdev_properties::{SWITCHES, THRESHOLDS, zap_of};

/// Maximum length of a text in bytes (`ZAP_MAXVALUELEN` less the NUL).
const MAX_VALUE_LEN: usize = 8191;

/// New value of a property of a vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VdevSetting {
    /// A threshold of errors, or the seconds in which they count; 1 or 0 for a property that is on or off.
    Number(u64),
    /// A comment, or the value of a user property.
    Text(String),
    /// No value.
    Remove,
}

impl VdevProperties<'_> {
    /// Sets the property `name` of a vdev.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such property or vdev, if the value is not one of the property, or if the vdev has no
    /// ZAP.
    pub async fn set(&self, vdev: u64, name: String, setting: VdevSetting) -> Result<(), PoolError> {
        let refused = |what: String| PoolError::Refused { what };
        let is_text = name == "comment" || name.contains(':');
        let is_threshold = THRESHOLDS.contains(&name.as_str());
        let is_switch = SWITCHES.contains(&name.as_str());
        let fits = match &setting {
            VdevSetting::Number(number) => is_threshold || is_switch && *number <= 1,
            VdevSetting::Text(text) => is_text && text.len() <= MAX_VALUE_LEN,
            VdevSetting::Remove => is_text || is_threshold,
        };
        if !fits {
            return Err(refused(format!("property '{name}' cannot have this value")));
        }
        if let ("allocating", VdevSetting::Number(number)) = (name.as_str(), &setting) {
            return self.set_allocating(vdev, *number == 1).await;
        }
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let zap = zap_of(&syncing.core.config.root, vdev)?;
                    invariant!(zap.0 != 0, "the ZAP of a vdev is an object");
                    let (rq, mos, tx) = (syncing.change.rq, &syncing.change.mos, syncing.change.tx);
                    match setting {
                        VdevSetting::Number(value) => zap::put_word(rq, mos, tx, zap, &name, value).await?,
                        VdevSetting::Text(text) => {
                            let words = text.bytes().chain([0]).map(u64::from).collect();
                            zap::put(rq, mos, tx, zap, &Key::from(name.as_str()), &Value { int_size: 1, words })
                                .await?;
                        }
                        VdevSetting::Remove => {
                            zap::remove(rq, mos, tx, zap, &Key::from(name.as_str())).await?;
                        }
                    }
                    syncing.apply_thresholds().await
                })
            })
            .await
    }

    /// The value that a vdev itself has for a threshold.
    ///
    /// # Errors
    /// As [`VdevProperties::set`].
    pub async fn threshold(&self, vdev: u64, name: &str) -> Result<Option<u64>, PoolError> {
        let rq = &Request::internal("get");
        let synced = self.engine.synced().state(rq).await?;
        let zap = zap_of(&self.engine.shown().config.root, vdev)?;
        Ok(zap::lookup_word(rq, &synced.mos, zap, name).await?.filter(|value| *value != u64::MAX))
    }
}
