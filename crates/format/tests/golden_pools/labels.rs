//! The labels of every golden pool: self-checksums, configuration and uberblocks, compared with zdb's output.

use crate::golden;
use sha2::Digest;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weir_format::cursor::Endian;
use weir_format::l2arc::L2Header;
use weir_format::label::{self, SelfChecksum};
use weir_format::{NvList, Objset, ObjsetKind, Uberblock};

/// Whether the self-checksum of an area of a label at byte `offset` of the device is valid.
fn checksum_matches(area: &[u8], offset: u64) -> bool {
    let Ok(stored) = SelfChecksum::at_end_of(area) else { return false };
    let mut copy = area.to_vec();
    let at = copy.len() - SelfChecksum::SIZE;
    let verifier = SelfChecksum { endian: stored.endian, checksum: label::verifier(offset) };
    copy[at..].copy_from_slice(&verifier.encode());
    let digest = sha2::Sha256::digest(&copy);
    let words: Vec<u64> = digest.chunks_exact(8).map(|c| u64::from_be_bytes(c.try_into().unwrap())).collect();
    words == stored.checksum
}

/// The state in the label of a cache device (`POOL_STATE_L2CACHE`).
const CACHE_STATE: u64 = 4;

/// The contents of the labels of a pool's devices.
#[derive(Default)]
pub struct LabelScan {
    pub configs: Vec<NvList>,
    pub uberblocks: Vec<Uberblock>,
    boot_envs: usize,
    caches: usize,
}

/// Byte offset and size of the vdev in an image: the whole image, or the first partition of a GPT.
fn extent(file: &File) -> (u64, u64) {
    let mut gpt = [0; 64];
    file.read_exact_at(&mut gpt, 512).unwrap();
    if &gpt[..8] != b"EFI PART" {
        return (0, file.metadata().unwrap().len());
    }
    let mut entry = [0; 48];
    file.read_exact_at(&mut entry, 1024).unwrap();
    let lba = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
    (lba(32) * 512, (lba(40) + 1 - lba(32)) * 512)
}

/// Reads the labels of an image whose self-checksums are valid, and checks that encoding them gives the same bytes.
pub fn scan(image: &Path, found: &mut LabelScan) {
    let file = File::open(image).unwrap();
    let (base, size) = extent(&file);
    for index in 0..label::LABELS {
        let start = label::label_offset(index, size).unwrap();
        let mut bytes = vec![0; label::LABEL_BYTES as usize];
        file.read_exact_at(&mut bytes, base + start).unwrap();
        let area = &bytes[label::CONFIG];
        if !checksum_matches(area, start + label::CONFIG.start as u64) {
            continue;
        }
        let config = label::decode_config(area).unwrap();
        let packed = config.encode_xdr();
        // The second byte is the writer's byte order; it is 0 in pools from SPARC.
        assert_eq!(packed[2..], area[2..packed.len()], "{} label {index}: encoded again", image.display());
        let env = &bytes[label::BOOT_ENV];
        if checksum_matches(env, start + label::BOOT_ENV.start as u64) {
            label::BootEnv::decode(env).unwrap();
            found.boot_envs += 1;
        }
        let ashift = config.get_list("vdev_tree").and_then(|v| v.get_u64("ashift")).unwrap_or(9);
        for slot in 0..label::uberblock_slots(ashift) {
            let range = label::uberblock_range(slot, ashift).unwrap();
            let area = &bytes[range.clone()];
            if checksum_matches(area, start + range.start as u64) {
                if area[..8] == [0; 8] {
                    // Slots of a new label have a valid self-checksum but no magic number.
                    continue;
                }
                let ub = Uberblock::decode(area).unwrap();
                assert_eq!(ub.encode(), &area[..Uberblock::SIZE], "{}", image.display());
                found.uberblocks.push(ub);
            }
        }
        if config.get_u64("state") == Some(CACHE_STATE) {
            let mut header = vec![0; L2Header::SIZE];
            file.read_exact_at(&mut header, base + label::FRONT_BYTES).unwrap();
            let header_valid = checksum_matches(&header, label::FRONT_BYTES);
            let header = L2Header::decode(&header).unwrap();
            assert!(header_valid, "{}: L2ARC header", image.display());
            assert_eq!(Some(header.vdev_guid), config.get_u64("guid"));
            assert!(header.start_bytes >= label::FRONT_BYTES && header.end_bytes <= size);
            found.caches += 1;
        }
        found.configs.push(config);
    }
}

/// Compares the pool's labels with zdb's output.
fn check(name: &str, about: &serde_json::Value, found: &LabelScan) {
    let config = about["zdb"]["config"].as_str().unwrap_or_default();
    let of_pool: Vec<_> = found.configs.iter().filter(|c| c.contains("vdev_tree")).collect();
    assert!(!of_pool.is_empty(), "{name}: no label with a vdev tree");
    let newest = of_pool.iter().max_by_key(|c| c.get_u64("txg")).unwrap();
    assert!(newest.require_u64("pool_guid").is_ok() && newest.require_str("name").is_ok(), "{name}");
    let best = found.uberblocks.iter().max_by_key(|u| u.rank()).unwrap();
    let shown = about["zdb"]["uberblock"].as_str().unwrap_or_default();
    for line in [
        format!("txg = {}\n", best.txg),
        format!("version = {}\n", best.version),
        format!("guid_sum = {}\n", best.guid_sum),
        format!("timestamp = {} UTC", best.timestamp_s),
        format!("bp = {}\n", best.root.display()),
        format!("raidz_reflow state={} off={}\n", best.reflow.scratch_state, best.reflow.offset_bytes),
    ] {
        assert!(shown.contains(&line), "{name}: {line} not in {shown}");
    }
    let tree = newest.get_list("vdev_tree").unwrap().to_text(16);
    // The label lists a vdev's properties in another order than the MOS, so lines are compared one by one.
    for line in tree.lines() {
        assert!(config.lines().any(|l| l == line), "{name}: {line} not in {config}");
    }
    for key in ["pool_guid", "vdev_children"] {
        let line = format!("        {key}: {}\n", newest.get_u64(key).unwrap());
        assert!(config.contains(&line), "{name}: {line} not in {config}");
    }
}

/// Checks the MOS's object set header; returns false unless the pool has one disk and an uncompressed root block.
fn root_objset(name: &str, found: &LabelScan, dir: &Path) -> bool {
    let ub = found.uberblocks.iter().max_by_key(|u| u.rank()).unwrap();
    let children = found.configs[0].get_u64("vdev_children");
    let image = dir.join("d0.img");
    let leaf = found.configs[0].get_list("vdev_tree").and_then(|v| v.get_str("type"));
    let one_disk = children == Some(1) && matches!(leaf, Some("disk" | "file")) && image.exists();
    if !one_disk || ub.root.lsize_bytes() != ub.root.psize_bytes() || ub.root.is_gang() {
        return false;
    }
    let mut bytes = vec![0; ub.root.lsize_bytes() as usize];
    let at = ub.root.dva(0).offset_bytes + label::FRONT_BYTES;
    let file = File::open(image).unwrap();
    file.read_exact_at(&mut bytes, extent(&file).0 + at).unwrap();
    let objset = Objset::decode(&bytes, ub.root.endian()).unwrap();
    assert_eq!(objset.kind, ObjsetKind::Meta, "{name}");
    assert!(objset.zil.is_empty());
    assert_eq!(objset.encode(bytes.len(), ub.root.endian()), bytes, "{name}: the MOS's header encoded again");
    true
}

#[test]
fn golden_labels_match_zdb() {
    let Some(folder) = golden::folder() else { return };
    let mut pools = 0;
    let mut labels = 0;
    let mut uberblocks = 0;
    let mut boot_envs = 0;
    let mut roots = 0;
    let mut caches = 0;
    for (name, about) in golden::pools(&folder) {
        let dir = golden::unpack(&folder, &name);
        let mut found = LabelScan::default();
        for device in about["devices"].as_array().unwrap() {
            let image = dir.path().join(device["file"].as_str().unwrap());
            if image.exists() {
                scan(&image, &mut found);
            }
        }
        assert!(found.configs.iter().all(|c| c.contains("guid") && c.contains("state")), "{name}");
        assert!(found.uberblocks.iter().all(|u| u.endian == Endian::Little));
        check(&name, &about, &found);
        roots += usize::from(root_objset(&name, &found, dir.path()));
        pools += 1;
        labels += found.configs.len();
        uberblocks += found.uberblocks.len();
        boot_envs += found.boot_envs;
        caches += found.caches;
    }
    eprintln!("{pools} pools, {labels} labels, {uberblocks} uberblocks, {boot_envs} boot areas, {roots} MOS headers");
    assert!(pools >= 60 && labels > pools && uberblocks > labels && boot_envs > 0 && roots > 0 && caches > 0);
}
