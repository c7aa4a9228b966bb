//! Confirmations: what cannot be undone is done only after a dry run whose answer was read, and only while its state holds.
//!
//! ```text
//!   preview ─► dry run ─► Pending { action, digest of the state, token's name, time } ─► confirmation, a random value
//!   act(confirmation) ─► taken from the table, once ─► dry run again: the same digest? ─► the command
//! ```

use super::action::PageAction;
use super::tokens::Identity;
use std::collections::VecDeque;
use std::time::Duration;
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Nanos};

/// Time for which a confirmation is valid.
pub const VALID_TIME: Duration = Duration::from_secs(300);
/// Maximum number of confirmations that wait; the oldest go first.
const MAX_PENDING: usize = 64;
/// Random bytes of a confirmation.
const CONFIRMATION_BYTES: usize = 16;

/// A dry run that was shown.
struct Pending {
    confirmation: String,
    action: PageAction,
    digest: blake3::Hash,
    who: Identity,
    since: Nanos,
}

/// The confirmations that wait.
#[derive(Default)]
pub struct Confirmations(Mutex<VecDeque<Pending>>);

/// Why a confirmation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmationError {
    /// None was given.
    #[error("this cannot be undone: it needs the confirmation of a dry run")]
    Missing,
    /// Not known: used, too old, or of another action or token.
    #[error(
        "this confirmation was used, is older than 5 minutes, or is that of another action or token: look at a new dry run"
    )]
    Unknown,
    /// The state is another one than that of the dry run.
    #[error("the state has changed since the dry run, and nothing was done: look at a new dry run")]
    Changed,
}

impl Confirmations {
    /// A confirmation of this action in this state.
    pub fn make(&self, machine: &Machine, action: &PageAction, digest: blake3::Hash, who: &Identity) -> String {
        let mut bytes = [0; CONFIRMATION_BYTES];
        machine.entropy.fill(&mut bytes);
        let confirmation: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut pending = self.0.lock();
        if pending.len() >= MAX_PENDING {
            pending.pop_front();
        }
        pending.push_back(Pending {
            confirmation: confirmation.clone(),
            action: action.clone(),
            digest,
            who: who.clone(),
            since: machine.clock.now(),
        });
        debug_assert!(pending.len() <= MAX_PENDING, "pending confirmations are bounded");
        confirmation
    }

    /// Takes a confirmation, and returns the digest of the state that it is for. It cannot be taken again. An attempt for another
    /// action or by another token leaves it for its own.
    ///
    /// # Errors
    /// [`ConfirmationError`] if there is none for this action and token.
    pub fn take(
        &self,
        machine: &Machine,
        given: Option<&str>,
        action: &PageAction,
        who: &Identity,
    ) -> Result<blake3::Hash, ConfirmationError> {
        let given = given.ok_or(ConfirmationError::Missing)?;
        let now = machine.clock.now();
        let mut pending = self.0.lock();
        pending.retain(|one| now.since(one.since) <= VALID_TIME);
        let same = |one: &Pending| {
            // The comparison of hashes takes constant time.
            let is_given = blake3::hash(one.confirmation.as_bytes()) == blake3::hash(given.as_bytes());
            is_given && one.action == *action && one.who == *who
        };
        let at = pending.iter().position(same).ok_or(ConfirmationError::Unknown)?;
        pending.remove(at).map(|found| found.digest).ok_or(ConfirmationError::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::action::Role;

    #[test]
    fn a_confirmation_is_for_one_action_of_one_token_once() {
        let machine = weir_linux::machine().unwrap();
        let all = Confirmations::default();
        let action = |pool: &str| PageAction::Export { pool: pool.into(), force: false };
        let who = |name: &str| Identity { name: name.into(), role: Role::Administer };
        let digest = blake3::hash(b"state");
        let take = |given: Option<&str>, pool: &str, name: &str| all.take(&machine, given, &action(pool), &who(name));
        let make = || all.make(&machine, &action("p"), digest, &who("a"));
        assert_eq!(take(None, "p", "a"), Err(ConfirmationError::Missing));
        assert_eq!(take(Some("x"), "p", "a"), Err(ConfirmationError::Unknown));
        let one = make();
        assert_eq!(take(Some(&one), "p", "a"), Ok(digest));
        assert_eq!(take(Some(&one), "p", "a"), Err(ConfirmationError::Unknown));
        // Attempts for something else, or with another token, leave it.
        let one = make();
        assert_eq!(take(Some(&one), "q", "a"), Err(ConfirmationError::Unknown));
        assert_eq!(take(Some(&one), "p", "b"), Err(ConfirmationError::Unknown));
        assert_eq!(take(Some(&one), "p", "a"), Ok(digest));
        assert_eq!(take(Some(&one), "p", "a"), Err(ConfirmationError::Unknown));
        let first = make();
        for _ in 0..MAX_PENDING {
            make();
        }
        assert_eq!(take(Some(&first), "p", "a"), Err(ConfirmationError::Unknown));
    }
}
