//! One run of a script, on the thread of its interpreter.

use crate::base::{CHUNK, interpreter};
use crate::run::{HOOK_INTERVAL, Run, Stop, message_of};
use crate::source::rewrite;
use crate::{library, values};
use mlua::chunk::ChunkMode;
use mlua::debug::Debug;
use mlua::{Error, Function, HookTriggers, Lua, MultiValue, Value, VmState};
use std::rc::Rc;
use weir_admin::{Bytes, LuaProgram, ProgramEnd, ProgramFailure, ProgramFailureKind};

/// Name of the script in messages.
const NAME: &str = "channel program";
/// Frames of a traceback that are shown at its beginning and at its end; the others are left out (`luaL_traceback`).
const FIRST_FRAMES: usize = 12;
const LAST_FRAMES: usize = 10;
/// Frames at each end of the stack that are looked at; some are not shown.
const SEEN_FRAMES: usize = 32;
/// Frames of the handler of errors, at the top of the stack. At its bottom is one more, of the protected call.
const HANDLER_FRAMES: usize = 2;
/// Lua's words for the error of the memory limit.
const NOT_ENOUGH_MEMORY: &[u8] = b"not enough memory";

fn failed(kind: ProgramFailureKind, message: Option<Bytes>) -> ProgramEnd {
    ProgramEnd::Failed(ProgramFailure { kind, message, instructions: None })
}

/// A script that was compiled.
pub struct Script {
    lua: Lua,
    run: Rc<Run>,
    main: Function,
    xpcall: Function,
}

impl Script {
    /// Compiles a script. The limit of memory does not hold yet.
    ///
    /// # Errors
    /// The end of a program that cannot be compiled.
    pub fn compile(program: &LuaProgram, run: Rc<Run>) -> Result<Script, ProgramEnd> {
        let invalid = |message: String| failed(ProgramFailureKind::Invalid, Some(message.as_str().into()));
        let text = rewrite(&program.script.0)
            .map_err(|error| invalid(format!("[string \"{NAME}\"]:{}: {}", error.line, error.message)))?;
        // The words of Lua 5.2 for source text that is nested too deeply.
        let of_lua = |error: Error| {
            let message = message_of(&error).unwrap_or_default();
            invalid(message.replace("C stack overflow", "too many C levels (limit is 200)"))
        };
        let (lua, xpcall) = interpreter(&run).map_err(of_lua)?;
        library::install(&lua, &run).map_err(of_lua)?;
        let main = lua.load(text).set_name(NAME).set_mode(ChunkMode::Text).into_function().map_err(of_lua)?;
        Ok(Script { lua, run, main, xpcall })
    }

    /// Runs the script with the arguments of the command line.
    pub fn execute(self, arguments: &[Bytes]) -> ProgramEnd {
        let done = self.call(arguments);
        // The result is converted beyond the limit.
        let _ = self.lua.set_memory_limit(0);
        let (ok, results) = match done {
            Ok(mut results) => (matches!(results.pop_front(), Some(Value::Boolean(true))), results),
            Err(error) => return self.fail(Some(&Value::Error(Box::new(error)))),
        };
        if !ok {
            return self.fail(results.front());
        }
        let value = match results.len() {
            0 => return ProgramEnd::Returned(None),
            1 => results.front().map(|value| values::convert(value, "return", 0)),
            _ => Some(Err("Multiple return values not supported".into())),
        };
        match value.transpose() {
            Ok(Some(value)) if value.packed_bytes() > self.run.memory_limit_bytes as u64 => {
                failed(ProgramFailureKind::TooLarge, None)
            }
            Ok(value) => ProgramEnd::Returned(value),
            Err(why) => failed(ProgramFailureKind::Script, Some(why.as_str().into())),
        }
    }

    fn call(&self, arguments: &[Bytes]) -> Result<MultiValue, Error> {
        let words = arguments.iter().map(|word| self.lua.create_string(&word.0)).collect::<Result<Vec<_>, _>>()?;
        let table = self.lua.create_table()?;
        table.raw_set("argv", self.lua.create_sequence_from(words)?)?;
        let of_error = self.run.clone();
        let on_error = self.lua.create_function(move |lua, error: Value| {
            note_failure(lua, &of_error, &error);
            Ok(())
        })?;
        let of_hook = self.run.clone();
        let triggers = HookTriggers::new().every_nth_instruction(HOOK_INTERVAL);
        self.lua.set_global_hook(triggers, move |_, _| of_hook.count().map(|()| VmState::Continue))?;
        self.lua.set_memory_limit(self.run.memory_limit_bytes)?;
        let done = self.xpcall.call::<MultiValue>((&self.main, on_error, table));
        self.lua.remove_hook();
        self.lua.remove_global_hook();
        done
    }

    /// The end of a script that failed with this error.
    fn fail(&self, error: Option<&Value>) -> ProgramEnd {
        let message = self.run.failure.take();
        // Without a message, the handler was not called, as after the limit of memory.
        let is_memory = |error: &Value| match error {
            Value::Error(error) => message_of(error).is_none(),
            Value::String(text) => text.as_bytes() == NOT_ENOUGH_MEMORY,
            _ => false,
        };
        let lacks_memory = self.run.is_out_of_memory.get() || message.is_none() && error.is_some_and(is_memory);
        let kind = match self.run.stop() {
            Some(Stop::Canceled) => ProgramFailureKind::Canceled,
            Some(Stop::TimedOut) => ProgramFailureKind::TimedOut,
            None if lacks_memory => return failed(ProgramFailureKind::Memory, None),
            None => ProgramFailureKind::Script,
        };
        let text = || match error? {
            Value::Error(error) => message_of(error).map(String::into_bytes),
            Value::String(text) => Some(text.as_bytes().to_vec()),
            _ => None,
        };
        let instructions = (kind == ProgramFailureKind::TimedOut).then(|| self.run.instructions());
        ProgramEnd::Failed(ProgramFailure { kind, message: message.or_else(text).map(Bytes), instructions })
    }
}

/// Keeps the message of an error and a traceback; the stack is still that of the error.
fn note_failure(lua: &Lua, run: &Run, error: &Value) {
    let message = match error {
        Value::Error(error) => match message_of(error) {
            Some(message) => message.into_bytes(),
            None => return run.is_out_of_memory.set(true),
        },
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        _ => Vec::new(),
    };
    let helper = format!("{CHUNK}:").into_bytes();
    // An error at a line of the functions in Lua has no place in the script.
    let message = match message.strip_prefix(helper.as_slice()).and_then(|rest| rest.splitn(2, |b| *b == b' ').nth(1)) {
        Some(rest) => rest.to_vec(),
        None => message,
    };
    let mut text = message;
    if !text.is_empty() {
        text.push(b'\n');
    }
    text.extend_from_slice(traceback(lua).as_bytes());
    *run.failure.borrow_mut() = Some(text);
}

/// Number of frames of the stack. Finding one takes time linear in its level, so they are not counted one by one.
fn depth(lua: &Lua) -> usize {
    let is_there = |level: usize| lua.inspect_stack(level, |_| ()).is_some();
    let mut beyond = 1;
    while is_there(beyond) {
        beyond *= 2;
    }
    let mut within = beyond / 2;
    while within + 1 < beyond {
        let middle = within.midpoint(beyond);
        if is_there(middle) { within = middle } else { beyond = middle }
    }
    beyond
}

/// The frames of the script in the words of Lua 5.2, without those of this crate below and above it.
fn traceback(lua: &Lua) -> String {
    let end = depth(lua).saturating_sub(1).max(HANDLER_FRAMES);
    let middle = end.min(SEEN_FRAMES);
    let mut frames = shown_frames(lua, HANDLER_FRAMES..middle);
    frames.extend(shown_frames(lua, middle.max(end.saturating_sub(SEEN_FRAMES))..end));
    if frames.len() > FIRST_FRAMES + LAST_FRAMES {
        let last = frames.split_off(frames.len() - LAST_FRAMES);
        frames.truncate(FIRST_FRAMES);
        frames.push("...".to_owned());
        frames.extend(last);
    }
    let lines = frames.into_iter().map(|frame| format!("\n\t{frame}"));
    std::iter::once("stack traceback:".to_owned()).chain(lines).collect()
}

fn shown_frames(lua: &Lua, levels: std::ops::Range<usize>) -> Vec<String> {
    let mut frames: Vec<String> = Vec::new();
    for frame in levels.filter_map(|level| lua.inspect_stack(level, describe)) {
        match frame {
            Frame::Shown(text) => frames.push(text),
            Frame::Helper(name) => {
                if frames.last().is_some_and(|last| last.starts_with("[C]:")) {
                    frames.pop();
                }
                frames.extend(name);
            }
        }
    }
    frames
}

/// A frame of the stack.
enum Frame {
    Shown(String),
    /// A function of this crate that is written in Lua: shown as one of the library if it was called by a name.
    Helper(Option<String>),
}

fn describe(frame: &Debug<'_>) -> Frame {
    let source = frame.source();
    let short = source.short_src.unwrap_or_default();
    let names = frame.names();
    let is_metamethod = names.name_what == Some("metamethod");
    let name = names.name.filter(|name| !name.is_empty());
    if short == CHUNK {
        let shown = name.filter(|_| !is_metamethod).map(|name| format!("[C]: in function '{name}'"));
        return Frame::Helper(shown);
    }
    let line = frame.current_line().map(|line| format!("{line}:")).unwrap_or_default();
    let what = match (name, source.what) {
        (Some(name), _) => format!("function '{name}'"),
        (None, "main") => "main chunk".to_owned(),
        (None, "C") => "?".to_owned(),
        (None, _) => format!("function <{short}:{}>", source.line_defined.unwrap_or(0)),
    };
    let tail = if frame.is_tail_call() { "\n\t(...tail calls...)" } else { "" };
    Frame::Shown(format!("{short}:{line} in {what}{tail}"))
}
