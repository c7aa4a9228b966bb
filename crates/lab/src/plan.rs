//! Plan of a run: the steps of a method with their loads.

use crate::load::Load;
use crate::native::frames::FrameLoad;
use crate::native::list::ListLoad;
use crate::native::mix::MixLoad;
use crate::native::services::ServiceLoad;
use crate::powercut::PowercutLoad;
use crate::result::Workload;

/// Load of a step.
#[derive(Debug, Clone)]
pub enum StepLoad {
    /// Carried by fio.
    Fio(Load),
    /// Files of one frame each.
    Frames(FrameLoad),
    /// A directory with many entries.
    List(ListLoad),
    /// Loops of file operations.
    Mix(MixLoad),
    /// Compression, encryption and deduplication of a sample, in memory.
    Service(ServiceLoad),
    /// Records written to a server whose power is cut.
    Powercut(PowercutLoad),
}

/// A step of a method.
#[derive(Debug, Clone)]
pub struct StepPlan {
    /// Name within the method.
    pub name: String,
    /// Load.
    pub load: StepLoad,
    /// Whether the step claims to measure the disks, so that answers from caches spoil it.
    pub claims_disks: bool,
}

/// Steps of a method.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name of the method.
    pub method: &'static str,
    /// Steps, in the order in which each round measures them.
    pub steps: Vec<StepPlan>,
    /// Bytes of data that must exist before the first step; 0 if the steps make their own.
    pub data_bytes: u64,
    /// Files, or parts of the device, that the data is spread over.
    pub data_workers: u32,
}

impl StepPlan {
    /// A step that fio carries out and that claims to measure the disks.
    #[must_use]
    pub fn fio(name: impl Into<String>, load: Load) -> Self {
        Self { name: name.into(), load: StepLoad::Fio(load), claims_disks: true }
    }

    /// Whether the step writes to the target.
    #[must_use]
    pub fn writes(&self) -> bool {
        match &self.load {
            StepLoad::Fio(load) => load.writes(),
            StepLoad::Frames(_) | StepLoad::List(_) | StepLoad::Mix(_) | StepLoad::Powercut(_) => true,
            StepLoad::Service(_) => false,
        }
    }

    /// Seconds that a round of the step takes, if its length is known.
    #[must_use]
    pub fn expected_seconds(&self) -> Option<f64> {
        match &self.load {
            StepLoad::Fio(load) => load.expected_seconds(),
            StepLoad::Mix(load) => Some(load.expected_seconds()),
            StepLoad::Powercut(load) => Some(load.expected_seconds()),
            _ => None,
        }
    }

    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self, is_direct: bool) -> Workload {
        match &self.load {
            StepLoad::Fio(load) => load.workload(is_direct),
            StepLoad::Frames(load) => load.workload(),
            StepLoad::List(load) => load.workload(),
            StepLoad::Mix(load) => load.workload(),
            StepLoad::Service(load) => load.workload(),
            StepLoad::Powercut(load) => load.workload(),
        }
    }
}
