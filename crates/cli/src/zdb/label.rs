//! `zdb -l DEVICE`: the labels of a device, equal ones once; with `-u` also the uberblocks.

use super::ZdbArgs;
use super::text;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weir_format::label::LABELS;
use weir_machine::{Access, Disk, Machine};
use weir_pool::gpt::{Window, partitions};
use weir_pool::label::{self, Labels};

const RULE: &str = "------------------------------------";

/// Shows the labels of `device`. Exit code 2 if there is none, as zdb's.
pub fn run(machine: &Machine, device: &Path, args: &ZdbArgs) -> Result<u8, Failure> {
    let labels = machine.block_on(read(machine, device))?;
    let good = labels.configs.iter().filter(|c| c.is_ok()).count();
    if !args.skip_label {
        print!("{}", configurations(&labels));
    }
    if args.uberblock {
        print!("{}", rings(&labels));
    }
    if good == 0 {
        return Err(Failure::usage(format!("{}: none of the {LABELS} labels is valid", device.display())));
    }
    Ok(0)
}

/// The device's labels, or those of the first partition that has some.
async fn read(machine: &Machine, device: &Path) -> Result<Labels, Failure> {
    let disk = machine
        .disks
        .open(device, Access::ReadOnly)
        .map_err(|e| Failure::failed(format!("cannot open {}: {e}", device.display())))?;
    let labels = label::read(&disk).await;
    if labels.best().is_some() {
        return Ok(labels);
    }
    for partition in partitions(&disk, device).await? {
        let window: Arc<dyn Disk> = Arc::new(Window::new(disk.clone(), partition));
        let inner = label::read(&window).await;
        if inner.best().is_some() {
            println!("labels of partition {}:", partition.number);
            return Ok(inner);
        }
    }
    Ok(labels)
}

fn configurations(labels: &Labels) -> String {
    let mut out = String::new();
    for (index, config) in labels.configs.iter().enumerate() {
        match config {
            Err(fault) => {
                out.push_str(&format!("{RULE}\nLABEL {index} \n{RULE}\nfailed to unpack label {index}: {fault}\n"));
            }
            Ok(config) => {
                let same = |other: usize| labels.configs.get(other).and_then(|c| c.as_ref().ok()) == Some(config);
                if (0..index).any(same) {
                    continue;
                }
                let all: String = (0..LABELS).filter(|i| same(*i)).map(|i| format!("{i} ")).collect();
                let text = config.to_text(4);
                out.push_str(&format!("{RULE}\nLABEL {index} \n{RULE}\n{text}    labels = {all}\n"));
            }
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
