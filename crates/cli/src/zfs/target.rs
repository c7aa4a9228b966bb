//! The pool that a command changes: where it is, and the names in it.

use crate::admin;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::Places;
use crate::pools::{keys_of, search};
use crate::remote::RemoteProcess;
use crate::writable::{WritablePool, WriteIntent, refused};
use weir_admin::{Action, Author, Change, Command, Outcome, Refusal};
use weir_format::znode::Timestamp;
use weir_pool::PoolError;

/// The pool's name in a dataset's, snapshot's or bookmark's.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// Opens the pool of a name for changes.
pub fn open(call: &Call, places: &Places, name: &str) -> Result<WritablePool, Failure> {
    let search = search(call, &places.dirs)?;
    let pool = pool_of(name).to_owned();
    let keys = keys_of(call, &search, &places.keys)?;
    let intent = WriteIntent { search, pool, keys, ..WriteIntent::default() };
    WritablePool::of_call(call, &intent)
}

/// A pool for the commands of a user: open in this process, or in another process that carries commands out.
pub struct CommandTarget<'a> {
    call: &'a Call,
    pool: String,
    place: Place,
}

enum Place {
    Here(WritablePool),
    There(RemoteProcess),
}

impl CommandTarget<'_> {
    /// Carries out an action. The first change of a command line records it in the pool's history.
    ///
    /// # Errors
    /// If the pool cannot be reached. A refusal is not an error here.
    pub fn attempt(&self, action: Action) -> Result<Result<Outcome, Refusal>, Failure> {
        let changes = matches!(action, Action::Change(_));
        let line = if changes { self.call.note() } else { String::new() };
        let done = match &self.place {
            Place::Here(pool) => {
                let (uid, gid) = self.call.caller.ids;
                let mut author = Author { uid, gid, now: now(), command: line };
                pool.machine.block_on(action.run(&pool.engine, &mut author))
            }
            Place::There(remote) => admin::send(self.call, remote, &Command { pool: self.pool.clone(), line, action })?,
        };
        if changes && done.is_ok() {
            self.call.noted();
        }
        Ok(done)
    }

    /// Carries out a change that must succeed: `doing` begins the message of a refusal.
    pub fn change(&self, doing: &str, change: Change) -> Result<(), Failure> {
        self.attempt(Action::Change(change))?.map(drop).map_err(|refusal| refused(doing, refusal))
    }
}

/// Opens the pool of a name for a user's commands, runs `work` and closes the pool. Returns the first error.
pub fn with<T>(
    call: &Call,
    places: &Places,
    name: &str,
    work: impl FnOnce(&CommandTarget<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let pool = pool_of(name).to_owned();
    let place = match open(call, places, name) {
        Ok(opened) => Place::Here(opened),
        Err(mut failure) => Place::There(failure.take_remote().ok_or(failure)?),
    };
    let target = CommandTarget { call, pool, place };
    let done = work(&target);
    let closed = match target.place {
        Place::Here(pool) => pool.close(),
        Place::There(_) => Ok(()),
    };
    let value = done?;
    closed.map(|()| value)
}

/// Opens the pool of a name, carries out one change and closes the pool.
pub fn once(call: &Call, places: &Places, name: &str, doing: &str, change: Change) -> Result<u8, Failure> {
    with(call, places, name, |target| target.change(doing, change))?;
    Ok(0)
}

/// Runs a change that its caller requests.
pub async fn run_as(
    call: &Call,
    doing: &str,
    change: impl AsyncFnOnce(&mut Author) -> Result<(), PoolError>,
) -> Result<(), Failure> {
    let (uid, gid) = call.caller.ids;
    let mut author = Author { uid, gid, now: now(), command: call.note() };
    change(&mut author).await.map_err(|error| refused(doing, error))?;
    call.noted();
    Ok(())
}

/// The time of day.
#[allow(clippy::disallowed_methods, reason = "a command runs in the real world alone")]
pub fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
}

/// Checks the number of operands of the command `C`.
pub fn words<C: CommandLine>(
    words: &[String],
    count: std::ops::RangeInclusive<usize>,
    missing: &str,
) -> Result<Vec<String>, Failure> {
    match words.len() {
        n if n < *count.start() => Err(C::misused(missing)),
        n if n > *count.end() => Err(C::misused("too many arguments")),
        _ => Ok(words.to_vec()),
    }
}
