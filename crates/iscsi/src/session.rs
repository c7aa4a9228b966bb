//! The full feature phase of a session: order of commands, tasks, and the data that initiators send. Pure.
//!
//! ```text
//!   header ─► place: where its data go ─► (the server reads them) ─► receive ─► actions
//!                                                                     │  Execute: all data of a command are there
//!                     granted: memory for solicited data ─► R2T ◄─────┘  Memory, Manage, Text, Logout, Send, Close
//! ```
//!
//! *Order.* A session has one connection, so commands arrive in the order of their numbers. A command outside of the window
//! is ignored, as the standard requires; a gap inside of it ends the connection, because nothing could fill it at error
//! recovery level 0. The window is what is left of at most [`MAX_WINDOW`] commands in flight.
//!
//! *Data.* Data units of a command arrive in order, in sequences that were asked for (R2T) or that the parameters permit
//! unasked. Unsolicited data has memory in advance: the window times the first burst. Solicited data is asked for when there
//! is memory for all of the command. So the server always reads the next unit, and no set of commands can wait for each
//! other's memory.
//!
//! *Errors.* A command whose data units are out of order fails, after the last of them. Whatever else breaks the protocol ends
//! the connection; what the standard rejects is rejected.

mod answer;
mod incoming;
mod receiving;
#[cfg(test)]
mod tests;

pub use answer::{Pdu, StatSn, logout_requested, logout_response, management_response, reject, response};
pub use receiving::{Burst, Receiving};

use crate::login::{Established, Parameters, negotiation};
use crate::wire::bhs::{NO_TAG, is_before};
use crate::wire::{Bhs, Keys};
use bytes::BytesMut;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Number of commands that a session may have in flight, if there is memory for their unsolicited data.
pub const MAX_WINDOW: u32 = 64;
/// Maximum number of immediate commands in flight.
const MAX_IMMEDIATE: usize = 16;
/// Maximum length of the data of a ping in bytes; the rest is not returned.
pub const MAX_PING_BYTES: usize = 4096;

/// The numbers of a session that every unit of the target carries.
#[derive(Debug)]
pub struct Numbers {
    /// CmdSN of the next command.
    pub exp_cmd_sn: AtomicU32,
    /// CmdSN of the last command that may be sent.
    pub max_cmd_sn: AtomicU32,
}

impl Numbers {
    /// A command has been answered: another one may be sent.
    pub fn answered(&self) {
        self.max_cmd_sn.fetch_add(1, Ordering::Relaxed);
    }
}

/// A SCSI command in progress.
#[derive(Debug)]
pub struct Task<M> {
    /// The command's header.
    pub bhs: Bhs,
    /// Whether its answer makes room in the window.
    pub frees_slot: bool,
    /// Whether it is being aborted: it is not answered.
    pub is_aborted: Arc<AtomicBool>,
    /// The data, while they arrive.
    receiving: Option<Receiving>,
    /// Number of R2Ts that were sent.
    r2ts: u32,
    /// Memory for its solicited data.
    memory: Option<M>,
}

/// A command whose data are complete.
#[derive(Debug)]
pub struct Ready<M> {
    /// The command's header.
    pub bhs: Bhs,
    /// The data.
    pub data: BytesMut,
    /// Number of R2Ts that were sent.
    pub r2ts: u32,
    /// Whether its answer makes room in the window.
    pub frees_slot: bool,
    /// Whether it is being aborted.
    pub is_aborted: Arc<AtomicBool>,
    /// Memory for its data.
    pub memory: Option<M>,
}

/// Where the data segment of a unit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: it is read and forgotten.
    Skip,
    /// To a buffer of its own; what is longer is forgotten.
    Collect(usize),
    /// To the buffer of a new command that receives this many bytes in all.
    Command(usize),
    /// To the end of the buffer of a task.
    Task(u32),
}

/// A task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Management {
    /// The request's header.
    pub bhs: Bhs,
    /// Whether its answer makes room in the window.
    pub frees_slot: bool,
}

/// The next step of the server.
#[derive(Debug)]
pub enum Action<M> {
    /// Send a unit.
    Send(Pdu),
    /// Execute a command.
    Execute(Ready<M>),
    /// Get memory for the data of a task, then call [`Session::granted`].
    Memory {
        /// The task.
        itt: u32,
        /// Length of its data in bytes.
        bytes: usize,
    },
    /// Execute a task management function.
    Manage(Management),
    /// Answer a complete text, by [`Session::text_reply`].
    Text {
        /// The request's header.
        bhs: Bhs,
        /// The text.
        text: Vec<u8>,
        /// Whether the answer makes room in the window.
        frees_slot: bool,
    },
    /// Answer a logout request and close the connection.
    Logout(Management),
    /// Close the connection: the initiator breaks the protocol.
    Close(&'static str),
}

/// A text that is sent in several units.
#[derive(Debug)]
struct TextReply {
    ttt: u32,
    rest: Vec<u8>,
}

/// The state of a session. `M` is memory for solicited data.
#[derive(Debug)]
pub struct Session<M> {
    parameters: Parameters,
    is_discovery: bool,
    cid: u16,
    numbers: Arc<Numbers>,
    tasks: BTreeMap<u32, Task<M>>,
    next_ttt: u32,
    text: Vec<u8>,
    text_reply: Option<TextReply>,
    /// Tag of the ping that was not answered.
    ping: Option<u32>,
}

impl<M> Session<M> {
    /// The session that a login has established, with a window of this many commands.
    pub fn new(established: &Established, window: u32) -> Self {
        debug_assert!(window > 0, "a session sends commands");
        let exp_cmd_sn = established.exp_cmd_sn;
        let numbers = Numbers {
            exp_cmd_sn: AtomicU32::new(exp_cmd_sn),
            max_cmd_sn: AtomicU32::new(exp_cmd_sn.wrapping_add(window - 1)),
        };
        Session {
            parameters: established.parameters,
            is_discovery: established.target.is_none(),
            cid: established.cid,
            numbers: Arc::new(numbers),
            tasks: BTreeMap::new(),
            next_ttt: 0,
            text: Vec::new(),
            text_reply: None,
            ping: None,
        }
    }

    /// The numbers.
    pub fn numbers(&self) -> &Arc<Numbers> {
        &self.numbers
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes the length of data units that the initiator declares.
    pub fn declare(&mut self, value: &str, reply: &mut Keys) {
        if negotiation::answer("MaxRecvDataSegmentLength", value, false, &mut self.parameters).is_err() {
            reply.push("MaxRecvDataSegmentLength", "Reject");
        }
    }

    /// Number of tasks in progress.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether no task is in progress.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    fn new_ttt(&mut self) -> u32 {
        self.next_ttt = if self.next_ttt == NO_TAG - 1 { 0 } else { self.next_ttt + 1 };
        self.next_ttt
    }

    /// Removes an executed task. Returns whether it is answered, which it is not if it was aborted.
    pub fn finish(&mut self, itt: u32) -> bool {
        let task = self.tasks.remove(&itt);
        debug_assert!(task.is_some(), "a task is finished once");
        task.is_some_and(|task| !task.is_aborted.load(Ordering::Acquire))
    }

    /// Takes the buffer of a task, to read data into it. The caller gives it back with [`Session::put_buffer`].
    pub fn take_buffer(&mut self, itt: u32) -> Option<BytesMut> {
        self.tasks.get_mut(&itt)?.receiving.as_mut().map(|receiving| std::mem::take(&mut receiving.buffer))
    }

    /// Gives a buffer back. If the task was aborted meanwhile, the buffer is dropped.
    pub fn put_buffer(&mut self, itt: u32, buffer: BytesMut) {
        if let Some(receiving) = self.tasks.get_mut(&itt).and_then(|task| task.receiving.as_mut()) {
            debug_assert!(receiving.buffer.is_empty(), "the buffer was taken");
            receiving.buffer = buffer;
        }
    }

    /// Aborts the tasks that `select` chooses by tag and header. Tasks that still receive data end here; those in execution
    /// are marked, and end later without an answer. Returns the number of slots that became free here, and the tags of the
    /// tasks in execution.
    pub fn abort(&mut self, select: impl Fn(u32, &Bhs) -> bool) -> (u32, Vec<u32>) {
        let mut freed = 0;
        let mut executing = Vec::new();
        self.tasks.retain(|itt, task| {
            if !select(*itt, &task.bhs) {
                return true;
            }
            task.is_aborted.store(true, Ordering::Release);
            if task.receiving.is_none() {
                executing.push(*itt);
                return true;
            }
            freed += u32::from(task.frees_slot);
            false
        });
        (freed, executing)
    }

    /// Removes the tasks that still receive data. Returns the tags of those in execution.
    pub fn give_up(&mut self) -> Vec<u32> {
        self.tasks.retain(|_, task| task.receiving.is_none());
        self.tasks.keys().copied().collect()
    }

    /// Whether data that was asked for has not arrived yet.
    pub fn awaits_data(&self) -> bool {
        let awaits = |receiving: &Receiving| receiving.unsolicited.is_some() || !receiving.bursts.is_empty();
        self.tasks.values().any(|task| task.receiving.as_ref().is_some_and(awaits))
    }

    /// Whether any of these tasks is still there.
    pub fn has_any(&self, itts: &[u32]) -> bool {
        itts.iter().any(|itt| self.tasks.contains_key(itt))
    }

    /// Whether a task is there.
    pub fn has(&self, itt: u32) -> bool {
        self.tasks.contains_key(&itt)
    }

    /// Whether a command with this number has not arrived yet and may still.
    pub fn awaits(&self, cmd_sn: u32) -> bool {
        let exp = self.numbers.exp_cmd_sn.load(Ordering::Relaxed);
        let max = self.numbers.max_cmd_sn.load(Ordering::Relaxed);
        !is_before(cmd_sn, exp) && !is_before(max, cmd_sn)
    }

    /// A ping for the initiator; `None` if the last one was not answered.
    pub fn ping(&mut self) -> Option<Pdu> {
        if self.ping.is_some() {
            return None;
        }
        let ttt = self.new_ttt();
        self.ping = Some(ttt);
        let bhs = Bhs::new(crate::wire::bhs::opcode::NOP_IN).with_itt(NO_TAG).with_ttt(ttt);
        Some(Pdu { bhs, data: Default::default(), stat_sn: StatSn::Current, frees_slot: false })
    }
}
