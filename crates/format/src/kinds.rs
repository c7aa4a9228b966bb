//! Enumerations of the format: object types, checksum and compression functions.
//!
//! Numbers are those of OpenZFS's `dmu.h` (`dmu_object_type_t`), `zio.h` (`zio_checksum`, `zio_compress`).

/// Type of an object's contents (`dmu_object_type_t`). Values from 0x80 on encode their properties in their bits
/// (`DMU_OT_NEWTYPE`): see [`ObjectType::is_metadata`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectType(pub u8);

macro_rules! object_types {
    ($($(#[$doc:meta])* $name:ident = $n:literal, $byteswap:ident, $meta:literal, $text:literal;)*) => {
        #[allow(missing_docs)]
        impl ObjectType {
            $(pub const $name: ObjectType = ObjectType($n);)*

            /// Name, layout, metadata flag and zdb's name of each type below [`ObjectType::NEWTYPE`].
            const OLD: &'static [(&'static str, Swap, bool, &'static str)] =
                &[$((stringify!($name), Swap::$byteswap, $meta, $text)),*];
        }
    };
}

/// Layout of an object type's contents (`dmu_object_byteswap_t`): how a block of the other byte order is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// Plain bytes.
    Uint8,
    /// 16-bit integers.
    Uint16,
    /// 32-bit integers.
    Uint32,
    /// 64-bit integers.
    Uint64,
    /// A ZAP block.
    Zap,
    /// Dnodes.
    Dnode,
    /// An object set header.
    Objset,
    /// A znode (before system attributes).
    Znode,
    /// An access control list before version 3.
    OldAcl,
    /// An access control list.
    Acl,
}

object_types! {
    NONE = 0, Uint8, true, "unallocated";
    OBJECT_DIRECTORY = 1, Zap, true, "object directory";
    OBJECT_ARRAY = 2, Uint64, true, "object array";
    PACKED_NVLIST = 3, Uint8, true, "packed nvlist";
    PACKED_NVLIST_SIZE = 4, Uint64, true, "packed nvlist size";
    BPOBJ = 5, Uint64, true, "bpobj";
    BPOBJ_HDR = 6, Uint64, true, "bpobj header";
    SPACE_MAP_HEADER = 7, Uint64, true, "SPA space map header";
    SPACE_MAP = 8, Uint64, true, "SPA space map";
    INTENT_LOG = 9, Uint64, true, "ZIL intent log";
    DNODE = 10, Dnode, true, "DMU dnode";
    OBJSET = 11, Objset, true, "DMU objset";
    DSL_DIR = 12, Uint64, true, "DSL directory";
    DSL_DIR_CHILD_MAP = 13, Zap, true, "DSL directory child map";
    DSL_DS_SNAP_MAP = 14, Zap, true, "DSL dataset snap map";
    DSL_PROPS = 15, Zap, true, "DSL props";
    DSL_DATASET = 16, Uint64, true, "DSL dataset";
    ZNODE = 17, Znode, true, "ZFS znode";
    OLDACL = 18, OldAcl, true, "ZFS V0 ACL";
    PLAIN_FILE_CONTENTS = 19, Uint8, false, "ZFS plain file";
    DIRECTORY_CONTENTS = 20, Zap, true, "ZFS directory";
    MASTER_NODE = 21, Zap, true, "ZFS master node";
    UNLINKED_SET = 22, Zap, true, "ZFS delete queue";
    ZVOL = 23, Uint8, false, "zvol object";
    ZVOL_PROP = 24, Zap, true, "zvol prop";
    PLAIN_OTHER = 25, Uint8, false, "other uint8[]";
    UINT64_OTHER = 26, Uint64, false, "other uint64[]";
    ZAP_OTHER = 27, Zap, true, "other ZAP";
    ERROR_LOG = 28, Zap, true, "persistent error log";
    SPA_HISTORY = 29, Uint8, true, "SPA history";
    SPA_HISTORY_OFFSETS = 30, Uint64, true, "SPA history offsets";
    POOL_PROPS = 31, Zap, true, "Pool properties";
    DSL_PERMS = 32, Zap, true, "DSL permissions";
    ACL = 33, Acl, true, "ZFS ACL";
    SYSACL = 34, Uint8, true, "ZFS SYSACL";
    FUID = 35, Uint8, true, "FUID table";
    FUID_SIZE = 36, Uint64, true, "FUID table size";
    NEXT_CLONES = 37, Zap, true, "DSL dataset next clones";
    SCAN_QUEUE = 38, Zap, true, "scan work queue";
    USERGROUP_USED = 39, Zap, true, "ZFS user/group/project used";
    USERGROUP_QUOTA = 40, Zap, true, "ZFS user/group/project quota";
    USERREFS = 41, Zap, true, "snapshot refcount tags";
    DDT_ZAP = 42, Zap, true, "DDT ZAP algorithm";
    DDT_STATS = 43, Zap, true, "DDT statistics";
    SA = 44, Uint8, true, "System attributes";
    SA_MASTER_NODE = 45, Zap, true, "SA master node";
    SA_ATTR_REGISTRATION = 46, Zap, true, "SA attr registration";
    SA_ATTR_LAYOUTS = 47, Zap, true, "SA attr layouts";
    SCAN_XLATE = 48, Zap, true, "scan translations";
    DEDUP = 49, Uint8, false, "deduplicated block";
    DEADLIST = 50, Zap, true, "DSL deadlist map";
    DEADLIST_HDR = 51, Uint64, true, "DSL deadlist map hdr";
    DSL_CLONES = 52, Zap, true, "DSL dir clones";
    BPOBJ_SUBOBJ = 53, Uint64, true, "bpobj subobj";
}

impl ObjectType {
    /// Bit of types that encode their properties in their other bits (`DMU_OT_NEWTYPE`).
    pub const NEWTYPE: u8 = 0x80;

    /// Whether the numeric value is one that the format defines.
    pub fn is_valid(self) -> bool {
        if self.0 & Self::NEWTYPE != 0 { (self.0 & 0x1f) < 10 } else { (self.0 as usize) < Self::OLD.len() }
    }

    /// Whether objects of this type are metadata (`DMU_OT_IS_METADATA`).
    pub fn is_metadata(self) -> bool {
        if self.0 & Self::NEWTYPE != 0 {
            self.0 & 0x40 != 0
        } else {
            Self::OLD.get(self.0 as usize).is_none_or(|t| t.2)
        }
    }

    /// Whether objects of this type are dedup tables (`DMU_OT_IS_DDT`).
    pub fn is_dedup_table(self) -> bool {
        self == Self::DDT_ZAP
    }

    /// Whether blocks of this type are encrypted in an encrypted dataset (`DMU_OT_IS_ENCRYPTED`).
    pub fn is_encrypted(self) -> bool {
        if self.0 & Self::NEWTYPE != 0 {
            return self.0 & 0x20 != 0;
        }
        matches!(
            self,
            Self::INTENT_LOG
                | Self::DNODE
                | Self::OLDACL
                | Self::PLAIN_FILE_CONTENTS
                | Self::DIRECTORY_CONTENTS
                | Self::UNLINKED_SET
                | Self::ZVOL
                | Self::PLAIN_OTHER
                | Self::UINT64_OTHER
                | Self::ACL
                | Self::SYSACL
                | Self::FUID
                | Self::USERGROUP_USED
                | Self::USERGROUP_QUOTA
                | Self::SA
                | Self::SA_MASTER_NODE
                | Self::SA_ATTR_REGISTRATION
                | Self::SA_ATTR_LAYOUTS
                | Self::DEDUP
        )
    }

    /// Layout of the contents, for conversion to the other byte order.
    pub fn swap(self) -> Swap {
        const NEW: [Swap; 10] = [
            Swap::Uint8,
            Swap::Uint16,
            Swap::Uint32,
            Swap::Uint64,
            Swap::Zap,
            Swap::Dnode,
            Swap::Objset,
            Swap::Znode,
            Swap::OldAcl,
            Swap::Acl,
        ];
        if self.0 & Self::NEWTYPE != 0 {
            NEW.get((self.0 & 0x1f) as usize).copied().unwrap_or(Swap::Uint8)
        } else {
            Self::OLD.get(self.0 as usize).map_or(Swap::Uint8, |t| t.1)
        }
    }

    /// Whether the contents are a ZAP.
    pub fn is_zap(self) -> bool {
        self.swap() == Swap::Zap
    }

    /// The name that OpenZFS's tools show for the type.
    pub fn name(self) -> &'static str {
        match self.0 {
            n if n & Self::NEWTYPE == 0 => Self::OLD.get(n as usize).map_or("unknown type", |t| t.3),
            n if (n & 0x1f) == 4 => "zap",
            n if (n & 0x1f) == 3 => "uint64",
            n if (n & 0x1f) == 0 => "uint8",
            _ => "other",
        }
    }
}

/// A block's checksum function (`enum zio_checksum`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ChecksumKind {
    Inherit = 0,
    On = 1,
    Off = 2,
    Label = 3,
    GangHeader = 4,
    Zilog = 5,
    Fletcher2 = 6,
    Fletcher4 = 7,
    Sha256 = 8,
    Zilog2 = 9,
    NoParity = 10,
    Sha512 = 11,
    Skein = 12,
    Edonr = 13,
    Blake3 = 14,
}

impl ChecksumKind {
    /// From the number in a block pointer or dnode; `None` for numbers that the format does not define.
    pub fn from_u8(n: u8) -> Option<Self> {
        use ChecksumKind::*;
        const ALL: [ChecksumKind; 15] = [
            Inherit, On, Off, Label, GangHeader, Zilog, Fletcher2, Fletcher4, Sha256, Zilog2, NoParity, Sha512, Skein,
            Edonr, Blake3,
        ];
        ALL.get(n as usize).copied()
    }

    /// Whether the checksum is stored at the end of the block instead of in the pointer.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Whether the function is keyed with the pool's checksum salt.
    pub fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }

    /// The name that the `checksum` property and zdb show.
    pub fn name(self) -> &'static str {
        use ChecksumKind::*;
        match self {
            Inherit => "inherit",
            On => "on",
            Off => "off",
            Label => "label",
            GangHeader => "gang_header",
            Zilog => "zilog",
            Fletcher2 => "fletcher2",
            Fletcher4 => "fletcher4",
            Sha256 => "sha256",
            Zilog2 => "zilog2",
            NoParity => "noparity",
            Sha512 => "sha512",
            Skein => "skein",
            Edonr => "edonr",
            Blake3 => "blake3",
        }
    }
}

/// A block's compression function (`enum zio_compress`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum CompressionKind {
    Inherit,
    On,
    Off,
    Lzjb,
    Empty,
    /// Level 1 to 9.
    Gzip(u8),
    Zle,
    Lz4,
    Zstd,
}

impl CompressionKind {
    /// From the number in a block pointer or dnode; `None` for numbers that the format does not define.
    pub fn from_u8(n: u8) -> Option<Self> {
        use CompressionKind::*;
        Some(match n {
            0 => Inherit,
            1 => On,
            2 => Off,
            3 => Lzjb,
            4 => Empty,
            5..=13 => Gzip(n - 4),
            14 => Zle,
            15 => Lz4,
            16 => Zstd,
            _ => return None,
        })
    }

    /// The number in a block pointer or dnode.
    pub fn to_u8(self) -> u8 {
        use CompressionKind::*;
        match self {
            Inherit => 0,
            On => 1,
            Off => 2,
            Lzjb => 3,
            Empty => 4,
            Gzip(level) => 4 + level,
            Zle => 14,
            Lz4 => 15,
            Zstd => 16,
        }
    }

    /// The name that the `compression` property and zdb show.
    pub fn name(self) -> &'static str {
        use CompressionKind::*;
        const GZIP: [&str; 9] =
            ["gzip-1", "gzip-2", "gzip-3", "gzip-4", "gzip-5", "gzip-6", "gzip-7", "gzip-8", "gzip-9"];
        match self {
            Inherit => "inherit",
            On => "on",
            Off => "uncompressed",
            Lzjb => "lzjb",
            Empty => "empty",
            Gzip(level) => GZIP.get(level.wrapping_sub(1) as usize).copied().unwrap_or("gzip"),
            Zle => "zle",
            Lz4 => "lz4",
            Zstd => "zstd",
        }
    }
}
