//! Where a user's command is carried out: in this process, or in the one that has the pool open.

use crate::admin;
use crate::call::Call;
use crate::canceling::{can_be_canceled, watched};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools::search;
use crate::remote::RemoteProcess;
use crate::writable::{WritablePool, WriteIntent, refused};
use weir_admin::{Action, Author, Command, Outcome, Refusal, RefusalKind};
use weir_format::znode::Timestamp;

/// A pool for the commands of a user: open in this process, or in another process that carries commands out.
pub struct CommandTarget<'a> {
    call: &'a Call,
    pool: String,
    place: Place,
}

/// Where the pool is open.
pub enum Place {
    /// In this process.
    Here(WritablePool),
    /// In another process.
    There(RemoteProcess),
}

impl<'a> CommandTarget<'a> {
    /// Opens a pool, or finds the process that has it open.
    ///
    /// # Errors
    /// If the pool cannot be opened.
    pub fn open(call: &'a Call, intent: &WriteIntent) -> Result<Self, Failure> {
        // The action decides whether it changes the pool.
        let intent = &WriteIntent { accepts_read_only: true, ..intent.clone() };
        let place = match WritablePool::of_call(call, intent) {
            Ok(opened) => Place::Here(opened),
            Err(mut failure) => Place::There(failure.take_remote().ok_or(failure)?),
        };
        Ok(CommandTarget { call, pool: intent.pool.clone(), place })
    }

    /// The pool in the daemon, if `failure` says that the command belongs there; or in the process beside it that has the pool
    /// open (`weir serve`).
    ///
    /// # Errors
    /// `failure`, if it has another cause.
    pub fn in_daemon(call: &'a Call, pool: &str, mut failure: Failure) -> Result<Self, Failure> {
        let daemon = failure.take_remote().ok_or(failure)?;
        let place = Place::There(admin::holder_beside(call, &daemon, pool)?.unwrap_or(daemon));
        Ok(CommandTarget { call, pool: pool.to_owned(), place })
    }

    /// Opens a pool in these places: see [`CommandTarget::open`].
    ///
    /// # Errors
    /// If the pool cannot be opened.
    pub fn of_pool(call: &'a Call, places: &PoolDirs, pool: &str) -> Result<Self, Failure> {
        let search = match search(call, &places.dirs) {
            Ok(search) => search,
            Err(failure) => return Self::in_daemon(call, pool, failure),
        };
        Self::open(call, &WriteIntent { search, pool: pool.to_owned(), ..WriteIntent::default() })
    }

    /// Runs `work` and closes the pool. Returns the first error.
    ///
    /// # Errors
    /// Errors of `work` and of closing the pool.
    pub fn with<T>(self, work: impl FnOnce(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let done = work(&self);
        let closed = match self.place {
            Place::Here(pool) => pool.close(),
            Place::There(_) => Ok(()),
        };
        let value = done?;
        closed.map(|()| value)
    }

    /// Where the pool is open, for commands that differ there.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The pool, if this process has opened it.
    pub fn into_place(self) -> Place {
        self.place
    }

    /// Carries out an action. The first change of a command line records it in the pool's history, and so does each action of
    /// the pool's process, which may be on several pools.
    ///
    /// # Errors
    /// If the pool cannot be reached. A refusal is not an error here.
    pub fn attempt(&self, action: Action) -> Result<Result<Outcome, Refusal>, Failure> {
        let changes =
            matches!(action, Action::Change(_) | Action::ChangeWithoutMounts(_) | Action::Pool(_) | Action::Program(_));
        let is_of_pool = matches!(action, Action::Process(_) | Action::Pool(_));
        let line = match &action {
            Action::Process(_) => self.call.line(),
            _ if changes => self.call.note(),
            _ => String::new(),
        };
        let done = match &self.place {
            Place::Here(pool) => {
                let mut author = Author::new(self.call.caller.ids, now(), line);
                let monitor = author.monitor.clone();
                let is_cancelable = can_be_canceled(&action);
                let work = action.run(pool, &mut author);
                match is_cancelable {
                    true => pool.machine.block_on(watched(self.call, &monitor, work))?,
                    false => pool.machine.block_on(work),
                }
            }
            Place::There(remote) => admin::send(self.call, remote, &Command { pool: self.pool.clone(), line, action })?,
        };
        if let Err(refusal) = &done
            && is_of_pool
            && refusal.kind == RefusalKind::OtherPool
        {
            return Err(Failure::failed(format!("cannot open '{}': {}", self.pool, refusal.why)));
        }
        if changes && done.is_ok() {
            self.call.noted();
        }
        Ok(done)
    }

    /// Carries out a change that must succeed: `doing` begins the message of a refusal.
    pub fn change(&self, doing: &str, change: impl Into<Action>) -> Result<(), Failure> {
        self.attempt(change.into())?.map(drop).map_err(|refusal| refused(doing, refusal))
    }
}

/// The time of day.
#[allow(clippy::disallowed_methods, reason = "a command runs in the real world alone")]
pub fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
}
