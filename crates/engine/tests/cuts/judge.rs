//! Contents of pools after a cut, and their comparison with the acknowledged state.

use crate::drive::Judged;
use crate::states::When;
use crate::world::{import, is_wrong_key, verify_oldest_rewind, verify_pool};
use crate::{datasets, files, volume};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_engine::Engine;
use weir_machine::{Machine, Request};
use weir_pool::PoolError;
use weir_sim::SimWorld;

/// Variant of the check: when the pool is verified, and how it is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The pool is verified before the import.
    BeforeImport,
    /// The pool and the oldest txg to which it can be rewound are verified before the import.
    Rewound,
    /// The pool is verified after the replay of its logs and an export.
    Exported,
    /// The pool is first imported without keys: encrypted datasets must stay locked, with their logs unchanged, while the
    /// other datasets are usable.
    Locked,
}

impl Way {
    /// Variant for a moment of the cut.
    pub fn of(known: &Judged, cut: When) -> Self {
        match cut % 8 {
            5 if known.shape.suite.is_some() => Way::Locked,
            1 | 3 | 5 | 7 => Way::Exported,
            // Adjacent cuts use the same variant, so that the memo can skip equivalent ones.
            _ if cut / 64 % 4 == 1 => Way::Rewound,
            _ => Way::BeforeImport,
        }
    }
}

/// Contents of a pool after a cut.
#[derive(PartialEq)]
pub struct Found {
    /// File systems that could be opened without keys.
    open: Vec<Option<files::Found>>,
    files: Vec<files::Found>,
    volume: volume::Found,
    datasets: datasets::Names,
    /// Pointers to cloned blocks.
    shared: u64,
    /// An older txg was verified as well.
    pub before: bool,
}

impl Found {
    /// Whether the pool has cloned blocks.
    pub fn shares(&self) -> bool {
        self.shared > 0
    }
}

/// Imports the pool with all keys. Returns the number of the volume's key, which is any that the volume ever had.
async fn import_with_keys(machine: &Machine, known: &Judged) -> Result<(Arc<Engine>, u8), PoolError> {
    let hint = known.key_hint.load(Ordering::Relaxed);
    let others = (0..=known.volume.last_key()).filter(|key| *key != hint);
    let mut last = None;
    for key in std::iter::once(hint).chain(others) {
        let keys = known.encrypted().into_iter().map(|name| (name, if name == volume::NAME { key } else { 0 }));
        match import(machine, known.shape, &keys.collect::<Vec<_>>()).await {
            Err(error) if is_wrong_key(&error) => last = Some(error),
            Ok(engine) => {
                known.key_hint.store(key, Ordering::Relaxed);
                return Ok((engine, key));
            }
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("one key was tried at least"))
}

/// Imports and verifies a pool, and reads its contents. The result depends only on the disks, not on the moment of the
/// cut.
pub fn look(known: &Judged, world: &SimWorld, way: Way) -> Result<Found, String> {
    let machine = world.machine();
    let found = world.run(async {
        let mut shared = 0;
        let mut before = false;
        let as_it_was = matches!(way, Way::BeforeImport | Way::Rewound);
        if way == Way::Rewound {
            before = verify_oldest_rewind(&machine).await?;
        }
        if as_it_was {
            shared = verify_pool(&machine).await.map_err(|e| format!("before import: {e}"))?;
        }
        let open = match way {
            Way::Locked => look_locked(&machine, known).await.map_err(|e| format!("without keys: {e}"))?,
            _ => Vec::new(),
        };
        let (engine, key) = import_with_keys(&machine, known).await.map_err(|e| format!("import: {e}"))?;
        let mut files = Vec::new();
        for known in &known.files {
            files.push(files::look(&engine, known).await?);
        }
        let volume = volume::look(&engine, key).await?;
        let datasets = datasets::look(&engine, &known.datasets).await?;
        if !as_it_was {
            engine.export().await.map_err(|e| format!("export: {e}"))?;
            shared = verify_pool(&machine).await.map_err(|e| format!("after replay: {e}"))?;
        }
        Ok(Found { open, files, volume, datasets, shared, before })
    });
    // Tasks that still run hold references to the world.
    world.power_failure();
    found.unwrap_or_else(|e| Err(e.to_string()))
}

/// Imports the pool without keys, reads the unencrypted file systems and exports the pool.
async fn look_locked(machine: &Machine, known: &Judged) -> Result<Vec<Option<files::Found>>, String> {
    let rq = &Request::internal("judge");
    let encrypted = known.encrypted();
    let engine = import(machine, known.shape, &[]).await.map_err(|e| format!("import: {e}"))?;
    let mut open = Vec::new();
    for known in &known.files {
        if encrypted.contains(&known.dataset.as_str()) {
            let shut = engine.file_system(rq, &known.dataset).await.is_err();
            shut.then_some(()).ok_or_else(|| format!("{} is open", known.dataset))?;
            open.push(None);
        } else {
            open.push(Some(files::look(&engine, known).await?));
        }
    }
    engine.export().await.map_err(|e| format!("export: {e}"))?;
    verify_pool(machine).await?;
    Ok(open)
}

/// Compares the contents with the acknowledged state at each of these moments.
pub fn judge(found: &Found, known: &Judged, cuts: &[When]) -> Result<(), String> {
    for cut in cuts {
        for (found, known) in found.open.iter().zip(&known.files) {
            let Some(found) = found else { continue };
            files::judge(found, known, *cut).map_err(|e| format!("without keys: {e}"))?;
        }
        for (found, known) in found.files.iter().zip(&known.files) {
            files::judge(found, known, *cut)?;
        }
        volume::judge(&found.volume, &known.volume, *cut)?;
        datasets::judge(&found.datasets, &known.datasets, *cut)?;
    }
    Ok(())
}
