//! `weir where`: the blocks of a file or object, and where they are.
//!
//! ```text
//!   FILE on a mount ─► /proc/self/mountinfo ─► dataset and path ─┐
//!   POOL/DATASET PATH | OBJECT ──────────────────────────────────┴─► object ─► its tree of blocks, parents first
//!                                                                               each copy read and verified by itself
//! ```
//!
//! It shows the state of the last synced txg. If a process has the pool open, that process runs the command, and says which blocks
//! its ARC holds; looking neither counts as an access nor reads through the ARC.

use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::{FAILED, Failure};
use crate::json::{self, Numbers, number};
use crate::options::{JsonOptions, PoolDirs};
use crate::pools::{self, PoolHandle};
use crate::units::human;
use crate::zdb::select::walk;
use clap::Parser;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use weir_blocks::{Blocks, ReadOptions};
use weir_cache::Cache;
use weir_dmu::{Object, ObjectError, ObjectSet};
use weir_format::{BlockPointer, Cursor, ObjectId};
use weir_machine::Request;
use weir_pool::OpenOptions;

/// Type of the mounts of this program.
const MOUNT_TYPE: &str = "fuse.weir";

/// Show the blocks of a file and where they are.
///
/// For each block: level, logical offset, sizes, compression, whether it is cached, txg of its birth, and the place of each copy. Each copy is read and its checksum verified. Holes are lines of their own: "hole" instead of a level, offset and length. Exit code: 0 all can be read, 1 one cannot.
#[derive(Debug, Parser)]
#[command(
    name = "weir where",
    override_usage = "weir where [-H] [-j [--json-int]] FILE\n       weir where [-H] [-j [--json-int]] [-d DIR]… POOL/DATASET PATH|OBJECT"
)]
pub struct WhereArgs {
    /// No header; columns separated by tabs; exact numbers
    #[arg(short = 'H')]
    scripted: bool,
    #[command(flatten)]
    json: JsonOptions,
    #[command(flatten)]
    places: PoolDirs,
    /// File on a mount; or dataset or snapshot, and a path in it or the number of an object
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    words: Vec<String>,
}

/// A block, or a hole where a block could be.
struct Row {
    pointer: BlockPointer,
    level: u8,
    offset_bytes: u64,
    /// Whether the ARC has it; `None` if no process has the pool open.
    is_cached: Option<bool>,
    /// Vdev, offset, allocated size, and the error of reading the copy.
    copies: Vec<(u32, u64, u64, Option<String>)>,
}

/// Runs the command.
pub fn run(call: &Call, args: &WhereArgs) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<WhereArgs>()?;
    let (dataset, name) = match args.words.as_slice() {
        [file] => on_mount(call, file)?,
        [dataset, name] => (dataset.clone(), name.clone()),
        _ => return Err(WhereArgs::misused("missing file")),
    };
    let pool = dataset.split(['/', '@']).next().unwrap_or_default().to_owned();
    let search = pools::search(call, &args.places.dirs)?;
    let handle = pools::look(call, &OpenOptions::new(search, pool.clone()))?;
    let cache = match &handle {
        PoolHandle::Open(_) => call.served_pool(&pool).map(|served| served.engine.cache.clone()),
        PoolHandle::Closed(_) => None,
    };
    let machine = call.machine()?;
    let rq = Request::internal("where");
    let (dataset, name) = machine.block_on(resolve(&rq, &handle, dataset, name));
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{dataset}: {name}: {error}"));
    machine.block_on(async {
        let set = handle.object_set(&rq, &dataset).await?;
        let id = match name.parse() {
            Ok(number) => ObjectId(number),
            Err(_) => {
                let files = handle.file_system(&rq, &dataset).await?;
                walk(&rq, &files, &name).await.map_err(|e| failed(&e))?
            }
        };
        let object = set.object(&rq, id).await.map_err(|e| failed(&e))?;
        let mut finder = Finder {
            rq: &rq,
            set: &set,
            object: &object,
            blocks: &handle.blocks,
            cache: cache.as_deref(),
            out: Output {
                call,
                args,
                numbers,
                rows: Vec::new(),
                holes: Vec::new(),
                hole: None,
                has_head: false,
                blocks: 0,
            },
            is_damaged: false,
        };
        for (n, pointer) in (0..).zip(&object.dnode.block_pointers) {
            finder.visit(*pointer, object.dnode.levels.saturating_sub(1), n).await;
        }
        if let Some(spill) = object.dnode.spill {
            finder.block(spill, 0, None).await;
        }
        let is_damaged = finder.is_damaged;
        finder.out.end(&dataset, &name, &object);
        Ok(if is_damaged { FAILED } else { 0 })
    })
}

/// The dataset and path of a file on a mount. The path is not looked up: the mount may be one of this process.
fn on_mount(call: &Call, file: &str) -> Result<(String, String), Failure> {
    let path = lexical(&call.path(file));
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = mount_of(&table, &path);
    let why = || {
        format!("'{file}' is not on a mount of weir; give the dataset and the path in it: weir where POOL/DATASET PATH")
    };
    let (dataset, rest) = found.ok_or_else(|| Failure::failed(why()))?;
    Ok((dataset, rest))
}

/// A path without `.` and `..`.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// The source of the mount that a path is on, and the path below the mount point.
fn mount_of(table: &str, path: &Path) -> Option<(String, String)> {
    let ours = table.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut words = back.split(' ');
        let is_ours = words.next() == Some(MOUNT_TYPE);
        let source = words.next().filter(|_| is_ours)?;
        let point = PathBuf::from(unescaped(front.split(' ').nth(4)?));
        let rest = path.strip_prefix(&point).ok()?;
        Some((point.as_os_str().as_bytes().len(), unescaped(source), format!("/{}", rest.display())))
    });
    ours.max_by_key(|(len, ..)| *len).map(|(_, source, rest)| (source, rest))
}

/// A word of the table of mounts, in which blanks and backslashes are octal numbers (`proc_pid_mountinfo(5)`).
fn unescaped(word: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(word.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// Follows file systems and snapshots that a path enters: mounts of a whole pool show them as directories.
async fn resolve(rq: &Request, pool: &PoolHandle, mut dataset: String, path: String) -> (String, String) {
    let mut rest: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if !path.starts_with('/') {
        return (dataset, path);
    }
    loop {
        let below = match rest.as_slice() {
            [".zfs", "snapshot", snapshot, ..] => (format!("{dataset}@{snapshot}"), 3),
            [first, ..] => (format!("{dataset}/{first}"), 1),
            [] => break,
        };
        if dataset.contains('@') || pool.dataset(rq, &below.0).await.is_err() {
            break;
        }
        dataset = below.0;
        rest.drain(..below.1);
    }
    (dataset, format!("/{}", rest.join("/")))
}

struct Finder<'a> {
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    object: &'a Arc<Object>,
    blocks: &'a Blocks,
    cache: Option<&'a Cache>,
    out: Output<'a>,
    is_damaged: bool,
}

impl Finder<'_> {
    /// Shows a block and those below it. `number` is that of the block on its level.
    fn visit(&mut self, pointer: BlockPointer, level: u8, number: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let first = self.object.tree().first_block(level, number);
            if pointer.is_hole() {
                self.hole(self.object.tree().blocks_below(level, number));
                return;
            }
            self.block(pointer, level, Some(first)).await;
            if level == 0 {
                return;
            }
            let read: Result<_, ObjectError> =
                self.set.pointers().read_indirect(self.rq, self.object, &pointer, level, first).await;
            // A block that cannot be read was shown with its error.
            let Ok(bytes) = read else { return };
            for (n, slot) in (self.object.tree().first_child(number)..).zip(bytes.chunks_exact(BlockPointer::SIZE)) {
                let mut cursor = Cursor::new(slot, pointer.endian(), "indirect block");
                let Ok(child) = BlockPointer::decode(&mut cursor) else { continue };
                if child.is_hole() || child.level() == level - 1 {
                    self.visit(child, level - 1, n).await;
                }
            }
        })
    }

    /// Notes a hole of these data blocks, as far as they are in the object.
    fn hole(&mut self, blocks: Range<u64>) {
        let bytes = self.object.block_bytes();
        let end = blocks.end.saturating_mul(bytes).min(self.object.span_bytes());
        let start = blocks.start.saturating_mul(bytes);
        if start < end {
            self.out.hole(start..end);
        }
    }

    /// Shows one block; `None` as first block for the spill block.
    async fn block(&mut self, pointer: BlockPointer, level: u8, first: Option<u64>) {
        let options = self.set.options();
        let is_cached = self.cache.map(|cache| cache.has(&pointer, options));
        let mut copies = Vec::new();
        for (n, dva) in pointer.dvas().enumerate().filter(|_| !pointer.is_embedded()) {
            let options = ReadOptions { raw: true, origin: None, ..options.clone() };
            let read = self.blocks.read(self.rq, &pointer.with_copy(n), &options).await;
            self.is_damaged |= read.is_err();
            copies.push((dva.vdev, dva.offset_bytes, dva.asize_bytes, read.err().map(|error| error.to_string())));
        }
        let offset_bytes = first.unwrap_or(u64::MAX).saturating_mul(self.object.block_bytes());
        self.out.row(Row { pointer, level, offset_bytes, is_cached, copies });
    }
}

struct Output<'a> {
    call: &'a Call,
    args: &'a WhereArgs,
    numbers: Numbers,
    rows: Vec<Value>,
    holes: Vec<Value>,
    /// The last hole that was read. A hole that begins where this one ends extends it.
    hole: Option<Range<u64>>,
    has_head: bool,
    /// Number of blocks shown.
    blocks: u64,
}

impl Output<'_> {
    /// Adds a hole, which is shown when the next block is known.
    fn hole(&mut self, bytes: Range<u64>) {
        match &mut self.hole {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => {
                self.end_hole();
                self.hole = Some(bytes);
            }
        }
    }

    /// Shows the hole before a block, or at the end.
    fn end_hole(&mut self) {
        let Some(hole) = self.hole.take() else { return };
        let length = hole.end - hole.start;
        if self.args.json.json {
            let n = |value: u64| number(value, self.numbers);
            return self.holes.push(json!({ "offset": n(hole.start), "length": n(length) }));
        }
        self.head();
        if self.args.scripted {
            outln!(self.call, "hole\t{}\t{length}\t-\t-\t-\t-\t-", hole.start);
        } else {
            let (start, length) = (hole.start, human(length));
            outln!(
                self.call,
                "{:<5}  {start:>12}  {length:>6}  {:>6}  {:<12}  {:<6}  {:<8}  -",
                "hole",
                "-",
                "-",
                "-",
                "-"
            );
        }
    }

    fn row(&mut self, row: Row) {
        self.end_hole();
        self.blocks += 1;
        if self.args.json.json {
            self.rows.push(self.json(&row));
            return;
        }
        self.head();
        self.line(&row);
    }

    /// Prints the heading before the first line.
    fn head(&mut self) {
        if !self.has_head && !self.args.scripted {
            outln!(
                self.call,
                "{:<5}  {:>12}  {:>6}  {:>6}  {:<12}  {:<6}  {:<8}  COPIES (vdev:offset:size checksum)",
                "LEVEL",
                "OFFSET",
                "LSIZE",
                "PSIZE",
                "COMPRESS",
                "CACHED",
                "BIRTH"
            );
        }
        self.has_head = true;
    }

    fn line(&self, row: &Row) {
        let size = |n: u64| if self.args.scripted { n.to_string() } else { human(n) };
        let pointer = &row.pointer;
        let embedded = pointer.embedded();
        let lsize = embedded.as_ref().map_or(pointer.lsize_bytes(), |e| e.lsize_bytes as u64);
        let psize = embedded.as_ref().map_or(pointer.psize_bytes(), |e| e.psize_bytes as u64);
        let compression = pointer.compression().map_or("unknown", |kind| kind.name());
        let cached = row.is_cached.map_or("-", |is_cached| if is_cached { "yes" } else { "no" });
        let offset = offset_text(row.offset_bytes);
        let birth = pointer.logical_birth();
        let copies = copies_text(row);
        let level = format!("L{}", row.level);
        if self.args.scripted {
            let (lsize, psize) = (size(lsize), size(psize));
            outln!(self.call, "{level}\t{offset}\t{lsize}\t{psize}\t{compression}\t{cached}\t{birth}\t{copies}");
        } else {
            let (lsize, psize, birth) = (size(lsize), size(psize), birth.to_string());
            outln!(
                self.call,
                "{level:<5}  {offset:>12}  {lsize:>6}  {psize:>6}  {compression:<12}  {cached:<6}  {birth:<8}  {copies}"
            );
        }
    }

    fn json(&self, row: &Row) -> Value {
        let n = |value: u64| number(value, self.numbers);
        let copies: Vec<Value> = row
            .copies
            .iter()
            .map(|(vdev, offset, asize, error)| {
                json!({
                    "vdev": n(u64::from(*vdev)),
                    "offset": n(*offset),
                    "asize": n(*asize),
                    "checksum": error.as_deref().unwrap_or("ok"),
                })
            })
            .collect();
        let mut out = Map::new();
        out.insert("level".into(), n(row.level.into()));
        let is_spill = row.offset_bytes == u64::MAX;
        out.insert("offset".into(), if is_spill { "spill".into() } else { n(row.offset_bytes) });
        let embedded = row.pointer.embedded();
        out.insert("lsize".into(), n(embedded.as_ref().map_or(row.pointer.lsize_bytes(), |e| e.lsize_bytes as u64)));
        out.insert("psize".into(), n(embedded.as_ref().map_or(row.pointer.psize_bytes(), |e| e.psize_bytes as u64)));
        out.insert("compression".into(), row.pointer.compression().map_or("unknown", |kind| kind.name()).into());
        out.insert("birth".into(), n(row.pointer.logical_birth().0));
        out.insert("embedded".into(), row.pointer.is_embedded().into());
        out.insert("gang".into(), (!row.pointer.is_embedded() && row.pointer.is_gang()).into());
        out.insert("cached".into(), row.is_cached.map_or(Value::Null, Value::Bool));
        out.insert("copies".into(), copies.into());
        Value::Object(out)
    }

    fn end(mut self, dataset: &str, name: &str, object: &Object) {
        self.end_hole();
        if !self.args.json.json {
            if self.blocks == 0 && !self.args.scripted {
                let why = match self.has_head {
                    true => "all of it is a hole",
                    false => {
                        "it is empty, was written after that ('zpool sync' syncs it), or what it has is in its dnode, as the target \
                         of a symbolic link is"
                    }
                };
                outln!(
                    self.call,
                    "{dataset}: {name} (object {}) has no blocks in the last synced txg: {why}",
                    object.id.0
                );
            }
            return;
        }
        let mut answer = json::frame("weir where");
        answer.insert("dataset".into(), dataset.into());
        answer.insert("name".into(), name.into());
        answer.insert("object".into(), number(object.id.0, self.numbers));
        answer.insert("block_size".into(), number(object.block_bytes(), self.numbers));
        answer.insert("blocks".into(), self.rows.into());
        answer.insert("holes".into(), self.holes.into());
        json::print(self.call, answer);
    }
}

fn offset_text(offset_bytes: u64) -> String {
    if offset_bytes == u64::MAX { "spill".to_owned() } else { offset_bytes.to_string() }
}

fn copies_text(row: &Row) -> String {
    if row.pointer.is_embedded() {
        return "in the block pointer".to_owned();
    }
    let gang = if row.pointer.is_gang() { " gang" } else { "" };
    let one = |(vdev, offset, asize, error): &(u32, u64, u64, Option<String>)| {
        format!("{vdev}:{offset:x}:{asize:x}{gang} {}", error.as_deref().unwrap_or("ok"))
    };
    row.copies.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_mounts() {
        let table = "30 1 0:40 / / rw - ext4 /dev/vda rw\n\
                     31 30 0:41 / /srv rw - fuse.weir tank rw\n\
                     32 31 0:42 / /srv/a\\040b rw - fuse.weir tank/x rw\n";
        let of = |path: &str| mount_of(table, &lexical(Path::new(path)));
        assert_eq!(of("/srv/d/../f"), Some(("tank".into(), "/f".into())));
        assert_eq!(of("/srv/a b/f"), Some(("tank/x".into(), "/f".into())));
        assert_eq!(of("/etc/passwd"), None);
    }

    #[test]
    fn the_spill_block_has_no_offset() {
        assert_eq!((offset_text(u64::MAX), offset_text(4096)), ("spill".into(), "4096".into()));
    }
}
