//! Names of the native properties.
//!
//! Source: OpenZFS `module/zcommon/zfs_prop.c` (`zfs_prop_t`, with its short column names).

macro_rules! properties {
    ($($variant:ident = $name:literal,)*) => {
        /// A native property (`zfs_prop_t`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ZfsProp {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )*
        }

        impl ZfsProp {
            /// All native properties, in the order in which `zfs get all` shows them.
            pub const ALL: &[ZfsProp] = &[$(ZfsProp::$variant),*];

            /// The name, which is also that of the entry in a property ZAP.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ZfsProp::$variant => $name,)*
                }
            }

            /// The native property of exactly that name.
            pub fn of_name(name: &str) -> Option<ZfsProp> {
                match name {
                    $($name => Some(ZfsProp::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

properties! {
    Type = "type",
    Creation = "creation",
    Used = "used",
    Available = "available",
    Referenced = "referenced",
    CompressRatio = "compressratio",
    Mounted = "mounted",
    Origin = "origin",
    Quota = "quota",
    Reservation = "reservation",
    VolSize = "volsize",
    VolBlockSize = "volblocksize",
    RecordSize = "recordsize",
    MountPoint = "mountpoint",
    ShareNfs = "sharenfs",
    Checksum = "checksum",
    Compression = "compression",
    Atime = "atime",
    Devices = "devices",
    Exec = "exec",
    Setuid = "setuid",
    ReadOnly = "readonly",
    Zoned = "zoned",
    SnapDir = "snapdir",
    AclMode = "aclmode",
    AclInherit = "aclinherit",
    CreateTxg = "createtxg",
    CanMount = "canmount",
    Xattr = "xattr",
    Copies = "copies",
    Version = "version",
    Utf8Only = "utf8only",
    Normalization = "normalization",
    CaseSensitivity = "casesensitivity",
    VScan = "vscan",
    NbMand = "nbmand",
    ShareSmb = "sharesmb",
    RefQuota = "refquota",
    RefReservation = "refreservation",
    Guid = "guid",
    PrimaryCache = "primarycache",
    SecondaryCache = "secondarycache",
    UsedBySnapshots = "usedbysnapshots",
    UsedByDataset = "usedbydataset",
    UsedByChildren = "usedbychildren",
    UsedByRefReservation = "usedbyrefreservation",
    LogBias = "logbias",
    DeferDestroy = "defer_destroy",
    UserRefs = "userrefs",
    ObjsetId = "objsetid",
    Dedup = "dedup",
    MlsLabel = "mlslabel",
    Sync = "sync",
    DnodeSize = "dnodesize",
    RefCompressRatio = "refcompressratio",
    Written = "written",
    Clones = "clones",
    LogicalUsed = "logicalused",
    LogicalReferenced = "logicalreferenced",
    VolMode = "volmode",
    FilesystemLimit = "filesystem_limit",
    SnapshotLimit = "snapshot_limit",
    FilesystemCount = "filesystem_count",
    SnapshotCount = "snapshot_count",
    SnapDev = "snapdev",
    AclType = "acltype",
    Context = "context",
    FsContext = "fscontext",
    DefContext = "defcontext",
    RootContext = "rootcontext",
    RelAtime = "relatime",
    RedundantMetadata = "redundant_metadata",
    Overlay = "overlay",
    ReceiveResumeToken = "receive_resume_token",
    Encryption = "encryption",
    KeyLocation = "keylocation",
    KeyFormat = "keyformat",
    Pbkdf2Iters = "pbkdf2iters",
    EncryptionRoot = "encryptionroot",
    KeyStatus = "keystatus",
    SpecialSmallBlocks = "special_small_blocks",
    SnapshotsChanged = "snapshots_changed",
    Prefetch = "prefetch",
    VolThreading = "volthreading",
    Direct = "direct",
    LongName = "longname",
    DefaultUserQuota = "defaultuserquota",
    DefaultGroupQuota = "defaultgroupquota",
    DefaultProjectQuota = "defaultprojectquota",
    DefaultUserObjQuota = "defaultuserobjquota",
    DefaultGroupObjQuota = "defaultgroupobjquota",
    DefaultProjectObjQuota = "defaultprojectobjquota",
    RedactSnaps = "redact_snaps",
}

impl ZfsProp {
    /// The native property of that name; the short names (`compress`, `refer`, …) included.
    pub fn named(name: &str) -> Option<ZfsProp> {
        Some(match name {
            "avail" => ZfsProp::Available,
            "refer" => ZfsProp::Referenced,
            "ratio" => ZfsProp::CompressRatio,
            "refratio" => ZfsProp::RefCompressRatio,
            "compress" => ZfsProp::Compression,
            "recsize" => ZfsProp::RecordSize,
            "reserv" => ZfsProp::Reservation,
            "refreserv" => ZfsProp::RefReservation,
            "volblock" => ZfsProp::VolBlockSize,
            "rdonly" => ZfsProp::ReadOnly,
            "usedsnap" => ZfsProp::UsedBySnapshots,
            "usedds" => ZfsProp::UsedByDataset,
            "usedchild" => ZfsProp::UsedByChildren,
            "usedrefreserv" => ZfsProp::UsedByRefReservation,
            "lused" => ZfsProp::LogicalUsed,
            "lrefer" => ZfsProp::LogicalReferenced,
            "case" => ZfsProp::CaseSensitivity,
            "dnsize" => ZfsProp::DnodeSize,
            "redund_md" => ZfsProp::RedundantMetadata,
            "encroot" => ZfsProp::EncryptionRoot,
            "resumetok" => ZfsProp::ReceiveResumeToken,
            "rsnaps" => ZfsProp::RedactSnaps,
            "volthread" => ZfsProp::VolThreading,
            "fscount" => ZfsProp::FilesystemCount,
            "sscount" => ZfsProp::SnapshotCount,
            "fslimit" => ZfsProp::FilesystemLimit,
            "sslimit" => ZfsProp::SnapshotLimit,
            full => return ZfsProp::of_name(full),
        })
    }
}

impl ZfsProp {
    /// Whether the property limits or reserves space.
    pub const fn is_space_limit(self) -> bool {
        matches!(self, ZfsProp::Quota | ZfsProp::Reservation | ZfsProp::RefQuota | ZfsProp::RefReservation)
    }
}

impl std::fmt::Display for ZfsProp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
