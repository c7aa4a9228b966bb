//! What one dataset shares, read from its properties.

use std::collections::BTreeMap;
use std::str::FromStr;
use weir_dsl::props::{DatasetKind, Facts, Source, Value, ZfsProp, resolve_one, text_of};
use weir_dsl::{Dsl, PoolFacts};
use weir_front::shares::{ShareError, ShareIscsi, ShareNbd, ShareNfs, ShareSmb};
use weir_machine::{Protocol, Request};
use weir_pool::PoolError;
use weir_pool::datasets::DatasetInfo;

/// Where and whether a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountRule {
    /// Never: a volume, `canmount=off`, `mountpoint=none`, `zoned=on`; the text is the reason.
    Never(String),
    /// At a place of the administrator's choice, who mounts it by hand (`mountpoint=legacy`).
    Legacy,
    /// At this path, by a command only (`canmount=noauto`).
    OnCommand(String),
    /// At this path, by `zfs mount -f` only: the file system is redacted.
    Redacted(String),
    /// At this path.
    At(String),
}

impl MountRule {
    /// Whether it is mounted and shared without a command that names it.
    pub fn is_automatic(&self) -> bool {
        matches!(self, MountRule::At(_))
    }

    /// Whether a command can mount and share it.
    pub fn is_possible(&self) -> bool {
        self.path().is_some()
    }

    /// The rule of a redacted file system.
    fn redacted(self) -> Self {
        match self {
            MountRule::At(path) | MountRule::OnCommand(path) => MountRule::Redacted(path),
            other => other,
        }
    }

    /// The rule once the redacted file system may be opened.
    #[must_use]
    pub fn allowed(self) -> Self {
        match self {
            MountRule::Redacted(path) => MountRule::OnCommand(path),
            other => other,
        }
    }

    /// The path at which it is mounted if it is mounted, by whatever command.
    pub fn place(&self) -> Option<&str> {
        match self {
            MountRule::Redacted(path) => Some(path),
            other => other.path(),
        }
    }

    /// The path at which a command may mount it.
    pub fn path(&self) -> Option<&str> {
        match self {
            MountRule::At(path) | MountRule::OnCommand(path) => Some(path),
            MountRule::Never(_) | MountRule::Legacy | MountRule::Redacted(_) => None,
        }
    }
}

/// Operations that the mount of a file system allows, by its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountAllows {
    /// `devices`: device nodes work.
    pub devices: bool,
    /// `setuid`: set-user-id and set-group-id bits take effect.
    pub setuid: bool,
    /// `exec`: programs can be executed.
    pub exec: bool,
    /// `overlay`: it is mounted over a directory that is not empty.
    pub overlay: bool,
}

/// Shares of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetShares {
    /// Name of the dataset.
    pub dataset: String,
    /// Persistent ID of the dataset.
    pub id: u64,
    /// When it was created, in seconds since 1970.
    pub created_s: u64,
    /// File system or volume.
    pub kind: DatasetKind,
    /// Where a file system is mounted.
    pub mount: MountRule,
    /// Whether `mountpoint` is inherited, so that the file system is below its parent's mount point.
    pub is_below_parent: bool,
    /// Whether `mountpoint` is set on this dataset, so that it does not follow the dataset's name.
    pub is_mountpoint_set: bool,
    /// `readonly`.
    pub is_readonly: bool,
    /// Operations that a mount allows.
    pub allows: MountAllows,
    /// `sharenfs`.
    pub nfs: ShareNfs,
    /// `sharesmb`.
    pub smb: ShareSmb,
    /// `weir:iscsi`.
    pub iscsi: ShareIscsi,
    /// `weir:nbd`.
    pub nbd: ShareNbd,
    /// Whether a volume is a device (`volmode` is not `none`).
    pub is_device: bool,
    /// Whether the snapshots of a volume are devices (`snapdev=visible`).
    pub shows_snapshots: bool,
    /// Names after the `@` and IDs of the snapshots.
    pub snapshots: Vec<(String, u64)>,
    /// Values that share nothing over a protocol, with the property and the reason.
    pub problems: Vec<(Protocol, String)>,
}

impl DatasetShares {
    /// A file system that shares nothing and is mounted at a path; for tests.
    pub fn mounted_at(dataset: &str, id: u64, path: &str, is_below_parent: bool) -> Self {
        DatasetShares {
            dataset: dataset.to_owned(),
            id,
            created_s: 0,
            kind: DatasetKind::Filesystem,
            mount: MountRule::At(path.to_owned()),
            is_below_parent,
            is_mountpoint_set: false,
            is_readonly: false,
            allows: MountAllows { devices: true, setuid: true, exec: true, overlay: true },
            nfs: ShareNfs::default(),
            smb: ShareSmb::off(),
            iscsi: ShareIscsi::off(),
            nbd: ShareNbd::off(),
            is_device: false,
            shows_snapshots: false,
            snapshots: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Host names in the properties.
    pub(super) fn host_names(&self) -> impl Iterator<Item = &str> {
        let of_files = self.nfs.names().chain(self.smb.hosts.names());
        of_files.chain(self.nbd.hosts.names()).chain(self.iscsi.hosts.names())
    }
}

/// `canmount`, as it is stored.
const CANMOUNT_OFF: u64 = 0;
const CANMOUNT_NOAUTO: u64 = 2;
/// `volmode=none`, as it is stored.
const VOLMODE_NONE: u64 = 3;

/// The effective properties of one dataset.
struct Effective<'a>(Facts<'a>);

impl Effective<'_> {
    fn number(&self, prop: ZfsProp) -> u64 {
        match resolve_one(&self.0, prop.name()).map(|found| found.value) {
            Some(Value::Number(number)) => number,
            _ => 0,
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        resolve_one(&self.0, name).map(|found| text_of(name, &found.value, true))
    }

    /// Whether a property is set here, not inherited.
    fn is_set_here(&self, name: &str) -> bool {
        resolve_one(&self.0, name).is_some_and(|found| matches!(found.source, Source::Local | Source::Received))
    }

    /// The value of a property of sharing; `None` if it is not set, or if it cannot be parsed, which is a problem.
    fn share<T: FromStr<Err = ShareError>>(
        &self,
        name: &str,
        protocol: Protocol,
        problems: &mut Vec<(Protocol, String)>,
    ) -> Option<T> {
        let text = self.text(name)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(why) => {
                problems.push((protocol, format!("{name}: {why}")));
                None
            }
        }
    }

    fn mount(&self) -> MountRule {
        if self.number(ZfsProp::Zoned) != 0 {
            return MountRule::Never("zoned=on".into());
        }
        if self.number(ZfsProp::CanMount) == CANMOUNT_OFF {
            return MountRule::Never("canmount=off".into());
        }
        match self.text(ZfsProp::MountPoint.name()) {
            Some(path) if path == "legacy" => MountRule::Legacy,
            Some(path) if path.starts_with('/') && self.number(ZfsProp::CanMount) == CANMOUNT_NOAUTO => {
                MountRule::OnCommand(path)
            }
            Some(path) if path.starts_with('/') => MountRule::At(path),
            _ => MountRule::Never("mountpoint=none".into()),
        }
    }
}

/// Start of the names of user properties that mean something to Weir.
const OWN_PREFIX: &str = "weir:";
/// Properties that share nothing: reservations of iSCSI, and what `weir csi` keeps.
const OTHERS: [&str; 3] = ["weir:iscsi-reservations", "weir:csi", "weir:csi-nodes"];

/// Properties of sharing that do not exist, by the names that are stored at a dataset. Weir refuses to set them; OpenZFS does not.
/// Each is a problem of the protocol whose name is more like it.
fn misspelt<'a>(stored: impl Iterator<Item = &'a String>) -> Vec<(Protocol, String)> {
    let names = stored.map(|stored| stored.split('$').next().unwrap_or_default());
    let is_known = |name: &str| weir_front::shares::PROPERTIES.contains(&name) || OTHERS.contains(&name);
    let unknown = names.filter(|name| name.starts_with(OWN_PREFIX) && !is_known(name));
    let alike = |name: &str, letters: &str| name[OWN_PREFIX.len()..].chars().filter(|c| letters.contains(*c)).count();
    let of = |name: &str| {
        let protocol = if alike(name, "isc") > alike(name, "nbd") { Protocol::Iscsi } else { Protocol::Nbd };
        (protocol, format!("{name}: there is no such property, only weir:iscsi and weir:nbd"))
    };
    unknown.map(of).collect()
}

/// Reads what a file system or volume shares.
pub(super) async fn read(
    rq: &Request,
    dsl: &Dsl,
    pool: &PoolFacts,
    info: &DatasetInfo,
) -> Result<DatasetShares, PoolError> {
    let missing = || PoolError::from(weir_dsl::sync_tasks::DslError::Missing { name: info.name.clone() });
    let dir = dsl.dir_named(&info.name).ok_or_else(missing)?;
    let chain = dsl.stored_chain(rq, dir).await?;
    let computed = BTreeMap::new();
    let found = Effective(Facts {
        kind: info.kind,
        of_volume: false,
        name: &info.name,
        snapshot: None,
        chain: &chain,
        computed: &computed,
        altroot: &pool.altroot,
    });
    let mut problems = misspelt(chain.first().into_iter().flat_map(|(_, own)| own.keys()));
    let is_file_system = info.kind == DatasetKind::Filesystem;
    let mount = match (is_file_system, info.is_redacted) {
        (true, true) => found.mount().redacted(),
        (true, false) => found.mount(),
        (false, _) => MountRule::Never("a volume".into()),
    };
    let nfs = if is_file_system { found.share(ZfsProp::ShareNfs.name(), Protocol::Nfs3, &mut problems) } else { None };
    let smb = if is_file_system { found.share(ZfsProp::ShareSmb.name(), Protocol::Smb, &mut problems) } else { None };
    let iscsi = if is_file_system { None } else { found.share("weir:iscsi", Protocol::Iscsi, &mut problems) };
    let nbd = if is_file_system { None } else { found.share("weir:nbd", Protocol::Nbd, &mut problems) };
    // A name, or a place in a target, is that of one dataset: those that inherit the property have the default names.
    let keep = |property: &str| found.is_set_here(property);
    let smb =
        smb.map(|smb: ShareSmb| if keep(ZfsProp::ShareSmb.name()) { smb } else { ShareSmb { name: None, ..smb } });
    let nbd = nbd.map(|nbd: ShareNbd| if keep("weir:nbd") { nbd } else { ShareNbd { name: None, ..nbd } });
    let iscsi = iscsi.map(
        |iscsi: ShareIscsi| {
            if keep("weir:iscsi") { iscsi } else { ShareIscsi { target: None, lun: 0, ..iscsi } }
        },
    );
    Ok(DatasetShares {
        dataset: info.name.clone(),
        id: info.fsid,
        created_s: dir.phys.creation_time_s,
        kind: info.kind,
        mount,
        is_below_parent: is_file_system && !found.is_set_here(ZfsProp::MountPoint.name()) && info.name.contains('/'),
        is_mountpoint_set: found.is_set_here(ZfsProp::MountPoint.name()),
        is_readonly: found.number(ZfsProp::ReadOnly) != 0,
        allows: MountAllows {
            devices: found.number(ZfsProp::Devices) != 0,
            setuid: found.number(ZfsProp::Setuid) != 0,
            exec: found.number(ZfsProp::Exec) != 0,
            overlay: found.number(ZfsProp::Overlay) != 0,
        },
        nfs: nfs.unwrap_or_default(),
        smb: smb.unwrap_or_else(ShareSmb::off),
        iscsi: iscsi.unwrap_or_else(ShareIscsi::off),
        nbd: nbd.unwrap_or_else(ShareNbd::off),
        is_device: !is_file_system && found.number(ZfsProp::VolMode) != VOLMODE_NONE,
        shows_snapshots: found.number(ZfsProp::SnapDev) != 0,
        snapshots: Vec::new(),
        problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_properties_are_problems_of_the_protocol_that_was_meant() {
        let known = ["weir:iscsi", "weir:nbd$recvd", "weir:iscsi-reservations", "weir:csi", "weir:csi-nodes"];
        let stored = ["weir:iscis", "weir:ndb", "user:x", "atime"];
        let stored: Vec<String> = stored.into_iter().chain(known).map(str::to_owned).collect();
        let why = |name: &str| format!("{name}: there is no such property, only weir:iscsi and weir:nbd");
        assert_eq!(misspelt(stored.iter()), [(Protocol::Iscsi, why("weir:iscis")), (Protocol::Nbd, why("weir:ndb"))]);
    }
}
