//! The state of one run: its limits, and what was found out when one was reached.

use crate::asked::{Ask, Reply};
use crate::pattern::{PatternError, Steps};
use mlua::{Error, Lua, Value};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_machine::{Clock, Nanos};

/// Instructions between two looks at the limits (`zfs_lua_check_instrlimit_interval`).
pub const HOOK_INTERVAL: u32 = 100;
/// Steps of pattern matching per instruction of the limit.
const STEPS_PER_INSTRUCTION: u64 = 64;
/// Nesting of functions of the script in functions of the library that call them (`LUAI_MAXCCALLS` of OpenZFS permits 7 of
/// `string.gsub`).
const MAX_CALLBACK_DEPTH: u32 = 7;

/// Message of a program that reached the limit of instructions or of time.
const TIMED_OUT: &str = "Channel program timed out.";
/// Message of a program whose caller went away.
const CANCELED: &str = "Channel program was canceled.";
/// Message of nested functions of the library.
const TOO_DEEP: &str = "C stack overflow";

/// Why a run ends before its script does. It stays so: a coroutine that is resumed again gets the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The limit of instructions or of time.
    TimedOut,
    /// The caller canceled it.
    Canceled,
}

/// State of a run, shared by the functions of its interpreter.
pub struct Run {
    /// Name of the pool.
    pub pool: String,
    /// Whether the program may change the pool.
    pub changes: bool,
    /// Steps of pattern matching.
    pub steps: Steps,
    /// Limit of memory in bytes, also for texts that are made outside of the interpreter.
    pub memory_limit_bytes: usize,
    /// Message and traceback of the error that ended the script.
    pub failure: RefCell<Option<Vec<u8>>>,
    /// Whether the script ended because it reached its memory limit.
    pub is_out_of_memory: Cell<bool>,
    ask: Box<dyn Fn(Ask) -> Option<Reply>>,
    clock: Clock,
    began: Nanos,
    waited_ns: Cell<u64>,
    instructions: Cell<u64>,
    instruction_limit: u64,
    time_limit: Duration,
    canceled: Arc<AtomicBool>,
    stop: Cell<Option<Stop>>,
    depth: Cell<u32>,
}

/// Limits and surroundings of a run.
pub struct Limits {
    /// Maximum number of instructions.
    pub instructions: u64,
    /// Maximum memory in bytes.
    pub memory_bytes: u64,
    /// Maximum time of the interpreter, without the time in which it waits for the pool.
    pub time: Duration,
    /// Set when the caller cancels the program.
    pub canceled: Arc<AtomicBool>,
}

impl Run {
    /// A run on a pool. `ask` gives questions to the pool and returns the answers; `None` if the pool has gone away.
    pub fn new(
        pool: &str,
        changes: bool,
        limits: &Limits,
        clock: Clock,
        ask: impl Fn(Ask) -> Option<Reply> + 'static,
    ) -> Self {
        Run {
            pool: pool.to_owned(),
            changes,
            steps: Steps::new(limits.instructions.saturating_mul(STEPS_PER_INSTRUCTION)),
            memory_limit_bytes: usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX),
            failure: RefCell::default(),
            is_out_of_memory: Cell::default(),
            ask: Box::new(ask),
            began: clock.now(),
            clock,
            waited_ns: Cell::default(),
            instructions: Cell::default(),
            instruction_limit: limits.instructions,
            time_limit: limits.time,
            canceled: limits.canceled.clone(),
            stop: Cell::default(),
            depth: Cell::default(),
        }
    }

    /// Why the run was stopped, if it was.
    pub fn stop(&self) -> Option<Stop> {
        self.stop.get()
    }

    /// Instructions executed so far, in steps of [`HOOK_INTERVAL`].
    pub fn instructions(&self) -> u64 {
        self.instructions.get()
    }

    /// Counts [`HOOK_INTERVAL`] instructions.
    ///
    /// # Errors
    /// If a limit is reached, or the caller canceled the program.
    pub fn count(&self) -> Result<(), Error> {
        if self.canceled.load(Ordering::Relaxed) {
            return Err(self.stopped(Stop::Canceled));
        }
        self.instructions.set(self.instructions.get() + u64::from(HOOK_INTERVAL));
        let took_ns = self.clock.now().ns_since(self.began).saturating_sub(self.waited_ns.get());
        let is_late = u128::from(took_ns) > self.time_limit.as_nanos();
        match is_late || self.instructions.get() > self.instruction_limit {
            true => Err(self.stopped(Stop::TimedOut)),
            false => Ok(()),
        }
    }

    fn stopped(&self, stop: Stop) -> Error {
        debug_assert!(
            self.stop.get().is_none_or(|before| before == stop || stop == Stop::Canceled),
            "a run stops once"
        );
        self.stop.set(Some(stop));
        Error::runtime(match stop {
            Stop::TimedOut => TIMED_OUT,
            Stop::Canceled => CANCELED,
        })
    }

    /// Asks the pool.
    ///
    /// # Errors
    /// If the pool has gone away, or the program was canceled.
    pub fn ask(&self, ask: Ask) -> Result<Reply, Error> {
        if let Some(stop) = self.stop.get() {
            return Err(self.stopped(stop));
        }
        let asked = self.clock.now();
        let reply = (self.ask)(ask);
        self.waited_ns.set(self.waited_ns.get().saturating_add(self.clock.now().ns_since(asked)));
        reply.ok_or_else(|| self.stopped(Stop::Canceled))
    }

    /// The error of a pattern in the function of the library that Lua calls.
    pub fn pattern_error(&self, lua: &Lua, error: PatternError) -> Error {
        match error {
            PatternError::Pattern(why) => fail(lua, why),
            PatternError::Steps => self.stopped(Stop::TimedOut),
        }
    }

    /// Calls a function of the script from one of the library.
    ///
    /// # Errors
    /// Errors of `call`; if such calls are nested too deeply.
    pub fn call_back<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if self.depth.get() >= MAX_CALLBACK_DEPTH {
            return Err(Error::runtime(TOO_DEEP));
        }
        self.depth.set(self.depth.get() + 1);
        let done = call();
        self.depth.set(self.depth.get().saturating_sub(1));
        done
    }

    /// Fails if a text that is made outside of the interpreter is larger than its memory.
    ///
    /// # Errors
    /// As the allocator of the interpreter.
    pub fn check_bytes(&self, bytes: usize) -> Result<(), Error> {
        match bytes > self.memory_limit_bytes {
            true => Err(Error::MemoryError("not enough memory".into())),
            false => Ok(()),
        }
    }
}

/// An error of the function that Lua calls, at the place of the call (`luaL_error`).
pub fn fail(lua: &Lua, message: impl AsRef<str>) -> Error {
    let place = lua.inspect_stack(1, |caller| {
        let source = caller.source().short_src.map(|source| source.into_owned())?;
        caller.current_line().map(|line| format!("{source}:{line}: "))
    });
    Error::runtime(format!("{}{}", place.flatten().unwrap_or_default(), message.as_ref()))
}

/// An error in an argument, from 1, of a function of the library (`luaL_argerror`).
pub fn bad_argument(lua: &Lua, index: usize, function: &str, why: impl AsRef<str>) -> Error {
    fail(lua, format!("bad argument #{index} to '{function}' ({})", why.as_ref()))
}

/// Name of a value's type in Lua.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) | Value::Number(_) => "number",
        Value::Error(_) => "string",
        other => other.type_name(),
    }
}

/// The innermost message of an error, without a traceback; `None` for the limit of memory.
pub fn message_of(error: &Error) -> Option<String> {
    let text = match error {
        Error::CallbackError { cause, .. } => return message_of(cause),
        Error::MemoryError(_) => return None,
        Error::RuntimeError(message) => message.clone(),
        Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let message = text.split("\nstack traceback:").next().unwrap_or_default();
    Some(message.to_owned())
}
