//! `zdb -l DEVICE`: the labels of a device, equal ones once, with `-lll` each; with `-u` also the uberblocks, with `-uuu` each
//! place of each label.
//!
//! A label whose checksum is wrong is shown all the same, and marked, as OpenZFS's does (`cmd/zdb/zdb.c`, `dump_label`).

use super::ZdbArgs;
use super::text;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weir_format::NvList;
use weir_format::label::{LABELS, uberblock_slots};
use weir_machine::{Access, Disk, Machine};
use weir_pool::gpt::{Window, partitions};
use weir_pool::label::{self, Labels};

const RULE: &str = "------------------------------------";
/// Number of times that an option is given to show each label, also equal ones.
const EACH: u8 = 3;

/// The configuration of each label, also if its checksum is wrong.
type Unverified = [Option<NvList>; LABELS];

/// Shows the labels of `device`. Exit code 2 if there is none, as zdb's.
pub fn run(machine: &Machine, device: &Path, args: &ZdbArgs) -> Result<u8, Failure> {
    let (labels, unverified) = machine.block_on(read(machine, device))?;
    let good = labels.configs.iter().filter(|c| c.is_ok()).count();
    if !args.skip_label {
        print!("{}", configurations(&labels, &unverified, args.label >= EACH));
    }
    match args.uberblock {
        0 => {}
        EACH.. => print!("{}", places(&labels)),
        _ => print!("{}", rings(&labels)),
    }
    if good == 0 {
        return Err(Failure::usage(format!("{}: none of the {LABELS} labels is valid", device.display())));
    }
    Ok(0)
}

/// The device's labels, or those of the first partition that has some.
async fn read(machine: &Machine, device: &Path) -> Result<(Labels, Unverified), Failure> {
    let disk = machine
        .disks
        .open(device, Access::ReadOnly)
        .map_err(|e| Failure::failed(format!("cannot open {}: {e}", device.display())))?;
    let labels = label::read(&disk).await;
    if labels.best().is_some() {
        let unverified = unverified(&disk).await;
        return Ok((labels, unverified));
    }
    for partition in partitions(&disk, device).await? {
        let window: Arc<dyn Disk> = Arc::new(Window::new(disk.clone(), partition));
        let inner = label::read(&window).await;
        if inner.best().is_some() {
            println!("labels of partition {}:", partition.number);
            let unverified = unverified(&window).await;
            return Ok((inner, unverified));
        }
    }
    let unverified = unverified(&disk).await;
    Ok((labels, unverified))
}

async fn unverified(disk: &Arc<dyn Disk>) -> Unverified {
    let mut out = Unverified::default();
    for (index, config) in out.iter_mut().enumerate() {
        *config = label::unverified_config(disk, index).await;
    }
    out
}

/// The configurations: `each` of them, or equal ones once.
fn configurations(labels: &Labels, unverified: &Unverified, each: bool) -> String {
    let mut out = String::new();
    for (index, config) in labels.configs.iter().enumerate() {
        let (shown, mark) = match (config, unverified.get(index).and_then(Option::as_ref)) {
            (Ok(config), _) => (config, ""),
            (Err(_), Some(config)) => (config, "(Bad label cksum)"),
            (Err(fault), None) => {
                out.push_str(&format!("{RULE}\nLABEL {index} \n{RULE}\nfailed to unpack label {index}: {fault}\n"));
                continue;
            }
        };
        let of = |other: usize| match labels.configs.get(other) {
            Some(Ok(config)) => Some(config),
            _ => unverified.get(other).and_then(Option::as_ref),
        };
        let same = |other: usize| of(other) == Some(shown);
        if !each && (0..index).any(same) {
            continue;
        }
        let all: String = (0..LABELS).filter(|i| same(*i)).map(|i| format!("{i} ")).collect();
        let text = shown.to_text(4);
        out.push_str(&format!("{RULE}\nLABEL {index} {mark}\n{RULE}\n{text}    labels = {all}\n"));
    }
    out
}

/// Each place for an uberblock in each label.
fn places(labels: &Labels) -> String {
    let ashift = labels.best().and_then(|config| config.get_list("vdev_tree")?.get_u64("ashift")).unwrap_or(0);
    let mut out = String::new();
    for (label, slot) in (0..LABELS).flat_map(|label| (0..uberblock_slots(ashift)).map(move |slot| (label, slot))) {
        let found = labels.ring.iter().find(|found| (found.label, found.slot) == (label, slot));
        match found {
            Some(found) => {
                out.push_str(&format!("    Uberblock[{slot}]\n{}", text::uberblock(&found.uberblock)));
                out.push_str(&format!("    labels = {label} \n"));
            }
            None => out.push_str(&format!("    Uberblock[{slot}] invalid\n")),
        }
    }
    out
}

/// All valid uberblocks, with the labels that contain them.
fn rings(labels: &Labels) -> String {
    let mut out = String::new();
    let mut seen: BTreeMap<(usize, Vec<u64>), Vec<usize>> = BTreeMap::new();
    for slot in &labels.ring {
        let key = (
            slot.slot,
            [&[slot.uberblock.txg.0, slot.uberblock.timestamp_s][..], slot.uberblock.root.words()].concat(),
        );
        seen.entry(key).or_default().push(slot.label);
    }
    let mut done = std::collections::BTreeSet::new();
    for slot in &labels.ring {
        let key = (
            slot.slot,
            [&[slot.uberblock.txg.0, slot.uberblock.timestamp_s][..], slot.uberblock.root.words()].concat(),
        );
        let Some(in_labels) = seen.get(&key) else { continue };
        if done.insert(key.clone()) {
            let all: String = in_labels.iter().map(|l| format!("{l} ")).collect();
            out.push_str(&format!(
                "    Uberblock[{}]\n{}    labels = {all}\n",
                slot.slot,
                text::uberblock(&slot.uberblock)
            ));
        }
    }
    out
}
