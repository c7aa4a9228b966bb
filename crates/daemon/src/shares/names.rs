//! Names of shares, exports and logical units that datasets have: no other dataset gets them, whatever its properties say.

use std::collections::BTreeMap;
use weir_front::shares::{Iqn, IscsiTarget, NbdExport, ShareIscsi, ShareNbd, ShareSmb, SmbShare};

/// Datasets by the names that they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenNames {
    /// By name of the export.
    nbd: BTreeMap<String, String>,
    /// By name of the target and number of the logical unit.
    iscsi: BTreeMap<(Iqn, u16), String>,
    /// By name of the share, in lower case.
    smb: BTreeMap<String, String>,
}

impl TakenNames {
    /// Collects the names in these lists. The caller made the list of targets for the pool GUID 0, which is a part of their default names.
    pub(super) fn of(nbd: &[NbdExport], iscsi: &[IscsiTarget], smb: &[SmbShare]) -> Self {
        let units = |target: &IscsiTarget| {
            let iqn = target.iqn.clone();
            let units: Vec<_> =
                target.luns.iter().map(|unit| ((iqn.clone(), unit.lun), unit.dataset.clone())).collect();
            units
        };
        TakenNames {
            nbd: nbd.iter().map(|export| (export.name.clone(), export.dataset.clone())).collect(),
            iscsi: iscsi.iter().flat_map(units).collect(),
            smb: smb.iter().map(|share| (share.name.to_lowercase(), share.dataset.clone())).collect(),
        }
    }

    /// Whether the NBD export of this name is that of the dataset.
    pub(super) fn has_export(&self, name: &str, dataset: &str) -> bool {
        self.nbd.get(name).is_some_and(|owner| owner == dataset)
    }

    /// Whether the logical unit of a target is the dataset.
    pub(super) fn has_lun(&self, target: &Iqn, lun: u16, dataset: &str) -> bool {
        self.iscsi.get(&(target.clone(), lun)).is_some_and(|owner| owner == dataset)
    }

    /// Whether the SMB share of this name is that of the dataset.
    pub(super) fn has_share(&self, name: &str, dataset: &str) -> bool {
        self.smb.get(&name.to_lowercase()).is_some_and(|owner| owner == dataset)
    }

    /// Why a dataset cannot have what a value of a property asks for: another one has it. Values that cannot be parsed, and other
    /// properties, ask for nothing.
    pub(super) fn conflict_of(&self, dataset: &str, property: &str, value: &str) -> Option<String> {
        let of_other = |owner: Option<&String>| owner.filter(|owner| *owner != dataset).cloned();
        match property {
            "sharesmb" => {
                let share = value.parse::<ShareSmb>().ok().filter(|share| !share.is_off())?;
                let name = share.name_for(dataset);
                let owner = of_other(self.smb.get(&name.to_lowercase()))?;
                Some(format!("'{owner}' has the name '{name}' already; name= sets another"))
            }
            "weir:nbd" => {
                let share = value.parse::<ShareNbd>().ok().filter(|share| !share.is_off())?;
                let name = share.name.as_deref().unwrap_or(dataset);
                let owner = of_other(self.nbd.get(name))?;
                Some(format!("'{owner}' has the name '{name}' already"))
            }
            "weir:iscsi" => {
                let share = value.parse::<ShareIscsi>().ok().filter(|share| !share.is_off())?;
                let target = share.target?;
                let owner = of_other(self.iscsi.get(&(target.clone(), share.lun)))?;
                Some(format!("'{owner}' is LUN {} of {target} already; lun=N sets another", share.lun))
            }
            _ => None,
        }
    }
}
