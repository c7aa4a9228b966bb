//! The vdevs of a command line: `mirror a b raidz2 c d e f log mirror g h cache i spare j` (OpenZFS `construct_spec`).

use crate::failure::Failure;
use crate::locks::Identity;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use weir_engine::create::draid::is_spare_name;
use weir_engine::create::{DraidRequest, Layout, NewLeaf, NewTopLevelVdev};
use weir_object_store::{DiskUrl, is_url, is_url_path};
use weir_pool::Class;

/// All vdevs that were named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vdevs {
    /// Top-level vdevs, in their order.
    pub tops: Vec<NewTopLevelVdev>,
    /// Cache devices.
    pub caches: Vec<NewLeaf>,
    /// Hot spares.
    pub spares: Vec<NewLeaf>,
    /// Which of these are disks in object stores, and how new ones are made.
    pub stores: Vec<DiskUrl>,
}

/// Vdev that a word begins.
enum Word {
    Class(Class),
    Caches,
    Spares,
    Group(Layout),
    Device,
}

fn word(text: &str) -> Result<Word, Failure> {
    Ok(match text {
        "log" => Word::Class(Class::Log),
        "special" => Word::Class(Class::Special),
        "dedup" => Word::Class(Class::Dedup),
        "cache" => Word::Caches,
        "spare" => Word::Spares,
        "mirror" => Word::Group(Layout::Mirror),
        "raidz" | "raidz1" => Word::Group(Layout::Raidz(1)),
        "raidz2" => Word::Group(Layout::Raidz(2)),
        "raidz3" => Word::Group(Layout::Raidz(3)),
        text if is_spare_name(text) => {
            let why = "a distributed spare comes with its dRAID vdev";
            return Err(Failure::failed(format!("cannot open '{text}': {why}")));
        }
        text if text.starts_with("draid") => Word::Group(Layout::Draid(DraidRequest::parse(text).map_err(invalid)?)),
        _ => Word::Device,
    })
}

fn invalid(why: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("invalid vdev specification: {why}"))
}

/// Where devices without a group go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shelf {
    Tops(Class),
    Caches,
    Spares,
}

/// Sorts the words of a command line that was typed in that folder.
pub fn parse(folder: &Path, words: &[String]) -> Result<Vdevs, Failure> {
    let mut out = Vdevs::default();
    let mut shelf = Shelf::Tops(Class::Normal);
    let mut grouped = false;
    // The word that needs a device after it.
    let mut empty: Option<&str> = None;
    let mut seen = BTreeSet::new();
    for text in words {
        let word = word(text)?;
        if matches!(word, Word::Class(Class::Log) | Word::Caches | Word::Spares) && !seen.insert(text.as_str()) {
            return Err(invalid(format!("'{text}' can be specified only once")));
        }
        if let (Some(class), Word::Class(_) | Word::Caches | Word::Spares) = (empty, &word) {
            return Err(invalid(format!("{class} requires at least 1 device")));
        }
        empty = match word {
            Word::Class(_) | Word::Caches | Word::Spares => Some(text),
            Word::Group(_) | Word::Device => None,
        };
        match word {
            Word::Class(class) => (shelf, grouped) = (Shelf::Tops(class), false),
            Word::Caches => (shelf, grouped) = (Shelf::Caches, false),
            Word::Spares => (shelf, grouped) = (Shelf::Spares, false),
            Word::Group(layout) => {
                let Shelf::Tops(class) = shelf else {
                    let what = if shelf == Shelf::Caches { "cache" } else { "spare" };
                    return Err(invalid(format!("'{what}' takes single devices, no '{text}'")));
                };
                out.tops.push(NewTopLevelVdev { class, layout, leaves: Vec::new() });
                grouped = true;
            }
            Word::Device => {
                let leaf = match is_url(text) {
                    true => store(text, &mut out.stores)?,
                    false => leaf(folder, text)?,
                };
                match (shelf, grouped, out.tops.last_mut()) {
                    (Shelf::Caches, ..) => out.caches.push(leaf),
                    (Shelf::Spares, ..) => out.spares.push(leaf),
                    (Shelf::Tops(_), true, Some(group)) => group.leaves.push(leaf),
                    (Shelf::Tops(class), ..) => {
                        out.tops.push(NewTopLevelVdev { class, layout: Layout::Single, leaves: vec![leaf] });
                    }
                }
            }
        }
    }
    if let Some(class) = empty {
        return Err(invalid(format!("{class} requires at least 1 device")));
    }
    for top in &out.tops {
        top.check().map_err(invalid)?;
    }
    if out.tops.is_empty() && out.caches.is_empty() && out.spares.is_empty() {
        return Err(invalid("at least one toplevel vdev must be specified"));
    }
    Ok(out)
}

/// A disk in an object store. It is made later, if it does not exist.
fn store(text: &str, stores: &mut Vec<DiskUrl>) -> Result<NewLeaf, Failure> {
    let disk = DiskUrl::parse(text).map_err(|error| Failure::failed(format!("cannot use {error}")))?;
    // For the pool, it is a file.
    let leaf = NewLeaf { path: disk.url.path(), is_file: true };
    stores.push(disk);
    Ok(leaf)
}

/// A device by its path, as seen from that folder, or by its name in `/dev`.
fn leaf(folder: &Path, text: &str) -> Result<NewLeaf, Failure> {
    let given = Path::new(text);
    let in_dev = Path::new("/dev").join(given);
    let path = match given.is_absolute() {
        true => given.to_path_buf(),
        false if is_block_device(&in_dev) => in_dev.clone(),
        // The path is kept: without the components `.`.
        false => folder.join(given).components().collect(),
    };
    let cannot = |why: &dyn std::fmt::Display| Failure::failed(format!("cannot open '{text}': {why}"));
    let metadata = std::fs::metadata(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if !given.is_absolute() => {
            cannot(&format!("there is neither {} nor {}", path.display(), in_dev.display()))
        }
        std::io::ErrorKind::NotFound => cannot(&"no such file or directory"),
        _ => cannot(&error),
    })?;
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(NewLeaf { path, is_file: kind.is_file() });
    }
    Err(Failure::failed(format!("cannot use '{text}': must be a block device or regular file")))
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

impl Vdevs {
    /// These vdevs with symbolic links resolved, to be shown.
    pub fn resolved(mut self) -> Self {
        let tops = self.tops.iter_mut().flat_map(|top| &mut top.leaves);
        for leaf in tops.chain(&mut self.caches).chain(&mut self.spares) {
            if let Ok(path) = std::fs::canonicalize(&leaf.path) {
                leaf.path = path;
            }
        }
        self
    }

    /// All devices.
    pub fn paths(&self) -> Vec<PathBuf> {
        let tops = self.tops.iter().flat_map(|top| &top.leaves);
        tops.chain(&self.caches).chain(&self.spares).map(|leaf| leaf.path.clone()).collect()
    }

    /// Fails if two of the devices are one, under two paths.
    pub fn check_distinct(&self) -> Result<(), Failure> {
        let mut seen: BTreeMap<Identity, PathBuf> = BTreeMap::new();
        for path in self.paths() {
            let Some(identity) = Identity::of(&path) else { continue };
            if let Some(other) = seen.insert(identity, path.clone()) {
                return Err(invalid(format!("{} and {} are the same device", other.display(), path.display())));
            }
        }
        Ok(())
    }

    /// Returns how these vdevs, with the existing ones of the pool (`have`: layout and number of devices of its normal
    /// top-level vdevs), differ in redundancy: a pool is as redundant as its weakest vdev.
    pub fn mismatch(&self, have: &[(Layout, usize)]) -> Option<String> {
        let mut seen: Option<(Layout, usize)> = have.first().copied();
        // Logs do not count (`get_replication`).
        for top in self.tops.iter().filter(|top| top.class != Class::Log) {
            let sizes: Vec<u64> = top.leaves.iter().filter_map(|leaf| self.size_of(&leaf.path)).collect();
            let widest = sizes.iter().max().copied().unwrap_or(0);
            if sizes.iter().any(|size| widest - size > SIZE_FUZZ) {
                return Some(format!("{} contains devices of different sizes", kind(top.layout)));
            }
            // A mirror of an object store and a local device is what protects from either's failure.
            let local = || top.leaves.iter().filter(|leaf| !is_url_path(&leaf.path));
            if local().any(|l| l.is_file) && local().any(|l| !l.is_file) {
                return Some(format!("{} contains both files and devices", kind(top.layout)));
            }
            let own = (top.layout, top.leaves.len());
            if let Some(difference) = seen.and_then(|before| difference(before, own)) {
                return Some(format!("mismatched replication level: {difference}"));
            }
            seen = Some(own);
        }
        None
    }
}

impl Vdevs {
    /// Size of a device, if it can be opened; that of a new disk in an object store is in the command line.
    fn size_of(&self, path: &Path) -> Option<u64> {
        match self.stores.iter().find(|disk| disk.url.path() == path) {
            Some(disk) => disk.size_bytes,
            None => size_of(path),
        }
    }
}

/// Devices of a mirror or RAID-Z may differ by this many bytes (`ZPOOL_FUZZ`).
const SIZE_FUZZ: u64 = 16 << 20;

/// Size of a file or device, if it can be opened.
fn size_of(path: &Path) -> Option<u64> {
    std::fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).ok()
}

/// How two vdevs, each with its number of devices, differ in redundancy (`get_replication`). A mirror, RAID-Z and dRAID may be
/// side by side if they may lose as many devices.
fn difference(one: (Layout, usize), other: (Layout, usize)) -> Option<String> {
    let names = format!("{} and {} vdevs", kind(one.0), kind(other.0));
    match (parity(one.0), parity(other.0)) {
        (Some(first), Some(second)) => {
            (first != second).then(|| format!("{names} with different redundancy, {first} vs. {second} are present"))
        }
        (Some(_), None) if other.0 != Layout::Mirror => Some(format!("both {names} are present")),
        (None, Some(_)) if one.0 != Layout::Mirror => Some(format!("both {names} are present")),
        (Some(parity), None) => against_mirror(kind(one.0), parity, other.1),
        (None, Some(parity)) => against_mirror(kind(other.0), parity, one.1),
        (None, None) if one.0 != other.0 => Some(format!("both {names} are present")),
        (None, None) if one.0 == Layout::Mirror && one.1 != other.1 => {
            Some(format!("both {}-way and {}-way mirror vdevs are present", one.1, other.1))
        }
        (None, None) => None,
    }
}

/// Difference between a vdev with parity and a mirror of `sides` devices.
fn against_mirror(kind: &str, parity: u8, sides: usize) -> Option<String> {
    let lost = sides.saturating_sub(1);
    let text =
        || format!("{kind} and mirror vdevs with different redundancy, {parity} vs. {lost} ({sides}-way) are present");
    (lost != usize::from(parity)).then(text)
}

/// Number of devices that RAID-Z or dRAID may lose.
fn parity(layout: Layout) -> Option<u8> {
    match layout {
        Layout::Raidz(parity) => Some(parity),
        Layout::Draid(request) => Some(request.parity),
        Layout::Single | Layout::Mirror => None,
    }
}

fn kind(layout: Layout) -> &'static str {
    match layout {
        Layout::Single => "disk",
        Layout::Mirror => "mirror",
        Layout::Raidz(_) => "raidz",
        Layout::Draid(_) => "draid",
    }
}

/// The layout of a new pool as `zpool create -n` shows it.
pub fn shown(pool: &str, vdevs: &Vdevs) -> String {
    shown_after(pool, &BTreeMap::new(), vdevs)
}

/// Sections of a layout, in their order: of a class of top-level vdevs, or of a kind of single devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// Top-level vdevs, by their place in the layout.
    Tops(u8),
    /// Cache devices.
    Caches,
    /// Hot spares.
    Spares,
}

impl Section {
    /// The section of a class.
    pub fn of(class: Class) -> Section {
        Section::Tops(match class {
            Class::Dedup => 1,
            Class::Special => 2,
            Class::Log => 3,
            _ => 0,
        })
    }
}

/// A layout with the lines that a pool already has in each section.
pub fn shown_after(pool: &str, present: &BTreeMap<Section, String>, vdevs: &Vdevs) -> String {
    let before = |section: Section| present.get(&section).map_or("", String::as_str);
    let mut out = format!("\t{pool}\n");
    for (class, heading) in [
        (Class::Normal, None),
        (Class::Dedup, Some("dedup")),
        (Class::Special, Some("special")),
        (Class::Log, Some("logs")),
    ] {
        let tops: Vec<_> = vdevs.tops.iter().filter(|top| top.class == class).collect();
        let before = before(Section::of(class));
        if let Some(heading) = heading.filter(|_| !tops.is_empty() || !before.is_empty()) {
            out.push_str(&format!("\t{heading}\n"));
        }
        out.push_str(before);
        for top in tops {
            let name = match top.layout {
                Layout::Single => None,
                Layout::Mirror => Some("mirror".to_owned()),
                Layout::Raidz(parity) => Some(format!("raidz{parity}")),
                Layout::Draid(request) => Some(format!("draid{}", request.parity)),
            };
            let indent = if name.is_some() { "    " } else { "  " };
            out.extend(name.map(|name| format!("\t  {name}\n")));
            out.extend(top.leaves.iter().map(|leaf| format!("\t{indent}{}\n", leaf.path.display())));
        }
    }
    for (heading, section, leaves) in
        [("cache", Section::Caches, &vdevs.caches), ("spares", Section::Spares, &vdevs.spares)]
    {
        let before = before(section);
        if !leaves.is_empty() || !before.is_empty() {
            out.push_str(&format!("\t{heading}\n{before}"));
            out.extend(leaves.iter().map(|leaf| format!("\t  {}\n", leaf.path.display())));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..12 {
            std::fs::write(dir.path().join(i.to_string()), b"").unwrap();
        }
        dir
    }

    fn vdevs(dir: &tempfile::TempDir, line: &str) -> Result<Vdevs, Failure> {
        let number = |word: &str| word.parse::<u32>().is_ok();
        let path = |word: &str| dir.path().join(word).display().to_string();
        let words = line.split(' ').map(|word| if number(word) { path(word) } else { word.to_owned() });
        parse(dir.path(), &words.collect::<Vec<_>>())
    }

    #[test]
    fn relative_paths_have_no_components_for_the_folder_itself() {
        let dir = folder();
        let all = parse(dir.path(), &["./1".to_owned(), "././2".to_owned()]).unwrap();
        let paths: Vec<_> = all.tops.iter().flat_map(|top| &top.leaves).map(|leaf| leaf.path.clone()).collect();
        // Paths compare by components, which leave `.` out: the text decides.
        let texts: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(texts, ["1", "2"].map(|name| format!("{}/{name}", dir.path().display())));
    }

    #[test]
    fn words_become_vdevs_of_their_class() {
        let dir = folder();
        let all = vdevs(&dir, "raidz2 0 1 2 3 mirror 4 5 log mirror 6 7 special 8 cache 9 spare 10 11").unwrap();
        let shapes: Vec<_> = all.tops.iter().map(|t| (t.class, t.layout, t.leaves.len())).collect();
        assert_eq!(
            shapes,
            [
                (Class::Normal, Layout::Raidz(2), 4),
                (Class::Normal, Layout::Mirror, 2),
                (Class::Log, Layout::Mirror, 2),
                (Class::Special, Layout::Single, 1)
            ]
        );
        assert_eq!((all.caches.len(), all.spares.len(), all.paths().len()), (1, 2, 12));
        let plain = vdevs(&dir, "0 1 log 2 3").unwrap();
        assert_eq!(plain.tops.len(), 4);
        assert!(plain.tops.iter().all(|top| top.layout == Layout::Single));
        assert!(shown("p", &all).starts_with("\tp\n\t  raidz2\n\t    /"));
    }

    #[test]
    fn what_makes_no_vdev_is_refused() {
        let dir = folder();
        for line in [
            "mirror 0",
            "raidz3 0 1 2",
            "log",
            "cache mirror 0 1",
            "draid 0",
            "0 log",
            "0 spare",
            "0 cache spare 1",
            "spare draid1-0-0",
            "draid:4d 0 1 2",
            "log draid 0 1",
            "log raidz 0 1 2",
            "mirror",
        ] {
            assert_eq!(vdevs(&dir, line).unwrap_err().code, 1, "{line}");
        }
        assert!(vdevs(&dir, "/nowhere/x").unwrap_err().line.contains("no such file"));
        assert!(vdevs(&dir, "nowhere").unwrap_err().line.contains("/nowhere nor /dev/nowhere"));
        assert!(vdevs(&dir, "disks/nofile").unwrap_err().line.contains("/disks/nofile nor /dev/disks/nofile"));
        assert!(vdevs(&dir, "/dev/null").unwrap_err().line.contains("must be a block device"));
    }

    #[test]
    fn weak_vdevs_beside_strong_ones_are_noticed() {
        let dir = folder();
        let mismatch = |line: &str| vdevs(&dir, line).unwrap().mismatch(&[]);
        assert_eq!(mismatch("mirror 0 1 mirror 2 3 log 4"), None);
        assert_eq!(mismatch("mirror 0 1 raidz 2 3 4"), None, "both may lose one device");
        assert!(
            mismatch("mirror 0 1 raidz2 2 3 4 5")
                .unwrap()
                .contains("raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way)")
        );
        assert!(mismatch("raidz 0 1 2 special 3").unwrap().contains("both raidz and disk vdevs"));
        assert_eq!(mismatch("raidz 0 1 2 special mirror 3 4 log 5"), None);
        assert_eq!(mismatch("raidz 0 1 2 raidz 3 4 5 6"), None, "the widths may differ");
        assert_eq!(mismatch("draid2:1d:1s 0 1 2 3 raidz2 4 5 6"), None);
        assert!(
            mismatch("draid 0 1 2 mirror 3 4 5").unwrap().contains("draid and mirror vdevs with different redundancy")
        );
        std::fs::File::create(dir.path().join("0")).unwrap().set_len(64 << 20).unwrap();
        assert_eq!(mismatch("mirror 0 1").unwrap(), "mirror contains devices of different sizes");
        std::fs::File::create(dir.path().join("0")).unwrap();
        assert!(
            mismatch("raidz 0 1 2 raidz2 3 4 5")
                .unwrap()
                .contains("raidz and raidz vdevs with different redundancy, 1 vs. 2")
        );
        assert!(mismatch("mirror 0 1 mirror 2 3 4").unwrap().contains("both 2-way and 3-way mirror"));
        assert!(mismatch("0 mirror 1 2").unwrap().contains("both disk and mirror"));
        assert_eq!(vdevs(&dir, "0 1").unwrap().mismatch(&[(Layout::Single, 1)]), None);
    }
}
