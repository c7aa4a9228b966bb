//! The native properties, in the order in which `zfs get all` shows them.
//!
//! Names, defaults and numbers: OpenZFS `module/zcommon/zfs_prop.c`, `include/sys/fs/zfs.h`, `include/sys/zio.h`.

use super::DatasetKind::{self, Bookmark, Filesystem, Snapshot, Volume};
use super::ZfsProp as P;
use super::ZfsProp;

/// How a property's number becomes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One of a few names.
    Index(&'static [(&'static str, u64)]),
    /// A size in bytes.
    Size,
    /// A size in bytes whose 0 is shown as `none`.
    SizeOrNone,
    /// A plain number.
    Number,
    /// A plain number whose greatest value is shown as `none`.
    CountOrNone,
    /// Hundredths, shown as `1.00x`.
    Ratio,
    /// Seconds since 1970.
    Time,
    /// `yes` or `no`.
    YesNo,
    /// Text, stored as such.
    Text,
}

/// Value of a property that is not set anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// A number.
    Number(u64),
    /// A text.
    Text(&'static str),
    /// Not shown unless there is a value.
    Absent,
}

/// Whether a property can be set, and which datasets the value applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Set on a dataset, applies to its descendants as well.
    Inherit,
    /// Set on a dataset, applies to it alone.
    Own,
    /// Set at creation; has a default source.
    OneTime,
    /// Computed.
    ReadOnly,
}

/// One native property.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    /// Name.
    pub prop: ZfsProp,
    /// The datasets that have it.
    pub kinds: &'static [DatasetKind],
    /// Inheritance.
    pub rule: Rule,
    /// Text form.
    pub shape: Shape,
    /// Unset value.
    pub default: Default,
}

const FS: &[DatasetKind] = &[Filesystem];
const FV: &[DatasetKind] = &[Filesystem, Volume];
const FSN: &[DatasetKind] = &[Filesystem, Snapshot];
const FVS: &[DatasetKind] = &[Filesystem, Volume, Snapshot];
const ALL: &[DatasetKind] = &[Filesystem, Volume, Snapshot, Bookmark];
const SN: &[DatasetKind] = &[Snapshot];
const VS: &[DatasetKind] = &[Volume, Snapshot];
const V: &[DatasetKind] = &[Volume];

const BOOLEAN: &[(&str, u64)] = &[("off", 0), ("on", 1)];
const CACHE: &[(&str, u64)] = &[("none", 0), ("metadata", 1), ("all", 2)];
const CHECKSUM: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];
const VERIFY: u64 = 1 << 8;
const DEDUP: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("verify", 1 | VERIFY),
    ("sha256", 8),
    ("sha256,verify", 8 | VERIFY),
    ("sha512", 11),
    ("sha512,verify", 11 | VERIFY),
    ("skein", 12),
    ("skein,verify", 12 | VERIFY),
    ("edonr,verify", 13 | VERIFY),
    ("blake3", 14),
    ("blake3,verify", 14 | VERIFY),
];
/// A zstd level is stored above the seven bits of the compression function's number.
const fn zstd(level: u64) -> u64 {
    16 | level << 7
}
const COMPRESSION: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip", 10),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip-6", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", 16),
    ("zstd-fast", zstd(103)),
    ("zstd-1", zstd(1)),
    ("zstd-2", zstd(2)),
    ("zstd-3", zstd(3)),
    ("zstd-4", zstd(4)),
    ("zstd-5", zstd(5)),
    ("zstd-6", zstd(6)),
    ("zstd-7", zstd(7)),
    ("zstd-8", zstd(8)),
    ("zstd-9", zstd(9)),
    ("zstd-10", zstd(10)),
    ("zstd-11", zstd(11)),
    ("zstd-12", zstd(12)),
    ("zstd-13", zstd(13)),
    ("zstd-14", zstd(14)),
    ("zstd-15", zstd(15)),
    ("zstd-16", zstd(16)),
    ("zstd-17", zstd(17)),
    ("zstd-18", zstd(18)),
    ("zstd-19", zstd(19)),
    ("zstd-fast-1", zstd(103)),
    ("zstd-fast-2", zstd(104)),
    ("zstd-fast-3", zstd(105)),
    ("zstd-fast-4", zstd(106)),
    ("zstd-fast-5", zstd(107)),
    ("zstd-fast-6", zstd(108)),
    ("zstd-fast-7", zstd(109)),
    ("zstd-fast-8", zstd(110)),
    ("zstd-fast-9", zstd(111)),
    ("zstd-fast-10", zstd(112)),
    ("zstd-fast-20", zstd(113)),
    ("zstd-fast-30", zstd(114)),
    ("zstd-fast-40", zstd(115)),
    ("zstd-fast-50", zstd(116)),
    ("zstd-fast-60", zstd(117)),
    ("zstd-fast-70", zstd(118)),
    ("zstd-fast-80", zstd(119)),
    ("zstd-fast-90", zstd(120)),
    ("zstd-fast-100", zstd(121)),
    ("zstd-fast-500", zstd(122)),
    ("zstd-fast-1000", zstd(123)),
];
const ENCRYPTION: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
    // A dataset without a key stores no suite.
    ("off", 0),
];
const ACLMODE: &[(&str, u64)] = &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];
const ACLINHERIT: &[(&str, u64)] =
    &[("discard", 0), ("noallow", 1), ("restricted", 4), ("secure", 4), ("passthrough", 3), ("passthrough-x", 5)];
const NORMALIZATION: &[(&str, u64)] =
    &[("none", 0), ("formD", 0x10), ("formKC", 0x60), ("formC", 0x50), ("formKD", 0x20)];
const DNODESIZE: &[(&str, u64)] =
    &[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)];
const VOLMODE: &[(&str, u64)] = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];
const ACLTYPE: &[(&str, u64)] = &[("off", 0), ("noacl", 0), ("posix", 1), ("posixacl", 1), ("nfsv4", 2)];
const XATTR: &[(&str, u64)] = &[("off", 0), ("sa", 2), ("on", 2), ("dir", 1)];

const fn define(prop: ZfsProp, kinds: &'static [DatasetKind], rule: Rule, shape: Shape, default: Default) -> Native {
    Native { prop, kinds, rule, shape, default }
}

const fn inherited(
    prop: ZfsProp,
    kinds: &'static [DatasetKind],
    names: &'static [(&'static str, u64)],
    default: u64,
) -> Native {
    define(prop, kinds, Rule::Inherit, Shape::Index(names), Default::Number(default))
}

const fn computed(prop: ZfsProp, kinds: &'static [DatasetKind], shape: Shape) -> Native {
    define(prop, kinds, Rule::ReadOnly, shape, Default::Absent)
}

const fn text(prop: ZfsProp, kinds: &'static [DatasetKind], rule: Rule, default: &'static str) -> Native {
    define(prop, kinds, rule, Shape::Text, Default::Text(default))
}

const fn own(prop: ZfsProp, kinds: &'static [DatasetKind], shape: Shape, default: u64) -> Native {
    define(prop, kinds, Rule::Own, shape, Default::Number(default))
}

/// Every native property that Weir shows.
pub const NATIVES: &[Native] = &[
    computed(P::Type, ALL, Shape::Text),
    computed(P::Creation, ALL, Shape::Time),
    computed(P::Used, FVS, Shape::Size),
    computed(P::Available, FV, Shape::Size),
    computed(P::Referenced, ALL, Shape::Size),
    computed(P::CompressRatio, FVS, Shape::Ratio),
    computed(P::Mounted, FS, Shape::YesNo),
    computed(P::Origin, FV, Shape::Text),
    own(P::Quota, FS, Shape::SizeOrNone, 0),
    own(P::Reservation, FV, Shape::SizeOrNone, 0),
    computed(P::VolSize, VS, Shape::Size),
    define(P::VolBlockSize, V, Rule::ReadOnly, Shape::Size, Default::Number(16 << 10)),
    define(P::RecordSize, FS, Rule::Inherit, Shape::Size, Default::Number(131_072)),
    text(P::MountPoint, FS, Rule::Inherit, "/"),
    text(P::ShareNfs, FS, Rule::Inherit, "off"),
    inherited(P::Checksum, FV, CHECKSUM, 1),
    inherited(P::Compression, FV, COMPRESSION, 1),
    inherited(P::Atime, FS, BOOLEAN, 1),
    inherited(P::Devices, FSN, BOOLEAN, 1),
    inherited(P::Exec, FSN, BOOLEAN, 1),
    inherited(P::Setuid, FSN, BOOLEAN, 1),
    inherited(P::ReadOnly, FV, BOOLEAN, 0),
    inherited(P::Zoned, FS, BOOLEAN, 0),
    inherited(P::SnapDir, FS, &[("hidden", 0), ("visible", 1), ("disabled", 2)], 0),
    inherited(P::AclMode, FS, ACLMODE, 0),
    inherited(P::AclInherit, FS, ACLINHERIT, 4),
    computed(P::CreateTxg, ALL, Shape::Number),
    define(P::CanMount, FS, Rule::Own, Shape::Index(&[("off", 0), ("on", 1), ("noauto", 2)]), Default::Number(1)),
    inherited(P::Xattr, FSN, XATTR, 2),
    inherited(P::Copies, FV, &[("1", 1), ("2", 2), ("3", 3)], 1),
    computed(P::Version, FSN, Shape::Number),
    computed(P::Utf8Only, FSN, Shape::Index(BOOLEAN)),
    computed(P::Normalization, FSN, Shape::Index(NORMALIZATION)),
    computed(P::CaseSensitivity, FSN, Shape::Index(&[("sensitive", 0), ("insensitive", 1), ("mixed", 2)])),
    inherited(P::VScan, FS, BOOLEAN, 0),
    inherited(P::NbMand, FSN, BOOLEAN, 0),
    text(P::ShareSmb, FS, Rule::Inherit, "off"),
    own(P::RefQuota, FS, Shape::SizeOrNone, 0),
    own(P::RefReservation, FV, Shape::SizeOrNone, 0),
    computed(P::Guid, ALL, Shape::Number),
    inherited(P::PrimaryCache, FVS, CACHE, 2),
    inherited(P::SecondaryCache, FVS, CACHE, 2),
    computed(P::UsedBySnapshots, FV, Shape::Size),
    computed(P::UsedByDataset, FV, Shape::Size),
    computed(P::UsedByChildren, FV, Shape::Size),
    computed(P::UsedByRefReservation, FV, Shape::Size),
    inherited(P::LogBias, FV, &[("latency", 0), ("throughput", 1)], 0),
    computed(P::DeferDestroy, SN, Shape::Index(BOOLEAN)),
    computed(P::UserRefs, SN, Shape::Number),
    computed(P::ObjsetId, FVS, Shape::Number),
    inherited(P::Dedup, FV, DEDUP, 2),
    text(P::MlsLabel, FVS, Rule::Inherit, "none"),
    inherited(P::Sync, FV, &[("standard", 0), ("always", 1), ("disabled", 2)], 0),
    inherited(P::DnodeSize, FS, DNODESIZE, 0),
    computed(P::RefCompressRatio, FVS, Shape::Ratio),
    computed(P::Written, FVS, Shape::Size),
    computed(P::Clones, SN, Shape::Text),
    computed(P::LogicalUsed, FV, Shape::Size),
    computed(P::LogicalReferenced, ALL, Shape::Size),
    inherited(P::VolMode, FV, VOLMODE, 0),
    own(P::FilesystemLimit, FS, Shape::CountOrNone, u64::MAX),
    own(P::SnapshotLimit, FV, Shape::CountOrNone, u64::MAX),
    own(P::FilesystemCount, FS, Shape::CountOrNone, u64::MAX),
    own(P::SnapshotCount, FV, Shape::CountOrNone, u64::MAX),
    inherited(P::SnapDev, FV, &[("hidden", 0), ("visible", 1)], 0),
    inherited(P::AclType, FSN, ACLTYPE, 0),
    text(P::Context, FVS, Rule::Own, "none"),
    text(P::FsContext, FVS, Rule::Own, "none"),
    text(P::DefContext, FVS, Rule::Own, "none"),
    text(P::RootContext, FVS, Rule::Own, "none"),
    inherited(P::RelAtime, FS, BOOLEAN, 1),
    inherited(P::RedundantMetadata, FV, &[("all", 0), ("most", 1), ("some", 2), ("none", 3)], 0),
    inherited(P::Overlay, FS, BOOLEAN, 1),
    computed(P::ReceiveResumeToken, FV, Shape::Text),
    define(P::Encryption, FVS, Rule::OneTime, Shape::Index(ENCRYPTION), Default::Number(2)),
    text(P::KeyLocation, FV, Rule::Own, "none"),
    define(
        P::KeyFormat,
        FV,
        Rule::OneTime,
        Shape::Index(&[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)]),
        Default::Number(0),
    ),
    define(P::Pbkdf2Iters, FV, Rule::OneTime, Shape::Number, Default::Number(0)),
    computed(P::EncryptionRoot, FVS, Shape::Text),
    computed(P::KeyStatus, FVS, Shape::Index(&[("none", 0), ("unavailable", 1), ("available", 2)])),
    define(P::SpecialSmallBlocks, FV, Rule::Inherit, Shape::Size, Default::Number(0)),
    computed(P::SnapshotsChanged, FV, Shape::Time),
    inherited(P::Prefetch, FVS, &[("none", 0), ("metadata", 1), ("all", 2)], 2),
    define(P::VolThreading, V, Rule::Own, Shape::Index(BOOLEAN), Default::Number(1)),
    inherited(P::Direct, FS, &[("disabled", 0), ("standard", 1), ("always", 2)], 1),
    inherited(P::LongName, FS, BOOLEAN, 0),
    define(P::DefaultUserQuota, FSN, Rule::Own, Shape::SizeOrNone, Default::Number(0)),
    define(P::DefaultGroupQuota, FSN, Rule::Own, Shape::SizeOrNone, Default::Number(0)),
    define(P::DefaultProjectQuota, FSN, Rule::Own, Shape::SizeOrNone, Default::Number(0)),
    define(P::DefaultUserObjQuota, FSN, Rule::Own, Shape::SizeOrNone, Default::Number(0)),
    define(P::DefaultGroupObjQuota, FSN, Rule::Own, Shape::SizeOrNone, Default::Number(0)),
    define(P::DefaultProjectObjQuota, FSN, Rule::Own, Shape::SizeOrNone, Default::Number(0)),
    computed(P::RedactSnaps, ALL, Shape::Text),
];

/// The definition of a native property.
pub fn native(prop: ZfsProp) -> &'static Native {
    // The table is in the order of the enumeration; a test compares them.
    &NATIVES[prop as usize]
}

/// The native property of that name; old short names (`compress`, `refer`, …) included.
pub fn native_named(name: &str) -> Option<&'static Native> {
    ZfsProp::named(name).map(native)
}

/// The column title of a property in `zfs list` (OpenZFS's `colname`).
pub fn column_title(name: &str) -> String {
    match name {
        "available" => "AVAIL".into(),
        "referenced" => "REFER".into(),
        "compressratio" => "RATIO".into(),
        "refcompressratio" => "REFRATIO".into(),
        "compression" => "COMPRESS".into(),
        "recordsize" => "RECSIZE".into(),
        "reservation" => "RESERV".into(),
        "refreservation" => "REFRESERV".into(),
        "volblocksize" => "VOLBLOCK".into(),
        "readonly" => "RDONLY".into(),
        "usedbysnapshots" => "USEDSNAP".into(),
        "usedbydataset" => "USEDDS".into(),
        "usedbychildren" => "USEDCHILD".into(),
        "usedbyrefreservation" => "USEDREFRESERV".into(),
        "logicalused" => "LUSED".into(),
        "logicalreferenced" => "LREFER".into(),
        "casesensitivity" => "CASE".into(),
        "dnodesize" => "DNSIZE".into(),
        "redundant_metadata" => "REDUND_MD".into(),
        "encryptionroot" => "ENCROOT".into(),
        "filesystem_limit" => "FSLIMIT".into(),
        "snapshot_limit" => "SSLIMIT".into(),
        "filesystem_count" => "FSCOUNT".into(),
        "snapshot_count" => "SSCOUNT".into(),
        "volthreading" => "VOLTHREAD".into(),
        "redact_snaps" => "RSNAPS".into(),
        other => other.to_uppercase(),
    }
}
