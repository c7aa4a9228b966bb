//! What a change of datasets means for the mounts of the process that has the pool open.

use crate::change::Change;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;

/// Value of `canmount=off`, and of `zoned=off`, as they are stored.
const OFF: u64 = 0;

/// Why mounts end or move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountChange {
    /// The file system is new.
    New,
    /// The file system and those below it get other names.
    Renamed {
        /// The new full name.
        new_name: String,
    },
    /// The file system and those that inherit its `mountpoint` move there; `None` if the path is not known before.
    Moved {
        /// The new value of the property.
        to: Option<String>,
    },
    /// The file system may not be mounted any more.
    Forbidden,
    /// The pool is closed.
    Closed,
    /// These file systems are destroyed, some of which may be outside of the one that the command names (clones).
    Destroyed {
        /// Full names.
        names: Vec<String>,
    },
}

/// A change that mounts follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEffect {
    /// Full name of the file system that is changed.
    pub name: String,
    /// Whether those below it are changed in the same way.
    pub recursive: bool,
    /// The change.
    pub change: MountChange,
    /// Whether file systems that are in use are unmounted all the same.
    pub force: bool,
}

impl MountEffect {
    /// Name of the file system after the change.
    pub fn name_after(&self) -> &str {
        match &self.change {
            MountChange::Renamed { new_name } => new_name,
            _ => &self.name,
        }
    }
}

impl Change {
    /// The effect of the change on mounts; `None` if it concerns none, if the process decides that afterwards (`readonly`,
    /// `canmount=on`), or if a plan decides it ([`crate::Destruction::plan`]).
    pub fn mount_effect(&self) -> Option<MountEffect> {
        let of = |name: &str, recursive, change| {
            Some(MountEffect { name: name.to_owned(), recursive, change, force: false })
        };
        match self {
            Change::Create(new) => of(&new.name, false, MountChange::New),
            Change::Clone { name, .. } => of(name, false, MountChange::New),
            Change::Rename { name, new_name, force, .. } => Some(MountEffect {
                name: name.clone(),
                recursive: true,
                change: MountChange::Renamed { new_name: new_name.clone() },
                force: *force,
            }),
            Change::Set { name, settings, recursive } => of(name, *recursive, of_settings(settings)?),
            _ => None,
        }
    }

    /// The dataset at and below which file systems are shared again although `zfs unshare` ended it: their sharing is set anew.
    pub fn shares_again(&self) -> Option<&str> {
        match self {
            Change::Set { name, settings, .. } => {
                let is_sharing = |(property, _): &(String, Setting)| property == "sharenfs" || property == "sharesmb";
                settings.iter().any(is_sharing).then_some(name)
            }
            _ => None,
        }
    }
}

/// The effect of settings of properties; the mount point first, because it concerns those below as well.
fn of_settings(settings: &[(String, Setting)]) -> Option<MountChange> {
    let of = |wanted: &str| settings.iter().find(|(property, _)| property == wanted).map(|(_, setting)| setting);
    if let Some(setting) = of("mountpoint") {
        let to = match setting {
            Setting::Set(Value::Text(path)) => Some(path.clone()),
            _ => None,
        };
        return Some(MountChange::Moved { to });
    }
    let is_off = matches!(of("canmount"), Some(Setting::Set(Value::Number(OFF))));
    let is_zoned = matches!(of("zoned"), Some(Setting::Set(Value::Number(zoned))) if *zoned != OFF);
    (is_off || is_zoned).then_some(MountChange::Forbidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_names_and_of_properties_move_mounts() {
        let set = |property: &str, setting| Change::Set {
            name: "p/a".into(),
            settings: vec![("atime".into(), Setting::Inherit), (property.into(), setting)],
            recursive: false,
        };
        let effect = |change: Change| change.mount_effect().map(|effect| effect.change);
        let number = |n| Setting::Set(Value::Number(n));
        let moved = |to: Option<&str>| Some(MountChange::Moved { to: to.map(str::to_owned) });
        assert_eq!(effect(set("mountpoint", Setting::Set(Value::Text("/x".into())))), moved(Some("/x")));
        assert_eq!(effect(set("mountpoint", Setting::Inherit)), moved(None));
        assert_eq!(effect(set("canmount", number(OFF))), Some(MountChange::Forbidden));
        assert_eq!((effect(set("canmount", number(1))), effect(set("zoned", number(0)))), (None, None));
        assert_eq!(effect(set("zoned", number(1))), Some(MountChange::Forbidden));
        let rename = Change::Rename { name: "p/a".into(), new_name: "p/b".into(), force: true, parents: false };
        let renamed = rename.mount_effect().unwrap();
        assert_eq!((renamed.name.as_str(), renamed.name_after()), ("p/a", "p/b"));
        assert!(renamed.recursive && renamed.force);
        assert_eq!(effect(Change::Promote { name: "p/a".into() }), None);
        let shared = set("sharenfs", Setting::Inherit);
        assert_eq!([shared.shares_again(), set("mountpoint", Setting::Inherit).shares_again()], [Some("p/a"), None]);
    }
}
