//! What changed between two states of a file system, compared with a look at all files of both: in pools of OpenZFS by
//! what their manifests say, in pools of Weir after random histories.

use crate::{goldens, real, work, zdb};
use bytes::Bytes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{Engine, Layout};
use weir_files::DirName;
use weir_files::diff::{Change, Diff, Difference};
use weir_files::{Cred, FileKind, FileSystem, HoldKind, New, NewKind, RenameMode, SetAttributes, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::diff::Pair;
use weir_pool::{OpenOptions, Pool, PoolError};

async fn all(rq: &Request, diff: &mut Diff) -> Vec<Difference> {
    let mut out = Vec::new();
    while let Some(found) = diff.next(rq).await.unwrap() {
        out.extend(found.into_iter().map(Result::unwrap));
    }
    assert!(out.is_sorted_by_key(|d| d.object));
    out
}

/// A line without times and kinds.
fn line(difference: &Difference) -> String {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let path = text(&difference.path);
    match &difference.change {
        Change::Added => format!("+ {path}"),
        Change::Removed => format!("- {path}"),
        Change::Modified => format!("M {path}"),
        Change::Links(more) => format!("M {path} ({more:+})"),
        Change::Renamed(to) => format!("R {path} -> {}", text(to)),
    }
}

/// Files of a manifest by their number: where each is, and what else is said of it.
type Listed = BTreeMap<u64, (Vec<String>, Value)>;

fn listed(dataset: &Value, root: ObjectId) -> Option<Listed> {
    let mut out = Listed::new();
    for entry in dataset["files"].as_array()? {
        let mut entry = entry.clone();
        let fields = entry.as_object_mut()?;
        let path = fields.remove("path")?;
        // When it was read last is no change.
        fields.remove("atime_ns");
        let number = fields.remove("ino")?.as_u64()?;
        let path = path.as_str().map_or_else(|| path.to_string(), str::to_owned);
        // The root of a mounted snapshot has a number of Linux's own.
        let number = if path == "/" { root.0 } else { number };
        out.entry(number).or_insert((Vec::new(), entry)).0.push(path);
    }
    Some(out)
}

/// Compares the differences with two lists of files.
fn agree(what: &str, differences: &[Difference], a: &Listed, b: &Listed) {
    let lines: BTreeMap<u64, Vec<&Difference>> = differences.iter().fold(BTreeMap::new(), |mut lines, d| {
        lines.entry(d.object.0).or_insert_with(Vec::new).push(d);
        lines
    });
    for number in a.keys().chain(b.keys()) {
        let said: Vec<String> = lines.get(number).into_iter().flatten().map(|d| line(d)).collect();
        let single =
            |of: &Listed| of.get(number).is_none_or(|(paths, _)| paths.len() == 1 && !paths[0].starts_with('{'));
        let from = a.get(number);
        let to = b.get(number);
        let wanted = match (from, to) {
            _ if !(single(a) && single(b)) => {
                assert_eq!(said.is_empty(), from == to, "{what}: {number} {from:?} {to:?} {said:?}");
                continue;
            }
            (Some((from, _)), None) => vec![format!("- {}", from[0])],
            (None, Some((to, _))) => vec![format!("+ {}", to[0])],
            (Some((from, _)), Some((to, _))) if from != to => vec![format!("R {} -> {}", from[0], to[0])],
            (Some((path, before)), Some((_, after))) if before != after => vec![format!("M {}", path[0])],
            _ => Vec::new(),
        };
        assert_eq!(said, wanted, "{what}: {number} {from:?} {to:?}");
    }
    let is_mass = |entry: &&(Vec<String>, Value)| entry.1.get("mass").is_some();
    let masses: Vec<String> =
        [a, b].into_iter().flat_map(|l| l.values()).filter(is_mass).flat_map(|e| e.0.clone()).collect();
    for (number, said) in lines.iter().filter(|(number, _)| !a.contains_key(number) && !b.contains_key(number)) {
        // What has no name for clients, extended attributes that are files; and large directories that are not listed.
        let unlisted = |path: &str| path.contains("<xattrdir>") || masses.iter().any(|mass| path.starts_with(mass));
        let hidden = said.iter().all(|d| unlisted(&String::from_utf8_lossy(&d.path)));
        assert!(hidden, "{what}: {number} {said:?}");
    }
}

/// Compares all states of a golden that can be compared; gives how many pairs, and lines.
fn golden(name: &str) -> Option<(usize, usize)> {
    let from = goldens::goldens()?;
    let text = std::fs::read(from.join(format!("{name}.json"))).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    let sets = json["manifest"]["datasets"].as_array().unwrap();
    let dir = goldens::unpack(&from, name);
    let machine = weir_linux::machine().unwrap();
    let counts = machine.block_on(async {
        let rq = &Request::internal("test");
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "")).await.unwrap();
        let mut pairs = 0;
        let mut lines = 0;
        for (older, newer) in sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b))) {
            let [a, b] = [older, newer].map(|set| set["name"].as_str().unwrap());
            let Ok(pair) = Pair::find(rq, &pool.dsl, &pool.facts(), a, b).await else { continue };
            let (Ok(older_files), Ok(newer_files)) = (pool.file_system(rq, a).await, pool.file_system(rq, b).await)
            else {
                continue;
            };
            let root = older_files.root();
            let (Some(before), Some(after)) = (listed(older, root), listed(newer, root)) else { continue };
            let mut diff = Diff::new(rq, older_files, newer_files, pair.after).await.unwrap();
            let differences = all(rq, &mut diff).await;
            agree(&format!("{a} {b}"), &differences, &before, &after);
            pairs += 1;
            lines += differences.len();
        }
        (pairs, lines)
    });
    std::fs::remove_dir_all(&dir).unwrap();
    Some(counts)
}

#[test]
fn states_of_pools_of_openzfs() {
    for name in ["snaps", "quota", "v28", "upgraded"] {
        let Some((pairs, lines)) = golden(name) else { return };
        eprintln!("{name}: {pairs} pairs, {lines} lines");
        assert!(pairs > 0 && (name != "snaps" || (pairs > 12 && lines > 80)), "{name}: {pairs} {lines}");
    }
}

/// A file as a look at the whole tree finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    paths: BTreeSet<String>,
    generation: u64,
    ctime_ns: i128,
    links: u64,
    kind: FileKind,
}

/// All files of a file system by their number.
async fn look(rq: &Request, files: &FileSystem) -> BTreeMap<u64, Found> {
    let mut out: BTreeMap<u64, Found> = BTreeMap::new();
    let mut to_look = vec![(files.root(), String::new())];
    while let Some((id, path)) = to_look.pop() {
        let a = files.attrs().get(rq, id).await.unwrap();
        let found = Found {
            paths: BTreeSet::new(),
            generation: a.generation,
            ctime_ns: a.ctime_ns,
            links: a.links,
            kind: a.kind,
        };
        let shown = if path.is_empty() { "/".to_owned() } else { path.clone() };
        out.entry(id.0).or_insert(found).paths.insert(shown);
        if a.kind == FileKind::Directory {
            for entry in files.directories().read_dir(rq, id, 0, usize::MAX).await.unwrap() {
                to_look.push((entry.object, format!("{path}/{}", String::from_utf8(entry.name).unwrap())));
            }
        }
    }
    out
}

/// Compares the differences with both trees.
fn compare(differences: &[Difference], a: &BTreeMap<u64, Found>, b: &BTreeMap<u64, Found>, linked: &BTreeSet<u64>) {
    let mut lines: BTreeMap<u64, Vec<&Difference>> = BTreeMap::new();
    differences.iter().for_each(|d| lines.entry(d.object.0).or_default().push(d));
    for number in a.keys().chain(b.keys()).chain(lines.keys()).collect::<BTreeSet<_>>() {
        let said: Vec<String> = lines.get(number).into_iter().flatten().map(|d| line(d)).collect();
        let from = a.get(number);
        let to = b.get(number);
        let context = format!("{number}: {from:?} {to:?} {said:?}");
        let first = |found: &Found| found.paths.first().unwrap().clone();
        let has_more = |found: Option<&Found>| found.is_some_and(|f| f.kind != FileKind::Directory && f.links > 1);
        if has_more(from) || has_more(to) || linked.contains(number) {
            // Which of its names is shown, and whether one is found at all, is the parent's matter that it remembers.
            let same = from.zip(to).is_some_and(|(a, b)| (a.generation, a.ctime_ns) == (b.generation, b.ctime_ns));
            assert!(!same || said.is_empty(), "{context}");
            let counts = |a: &Found, b: &Found| a.kind == b.kind && a.kind != FileKind::Directory && a.links != b.links;
            let counted = from.zip(to).filter(|(a, b)| a.generation == b.generation && counts(a, b));
            if let Some((a, b)) = counted {
                let suffix = format!("({:+})", b.links as i64 - a.links as i64);
                assert!(said.iter().all(|line| line.starts_with("M ") && line.ends_with(&suffix)), "{context}");
            }
            continue;
        }
        let wanted = match (from, to) {
            (None, None) => Vec::new(),
            (Some(from), None) => vec![format!("- {}", first(from))],
            (None, Some(to)) => vec![format!("+ {}", first(to))],
            (Some(a), Some(b)) if a.generation != b.generation || a.kind != b.kind => {
                vec![format!("- {}", first(a)), format!("+ {}", first(b))]
            }
            (Some(a), Some(b)) if a.ctime_ns == b.ctime_ns => Vec::new(),
            (Some(a), Some(b)) if first(a) == first(b) => vec![format!("M {}", first(a))],
            (Some(a), Some(b)) => vec![format!("R {} -> {}", first(a), first(b))],
        };
        assert_eq!(said, wanted, "{context}");
    }
}

/// A small generator of numbers, so that a seed is a history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below.max(1)
    }
}

/// Random changes of files.
async fn change(
    rq: &Request,
    files: &FileSystem,
    dice: &mut Dice,
    (steps, weight): (usize, usize),
    linked: &mut BTreeSet<u64>,
) {
    let root = Cred::root();
    for step in 0..steps {
        let tree = look(rq, files).await;
        let pick = |dice: &mut Dice, dirs: bool| {
            let fits = |f: &&Found| (f.kind == FileKind::Directory) == dirs && (dirs || !f.paths.is_empty());
            let fitting: Vec<_> = tree.iter().filter(|(_, f)| fits(f)).collect();
            (!fitting.is_empty()).then(|| fitting[dice.roll(fitting.len())])
        };
        let (dir, _) = pick(dice, true).unwrap();
        let dir = ObjectId(*dir);
        let name = format!("n{step}-{}", dice.roll(1 << 20));
        // Directory and name of a chosen file.
        let stands = |found: &Found| {
            let path = found.paths.first().unwrap().clone();
            let (above, name) = path.rsplit_once('/').unwrap();
            let above = if above.is_empty() { "/" } else { above };
            let above = tree.iter().find(|(_, f)| f.paths.contains(above)).map(|(id, _)| ObjectId(*id)).unwrap();
            (above, name.to_owned())
        };
        match dice.roll(weight) {
            0 => {
                let new = New::of(NewKind::Directory, 0o755);
                files.names().create(rq, &root, dir, name.as_bytes(), &new).await.map(drop).unwrap();
            }
            1 => {
                let Some((id, _)) = pick(dice, false) else { continue };
                linked.insert(*id);
                let _to_special_files = files.names().link(rq, &root, ObjectId(*id), dir, name.as_bytes()).await;
            }
            2 => {
                let dirs = dice.roll(3) == 0;
                let Some((_, found)) = pick(dice, dirs).filter(|(_, f)| !f.paths.contains("/")) else { continue };
                let (above, old) = stands(found);
                // A directory does not go below itself.
                let _refused = files
                    .names()
                    .rename(
                        rq,
                        &root,
                        DirName { dir: above, name: old.as_bytes() },
                        DirName { dir, name: name.as_bytes() },
                        RenameMode::Replace,
                    )
                    .await;
            }
            3 | 4 => {
                let Some((_, found)) = pick(dice, false) else { continue };
                let (above, old) = stands(found);
                files.names().remove(rq, &root, above, old.as_bytes()).await.unwrap();
            }
            5 => {
                let Some((id, _)) = pick(dice, false) else { continue };
                let id = ObjectId(*id);
                files.attrs().set(rq, &root, id, &SetAttributes::mode(0o600)).await.unwrap();
            }
            6 => {
                let Some((id, found)) = pick(dice, false) else { continue };
                if found.kind == FileKind::Regular {
                    let data = Bytes::from(vec![step as u8; 3000]);
                    files.contents().write(rq, &root, ObjectId(*id), WriteAt::End, data).await.unwrap();
                }
            }
            _ => {
                let kind = if dice.roll(8) == 0 { NewKind::Symlink(b"x".to_vec()) } else { NewKind::Regular };
                files.names().create(rq, &root, dir, name.as_bytes(), &New::of(kind, 0o644)).await.map(drop).unwrap();
            }
        }
    }
}

fn home() -> NewDataset {
    NewDataset { name: "tank/home".into(), kind: Kind::FileSystem(FileSystemSpec::default()), properties: Vec::new() }
}

async fn pool(machine: &Machine, dir: &Path) -> (Arc<Engine>, Arc<FileSystem>) {
    let engine = Engine::create(machine, &real::pool_of(dir, Layout::Single, 1)).await.unwrap();
    engine.create_dataset(home()).await.unwrap();
    let files = engine.file_system(&Request::internal("test"), "tank/home").await.unwrap();
    (engine, files)
}

#[test]
fn random_histories() {
    let dir = real::folder("diff-history");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let rq = &Request::internal("test");
        let (engine, files) = pool(&machine, &dir).await;
        let mut dice = Dice(4);
        let mut linked = BTreeSet::new();
        let mut states = Vec::new();
        for round in 0..6 {
            // First many files come; in the fourth round, nearly all go.
            match round {
                3 => {
                    for (id, found) in look(rq, &files).await {
                        if found.kind != FileKind::Directory && id % 90 != 0 {
                            for path in &found.paths {
                                let (above, name) = path.rsplit_once('/').unwrap();
                                let mut at = files.root();
                                for part in above.split('/').filter(|part| !part.is_empty()) {
                                    at = files.directories().lookup(rq, at, part.as_bytes()).await.unwrap();
                                }
                                files.names().remove(rq, &Cred::root(), at, name.as_bytes()).await.unwrap();
                            }
                        }
                    }
                }
                0 => change(rq, &files, &mut dice, (300, 60), &mut linked).await,
                _ => change(rq, &files, &mut dice, (60, 9), &mut linked).await,
            }
            let name = format!("tank/home@{round}");
            engine.snapshot(vec![name.clone()], Vec::new()).await.unwrap();
            let snapshot = engine.file_system(rq, &name).await.unwrap();
            states.push((name, look(rq, &snapshot).await));
        }
        change(rq, &files, &mut dice, (20, 9), &mut linked).await;
        states.push(("tank/home".to_owned(), look(rq, &files).await));
        let mut lines = 0;
        for (n, (older, before)) in states.iter().enumerate() {
            for (newer, after) in states.iter().skip(n + 1) {
                let mut comparison = engine.comparisons().begin(rq, older, newer).await.unwrap();
                assert_eq!(comparison.pair.mountpoint, "/tank/home");
                let differences = all(rq, &mut comparison.diff).await;
                engine.comparisons().end(comparison).await.unwrap();
                compare(&differences, before, after, &linked);
                lines += differences.len();
            }
        }
        assert!(lines > 1000, "{lines}");
        // What was read for the file system itself left nothing behind.
        let dsl = engine.synced().dsl(rq).await.unwrap();
        let list = dsl.snapshots(rq, dsl.dir_named("tank/home").unwrap()).await.unwrap();
        assert_eq!(list.snapshots.len(), 6);
        drop(dsl);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        let pair = Pair::find(rq, &pool.dsl, &pool.facts(), "tank/home@1", "tank/home").await.unwrap();
        let a = "tank/home@1";
        let b = "tank/home";
        let a = pool.file_system(rq, a).await.unwrap();
        let b = pool.file_system(rq, b).await.unwrap();
        let differences = all(rq, &mut Diff::new(rq, a, b, pair.after).await.unwrap()).await;
        compare(&differences, &states[1].1, &states[6].1, &linked);
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn snapshots_that_are_compared_stay() {
    let dir = real::folder("diff-stay");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let rq = &Request::internal("test");
        let (engine, files) = pool(&machine, &dir).await;
        let root = Cred::root();
        let make = async |name: &str| {
            let new = New::of(NewKind::Regular, 0o644);
            files.names().create(rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object
        };
        let snapshot = async |name: &str| engine.snapshot(vec![format!("tank/home@{name}")], Vec::new()).await.unwrap();
        let twice = make("twice").await;
        let new = New::of(NewKind::Directory, 0o755);
        let inner = files.names().create(rq, &root, files.root(), b"dir", &new).await.unwrap().object;
        snapshot("one").await;
        // Linked, and the link taken away again: its parent then is a directory that does not have it.
        files.names().link(rq, &root, twice, inner, b"link").await.unwrap();
        files.names().remove(rq, &root, inner, b"link").await.unwrap();
        let mut comparison = engine.comparisons().begin(rq, "tank/home@one", "tank/home").await.unwrap();
        let lines: Vec<String> = all(rq, &mut comparison.diff).await.iter().map(line).collect();
        assert_eq!(lines, ["M /twice", "M /dir"]);
        engine.comparisons().end(comparison).await.unwrap();
        let open = make("open").await;
        snapshot("two").await;
        files.holds().hold(open, HoldKind::Open);
        files.names().remove(rq, &root, files.root(), b"open").await.unwrap();
        let mut comparison = engine.comparisons().begin(rq, "tank/home@two", "tank/home").await.unwrap();
        for defer in [false, true] {
            let destroyed = engine.destroy_snapshots(vec!["tank/home@two".into()], defer).await;
            assert!(matches!(destroyed, Err(PoolError::Dsl(_))), "{destroyed:?}");
        }
        engine.destroy_snapshots(vec!["tank/home@one".into()], false).await.unwrap();
        let lines: Vec<String> = all(rq, &mut comparison.diff).await.iter().map(line).collect();
        assert_eq!(
            lines,
            ["R /open -> (on_delete_queue)", "M /"].map(str::to_owned).to_vec().into_iter().rev().collect::<Vec<_>>()
        );
        engine.comparisons().end(comparison).await.unwrap();
        engine.destroy_snapshots(vec!["tank/home@two".into()], false).await.unwrap();
        for (a, b) in [("tank/home@two", "tank/home"), ("tank/home", "tank/home")] {
            assert!(engine.comparisons().begin(rq, a, b).await.is_err(), "{a} {b}");
        }
        files.holds().release(rq, open, HoldKind::Open).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}
