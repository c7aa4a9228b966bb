//! Judges the engine without a front end: datasets, properties, files and volumes through its own calls in this
//! process.

mod datasets;
mod tree;
mod volume;
mod worked;

use std::path::Path;
use std::sync::Arc;

use weir_codec::crypt::DatasetKey;
use weir_dsl::{Dataset, Dsl};
use weir_files::{FileSystem, Identity};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool};
use weir_volumes::Volume;

use crate::JudgeError;
use crate::compare::{self, Findings};
use crate::golden::split;
use crate::manifest::{Golden, Manifest};
use crate::tree::{FileCount, count_all};
use crate::workload::Done;

pub use tree::EngineTree;
pub use volume::EngineVolume;
pub use worked::look;

/// A pool opened by the engine, with the keys that were given.
pub struct Opened {
    machine: Machine,
    pool: Pool,
    dsl: Arc<Dsl>,
    keys: Vec<(ObjectId, Arc<DatasetKey>)>,
    request: Request,
}

fn failed(what: &str) -> impl FnOnce(String) -> JudgeError {
    let command = what.to_string();
    |why| JudgeError::Process { command, why }
}

impl Opened {
    /// Opens a pool.
    ///
    /// # Errors
    /// Errors of the engine, if the pool does not open.
    pub fn new(options: &OpenOptions) -> Result<Opened, JudgeError> {
        let machine = weir_linux::machine().map_err(|error| failed("machine")(error.to_string()))?;
        let request = Request::internal("judge");
        let pool = machine.block_on(Pool::open(&machine, options));
        let pool = pool.map_err(|error| failed("open")(error.to_string()))?;
        let dsl = machine.block_on(Dsl::open(&request, pool.mos.set.clone(), pool.name()));
        let dsl = dsl.map_err(|error| failed("datasets")(error.to_string()))?;
        let mut keys = Vec::new();
        for (root, secret) in &options.keys {
            let Some(dir) = dsl.dir_named(root) else { continue };
            let loaded = machine.block_on(weir_dsl::keys::load_keys(&dsl, &request, dir, secret));
            keys.extend(loaded.map_err(|error| failed("key")(error.to_string()))?);
        }
        Ok(Opened { machine, pool, dsl, keys, request })
    }

    /// The machine that the pool runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn find(&self, name: &str) -> Result<Dataset, String> {
        self.machine.block_on(self.dsl.find(&self.request, name)).map_err(|error| error.to_string())
    }

    fn objects(&self, name: &str) -> Result<Arc<weir_dmu::ObjectSet>, String> {
        let dataset = self.find(name)?;
        let key = self.keys.iter().find(|(dir, _)| *dir == dataset.dir).map(|(_, key)| key.clone());
        let objects = self.machine.block_on(self.dsl.open_set(&self.request, &dataset, key));
        objects.map_err(|error| error.to_string())
    }

    /// Opens a file system or a snapshot of one.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn file_system(&self, name: &str) -> Result<Arc<FileSystem>, String> {
        let objects = self.objects(name)?;
        let identity = Identity { name: name.to_string(), is_snapshot: name.contains('@'), ..Identity::default() };
        let files = self.machine.block_on(FileSystem::open(&self.request, objects, identity));
        files.map_err(|error| error.to_string())
    }
}

impl Opened {
    /// Opens a volume.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn volume(&self, name: &str) -> Result<EngineVolume, String> {
        let objects = self.objects(name)?;
        let volume = self.machine.block_on(Volume::open(&self.request, objects, name));
        volume.map(|volume| EngineVolume::new(self.machine.clone(), volume)).map_err(|error| error.to_string())
    }
}

/// Options for a golden pool, with its keys.
pub fn options(golden: &Golden, devices: &Path) -> OpenOptions {
    let mut options = OpenOptions::new(vec![devices.to_path_buf()], golden.pool.clone());
    options.keys = golden
        .keys
        .iter()
        .map(|(root, key)| (format!("{}/{root}", golden.pool), key.typed().as_bytes().to_vec()))
        .collect();
    options
}

/// Compares the whole golden pool with a manifest.
///
/// # Errors
/// If the pool does not open.
pub fn golden(golden: &Golden, devices: &Path, state: &Manifest) -> Result<Findings, JudgeError> {
    compare_golden(golden, devices, state, None)
}

/// Compares a golden pool in which a workload ran: the results of the workload are left out, and checked separately.
///
/// # Errors
/// If the pool does not open.
pub fn golden_after(golden: &Golden, devices: &Path, state: &Manifest, done: &Done) -> Result<Findings, JudgeError> {
    let mut findings = compare_golden(golden, devices, state, Some(done))?;
    findings.absorb("", worked::look(&Opened::new(&options(golden, devices))?, done));
    Ok(findings)
}

fn compare_golden(
    golden: &Golden,
    devices: &Path,
    state: &Manifest,
    done: Option<&Done>,
) -> Result<Findings, JudgeError> {
    let mut findings = compare_state(&Opened::new(&options(golden, devices))?, state, done);
    if let Some(kept) = &golden.manifest_checkpoint {
        let mut options = options(golden, devices);
        options.checkpoint = true;
        findings.absorb("checkpoint: ", compare_state(&Opened::new(&options)?, kept, None));
    }
    Ok(findings)
}

fn compare_state(opened: &Opened, state: &Manifest, done: Option<&Done>) -> Findings {
    let mut findings = datasets::compare(opened, state, done);
    for dataset in &state.datasets {
        let heading = format!("{}:", dataset.name);
        if let Some(files) = &dataset.files {
            match opened.file_system(&dataset.name) {
                Ok(file_system) => {
                    let mut tree = EngineTree::new(opened.machine.clone(), file_system);
                    let none = std::collections::BTreeSet::new();
                    let found = match done.is_some_and(|done| done.written.contains_key(&dataset.name)) {
                        true => compare::tree(&mut worked::Without::new(tree, files), files, &none),
                        false => compare::tree(&mut tree, files, &none),
                    };
                    findings.absorb(&heading, found);
                }
                Err(error) => findings.differs(format!("{heading} {error}")),
            }
        }
        if let Some(contents) = dataset.volume.as_ref().filter(|contents| contents.size.is_some()) {
            match opened.volume(&dataset.name) {
                Ok(mut volume) => findings.absorb(&heading, compare::volume(&mut volume, contents)),
                Err(error) => findings.differs(format!("{heading} {error}")),
            }
        }
    }
    findings
}

/// Opens a pool without a manifest, and reads every byte of every file in every file system and snapshot.
///
/// # Errors
/// If the pool does not open.
pub fn read_all(devices: &Path, pool: &str) -> Result<Findings, JudgeError> {
    let opened = Opened::new(&OpenOptions::new(vec![devices.to_path_buf()], pool))?;
    let mut findings = Findings::default();
    for name in datasets::names(&opened, &mut findings) {
        let (of, _) = split(&name);
        if datasets::kind(&opened, of) != Some(weir_format::ObjsetKind::Zfs) || datasets::locked(&opened, &name) {
            continue;
        }
        match opened.file_system(&name) {
            Ok(file_system) => {
                let mut count = FileCount::default();
                count_all(&mut EngineTree::new(opened.machine.clone(), file_system), &mut count);
                findings.facts += count.files;
                findings.bytes += count.bytes;
                count.errors.into_iter().for_each(|error| findings.differs(format!("{name}:{error}")));
            }
            Err(error) => findings.differs(format!("{name}: {error}")),
        }
    }
    Ok(findings)
}
