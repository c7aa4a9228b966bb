//! Opening of a dataset's object set for writing, with the write policy from its properties.
//!
//! Source: OpenZFS `module/zfs/dmu.c` (`dmu_write_policy`), `module/zfs/zio_compress.c`, `module/zfs/zio_checksum.c`
//! (`zio_compress_select`, `zio_checksum_select`).

use super::Engine;
use super::datasets::policy_for;
use std::sync::Arc;
use weir_blocks::CacheClass;
use weir_codec::compress::ZstdLevel;
use weir_dmu::dedup::DedupPolicy;
use weir_dmu::live::{Policy, RedundantMetadata, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::props::{self, Stored, Value, ZfsProp};
use weir_dsl::{Dataset, Dir, Dsl, SetKey};
use weir_format::{ChecksumKind, CompressionKind, ObjsetKind};
use weir_machine::Request;
use weir_pool::error::PoolError;
use weir_pool::features::Features;
use weir_pool::mos::Mos;

/// The feature for block cloning.
const CLONING: &str = "com.fudosecurity:block_cloning";
/// Low bits of the property `compression` that select the algorithm; the bits above hold its level.
const COMPRESSION_BITS: u32 = 7;
/// The bit of the property `dedup` that requests verification.
const DEDUP_VERIFY: u64 = 1 << 8;

/// Opens the object set of a dataset: see [`Engine::open_set`]. `dsl` contains its directory and the ancestors.
pub(crate) async fn open_set_of(
    engine: &Engine,
    rq: &Request,
    dsl: &Dsl,
    dataset: &Dataset,
    key: Option<SetKey>,
) -> Result<Arc<ObjectSet>, PoolError> {
    let dir = dsl.dir(dataset.dir);
    let key = key.or_else(|| engine.keys.of(dir));
    if dataset.is_snapshot() || engine.is_read_only() {
        return Ok(dsl.open_set(rq, dataset, key).await?);
    }
    let id = dataset.objset();
    if let Some(open) = engine.sets.get(id) {
        // A sync task that created it did not know its properties.
        if let Some(dir) = dir {
            renew_policy(rq, dsl, dir, &open.set).await?;
        }
        return Ok(open.set);
    }
    let (policy, kind, cache) = match dir {
        Some(dir) => (policy(rq, dsl, dir).await?, dsl.kind(rq, dir).await?, dsl.cache_class(rq, dir).await?),
        None => (Policy::default(), ObjsetKind::None, CacheClass::All),
    };
    let opening = Opening { id, key, cache, raw: None };
    let gate: Arc<dyn TxAdmission> = engine.gate.clone();
    let pointer = dataset.phys.pointer;
    let policy = policy_for(kind, policy);
    let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, policy).await?;
    if let Some(dir) = dir {
        set.set_secondary_class(dsl.secondary_class(rq, dir).await?);
        set.set_prefetch_class(dsl.prefetch_class(rq, dir).await?);
    }
    Ok(engine.sets.insert(set))
}

/// Applies the properties of a directory's head dataset to its open object set.
///
/// # Errors
/// Errors of reading the properties.
pub(crate) async fn renew_policy(rq: &Request, dsl: &Dsl, dir: &Dir, set: &ObjectSet) -> Result<(), PoolError> {
    set.set_policy(policy_for(set.kind(), policy(rq, dsl, dir).await?));
    set.set_cache_class(dsl.cache_class(rq, dir).await?);
    set.set_secondary_class(dsl.secondary_class(rq, dir).await?);
    set.set_prefetch_class(dsl.prefetch_class(rq, dir).await?);
    Ok(())
}

/// The write policy of a directory's head dataset.
async fn policy(rq: &Request, dsl: &Dsl, dir: &Dir) -> Result<Policy, PoolError> {
    let chain = dsl.stored_chain(rq, dir).await?;
    let features = Features::read(rq, &Mos { set: dsl.mos().clone() }).await?;
    Ok(Policy { share_blocks: features.count(CLONING).is_some(), ..policy_of(&chain) })
}

/// The effective number of a property: the nearest value that was set or received.
fn number(chain: &[(String, Arc<Stored>)], prop: ZfsProp) -> Option<u64> {
    match chain.iter().find_map(|(_, stored)| props::stored_value(stored, prop.name())) {
        Some((Value::Number(n), _)) => Some(*n),
        _ => None,
    }
}

/// Decodes the property `dedup`; `None` for off.
fn dedup_of(number: u64) -> Option<DedupPolicy> {
    let checksum = match ChecksumKind::from_u8((number & 0xff) as u8)? {
        ChecksumKind::Off | ChecksumKind::Inherit => return None,
        ChecksumKind::On => ChecksumKind::Sha256,
        kind => kind,
    };
    // Weak checksums always require verification.
    let strong = !matches!(checksum, ChecksumKind::Edonr | ChecksumKind::Fletcher4 | ChecksumKind::Fletcher2);
    Some(DedupPolicy { checksum, verify: number & DEDUP_VERIFY != 0 || !strong })
}

/// The write policy that properties select; `chain` begins with the dataset and ends with the root.
pub fn policy_of(chain: &[(String, Arc<Stored>)]) -> Policy {
    let default = Policy::default();
    let word = number(chain, ZfsProp::Compression).unwrap_or(CompressionKind::On.to_u8().into());
    let kind = CompressionKind::from_u8((word & ((1 << COMPRESSION_BITS) - 1)) as u8);
    let compression = match kind {
        None | Some(CompressionKind::On | CompressionKind::Inherit) => CompressionKind::Lz4,
        Some(CompressionKind::Empty) => CompressionKind::Off,
        Some(kind) => kind,
    };
    let level = u8::try_from(word >> COMPRESSION_BITS).ok().filter(|l| *l != 0).and_then(ZstdLevel::from_u8);
    let checksum = number(chain, ZfsProp::Checksum).and_then(|n| ChecksumKind::from_u8(u8::try_from(n).ok()?));
    let checksum = match checksum {
        None | Some(ChecksumKind::On | ChecksumKind::Inherit) => default.checksum,
        Some(kind) => kind,
    };
    let dedup = number(chain, ZfsProp::Dedup).and_then(dedup_of);
    let copies = number(chain, ZfsProp::Copies).unwrap_or(1).clamp(1, 3) as u8;
    let redundant_metadata = match number(chain, ZfsProp::RedundantMetadata).unwrap_or(0) {
        1 => RedundantMetadata::Most,
        2 => RedundantMetadata::Some,
        3 => RedundantMetadata::None,
        _ => RedundantMetadata::All,
    };
    let special = number(chain, ZfsProp::SpecialSmallBlocks).unwrap_or(0);
    Policy {
        compression,
        zstd_level: level.unwrap_or(ZstdLevel::DEFAULT),
        checksum,
        dedup,
        copies,
        redundant_metadata,
        special_small_bytes: u32::try_from(special).unwrap_or(u32::MAX),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::ObjectType;

    fn chain(values: &[(&str, u64)]) -> Vec<(String, Arc<Stored>)> {
        let stored = values.iter().map(|(name, n)| ((*name).to_owned(), Value::Number(*n))).collect();
        vec![("tank".to_owned(), Arc::new(stored))]
    }

    #[test]
    fn without_properties_the_default_applies() {
        for policy in [policy_of(&[]), policy_of(&chain(&[("compression", 1), ("checksum", 1)]))] {
            assert_eq!((policy.compression, policy.checksum), (CompressionKind::Lz4, ChecksumKind::Fletcher4));
            assert_eq!((policy.copies, policy.metadata_copies(ObjectType::SA, 0)), (1, 2));
        }
    }

    #[test]
    fn properties_count() {
        let policy = policy_of(&chain(&[("compression", 16 | 9 << 7), ("checksum", 8), ("copies", 2)]));
        assert_eq!((policy.compression, policy.checksum), (CompressionKind::Zstd, ChecksumKind::Sha256));
        assert_eq!((policy.zstd_level.to_u8(), policy.copies, policy.metadata_copies(ObjectType::SA, 0)), (9, 2, 3));
        let dedup = |n| policy_of(&chain(&[("dedup", n)])).dedup.map(|d| (d.checksum, d.verify));
        assert_eq!((dedup(2), dedup(1)), (None, Some((ChecksumKind::Sha256, false))));
        assert_eq!(dedup(1 | 1 << 8), Some((ChecksumKind::Sha256, true)));
        assert_eq!((dedup(13), dedup(14)), (Some((ChecksumKind::Edonr, true)), Some((ChecksumKind::Blake3, false))));
        let policy = policy_of(&chain(&[("compression", 2), ("redundant_metadata", 3), ("copies$recvd", 3)]));
        assert_eq!((policy.compression, policy.metadata_copies(ObjectType::SA, 0)), (CompressionKind::Off, 3));
    }

    #[test]
    fn what_overrides_a_value_counts() {
        // `none`, which older software does not know, exists beside `all`.
        assert_eq!(
            policy_of(&chain(&[("redundant_metadata", 0), ("redundant_metadata$iuv", 3)]))
                .metadata_copies(ObjectType::SA, 0),
            1
        );
        // A received value is overridden by that of the parent.
        let above = chain(&[("compression", 16)]);
        let both: Vec<_> =
            chain(&[("compression$recvd", 2), ("compression$inherit", 0)]).into_iter().chain(above).collect();
        assert_eq!(policy_of(&both).compression, CompressionKind::Zstd);
    }
}
