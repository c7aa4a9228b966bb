//! Tests on real blocks: the golden pools with one disk, read only with this crate, the pointers and dnodes of
//! `weir-format`, and root pointers and key objects that OpenZFS's zdb printed (`roots.txt`, `keys.txt`).
//!
//! Every block of a dataset is verified by its checksum, decrypted and decompressed, and its MACs are verified on
//! every level. The SHA-256 of every regular file must match the manifest.

// Clippy allows unwrap in test functions only, not in their helpers.
#![allow(clippy::unwrap_used)]

mod reader;

use aws_lc_rs::digest;
use reader::{Image, bytes, root_pointer};
use std::collections::BTreeMap;
use std::path::PathBuf;
use weir_codec::crypt::{DatasetKey, WrappedKey, WrappingKey};
use weir_codec::{CodecError, Salt, parity};

fn golden() -> Option<PathBuf> {
    let folder = std::env::var_os("WEIR_GOLDEN")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no golden pools (set WEIR_GOLDEN)");
    None
}

/// The wrapped keys by dataset, each with its wrapping key.
fn dataset_keys() -> BTreeMap<String, (WrappedKey, WrappingKey)> {
    let lines = include_str!("keys.txt").lines().filter(|l| !l.starts_with('#'));
    lines
        .map(|line| {
            let f: Vec<&str> = line.split(' ').collect();
            let word = |s| u64::from_str_radix(s, 16).unwrap();
            let wrapped = WrappedKey {
                suite: f[1].parse().unwrap(),
                version: f[2].parse().unwrap(),
                guid: word(f[3]),
                iv: bytes(f[6]),
                mac: bytes(f[7]),
                master_key: bytes(f[8]),
                hmac_key: bytes(f[9]),
            };
            let iterations = f[5].parse().unwrap();
            let wrapping = match iterations {
                0 => WrappingKey::from_hex("2a".repeat(32).as_bytes()),
                n => WrappingKey::from_passphrase(b"golden-passphrase", word(f[4]), n),
            };
            (f[0].to_owned(), (wrapped, wrapping.unwrap()))
        })
        .collect()
}

/// Object number and expected SHA-256 and size of every regular file of a dataset.
fn files(folder: &std::path::Path, name: &str, dataset: &str) -> BTreeMap<u64, (u64, String)> {
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let datasets = golden["manifest"]["datasets"].as_array().unwrap();
    let entries = datasets.iter().find(|d| d["name"] == dataset).and_then(|d| d["files"].as_array());
    let entry = |f: &serde_json::Value| {
        let sha256 = f["sha256"].as_str()?.to_owned();
        Some((f["ino"].as_u64()?, (f["size"].as_u64()?, sha256)))
    };
    entries.into_iter().flatten().filter_map(entry).collect()
}

/// Reads every dataset of one golden pool that `roots.txt` lists.
fn read_all(name: &str, salt: [u8; 32], keys: &BTreeMap<String, (WrappedKey, WrappingKey)>) {
    let Some(folder) = golden() else { return };
    let image = Image::unpack(&folder, name, Salt::new(salt));
    let roots = include_str!("roots.txt").lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    let mut read = 0;
    let mut datasets = 0;
    for line in roots {
        let (dataset, pointer) = line.split_once(' ').unwrap();
        let key = keys.get(dataset).map(|(wrapped, wrapping)| DatasetKey::unwrap(wrapping, wrapped).unwrap());
        let expected = files(&folder, name, dataset);
        let mut found = 0;
        image.objects(&root_pointer(pointer), key.as_ref(), |object, contents| {
            if let Some((size, sha256)) = expected.get(&object) {
                let end = contents.len().min(*size as usize);
                let mut context = digest::Context::new(&digest::SHA256);
                context.update(&contents[..end]);
                // The file may end in a hole, which `contents` does not include.
                (end as u64..*size).for_each(|_| context.update(&[0]));
                let hex: String = context.finish().as_ref().iter().map(|b| format!("{b:02x}")).collect();
                assert_eq!(&hex, sha256, "{dataset} object {object}");
                found += 1;
            }
        });
        assert_eq!(found, expected.len(), "{dataset}");
        read += found;
        datasets += 1;
    }
    assert!(datasets > 0);
    println!("{name}: {datasets} datasets, {read} files");
}

#[test]
fn every_checksum_function() {
    let salt = bytes("361d91507375c00f59ca0ff71973b114b21a8bcb0007d430dc3323ba3be52620");
    read_all("cksum-a9", salt, &BTreeMap::new());
}

#[test]
fn every_compression_function() {
    read_all("comp-a9", [0; 32], &BTreeMap::new());
}

#[test]
fn every_encrypted_dataset() {
    read_all("enc", [0; 32], &dataset_keys());
}

/// Verifies and decrypts the encrypted log blocks that are still on the disk of a pool after a power cut.
#[test]
fn encrypted_log_blocks() {
    let Some(folder) = golden() else { return };
    let image = Image::unpack(&folder, "zil-enc-s", Salt::none());
    let (wrapped, wrapping) = &dataset_keys()["g-zil-enc-s/sec"];
    let key = DatasetKey::unwrap(wrapping, wrapped).unwrap();
    let (blocks, records) = image.log_blocks(&key);
    println!("zil-enc-s: {blocks} log blocks, records by type {records:?}");
    assert!(blocks > 10 && records.contains_key(&9));
    // TX_CLONE_RANGE is the last record type: misparsed blocks would show others.
    assert!(records.keys().all(|kind| (1..=24).contains(kind)));
}

/// Sector rows of a real RAID-Z3 of seven disks: each full-width row is P, Q, R and four data columns, starting at
/// some disk, and three of its data columns are reconstructed from the parity.
#[test]
fn real_parity() {
    const DISKS: usize = 7;
    let Some(folder) = golden() else { return };
    let names: Vec<String> = (0..DISKS).map(|i| format!("d{i}.img")).collect();
    let disks: Vec<Vec<u8>> = names.iter().map(|n| reader::unpack(&folder, "raidz3-7-a9", &[n])).collect();
    let mut whole = 0;
    let mut other = 0;
    for at in (4 << 20..disks[0].len() - (1 << 20)).step_by(512) {
        // A row that starts on a later disk continues in the next sector of the first disks.
        let sector = |i: usize| &disks[i % DISKS][at + i / DISKS * 512..][..512];
        let row = |first: usize| -> Vec<&[u8]> { (first..first + DISKS).map(sector).collect() };
        // Skip rows with constant sectors, whose parity is trivial.
        if row(0).iter().any(|s| s.iter().all(|b| *b == s[0])) {
            continue;
        }
        let parity_matches =
            |row: &[&[u8]]| parity::check(&row[3..], &[Some(row[0]), Some(row[1]), Some(row[2])]).unwrap();
        let Some(row) = (0..DISKS).map(row).find(|row| parity_matches(row)) else {
            // The sectors belong to rows of several blocks.
            other += 1;
            continue;
        };
        whole += 1;
        let mut rebuilt = [[0; 512]; 3];
        let mut buffers: Vec<&mut [u8]> = rebuilt.iter_mut().map(|r| &mut r[..]).collect();
        let have = [None, Some(row[4]), None, None];
        parity::reconstruct(&have, &[Some(row[0]), Some(row[1]), Some(row[2])], &mut buffers).unwrap();
        assert!(rebuilt[0] == row[3] && rebuilt[1] == row[5] && rebuilt[2] == row[6]);
    }
    println!("raidz3-7-a9: {whole} rows of one block, {other} of several");
    assert!(whole > 1000);
}

/// Keys of all suites unwrap with their hex or passphrase key and with no other.
#[test]
fn keys_unwrap() {
    let keys = dataset_keys();
    let suites: Vec<_> = keys.values().map(|(wrapped, _)| wrapped.suite().unwrap().name()).collect();
    for name in ["aes-128-ccm", "aes-256-ccm", "aes-128-gcm", "aes-256-gcm"] {
        assert!(suites.contains(&name));
    }
    for (wrapped, wrapping) in keys.values() {
        let key = DatasetKey::unwrap(wrapping, wrapped).unwrap();
        assert_eq!(key.guid(), wrapped.guid);
        let other = WrappingKey::from_raw(&[1; 32]).unwrap();
        assert_eq!(DatasetKey::unwrap(&other, wrapped).unwrap_err(), CodecError::WrongKey);
        let moved = WrappedKey { guid: wrapped.guid ^ 1, ..wrapped.clone() };
        assert_eq!(DatasetKey::unwrap(wrapping, &moved).unwrap_err(), CodecError::WrongKey);
    }
}
