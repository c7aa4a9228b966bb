//! Units of the initiator.

use super::answer::{logout_response, ping_response, reject, response};
use super::receiving::{Burst, Receiving, Unit};
use super::{Action, MAX_IMMEDIATE, MAX_PING_BYTES, Management, Place, Ready, Session, StatSn, Task, TextReply};
use crate::login::MAX_RECEIVE_BYTES;
use crate::scsi::cdb;
use crate::scsi::execute::Outcome;
use crate::scsi::sense::{Sense, code, key};
use crate::session::Pdu;
use crate::wire::Bhs;
use crate::wire::bhs::{FLAG_CONTINUE, FLAG_FINAL, FLAG_WRITE, NO_TAG, is_before, opcode, reject as reason};
use crate::wire::text::MAX_TEXT_BYTES;
use bytes::BytesMut;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Actions<M> = Vec<Action<M>>;

/// Length in bytes of the data that a command needs and its initiator has.
fn wanted_bytes(bhs: &Bhs) -> usize {
    let needed = cdb::decode(&bhs.cdb()).map_or(0, |command| command.data_out_bytes());
    needed.min(bhs.expected_bytes().into()) as usize
}

impl<M> Session<M> {
    /// Where the data segment of a unit with this header goes.
    ///
    /// # Errors
    /// The unit breaks the protocol, or its segment is longer than was agreed: the connection ends.
    pub fn place(&mut self, bhs: &Bhs) -> Result<Place, &'static str> {
        let len = bhs.data_bytes();
        if len > MAX_RECEIVE_BYTES as usize {
            return Err("a data segment is longer than the target accepts");
        }
        match bhs.opcode() {
            opcode::COMMAND if !self.is_expected(bhs) => Ok(Place::Skip),
            opcode::COMMAND => {
                let unsolicited = self.parameters.first_burst_bytes as usize;
                let expected = bhs.expected_bytes() as usize;
                if len > 0 && (!bhs.has(FLAG_WRITE) || !self.parameters.immediate_data) {
                    return Err("immediate data that was not agreed on");
                }
                if len > unsolicited || len > expected {
                    return Err("immediate data beyond the first burst");
                }
                Ok(Place::Command(if bhs.has(FLAG_WRITE) { wanted_bytes(bhs).max(len) } else { 0 }))
            }
            opcode::DATA_OUT => self.place_data(bhs),
            opcode::TEXT => Ok(Place::Collect(MAX_TEXT_BYTES)),
            opcode::NOP_OUT => Ok(Place::Collect(MAX_PING_BYTES)),
            _ => Ok(Place::Skip),
        }
    }

    fn place_data(&mut self, bhs: &Bhs) -> Result<Place, &'static str> {
        let itt = bhs.itt();
        let first_burst = self.parameters.first_burst_bytes as usize;
        let task = self.tasks.get_mut(&itt).and_then(|task| task.receiving.as_mut());
        // Data of a task that was aborted, or of a command that was ignored.
        let Some(receiving) = task else { return Ok(Place::Skip) };
        let unit = Unit {
            ttt: (bhs.ttt() != NO_TAG).then(|| bhs.ttt()),
            data_sn: bhs.word(36),
            offset: bhs.word(40) as usize,
            len: bhs.data_bytes(),
            is_final: bhs.has(FLAG_FINAL),
        };
        let checked = if receiving.is_broken { Err("an earlier one was") } else { receiving.unit(unit, first_burst) };
        match checked {
            Ok(()) => Ok(Place::Task(itt)),
            Err(why) => {
                tracing::debug!(itt, why, "a data unit is out of order");
                receiving.skip(unit);
                Ok(Place::Skip)
            }
        }
    }

    /// Whether a unit with a CmdSN is the next one, or an immediate one.
    fn is_expected(&self, bhs: &Bhs) -> bool {
        bhs.is_immediate() || bhs.cmd_sn() == self.numbers.exp_cmd_sn.load(Ordering::Relaxed)
    }

    /// Counts a unit with a CmdSN. `Ok(false)`: it is ignored.
    fn count(&mut self, bhs: &Bhs) -> Result<bool, &'static str> {
        if bhs.is_immediate() {
            return Ok(true);
        }
        let exp = self.numbers.exp_cmd_sn.load(Ordering::Relaxed);
        let max = self.numbers.max_cmd_sn.load(Ordering::Relaxed);
        let cmd_sn = bhs.cmd_sn();
        if is_before(cmd_sn, exp) || is_before(max, cmd_sn) {
            tracing::debug!(cmd_sn, exp, max, "a command outside of the window is ignored");
            return Ok(false);
        }
        if cmd_sn != exp {
            return Err("a command is missing");
        }
        self.numbers.exp_cmd_sn.store(exp.wrapping_add(1), Ordering::Relaxed);
        Ok(true)
    }

    /// Processes a unit whose data was read to its [`Place`]. `data`: what was collected, or the buffer of a new command, with
    /// memory for all of the command's data if there is some.
    pub fn receive(&mut self, bhs: &Bhs, data: BytesMut, memory: Option<M>) -> Actions<M> {
        let kind = bhs.opcode();
        if kind == opcode::DATA_OUT {
            return self.continued(bhs.itt());
        }
        let is_counted =
            matches!(kind, opcode::COMMAND | opcode::TASK_MANAGEMENT | opcode::TEXT | opcode::LOGOUT | opcode::NOP_OUT);
        match if is_counted { self.count(bhs) } else { Ok(true) } {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(why) => return vec![Action::Close(why)],
        }
        let frees_slot = is_counted && !bhs.is_immediate();
        if self.is_discovery && matches!(kind, opcode::COMMAND | opcode::TASK_MANAGEMENT) {
            return vec![Action::Send(reject(bhs, reason::PROTOCOL_ERROR, frees_slot))];
        }
        match kind {
            opcode::COMMAND => self.command(bhs, data, memory),
            opcode::TASK_MANAGEMENT => vec![Action::Manage(Management { bhs: *bhs, frees_slot })],
            opcode::NOP_OUT => self.ping_received(bhs, data, frees_slot),
            opcode::TEXT => self.text(bhs, &data, frees_slot),
            opcode::LOGOUT => self.logout(bhs, frees_slot),
            opcode::SNACK => vec![Action::Send(reject(bhs, reason::SNACK, false))],
            opcode::LOGIN => vec![Action::Close("a login request in the full feature phase")],
            _ => vec![Action::Send(reject(bhs, reason::UNSUPPORTED, false))],
        }
    }

    fn command(&mut self, bhs: &Bhs, buffer: BytesMut, memory: Option<M>) -> Actions<M> {
        let itt = bhs.itt();
        let frees_slot = !bhs.is_immediate();
        if itt == NO_TAG || self.tasks.contains_key(&itt) {
            let why = if itt == NO_TAG { reason::INVALID_FIELD } else { reason::TASK_IN_PROGRESS };
            return vec![Action::Send(reject(bhs, why, frees_slot))];
        }
        let immediate = self.tasks.values().filter(|task| !task.frees_slot).count();
        if !frees_slot && immediate >= MAX_IMMEDIATE {
            return vec![Action::Send(reject(bhs, reason::TOO_MANY_IMMEDIATE, false))];
        }
        let is_write = bhs.has(FLAG_WRITE);
        let more_follows = is_write && !bhs.has(FLAG_FINAL);
        if more_follows && self.parameters.initial_r2t {
            return vec![Action::Close("unsolicited data that was not agreed on")];
        }
        let arrived = buffer.len();
        let receiving = is_write.then(|| Receiving {
            buffer,
            wanted: wanted_bytes(bhs),
            arrived,
            unsolicited: more_follows.then_some(0),
            bursts: VecDeque::new(),
            requested: arrived,
            has_memory: memory.is_some(),
            is_broken: false,
        });
        let is_aborted = Arc::new(AtomicBool::new(false));
        let task = Task { bhs: *bhs, frees_slot, is_aborted, receiving, r2ts: 0, memory };
        self.tasks.insert(itt, task);
        if is_write { self.continued(itt) } else { self.execute(itt).into_iter().collect() }
    }

    /// Goes on with a task for which data have arrived.
    fn continued(&mut self, itt: u32) -> Actions<M> {
        let Some(receiving) = self.tasks.get(&itt).and_then(|task| task.receiving.as_ref()) else { return Vec::new() };
        if receiving.has_failed() {
            return self.fail(itt).into_iter().collect();
        }
        if receiving.is_broken {
            return Vec::new();
        }
        if receiving.is_complete() {
            return self.execute(itt).into_iter().collect();
        }
        match (receiving.unsolicited.is_some(), receiving.has_memory) {
            (true, _) => Vec::new(),
            (false, true) => self.ask(itt),
            (false, false) if receiving.requested > receiving.arrived => Vec::new(),
            (false, false) => vec![Action::Memory { itt, bytes: receiving.wanted }],
        }
    }

    /// Records memory for the solicited data of a task, and asks for them.
    pub fn granted(&mut self, itt: u32, memory: M) -> Actions<M> {
        let Some(task) = self.tasks.get_mut(&itt) else { return Vec::new() };
        let Some(receiving) = task.receiving.as_mut() else { return Vec::new() };
        debug_assert!(task.memory.is_none(), "memory is granted once");
        receiving.buffer.reserve(receiving.wanted.saturating_sub(receiving.buffer.len()));
        receiving.has_memory = true;
        task.memory = Some(memory);
        self.continued(itt)
    }

    /// Asks for as many sequences of data as may be outstanding.
    fn ask(&mut self, itt: u32) -> Actions<M> {
        let mut actions = Vec::new();
        loop {
            let ttt = self.new_ttt();
            let Some(task) = self.tasks.get_mut(&itt) else { return actions };
            let Some(receiving) = task.receiving.as_mut() else { return actions };
            let is_full = receiving.bursts.len() >= self.parameters.max_r2t as usize;
            if is_full || receiving.requested >= receiving.wanted {
                return actions;
            }
            let offset = receiving.requested;
            let len = (receiving.wanted - offset).min(self.parameters.max_burst_bytes as usize);
            receiving.bursts.push_back(Burst { ttt, end: offset + len, data_sn: 0 });
            receiving.requested = offset + len;
            let bhs = Bhs::new(opcode::R2T).with_lun(task.bhs.lun()).with_itt(itt).with_ttt(ttt);
            let bhs = bhs.with_word(36, task.r2ts).with_word(40, offset as u32).with_word(44, len as u32);
            task.r2ts += 1;
            let data = Default::default();
            actions.push(Action::Send(Pdu { bhs, data, stat_sn: StatSn::Current, frees_slot: false }));
        }
    }

    /// Ends a command whose data are out of order.
    fn fail(&mut self, itt: u32) -> Actions<M> {
        let Some(task) = self.tasks.remove(&itt) else { return Vec::new() };
        let sense = Sense::new(key::ABORTED_COMMAND, code::PROTOCOL_CRC_ERROR);
        let outcome = Outcome::check(&sense, false);
        let units = response(&task.bhs, outcome, task.r2ts, task.frees_slot, &self.parameters);
        units.into_iter().map(Action::Send).collect()
    }

    fn execute(&mut self, itt: u32) -> Option<Action<M>> {
        let task = self.tasks.get_mut(&itt)?;
        let data = task.receiving.take().map(|receiving| receiving.buffer).unwrap_or_default();
        Some(Action::Execute(Ready {
            bhs: task.bhs,
            data,
            r2ts: task.r2ts,
            frees_slot: task.frees_slot,
            is_aborted: task.is_aborted.clone(),
            memory: task.memory.take(),
        }))
    }

    fn ping_received(&mut self, bhs: &Bhs, data: BytesMut, frees_slot: bool) -> Actions<M> {
        if bhs.itt() != NO_TAG {
            let mut data = data.freeze();
            data.truncate(self.parameters.max_send_bytes as usize);
            return vec![Action::Send(ping_response(bhs, data, frees_slot))];
        }
        if !bhs.is_immediate() {
            return vec![Action::Close("the answer to a ping is not immediate")];
        }
        if self.ping == Some(bhs.ttt()) {
            self.ping = None;
        }
        Vec::new()
    }

    fn text(&mut self, bhs: &Bhs, data: &[u8], frees_slot: bool) -> Actions<M> {
        if bhs.ttt() != NO_TAG {
            // The initiator asks for the rest of a long reply, or goes on with a split request.
            match self.text_reply.take() {
                Some(reply) if reply.ttt == bhs.ttt() && data.is_empty() => {
                    return vec![Action::Send(self.text_unit(bhs, reply.rest, frees_slot))];
                }
                reply => self.text_reply = reply,
            }
            if self.text.is_empty() {
                return vec![Action::Send(reject(bhs, reason::INVALID_FIELD, frees_slot))];
            }
        } else {
            self.text.clear();
            self.text_reply = None;
        }
        if self.text.len() + data.len() > MAX_TEXT_BYTES {
            return vec![Action::Close("a text is too long")];
        }
        self.text.extend_from_slice(data);
        if bhs.has(FLAG_CONTINUE) {
            let ttt = self.new_ttt();
            let out =
                Bhs::new(opcode::TEXT_RESPONSE).with_flags(0).with_lun(bhs.lun()).with_itt(bhs.itt()).with_ttt(ttt);
            let pdu = Pdu { bhs: out, data: Default::default(), stat_sn: StatSn::Next, frees_slot };
            return vec![Action::Send(pdu)];
        }
        vec![Action::Text { bhs: *bhs, text: std::mem::take(&mut self.text), frees_slot }]
    }

    /// The first unit of the reply to a text.
    pub fn text_reply(&mut self, bhs: &Bhs, reply: Vec<u8>, frees_slot: bool) -> Pdu {
        self.text_unit(bhs, reply, frees_slot)
    }

    fn text_unit(&mut self, bhs: &Bhs, mut reply: Vec<u8>, frees_slot: bool) -> Pdu {
        let max = self.parameters.max_send_bytes as usize;
        let rest = if reply.len() > max { reply.split_off(max) } else { Vec::new() };
        let (flags, ttt) = match rest.is_empty() {
            true => (FLAG_FINAL, NO_TAG),
            false => (FLAG_CONTINUE, self.new_ttt()),
        };
        if !rest.is_empty() {
            self.text_reply = Some(TextReply { ttt, rest });
        }
        let out =
            Bhs::new(opcode::TEXT_RESPONSE).with_flags(flags).with_lun(bhs.lun()).with_itt(bhs.itt()).with_ttt(ttt);
        Pdu::with_data(out, reply.into(), StatSn::Next, frees_slot)
    }

    fn logout(&mut self, bhs: &Bhs, frees_slot: bool) -> Actions<M> {
        const CLOSE_SESSION: u8 = 0;
        const CLOSE_CONNECTION: u8 = 1;
        let reason = bhs.flags() & 0x7f;
        let cid = u16::from_be_bytes([bhs.0[20], bhs.0[21]]);
        match reason {
            CLOSE_SESSION => vec![Action::Logout(Management { bhs: *bhs, frees_slot })],
            CLOSE_CONNECTION if cid == self.cid => vec![Action::Logout(Management { bhs: *bhs, frees_slot })],
            // 1: there is no such connection. 2: recovery is not supported.
            CLOSE_CONNECTION => vec![Action::Send(logout_response(bhs, 1, frees_slot))],
            2 => vec![Action::Send(logout_response(bhs, 2, frees_slot))],
            _ => vec![Action::Send(reject(bhs, super::super::wire::bhs::reject::INVALID_FIELD, frees_slot))],
        }
    }
}
