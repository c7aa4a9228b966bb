//! G3: acknowledged writes of a block device and a power cut, on the simulator's disks, which lose what was not flushed.

use super::{Check, Finding};
use crate::simulate::SimulationError;
use bytes::Bytes;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_machine::Request;
use weir_pool::OpenOptions;
use weir_pool::config::Class;
use weir_sim::{SimWorld, Timing};

const BLOCK_BYTES: u32 = 16 << 10;
/// Blocks that the guest writes before the cut.
const BLOCKS: u64 = 200;
/// Power cuts, each in a world of its own.
const CUTS: u64 = 8;

pub fn g3() -> Result<Finding, SimulationError> {
    let mut lost = [0; 2];
    for seed in 1..=CUTS {
        lost[0] += cut(seed, false)?;
        lost[1] += cut(seed, true)?;
    }
    let all = CUTS * BLOCKS;
    Ok(Finding {
        checks: vec![
            Check::statement(
                format!("sync=standard without a flush: {} of {all} acknowledged blocks lost", lost[0]),
                lost[0] > 0,
            ),
            Check::statement(format!("sync=always: {} of {all} lost", lost[1]), lost[1] == 0),
        ],
        note: format!("{CUTS} power cuts right after the last acknowledgement; the guest never flushes"),
        ..Finding::default()
    })
}

/// Blocks that were acknowledged and are not there after the cut.
fn cut(seed: u64, always: bool) -> Result<u64, SimulationError> {
    let world = SimWorld::new(seed);
    world.add_disk("/sim/disk", 128 << 20, 4096, Timing::SataSsd);
    let machine = world.machine();
    let rq = Request::internal("guest");
    let leaf = NewLeaf { path: "/sim/disk".into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let engine = world.run(async {
        let mut options = CreateOptions::new("tank", vec![top]);
        options.arc_bytes = 16 << 20;
        let engine = Engine::create(&machine, &options).await?;
        let size_bytes = BLOCKS * u64::from(BLOCK_BYTES);
        let kind = Kind::Volume(VolumeSpec { size_bytes, block_bytes: BLOCK_BYTES });
        // `sync`: 0 is standard, 1 always.
        let properties = vec![("sync".to_owned(), Value::Number(always.into()))];
        engine.create_dataset(NewDataset { name: "tank/lun".into(), kind, properties }).await?;
        engine.sync().await?;
        let volume = engine.volume(&rq, "tank/lun").await?;
        for block in 0..BLOCKS {
            let data = Bytes::from(vec![pattern(block); BLOCK_BYTES as usize]);
            volume.write(&rq, block * u64::from(BLOCK_BYTES), data, false).await?;
        }
        Ok::<_, SimulationError>(engine)
    })??;
    world.power_failure();
    drop(engine);
    let lost = world.run(async {
        let mut open = OpenOptions::new(vec!["/sim".into()], "tank");
        open.arc_bytes = 16 << 20;
        let engine = Engine::import(&machine, &ImportOptions::new(open)).await?;
        let volume = engine.volume(&rq, "tank/lun").await?;
        let mut lost = 0;
        for block in 0..BLOCKS {
            let read = volume.read(&rq, block * u64::from(BLOCK_BYTES), BLOCK_BYTES as usize).await?;
            lost += u64::from(read.iter().any(|byte| *byte != pattern(block)));
        }
        Ok::<_, SimulationError>(lost)
    })?;
    world.power_failure();
    lost
}

fn pattern(block: u64) -> u8 {
    (block % 250 + 1) as u8
}
