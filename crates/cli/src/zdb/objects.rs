//! `zdb -d`: datasets, their objects, and the contents of an object.
//!
//! ```text
//!   -d     one line for each dataset        -dddd   attributes, entries of ZAPs
//!   -dd    one line for each object         -ddddd  the pointers of all its blocks
//! ```

use super::ZdbArgs;
use super::ranges::Range;
use super::select::Set;
use super::text;
use crate::failure::Failure;
use crate::times;
use crate::units::human;
use weir_codec::compress::zstd::{self, ZstdHeader};
use weir_dmu::zap::{Zap, ZapLayout};
use weir_dmu::{DataBlocks, Object, ObjectError, Objects};
use weir_format::{BlockPointer, CompressionKind, Dnode, DnodeFlags, ObjectId, ObjectType, ObjsetKind};
use weir_machine::{Machine, Request};
use weir_pool::Pool;

/// Maximum number of entries of a ZAP that are shown.
const ENTRIES: usize = 1 << 20;

/// Maximum number of integers of one entry that are shown.
const WORDS: usize = 16;

/// Shows the dataset or pool `target`, or the objects that the further operands name.
pub fn run(machine: &Machine, pool: &Pool, target: &str, args: &ZdbArgs) -> Result<u8, Failure> {
    machine.block_on(show(pool, target, args))
}

/// Suffix of the pool's name while the state of its checkpoint is open (`BOGUS_SUFFIX`).
const CHECKPOINTED: &str = "_CHECKPOINTED_UNIVERSE";

/// A dataset, under the name that OpenZFS's zdb gives it.
async fn dataset(rq: &Request, pool: &Pool, name: &str, args: &ZdbArgs) -> Result<Set, Failure> {
    let mut set = Set::dataset(rq, pool, name).await?;
    if args.checkpoint {
        let (pool, below) = name.split_at(name.find(['/', '@']).unwrap_or(name.len()));
        set.name = format!("{pool}{CHECKPOINTED}{below}");
    }
    Ok(set)
}

async fn show(pool: &Pool, target: &str, args: &ZdbArgs) -> Result<u8, Failure> {
    let rq = &Request::internal("zdb");
    let verbosity = usize::from(args.datasets);
    let detail = Detail { pool, verbosity, exact: args.parsable, zstd_headers: args.zstd_headers };
    let words: Vec<String> = args.words.iter().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    let is_dataset = target.contains(['/', '@']);
    if is_dataset || !words.is_empty() {
        let set = match is_dataset {
            true => dataset(rq, pool, target.trim_end_matches('/'), args).await?,
            false => Set::mos(rq, pool).await?,
        };
        return one(rq, &set, &words, detail).await;
    }
    let mut code = one(rq, &Set::mos(rq, pool).await?, &[], detail).await?;
    for info in pool.datasets(rq, true).await? {
        code = code.max(match dataset(rq, pool, &info.name, args).await {
            Ok(set) => one(rq, &set, &[], detail).await?,
            Err(failure) => {
                eprintln!("{}: {failure}", info.name);
                crate::failure::FAILED
            }
        });
    }
    Ok(code)
}

/// Choice of what is shown of an object.
#[derive(Clone, Copy)]
struct Detail<'a> {
    pool: &'a Pool,
    verbosity: usize,
    /// Whether numbers are exact.
    exact: bool,
    /// Whether the headers of blocks are shown that are compressed by zstd.
    zstd_headers: bool,
}

async fn one(rq: &Request, set: &Set, words: &[String], detail: Detail<'_>) -> Result<u8, Failure> {
    let Detail { verbosity, exact, .. } = detail;
    let objects = &set.objects;
    let used = objects.objects_used();
    let mut line = format!(
        "Dataset {} [{}], ID {}, cr_txg {}, {}, {used} objects",
        set.name,
        objects.kind().name(),
        objects.id(),
        set.created,
        human(set.referenced_bytes),
    );
    if verbosity >= 4 {
        line.push_str(&format!(", rootbp {}", text::block_pointer(&objects.pointer())));
    }
    println!("{line}");
    if let Some(sums) = set.deadlist.filter(|_| verbosity >= 3) {
        let size = |bytes: u64| if exact { bytes.to_string() } else { human(bytes) };
        let [used, compressed, uncompressed] =
            [sums.used_bytes, sums.compressed_bytes, sums.uncompressed_bytes].map(size);
        println!("\n    Deadlist: {used} ({compressed}/{uncompressed} comp)");
    }
    if words.is_empty() && verbosity < 2 {
        return Ok(0);
    }
    println!();
    let mut heading = true;
    let mut code = 0;
    if words.is_empty() {
        let mut listing = Objects::of(objects);
        while let Some((id, _)) = listing.next(rq).await.map_err(|e| failed(set, &e))? {
            code = code.max(object(rq, set, id, detail, &mut heading).await);
        }
    }
    let (ranges, words): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.contains(':'));
    let ranges: Result<Vec<Range>, String> = ranges.into_iter().map(|word| Range::parse(word)).collect();
    let ranges = ranges.map_err(|why| Failure::failed(format!("{}: {why}", set.name)))?;
    if !ranges.is_empty() {
        let mut listing = Objects::of(objects);
        while let Some((id, dnode)) = listing.next(rq).await.map_err(|e| failed(set, &e))? {
            // One that cannot be read is reported by its own row.
            let kind = dnode.map_or(ObjectType::NONE, |dnode| dnode.object_type);
            if ranges.iter().any(|range| range.contains(id, kind)) {
                code = code.max(object(rq, set, id, detail, &mut heading).await);
            }
        }
    }
    for word in words {
        let id = set.object(rq, word).await?;
        code = code.max(object(rq, set, id, Detail { verbosity: verbosity.max(4), ..detail }, &mut heading).await);
    }
    println!();
    Ok(code)
}

fn failed(set: &Set, error: &ObjectError) -> Failure {
    Failure::failed(format!("{}: {error}", set.name))
}

/// Prints one object; the error of an unreadable one is printed, and the next one follows.
async fn object(rq: &Request, set: &Set, id: ObjectId, detail: Detail<'_>, heading: &mut bool) -> u8 {
    let shown = match set.objects.object(rq, id).await {
        Ok(object) => details(rq, set, &object, detail, heading).await,
        Err(error) => Err(error),
    };
    match shown {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}: object {id}: {error}", set.name);
            crate::failure::FAILED
        }
    }
}

async fn details(
    rq: &Request,
    set: &Set,
    object: &std::sync::Arc<Object>,
    detail: Detail<'_>,
    heading: &mut bool,
) -> Result<(), ObjectError> {
    let Detail { verbosity, exact, .. } = detail;
    if *heading || verbosity >= 4 {
        println!("    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type");
        *heading = false;
    }
    print!("{}", row(object, exact));
    if verbosity >= 4 {
        print!("{}", dnode_text(&object.dnode));
        if let Some(fs) = &set.files
            && is_file(&object.dnode)
            && let Ok(a) = fs.attrs().get(rq, object.id).await
        {
            print!("{}", attributes(&a));
        }
        if object.dnode.object_type.is_zap() && !set.objects.is_locked() {
            zap(rq, set, object).await?;
        }
        if set.objects.is_locked() && object.dnode.object_type.is_encrypted() {
            println!("\t\t(object encrypted)\n");
        }
    }
    if verbosity >= 5 {
        blocks(rq, set, object, detail).await?;
    }
    Ok(())
}

fn is_file(dnode: &Dnode) -> bool {
    use weir_format::ObjectType as T;
    matches!(dnode.bonus_type, T::SA | T::ZNODE)
}

fn row(object: &Object, exact: bool) -> String {
    let human = |bytes: u64| if exact { bytes.to_string() } else { human(bytes) };
    let d = &object.dnode;
    let fill: u64 = d.block_pointers.iter().fold(0, |sum, bp| sum.saturating_add(bp.fill()));
    let span = object.span_bytes().max(object.block_bytes());
    let full = 100.0 * (fill.saturating_mul(object.block_bytes())) as f64 / span as f64;
    let indirect = 1u64.checked_shl(d.indirect_shift.into()).unwrap_or(0);
    let mut out = format!(
        "{:>10}  {:>3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {full:>6.2}  {}\n",
        object.id.0,
        d.levels,
        human(indirect),
        human(object.block_bytes()),
        human(d.used_bytes()),
        human(d.slots() as u64 * Dnode::SLOT as u64),
        human(span),
        d.object_type.name(),
    );
    if d.bonus_len > 0 {
        out.push_str(&format!("{:>50}   bonus  {}\n", d.bonus_len, d.bonus_type.name()));
    }
    out
}

fn dnode_text(d: &Dnode) -> String {
    let flags = [
        (DnodeFlags::USED_BYTES, "USED_BYTES"),
        (DnodeFlags::USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED"),
        (DnodeFlags::USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED"),
        (DnodeFlags::SPILL_BLKPTR, "SPILL_BLKPTR"),
    ];
    let flags: String = flags.iter().filter(|(f, _)| d.flags.has(*f)).map(|(_, n)| format!("{n} ")).collect();
    format!("\tdnode flags: {flags}\n\tdnode maxblkid: {}\n", d.max_block_id)
}

fn attributes(a: &weir_files::Attributes) -> String {
    let date = |ns: i128| times::date_and_time(u64::try_from(ns.div_euclid(1_000_000_000)).unwrap_or(0));
    format!(
        "\tuid     {}\n\tgid     {}\n\tatime\t{}\n\tmtime\t{}\n\tctime\t{}\n\tcrtime\t{}\n\tgen\t{}\n\tmode\t{:o}\n\
         \tsize\t{}\n\tparent\t{}\n\tlinks\t{}\n\tpflags\t{:x}\n",
        a.uid,
        a.gid,
        date(a.atime_ns),
        date(a.mtime_ns),
        date(a.ctime_ns),
        date(a.crtime_ns),
        a.generation,
        a.kind.mode_bits() | a.mode,
        a.size_bytes,
        a.parent,
        a.links,
        a.flags.0,
    )
}

async fn zap(rq: &Request, set: &Set, object: &std::sync::Arc<Object>) -> Result<(), ObjectError> {
    let zap = Zap::of(rq, &set.objects, object.clone()).await?;
    match zap.layout()? {
        ZapLayout::Micro { block_bytes, entries } => println!("\tmicrozap: {block_bytes} bytes, {entries} entries\n"),
        ZapLayout::Fat(_) => println!("\tFat ZAP:\n"),
    }
    let is_directory = object.dnode.object_type == weir_format::ObjectType::DIRECTORY_CONTENTS;
    for entry in zap.all(rq, ENTRIES).await? {
        let words = &entry.value.words;
        let value = match (is_directory, words.first(), entry.value.text()) {
            (true, Some(w), _) => format!("{} (type: {})", w & ((1 << 48) - 1), file_type((w >> 60) as u8)),
            (_, _, Some(text)) => text,
            _ => {
                let shown = words.iter().take(WORDS).map(u64::to_string).collect::<Vec<_>>().join(" ");
                let more = words.len().saturating_sub(WORDS);
                if more > 0 { format!("{shown} and {more} more") } else { shown }
            }
        };
        println!("\t\t{} = {value}", entry.key.text());
    }
    println!();
    Ok(())
}

fn file_type(bits: u8) -> &'static str {
    match bits {
        1 => "FIFO",
        2 => "Character Device",
        4 => "Directory",
        6 => "Block Device",
        8 => "Regular File",
        10 => "Symbolic Link",
        12 => "Socket",
        13 => "Door",
        14 => "Event Port",
        _ => "not specified",
    }
}

/// The level of a pointer in the column of its level, of an object with this number of levels (`zdb.c`, `print_indirect`).
fn level_column(levels: u8, level: u8) -> String {
    let above = usize::from(levels.saturating_sub(1).saturating_sub(level));
    format!("{:above$}L{level}{:below$}", "", "", below = usize::from(level) + 1)
}

/// The pointers of all data blocks, and those above them where they begin.
async fn blocks(
    rq: &Request,
    set: &Set,
    object: &std::sync::Arc<Object>,
    detail: Detail<'_>,
) -> Result<(), ObjectError> {
    if set.objects.kind() == ObjsetKind::None {
        return Ok(());
    }
    println!("Indirect blocks:");
    let block_bytes = object.block_bytes();
    for bp in object.dnode.block_pointers.iter().filter(|bp| bp.level() > 0 && !bp.is_hole()) {
        println!("{:>16x} {}{}", 0, level_column(object.dnode.levels, bp.level()), text::block_pointer(bp));
    }
    let mut blocks = DataBlocks::of(&set.objects, object);
    while let Some(block) = blocks.next(rq).await? {
        if let Some(bp) = set.objects.pointers().at(rq, object, 0, block).await? {
            let column = level_column(object.dnode.levels, 0);
            let header = if detail.zstd_headers { zstd_header(rq, detail.pool, &bp).await } else { String::new() };
            println!("{:>16x} {column}{}{header}", block.saturating_mul(block_bytes), text::block_pointer(&bp));
        }
    }
    if let Some(bp) = &object.dnode.spill {
        println!("Spill block: {}", text::block_pointer(bp));
    }
    println!();
    Ok(())
}

/// The header of a block that is compressed by zstd (`snprintf_zstd_header`); empty for others, and for one that cannot be read.
async fn zstd_header(rq: &Request, pool: &Pool, pointer: &BlockPointer) -> String {
    if pointer.compression() != Some(CompressionKind::Zstd) || pointer.is_encrypted() {
        return String::new();
    }
    let (stored, place) = match pointer.embedded() {
        Some(embedded) => (embedded.bytes().map(<[u8]>::to_vec), "EMBEDDED"),
        None => {
            let dva = pointer.dva(0);
            let read = pool.blocks.read_raw(rq, dva.vdev, dva.offset_bytes, pointer.psize_bytes()).await;
            (read.ok().map(|bytes| bytes.to_vec()), "NORMAL")
        }
    };
    match stored.as_deref().and_then(zstd::header) {
        Some(ZstdHeader { frame_bytes, version, level }) => {
            format!(" ZSTD:size={frame_bytes}:version={version}:level={level}:{place}")
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_columns_as_in_zdb() {
        let columns = [(1, 0), (2, 1), (2, 0), (3, 0)].map(|(levels, level)| level_column(levels, level));
        assert_eq!(columns, ["L0 ", "L1  ", " L0 ", "  L0 "]);
    }
}
