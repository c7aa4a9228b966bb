//! Channel programs: scripts in Lua that read datasets and change them, all in one txg (`zfs program`, zfs-program(8)).
//!
//! ```text
//!   thread of the interpreter                        syncing context ([`weir_engine::program`])
//!   compile ─► run ─► zfs.get_prop(…) ── Ask ──────► reads the live MOS
//!                 ◄──────────────────────── Reply ── checks, changes
//!              … end ── ProgramEnd ────────────────► the txg goes on
//! ```
//!
//! Lua's calls are synchronous and its state belongs to one thread, the engine's are asynchronous: so the interpreter has a thread
//! of its own for the time of the program, and asks. The script is compiled before the txg.
//!
//! *Bounds.* The limits of instructions and memory are OpenZFS's ([`MAX_INSTRUCTIONS`], [`MAX_MEMORY_BYTES`]). What the hook of
//! instructions does not interrupt is bounded besides: patterns by steps, functions of the libraries by what a table or text
//! contains, nested calls by depth, and all of the interpreter by time ([`run`]). A caller that goes away cancels the program.
//!
//! *What differs from OpenZFS's Lua 5.2* is in `docs/limits.md`.
//!
//! Rejected: Lua 5.2 itself, whose numbers are floating-point ones, so that GUIDs and sums of bytes above 2⁵³ would be wrong; a
//! process of its own for the interpreter, since nothing of the script reaches the system.
//!
//! Source: OpenZFS `module/zfs/zcp.c`, `zcp_get.c`, `zcp_iter.c`, `zcp_set.c`, `zcp_synctask.c`, `zcp_global.c`; `man/man8/zfs-program.8`.

mod answers;
mod asked;
mod base;
mod errno;
mod library;
mod pattern;
mod properties;
mod run;
mod script;
mod source;
mod strings;
mod tables;
#[cfg(test)]
mod tests;
mod values;

use crate::answers::Answerer;
use crate::asked::{Ask, Reply};
use crate::run::{Limits, Run};
use crate::script::Script;
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use weir_admin::{ChangeMonitor, LuaProgram, ProgramEnd, ProgramFailure, ProgramFailureKind};
use weir_dsl::MountedFileSystems;
use weir_engine::{Engine, ProgramTxg};
use weir_machine::Clock;
use weir_pool::PoolError;

/// Limit of instructions unless the caller gives one (`ZCP_DEFAULT_INSTRLIMIT`).
pub const DEFAULT_INSTRUCTIONS: u64 = 10_000_000;
/// Maximum limit of instructions (`ZCP_MAX_INSTRLIMIT`).
pub const MAX_INSTRUCTIONS: u64 = 100_000_000;
/// Limit of memory in bytes unless the caller gives one (`ZCP_DEFAULT_MEMLIMIT`).
pub const DEFAULT_MEMORY_BYTES: u64 = 10 << 20;
/// Maximum limit of memory in bytes (`ZCP_MAX_MEMLIMIT`).
pub const MAX_MEMORY_BYTES: u64 = 100 << 20;
/// Memory limits from here on cannot be allocated for the result (`lzc_ioctl`).
const UNALLOCATABLE_BYTES: u64 = 1 << 63;
/// Maximum size of a result in bytes, so that the answer with it can be sent.
const MAX_RESULT_BYTES: u64 = 8 << 20;
/// Maximum time of the interpreter, without the time in which it waits for the pool. OpenZFS has no such limit, and a single
/// instruction can copy all memory of the program there. 100 million ordinary instructions take a few seconds.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Stack of the interpreter's thread in bytes: Lua nests calls of C functions 200 deep at most.
const STACK_BYTES: usize = 16 << 20;
/// Interval at which a caller that goes away is noticed.
const LOOK: Duration = Duration::from_millis(100);

/// A message of the interpreter's thread.
enum Message {
    /// The script is compiled and begins.
    Begun,
    /// A question, and where the answer goes.
    Ask(Ask, SyncSender<Reply>),
    /// The end.
    End(ProgramEnd),
}

fn failed(kind: ProgramFailureKind) -> ProgramEnd {
    ProgramEnd::Failed(ProgramFailure { kind, message: None, instructions: None })
}

/// Runs a program on an open pool. Returns when its changes are on stable storage.
///
/// File systems in `mounted` can be neither destroyed nor rolled back. `monitor` says whether the caller cancels the program.
///
/// # Errors
/// [`PoolError::Suspended`] if the txg cannot be written. The failure of the program is no error.
pub async fn run(
    engine: &Engine,
    mounted: MountedFileSystems,
    program: LuaProgram,
    monitor: ChangeMonitor,
) -> Result<ProgramEnd, PoolError> {
    if let Some(refused) = refusal(&program) {
        return Ok(refused);
    }
    let canceled = Arc::new(AtomicBool::new(false));
    let clock = engine.machine.clock.clone();
    let (to, mut from) = unbounded();
    let interpreter =
        Interpreter { program, pool: engine.name(), clock: clock.clone(), canceled: canceled.clone(), to };
    let thread = std::thread::Builder::new().name("weir-program".into()).stack_size(STACK_BYTES);
    if let Err(error) = thread.spawn(move || interpreter.run()) {
        return Err(PoolError::Refused { what: format!("no thread for the interpreter: {error}") });
    }
    // Whatever ends this call ends the script.
    let _cancels = CancelOnDrop(canceled.clone());
    match from.next().await {
        Some(Message::Begun) => {}
        Some(Message::End(end)) => return Ok(end),
        Some(Message::Ask(..)) | None => return Ok(failed(ProgramFailureKind::Script)),
    }
    let end = engine
        .run_program(mounted, move |txg: &mut ProgramTxg<'_, '_>| {
            Box::pin(async move { serve(txg, &mut from, &clock, &monitor, &canceled).await })
        })
        .await?;
    Ok(match end {
        ProgramEnd::Returned(Some(value)) if value.packed_bytes() > MAX_RESULT_BYTES => {
            failed(ProgramFailureKind::TooLarge)
        }
        end => end,
    })
}

/// The end of a program whose limits are out of their ranges.
fn refusal(program: &LuaProgram) -> Option<ProgramEnd> {
    let LuaProgram { instruction_limit, memory_limit_bytes, .. } = program;
    if *memory_limit_bytes >= UNALLOCATABLE_BYTES {
        return Some(failed(ProgramFailureKind::TooLarge));
    }
    let is_valid =
        (1..=MAX_INSTRUCTIONS).contains(instruction_limit) && (1..=MAX_MEMORY_BYTES).contains(memory_limit_bytes);
    (!is_valid).then(|| failed(ProgramFailureKind::Invalid))
}

/// Answers the questions of a script until it ends.
async fn serve(
    txg: &mut ProgramTxg<'_, '_>,
    from: &mut UnboundedReceiver<Message>,
    clock: &Clock,
    monitor: &ChangeMonitor,
    canceled: &AtomicBool,
) -> ProgramEnd {
    let mut answerer = Answerer { txg };
    loop {
        let look = pin!(clock.sleep(LOOK));
        let message = select(from.next(), look).await;
        if monitor.is_canceled() {
            canceled.store(true, Ordering::Relaxed);
        }
        match message {
            Either::Right(((), _)) => {}
            Either::Left((Some(Message::Ask(ask, to)), _)) => {
                let reply = answerer.answer(ask).await;
                // The thread waits for it.
                let _ = to.send(reply);
            }
            Either::Left((Some(Message::Begun), _)) => debug_assert!(false, "a script begins once"),
            Either::Left((Some(Message::End(end)), _)) => return end,
            // The thread has ended by a panic, which its hook has logged.
            Either::Left((None, _)) => return failed(ProgramFailureKind::Script),
        }
    }
}

/// Cancels a script when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The interpreter of a program, before its thread has begun.
struct Interpreter {
    program: LuaProgram,
    pool: String,
    clock: Clock,
    canceled: Arc<AtomicBool>,
    to: UnboundedSender<Message>,
}

impl Interpreter {
    /// Compiles the script and runs it to its end.
    fn run(self) {
        let end = self.end();
        // The caller may have gone away.
        let _ = self.to.unbounded_send(Message::End(end));
    }

    fn end(&self) -> ProgramEnd {
        let LuaProgram { instruction_limit, memory_limit_bytes, changes, .. } = &self.program;
        let limits = Limits {
            instructions: *instruction_limit,
            memory_bytes: *memory_limit_bytes,
            time: MAX_TIME,
            canceled: self.canceled.clone(),
        };
        let to = self.to.clone();
        let ask = move |ask| {
            let (reply, answer) = sync_channel(1);
            to.unbounded_send(Message::Ask(ask, reply)).ok()?;
            answer.recv().ok()
        };
        let run = Rc::new(Run::new(&self.pool, *changes, &limits, self.clock.clone(), ask));
        match Script::compile(&self.program, run) {
            Ok(script) => {
                let _ = self.to.unbounded_send(Message::Begun);
                script.execute(&self.program.arguments)
            }
            Err(end) => end,
        }
    }
}
