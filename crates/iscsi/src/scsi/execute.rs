//! Executes a command: unit attentions, then reservations, then the command itself.

use super::cdb::{self, Command};
use super::inquiry;
use super::mode;
use super::reservations::{Access, Port};
use super::sense::{Sense, code, key};
use super::unit::{Nexus, OpenUnit};
use super::{block, copy, opcodes, reserve};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use weir_front::Pieces;
use weir_machine::Request;

/// Status of a command.
pub mod status {
    /// The command was executed.
    pub const GOOD: u8 = 0x00;
    /// The command failed; there is sense data.
    pub const CHECK_CONDITION: u8 = 0x02;
    /// Another initiator has reserved the unit.
    pub const RESERVATION_CONFLICT: u8 = 0x18;
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// CHECK CONDITION.
    Check(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Failure::Check(sense)
    }
}

/// The target around a unit, as its commands use it.
pub trait Surroundings: Send + Sync {
    /// The numbers of the target's units.
    fn luns(&self) -> Vec<u16>;
    /// A unit of the target.
    fn unit<'a>(&'a self, lun: u16, rq: &'a Request) -> BoxFuture<'a, Option<OpenUnit>>;
    /// Stores reservations of a device (empty: none).
    fn store<'a>(&'a self, device: u64, bytes: Vec<u8>) -> BoxFuture<'a, std::io::Result<()>>;
    /// Ends the commands of these ports at a unit.
    fn abort_commands<'a>(&'a self, unit: u64, ports: &'a [Port]) -> BoxFuture<'a, ()>;
    /// Whether the command is being ended.
    fn is_aborted(&self) -> bool;
}

/// A command in its context.
pub struct Context<'a> {
    /// The unit.
    pub open: &'a OpenUnit,
    /// The session.
    pub nexus: &'a Nexus,
    /// The request.
    pub rq: &'a Request,
    /// The command.
    pub cdb: &'a [u8; 16],
    /// Number of bytes that the initiator has announced to send or to take.
    pub announced_bytes: u32,
    /// The target.
    pub around: &'a dyn Surroundings,
}

impl Context<'_> {
    /// Ends a long command that is being aborted.
    ///
    /// # Errors
    /// ABORTED COMMAND; its answer is not sent.
    pub fn check_aborted(&self) -> Result<(), Sense> {
        match self.around.is_aborted() {
            true => Err(Sense::new(key::ABORTED_COMMAND, code::NONE)),
            false => Ok(()),
        }
    }
}

/// The answer to a command.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Status.
    pub status: u8,
    /// Data for the initiator.
    pub data: Pieces,
    /// Encoded sense data.
    pub sense: Vec<u8>,
}

impl Outcome {
    /// GOOD, with data.
    fn data(bytes: Vec<u8>, room: u32) -> Self {
        let mut bytes = Bytes::from(bytes);
        bytes.truncate(room as usize);
        Outcome { data: Pieces::from_iter([bytes]), ..Outcome::default() }
    }

    /// CHECK CONDITION.
    pub fn check(sense: &Sense, descriptors: bool) -> Self {
        Outcome { status: status::CHECK_CONDITION, data: Pieces::new(), sense: sense.encode(descriptors) }
    }
}

/// Answers a command for a number that has no unit.
pub fn without_unit(cdb: &[u8; 16], luns: Vec<u16>) -> Outcome {
    let missing = Sense::illegal(code::LUN_NOT_SUPPORTED);
    match cdb::decode(cdb) {
        Ok(Command::Inquiry { page: None, room }) => Outcome::data(inquiry::standard(false), room),
        Ok(Command::ReportLuns { room, .. }) => Outcome::data(inquiry::luns(luns.into_iter()), room),
        Ok(Command::RequestSense { descriptors, room }) => Outcome::data(missing.encode(descriptors), room),
        _ => Outcome::check(&missing, false),
    }
}

/// Executes a command; `data` is what the initiator sent with it.
pub async fn execute(context: &Context<'_>, data: Bytes) -> Outcome {
    let decoded = cdb::decode(context.cdb);
    let done = match (attention(context, &decoded), decoded) {
        (Err(sense), _) | (_, Err(sense)) => Err(sense.into()),
        (Ok(()), Ok(command)) => match conflicts(context, &command) {
            true => Err(Failure::Conflict),
            false => run(context, &command, data).await,
        },
    };
    match done {
        Ok(outcome) => outcome,
        Err(Failure::Check(sense)) => Outcome::check(&sense, context.open.unit.mode().descriptor_sense),
        Err(Failure::Conflict) => Outcome { status: status::RESERVATION_CONFLICT, ..Outcome::default() },
    }
}

/// Reports a unit attention, except in answer to commands that ask what there is.
fn attention(context: &Context<'_>, command: &Result<Command, Sense>) -> Result<(), Sense> {
    let is_exempt =
        matches!(command, Ok(Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. }));
    if is_exempt {
        return Ok(());
    }
    match context.open.unit.take_attention(context.nexus.session, context.open.device.size_bytes()) {
        Some(code) => Err(Sense::attention(code)),
        None => Ok(()),
    }
}

/// Whether another initiator's reservation excludes the command.
fn conflicts(context: &Context<'_>, command: &Command) -> bool {
    let unit = &context.open.unit;
    let access = opcodes::access(command);
    if unit.reserved_by().is_some_and(|holder| holder != context.nexus.session) {
        let is_release = matches!(command, Command::Release);
        let always =
            matches!(command, Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. });
        return !is_release && !always;
    }
    if matches!(command, Command::Reserve | Command::Release) {
        return unit.with_reservations(|all| all.has_registrations());
    }
    access != Access::Free && unit.with_reservations(|all| all.conflicts(&context.nexus.port(), access))
}

async fn run(context: &Context<'_>, command: &Command, data: Bytes) -> Result<Outcome, Failure> {
    let open = context.open;
    if open.unit.is_stopped() && opcodes::needs_medium(command) {
        return Err(Sense::new(key::NOT_READY, code::INITIALIZING_COMMAND_REQUIRED).into());
    }
    let good = |()| Outcome::default();
    match *command {
        Command::Read(range) => Ok(Outcome { data: block::read(context, &range).await?, ..Outcome::default() }),
        Command::Write(range) => block::write(context, &range, data).await.map(good),
        Command::WriteVerify(range, how) => block::write_verify(context, &range, how, data).await.map(good),
        Command::Verify(range, how) => block::verify(context, &range, how, &data).await.map(good),
        Command::CompareAndWrite(range) => block::compare_and_write(context, &range, data).await.map(good),
        Command::OrWrite(range) => block::or_write(context, &range, data).await.map(good),
        Command::WriteSame { range, unmap, anchor, has_data } => {
            block::write_same(context, &range, (unmap, anchor), has_data.then_some(data)).await.map(good)
        }
        Command::Unmap { anchor, .. } => block::unmap(context, anchor, &data).await.map(good),
        Command::GetLbaStatus { lba, room } => Ok(Outcome::data(block::status(context, lba, room).await?, room)),
        Command::SynchronizeCache(range) => block::synchronize(context, &range).await.map(good),
        Command::Prefetch(range) => block::prefetch(context, &range).await.map(good),
        Command::ReserveOut { action, scope, kind, list_bytes } => {
            reserve::change(context, reserve::Fields { action, scope, kind, list_bytes }, &data).await.map(good)
        }
        Command::ExtendedCopy { .. } => copy::copy(context, &data).await.map(good),
        _ => report(context, command, &data),
    }
}

/// Commands that access no block.
fn report(context: &Context<'_>, command: &Command, data: &Bytes) -> Result<Outcome, Failure> {
    let unit = &context.open.unit;
    let device = &*context.open.device;
    let session = context.nexus.session;
    let (bytes, room) = match *command {
        Command::Inquiry { page: None, room } => (inquiry::standard(true), room),
        Command::Inquiry { page: Some(page), room } => (inquiry::page(device, &context.nexus.target, page)?, room),
        Command::RequestSense { descriptors, room } => {
            let pending = unit.take_attention(session, device.size_bytes());
            let sense = pending.map_or(Sense::new(key::NO_SENSE, code::NONE), Sense::attention);
            (sense.encode(descriptors), room)
        }
        Command::ReportLuns { select, room } => {
            if select > 2 {
                return Err(Sense::in_cdb(2).into());
            }
            unit.forget_attention(session, code::LUNS_CHANGED);
            // 1: well-known units only; there are none.
            let luns = if select == 1 { Vec::new() } else { context.around.luns() };
            (inquiry::luns(luns.into_iter()), room)
        }
        Command::ReadCapacity10 => (inquiry::capacity_10(device), 8),
        Command::ReadCapacity16 { room } => (inquiry::capacity_16(device), room),
        Command::ReportPortGroups { is_extended, room } => (inquiry::port_groups(is_extended), room),
        Command::ReportOpcodes { options, timeouts, opcode, action, room } => {
            (opcodes::report(options, timeouts, opcode, action)?, room)
        }
        Command::ReportTaskManagement { is_extended, room } => (opcodes::task_management(is_extended), room),
        Command::ReadDefectData { is_long, format, room } => (opcodes::defects(is_long, format), room),
        Command::ReceiveCopyResults { action, list, room } => (copy::results(context, action, list)?, room),
        Command::ReserveIn { action, room } => (reserve::report(unit, action)?, room),
        Command::ModeSense { is_long, no_descriptors, long_lba, control, page, subpage, room } => {
            let query = mode::Query { is_long, no_descriptors, long_lba, control, page, subpage };
            (mode::sense(context.open, &query)?, room)
        }
        _ => return settle(context, command, data),
    };
    Ok(Outcome::data(bytes, room))
}

/// Commands that change the state of the unit, but no block.
fn settle(context: &Context<'_>, command: &Command, data: &Bytes) -> Result<Outcome, Failure> {
    let unit = &context.open.unit;
    let session = context.nexus.session;
    match *command {
        Command::TestUnitReady => {}
        Command::ModeSelect { is_long, page_format, save, .. } => {
            if !page_format || save {
                return Err(Sense::in_cdb(1).into());
            }
            unit.set_mode(session, mode::select(context.open, is_long, data)?);
        }
        Command::Reserve if !unit.reserve(session) => return Err(Failure::Conflict),
        Command::Reserve => {}
        Command::Release => unit.release(session),
        Command::StartStop { load_eject: true, .. } => return Err(Sense::in_cdb(4).into()),
        Command::StartStop { power, start, .. } => {
            if power == 0 {
                unit.set_stopped(!start);
            }
        }
        Command::PreventAllow { .. } => {}
        _ => return Err(Sense::illegal(code::INVALID_OPCODE).into()),
    }
    Ok(Outcome::default())
}
