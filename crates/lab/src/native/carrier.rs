//! Clients of Weir's own: the interface that sessions use for all loads that fio does not carry.

use crate::error::LabError;
use crate::fio::Monitor;
use crate::load::Load;
use crate::result::Round;

/// Carries the loads on a target without fio.
pub trait Carrier {
    /// Program and interface, as the result names them.
    fn client(&self) -> String;

    /// Name of the interface, for the environment of a result.
    fn engine(&self) -> &'static str;

    /// Whether the client has as many operations in flight as a load says.
    fn has_depth(&self) -> bool {
        true
    }

    /// Whether writing loads destroy what is on the target: a unit or a volume has no files.
    fn holds_data(&self) -> bool;

    /// Bytes that can be read or written: the size of the unit, or the room for new files. `None` if the client cannot know.
    ///
    /// # Errors
    /// If the target does not answer, or refuses.
    fn room_bytes(&self) -> Result<Option<u64>, LabError>;

    /// Refuses loads that the client cannot carry.
    ///
    /// # Errors
    /// If the load is none of the client's; the message says which are.
    fn check(&self, _: &Load) -> Result<(), LabError> {
        Ok(())
    }

    /// Runs a load. `None` if the monitor stopped it.
    ///
    /// # Errors
    /// If the target does not answer, refuses or ends, or the load is none for this target.
    fn run(&self, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError>;

    /// Whether the ceiling of the client can be measured.
    fn has_ceiling(&self) -> bool {
        true
    }

    /// Where the figure of [`Carrier::ceiling`] comes from.
    fn ceiling_source(&self) -> &'static str;

    /// Measures the same client and load without storage. `None` if the monitor stopped it, or it cannot be measured.
    ///
    /// # Errors
    /// If the client fails.
    fn ceiling(&self, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError>;

    /// Removes the files that loads made.
    ///
    /// # Errors
    /// If the target does not answer, or refuses.
    fn remove_files(&self) -> Result<(), LabError>;
}
