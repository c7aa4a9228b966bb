//! What is found after a cut, and whether it may be.

use crate::drive::Judged;
use crate::states::When;
use crate::world::{import, is_wrong_key, whole, whole_before};
use crate::{datasets, files, volume};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_engine::Engine;
use weir_machine::{Machine, Request};
use weir_pool::PoolError;
use weir_sim::SimWorld;

/// When a pool is walked, and how it is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Walked as the cut has left it.
    BeforeImport,
    /// The same, and so is the oldest group that it can be rewound to.
    Rewound,
    /// Walked after what was in its logs has been written, and after an export.
    Exported,
    /// First opened without keys: what is encrypted has to stay shut, its logs untouched, while the rest goes on.
    Locked,
}

impl Way {
    /// One of them, by the moment of the cut.
    pub fn of(known: &Judged, cut: When) -> Self {
        match cut % 8 {
            5 if known.shape.suite.is_some() => Way::Locked,
            1 | 3 | 5 | 7 => Way::Exported,
            // Neighbours alike: what one has shown, the next need not show again.
            _ if cut / 64 % 4 == 1 => Way::Rewound,
            _ => Way::BeforeImport,
        }
    }
}

/// What a pool holds after a cut.
#[derive(PartialEq)]
pub struct Found {
    /// While no key was there: what needs none.
    open: Vec<Option<files::Found>>,
    files: Vec<files::Found>,
    volume: volume::Found,
    datasets: datasets::Names,
    /// Pointers that share their block with another.
    shared: u64,
    /// An older group was walked as well.
    pub before: bool,
}

impl Found {
    /// Whether blocks have several owners.
    pub fn shares(&self) -> bool {
        self.shared > 0
    }
}

/// Opens the pool with all its keys, and gives the number of the volume's: any that it ever had.
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

/// Opens a pool, walks it, and looks at all that is in it. What is found depends on nothing but the disks: not on the moment
/// of the cut.
pub fn look(known: &Judged, world: &SimWorld, way: Way) -> Result<Found, String> {
    let machine = world.machine();
    let found = world.run(async {
        let (mut shared, mut before) = (0, false);
        let as_it_was = matches!(way, Way::BeforeImport | Way::Rewound);
        if way == Way::Rewound {
            before = whole_before(&machine).await?;
        }
        if as_it_was {
            shared = whole(&machine).await.map_err(|e| format!("before import: {e}"))?;
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
            shared = whole(&machine).await.map_err(|e| format!("after replay: {e}"))?;
        }
        Ok(Found { open, files, volume, datasets, shared, before })
    });
    // What still runs holds the world that it runs in.
    world.power_failure();
    found.unwrap_or_else(|e| Err(e.to_string()))
}

/// Opens the pool without keys, and closes it again.
async fn look_locked(machine: &Machine, known: &Judged) -> Result<Vec<Option<files::Found>>, String> {
    let (rq, encrypted) = (&Request::internal("judge"), known.encrypted());
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
    whole(machine).await?;
    Ok(open)
}

/// Holds what was found against what was known at each of these moments.
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
