//! What is found after a cut, and whether it may be.

use crate::drive::Judged;
use crate::states::When;
use crate::world::{import, whole};
use crate::{datasets, files, volume};
use bytes::Bytes;
use weir_machine::{Machine, Request};
use weir_sim::SimWorld;

/// When a pool is walked, and how it is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Walked as the cut has left it.
    BeforeImport,
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
    volume: Bytes,
    datasets: datasets::Names,
}

/// Opens a pool, walks it, and looks at all that is in it. What is found depends on nothing but the disks: not on the moment
/// of the cut.
pub fn look(known: &Judged, world: &SimWorld, way: Way) -> Result<Found, String> {
    let machine = world.machine();
    let found = world.run(async {
        if way == Way::BeforeImport {
            whole(&machine).await.map_err(|e| format!("before import: {e}"))?;
        }
        let open = match way {
            Way::Locked => look_locked(&machine, known).await.map_err(|e| format!("without keys: {e}"))?,
            _ => Vec::new(),
        };
        let engine = import(&machine, known.shape, &known.encrypted()).await.map_err(|e| format!("import: {e}"))?;
        let mut files = Vec::new();
        for known in &known.files {
            files.push(files::look(&engine, known).await?);
        }
        let volume = volume::look(&engine).await?;
        let datasets = datasets::look(&engine, &known.datasets).await?;
        if way != Way::BeforeImport {
            engine.export().await.map_err(|e| format!("export: {e}"))?;
            whole(&machine).await.map_err(|e| format!("after replay: {e}"))?;
        }
        Ok(Found { open, files, volume, datasets })
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
