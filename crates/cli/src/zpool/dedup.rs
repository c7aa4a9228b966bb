//! The dedup tables in `zpool status -D`: how many entries have how many references.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`print_dedup_stats`, `dedup_stats_nvlist`), `lib/libzutil/zutil_pool.c`
//! (`zpool_dump_ddt`).

use super::vdevs::Style;
use crate::units::{human, human_bytes};
use serde_json::{Map, Value};
use weir_admin::{DedupStatus, DedupSums};

/// Names of the sums of a row in JSON.
const FIELDS: [&str; 8] =
    ["blocks", "logical_size", "physical_size", "deflated_size", "ref_blocks", "ref_lsize", "ref_psize", "ref_dsize"];

/// The tables as text.
pub fn text(tables: &DedupStatus, parsable: bool) -> String {
    let total = tables.total();
    let entries = total[0].blocks;
    if entries == 0 {
        return "\n dedup: no DDT entries\n".to_owned();
    }
    let number = |n: u64| if parsable { n.to_string() } else { human(n) };
    let disk = number(tables.disk_bytes);
    let memory = number(tables.memory_bytes);
    let mut out = format!("\n dedup: DDT entries {entries}, size {disk} on disk, {memory} in core\n\n");
    out.push_str("bucket              allocated                       referenced          \n");
    out.push_str("______   ______________________________   ______________________________\n");
    let sizes = ["blocks", "LSIZE", "PSIZE", "DSIZE"];
    out.push_str(&line("refcnt", sizes.iter().chain(&sizes).map(ToString::to_string)));
    let dashes = ["------", "-----", "-----", "-----"];
    out.push_str(&line("------", dashes.iter().chain(&dashes).map(ToString::to_string)));
    for bucket in &tables.buckets {
        let references = 1u64.checked_shl(bucket.references_log2).unwrap_or(u64::MAX);
        out.push_str(&line(&human(references), cells([bucket.allocated, bucket.referenced])));
    }
    out.push_str(&line("Total", cells(total)));
    out.push('\n');
    out
}

fn cells(sums: [DedupSums; 2]) -> impl Iterator<Item = String> {
    in_order(sums).into_iter().enumerate().map(|(at, n)| if at % 4 == 0 { human(n) } else { human_bytes(n) })
}

/// The sums of a row in the order of its columns.
fn in_order(sums: [DedupSums; 2]) -> Vec<u64> {
    sums.into_iter().flat_map(|sums| sums.in_order()).collect()
}

fn line(first: &str, cells: impl Iterator<Item = String>) -> String {
    let mut out = format!("{first:>6}");
    for (at, cell) in cells.enumerate() {
        let width = if at % 4 == 0 { 6 } else { 5 };
        out.push_str(&format!("   {cell:>width$}"));
    }
    out.push('\n');
    out
}

/// The tables as JSON.
pub fn json(tables: &DedupStatus, style: Style) -> Map<String, Value> {
    let total = tables.total();
    let entries = total[0].blocks;
    let mut out = Map::new();
    out.insert("obj_count".into(), style.number(entries));
    if entries == 0 {
        return out;
    }
    out.insert("dspace".into(), style.size(tables.disk_bytes));
    out.insert("mspace".into(), style.size(tables.memory_bytes));
    let object = |sums: [DedupSums; 2]| {
        let field = |(at, (name, n)): (usize, (&&str, u64))| {
            ((*name).to_owned(), if at % 4 == 0 { style.number(n) } else { style.size(n) })
        };
        Value::Object(FIELDS.iter().zip(in_order(sums)).enumerate().map(field).collect())
    };
    let buckets = tables.buckets.iter();
    let histogram: Map<String, Value> = buckets
        .map(|bucket| (bucket.references_log2.to_string(), object([bucket.allocated, bucket.referenced])))
        .collect();
    let stats = [("total".to_owned(), object(total)), ("histogram".to_owned(), Value::Object(histogram))];
    out.insert("ddt_stats".into(), Value::Object(stats.into_iter().collect()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_admin::DedupBucket;

    #[test]
    fn tables_look_as_those_of_openzfs() {
        let mut tables = DedupStatus { buckets: Vec::new(), disk_bytes: 4096, memory_bytes: 1536 };
        assert_eq!(text(&tables, false), "\n dedup: no DDT entries\n");
        let sums = |blocks, logical_bytes, physical_bytes| DedupSums {
            blocks,
            logical_bytes,
            physical_bytes,
            deflated_bytes: physical_bytes,
        };
        let all = sums(3, 393_216, 393_216);
        let twice = [sums(1, 131_072, 512), sums(2, 262_144, 1024)];
        tables.buckets = vec![
            DedupBucket { references_log2: 0, allocated: all, referenced: all },
            DedupBucket { references_log2: 1, allocated: twice[0], referenced: twice[1] },
        ];
        let expected = "
 dedup: DDT entries 4, size 4K on disk, 1.50K in core

bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
     1        3    384K    384K    384K        3    384K    384K    384K
     2        1    128K    512B    512B        2    256K      1K      1K
 Total        4    512K    384K    384K        5    640K    385K    385K

";
        assert_eq!(text(&tables, false), expected);
        let json = json(&tables, Style { numbers: crate::json::Numbers::Integers, parsable: true });
        assert_eq!(json["ddt_stats"]["histogram"]["1"]["ref_lsize"], 262_144);
        assert_eq!(json["ddt_stats"]["total"]["blocks"], 4);
    }
}
