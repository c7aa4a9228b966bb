//! Options that show one part of the pool's state: metaslabs (`-m`, `-M`), history (`-h`), devices (`-s`), intent logs
//! (`-i`), dedup tables (`-D`).

use super::select::Set;
use crate::failure::Failure;
use crate::times;
use crate::units::human;
use std::collections::BTreeMap;
use weir_admin::DedupStatus;
use weir_format::NvList;
use weir_machine::Request;
use weir_pool::{Pool, capacity};
use weir_zil::LogWalk;

/// `-m`: the metaslabs of every top-level vdev; with `more` their space maps.
pub fn metaslabs(pool: &Pool, more: bool) {
    println!("\nMetaslabs:");
    for (index, v) in pool.space.vdevs.iter().enumerate().filter(|(_, v)| v.concrete) {
        println!(
            "\tvdev {index:>10}\n\tmetaslabs {:>3}   offset                spacemap          free        ",
            v.metaslabs.len()
        );
        println!("\t---------------   -------------------   ---------------   ------------");
        let size = 1u64.checked_shl(v.metaslab_shift).unwrap_or(0);
        for (n, m) in v.metaslabs.iter().enumerate() {
            let offset = n as u64 * size;
            let free = size.saturating_sub(m.allocated_bytes);
            println!(
                "\tmetaslab {n:>6}   offset {offset:>12x}   spacemap {:>6}   free {:>8}",
                m.space_map,
                human(free)
            );
            if more && m.space_map != 0 {
                println!("space map object {}:", m.space_map);
                println!("  smp_length = {:#x}\n  smp_alloc = {:#x}", m.log_bytes, m.allocated_bytes);
                println!("\tFlush data:\n\tunflushed txg={}\n", m.unflushed_txg);
            }
        }
        println!();
    }
}

/// `-M`: the fragmentation of every top-level vdev and of the pool (`dump_metaslab_groups`).
pub fn metaslab_groups(pool: &Pool) {
    let text = |percent: Option<u64>| percent.map_or_else(|| format!("{:>3}", "-"), |percent| format!("{percent:>3}%"));
    println!("\nMetaslab groups:");
    for (index, v) in pool.space.vdevs.iter().enumerate().filter(|(_, v)| v.concrete) {
        let fragmentation = text(capacity::vdev_fragmentation(v));
        println!("\tvdev {index:>10}\t\tmetaslabs{:>5}\t\tfragmentation{fragmentation}", v.metaslabs.len());
    }
    println!("\tpool {}\tfragmentation{}", pool.name(), text(capacity::fragmentation(&pool.space)));
}

/// `-h`: the history of the pool.
pub async fn history(rq: &Request, pool: &Pool) -> Result<(), Failure> {
    println!("\nHistory:");
    let failed = |e| Failure::failed(format!("{}: history: {e}", pool.name()));
    for record in weir_dsl::history::history(&pool.dsl, rq).await.map_err(failed)? {
        println!("{}", event(&record));
    }
    println!();
    Ok(())
}

fn event(record: &NvList) -> String {
    let text_of = |name: &str| record.get_string_bytes(name).map(|b| String::from_utf8_lossy(b).into_owned());
    let time = times::stamp(record.get_u64("history time").unwrap_or(0));
    if let Some(command) = text_of("history command") {
        return format!("{time} {command}");
    }
    if let Some(what) = text_of("ioctl") {
        return format!("{time} ioctl {what}");
    }
    let name = text_of("internal_name").unwrap_or_else(|| "internal event".into());
    let what = text_of("history internal str").unwrap_or_default();
    let txg = record.get_u64("history txg").unwrap_or(0);
    match (text_of("dsname"), record.get_u64("dsid")) {
        (Some(dataset), Some(id)) => format!("{time} [txg:{txg}] {name} {dataset} ({id}) {what}"),
        _ => format!("{time} [txg:{txg}] {name} {what}"),
    }
}

/// `-s`: operations and bytes of each device since the pool was opened.
pub fn devices(pool: &Pool) {
    println!(
        "{:<34} {:>7} {:>7} {:>8} {:>8} {:>6} {:>6}",
        "device", "used", "avail", "reads", "bytes", "errors", "cksum"
    );
    let c = &pool.capacity;
    let free = c.size_bytes.saturating_sub(c.allocated_bytes);
    println!("{:<34} {:>7} {:>7}", pool.name(), human(c.allocated_bytes), human(free));
    for leaf in pool.blocks.tree().health() {
        let n = leaf.counts;
        let name = if leaf.present { leaf.name } else { format!("{} (missing)", leaf.name) };
        let bytes = human(n.read_bytes);
        let errors = n.read_errors;
        let cksum = n.checksum_errors;
        println!("  {name:<32} {:>7} {:>7} {:>8} {bytes:>8} {errors:>6} {cksum:>6}", "", "", n.reads);
    }
}

/// `-i`: the intent logs of all datasets that have one.
pub async fn logs(rq: &Request, pool: &Pool) -> Result<(), Failure> {
    for info in pool.datasets(rq, false).await? {
        let set = Set::dataset(rq, pool, &info.name).await?;
        let root = set.objects.root();
        let zil = &root.header.zil;
        println!("Dataset {} [{}], ID {}", set.name, set.objects.kind().name(), set.objects.id());
        if zil.is_empty() {
            continue;
        }
        println!(
            "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags {:#x}",
            zil.claim_txg, zil.claim_block_seq, zil.claim_record_seq, zil.replay_seq, zil.flags
        );
        let mut blocks = 0u64;
        let mut records = BTreeMap::<&str, u64>::new();
        let mut walk = LogWalk::new(&set.objects);
        let failed = |e: &dyn std::fmt::Display| Failure::failed(format!("{}: intent log: {e}", info.name));
        while let Some(block) = walk.next(rq).await.map_err(|e| failed(&e))? {
            blocks += 1;
            for record in block.records().map_err(|e| failed(&e))? {
                *records.entry(record.tx_type.name()).or_default() += 1;
            }
        }
        println!("    {blocks} blocks");
        for (name, count) in records {
            println!("\t\t{name:<20} {count:>6}");
        }
        println!();
    }
    Ok(())
}

/// `-D`: the dedup tables and the space that deduplication saves; with `more` their entries by number of references.
///
/// The line of a table is that of OpenZFS (`cmd/zdb/zdb.c`, `dump_ddt_object`).
pub async fn dedup(rq: &Request, pool: &Pool, more: bool) -> Result<(), Failure> {
    let failed = |e| Failure::failed(format!("{}: dedup tables: {e}", pool.name()));
    let tables = weir_pool::dedup::table_list(rq, &pool.mos).await.map_err(failed)?;
    let filled: Vec<_> = tables.iter().filter(|table| table.entries > 0).collect();
    if filled.is_empty() {
        println!("All DDTs are empty");
        return Ok(());
    }
    for table in filled {
        let (name, disk, memory) = (&table.name, table.disk_bytes, table.memory_bytes);
        println!("{name}: dspace={disk}; mspace={memory}; entries={}", table.entries);
    }
    if more {
        let all = weir_pool::dedup::dedup_tables(rq, &pool.mos, &pool.tree.children).await.map_err(failed)?;
        println!(
            "\nDDT histogram (aggregated over all DDTs):\n{}",
            crate::zpool::dedup_text(&DedupStatus::from(&all), false)
        );
    }
    let shared = &pool.capacity.shared;
    let ratio = shared.dedup_ratio();
    println!("dedup = {}.{:02}, tables take {}", ratio / 100, ratio % 100, human(shared.tables));
    Ok(())
}
