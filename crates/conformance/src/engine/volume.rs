//! The engine's own calls as a block device.

use std::sync::Arc;

use weir_machine::{Machine, Request};
use weir_volumes::{Volume, VolumeError};

use crate::tree::{BlockDevice, TreeError};

/// One volume.
pub struct EngineVolume {
    machine: Machine,
    volume: Arc<Volume>,
    request: Request,
}

impl EngineVolume {
    /// An opened volume.
    pub fn new(machine: Machine, volume: Arc<Volume>) -> EngineVolume {
        EngineVolume { machine, volume, request: Request::internal("judge") }
    }
}

impl BlockDevice for EngineVolume {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        let bytes = self.machine.block_on(self.volume.read(&self.request, offset, length));
        bytes.map(|bytes| bytes.to_vec()).map_err(|error| match error {
            VolumeError::NoKey { .. } | VolumeError::OutOfRange { .. } => TreeError::Other(error.to_string()),
            lost => TreeError::Input(lost.to_string()),
        })
    }
}
