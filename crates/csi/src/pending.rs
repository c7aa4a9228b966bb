//! Datasets with a call in progress: at most one call changes a dataset at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::Status;
use weir_machine::lock::Mutex;

/// Datasets with a call in progress.
#[derive(Clone, Default)]
pub struct Pending(Arc<Mutex<BTreeSet<String>>>);

/// A call that is in progress; dropped at its end.
pub struct PendingCall {
    pending: Pending,
    name: String,
}

impl Pending {
    /// Begins a call on a dataset or path.
    ///
    /// # Errors
    /// ABORTED if another one is in progress.
    pub fn begin(&self, name: &str) -> Result<PendingCall, Status> {
        if !self.0.lock().insert(name.to_owned()) {
            return Err(Status::aborted(format!("{name}: another operation is in progress; try again")));
        }
        Ok(PendingCall { pending: self.clone(), name: name.to_owned() })
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let was_there = self.pending.0.lock().remove(&self.name);
        debug_assert!(was_there, "a call ends once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_at_a_time_changes_a_dataset() {
        let pending = Pending::default();
        let first = pending.begin("tank/a").unwrap();
        let other = pending.begin("tank/b").unwrap();
        assert_eq!(pending.begin("tank/a").err().map(|status| status.code()), Some(tonic::Code::Aborted));
        drop((first, other));
        assert!(pending.begin("tank/a").is_ok());
    }
}
