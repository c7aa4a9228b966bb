//! Ways along links on the disks: from a directory to the one above, from a snapshot to the one before, from a list to its
//! sub-lists.
//!
//! In a sound pool no such link leads back to where one was. In a forged one it may: so whoever follows links notes on a
//! [`CycleGuard`] what it comes to. The way ends after no more steps than there are objects, with an error that names the object
//! at which it closed.

use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use std::collections::BTreeSet;
use weir_format::ObjectId;

/// The objects that a way has come to.
#[derive(Clone, Debug, Default)]
pub struct CycleGuard(BTreeSet<ObjectId>);

impl CycleGuard {
    /// A step to object `id` of `set`.
    ///
    /// # Errors
    /// [`ObjectError::Corrupt`] if the way has been there.
    pub fn step(&mut self, set: &ObjectSet, id: ObjectId) -> Result<(), ObjectError> {
        let why = "links lead to it twice";
        self.0.insert(id).then_some(()).ok_or_else(|| ObjectError::Corrupt { place: set.place(id, 0, 0), why })
    }
}
