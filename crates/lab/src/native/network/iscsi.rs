//! An iSCSI initiator: sessions of one connection, many commands in flight (RFC 7143, SBC-3, SPC-4). Error recovery level 0, no
//! digests.
//!
//! A write sends its first data with the command, up to what the target takes at once, and the rest when the target asks for it
//! (R2T). The target's window (MaxCmdSN) bounds the commands in flight: those beyond it are held back here, and the time is part
//! of their latency.

use super::secret::User;
use super::wire::{self, Wire};
use super::{Completion, Operation, Pipeline, chap};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

/// Length of a basic header segment in bytes.
pub(super) const HEADER: usize = 48;
/// Largest data segment that the initiator announces and accepts.
const MAX_RECEIVE_BYTES: usize = 256 << 10;
/// Data that every target accepts in a unit: the default of MaxRecvDataSegmentLength.
const DEFAULT_SEGMENT_BYTES: usize = 8192;
/// Default of FirstBurstLength (RFC 7143, 13.14).
const DEFAULT_FIRST_BURST_BYTES: usize = 65_536;
/// Login requests until a target that never agrees is given up.
const MAX_LOGIN_STEPS: usize = 16;
/// Commands until a unit without an end of unit attentions is given up.
const MAX_ATTENTIONS: usize = 8;
/// Largest number of bytes of one command.
const MAX_TRANSFER_BYTES: usize = 64 << 20;

/// Operation codes of PDUs; bit 6 of a request is the immediate delivery.
const NOP_OUT: u8 = 0x40;
const LOGIN_REQUEST: u8 = 0x43;
const SCSI_COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const NOP_IN: u8 = 0x20;
const SCSI_RESPONSE: u8 = 0x21;
const LOGIN_RESPONSE: u8 = 0x23;
const DATA_IN: u8 = 0x25;
const R2T: u8 = 0x31;
const REJECT: u8 = 0x3f;
/// Tag of what belongs to no task.
const NO_TAG: u32 = u32::MAX;

const TEST_UNIT_READY: u8 = 0x00;
const MODE_SENSE_6: u8 = 0x1a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const SERVICE_ACTION_IN: u8 = 0x9e;
const READ_CAPACITY_16: u8 = 0x10;
/// Bit of byte 1 of WRITE(16): force unit access.
const FUA: u8 = 0x08;
/// Caching mode page, and its bit WCE in byte 2.
const CACHING_PAGE: u8 = 0x08;
const WCE: u8 = 0x04;

/// Security, operational and full feature stage.
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Name of the initiator, unless the user gives another one.
pub const INITIATOR_NAME: &str = "iqn.2000-01.org.example:weir-bench";

/// Parameters of a session.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// Name of the target.
    pub iqn: &'a str,
    /// Number of the unit.
    pub lun: u16,
    /// User for CHAP.
    pub user: Option<&'a User>,
    /// Name of the initiator.
    pub initiator: &'a str,
    /// Identifier of the session among those of the initiator; 40 bits of it are used.
    pub session: u64,
}

/// A session with one logical unit.
#[derive(Debug)]
pub struct Initiator {
    wire: Wire,
    lun: [u8; 8],
    /// Number of the next command, the last that the target takes, and the next status.
    command: u32,
    last_command: u32,
    status: u32,
    /// Data that the target takes in one unit, and with a command.
    segment_bytes: usize,
    immediate_bytes: usize,
    block_bytes: u64,
    blocks: u64,
    is_write_through: bool,
    tasks: BTreeMap<u32, Task>,
    /// Commands beyond the target's window.
    held: VecDeque<u32>,
}

/// A command in flight.
#[derive(Debug, Default)]
struct Task {
    cdb: [u8; 16],
    /// Data of a write.
    out: Vec<u8>,
    /// Bytes of a read, how many of them have come, and the data if they are kept.
    expected: usize,
    arrived: usize,
    kept: Option<Vec<u8>>,
    is_stable: bool,
}

/// Status of a command, and its sense key and code.
type Outcome = (u8, u8, u16);

fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("iSCSI: {what}"))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.iter().skip(at).take(4).fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// A number of four bytes that sizes memory or an offset.
fn size(bytes: &[u8], at: usize) -> usize {
    be32(bytes, at) as usize
}

impl Initiator {
    /// Logs in over a connection, takes the unit attentions, and asks for the unit's size and write cache.
    ///
    /// # Errors
    /// If the target refuses, has no such unit, or breaks the protocol.
    pub fn open(wire: Wire, wanted: &Wanted<'_>) -> io::Result<Self> {
        // Peripheral form up to 255, flat form above (SAM-5, 4.7.7).
        let address = if wanted.lun < 256 { wanted.lun } else { wanted.lun | 1 << 14 };
        let mut lun = [0; 8];
        lun[..2].copy_from_slice(&address.to_be_bytes());
        let mut initiator = Self {
            wire,
            lun,
            command: 1,
            last_command: 1,
            status: 0,
            segment_bytes: DEFAULT_SEGMENT_BYTES,
            immediate_bytes: 0,
            block_bytes: 512,
            blocks: 0,
            is_write_through: false,
            tasks: BTreeMap::new(),
            held: VecDeque::new(),
        };
        initiator.login(wanted)?;
        for _ in 0..MAX_ATTENTIONS {
            // Each command reports one unit attention: sense key 6.
            match initiator.ask(&[TEST_UNIT_READY], 0)?.0 {
                (0, ..) => break,
                (_, 6, _) => {}
                outcome => return Err(refusal(wanted.lun, "TEST UNIT READY", outcome)),
            }
        }
        let mut capacity = [0; 16];
        (capacity[0], capacity[1], capacity[13]) = (SERVICE_ACTION_IN, READ_CAPACITY_16, 32);
        let (outcome, data) = initiator.ask(&capacity, 32)?;
        if outcome.0 != 0 || data.len() < 12 {
            return Err(refusal(wanted.lun, "READ CAPACITY", outcome));
        }
        let last = u64::from(be32(&data, 0)) << 32 | u64::from(be32(&data, 4));
        (initiator.blocks, initiator.block_bytes) = (last.saturating_add(1), u64::from(be32(&data, 8)));
        if !(512..=1 << 20).contains(&initiator.block_bytes) {
            return Err(broken(format!("blocks of {} bytes", initiator.block_bytes)));
        }
        // Without block descriptors.
        let (outcome, page) = initiator.ask(&[MODE_SENSE_6, 0x08, CACHING_PAGE, 0, 64, 0], 64)?;
        let from = 4 + page.get(3).copied().unwrap_or_default() as usize;
        let caching = page.get(from..from + 3).filter(|page| page[0] & 0x3f == CACHING_PAGE);
        initiator.is_write_through = outcome.0 == 0 && caching.is_some_and(|page| page[2] & WCE == 0);
        Ok(initiator)
    }

    /// Size of the unit in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes)
    }

    /// Size of a block of the unit in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn login(&mut self, wanted: &Wanted<'_>) -> io::Result<()> {
        let names = format!("InitiatorName={}\0SessionType=Normal\0TargetName={}\0", wanted.initiator, wanted.iqn);
        let password = wanted.user.map(User::password).transpose().map_err(io::Error::other)?;
        let operational = format!(
            "HeaderDigest=None\0DataDigest=None\0MaxConnections=1\0InitialR2T=Yes\0ImmediateData=Yes\0\
             MaxRecvDataSegmentLength={MAX_RECEIVE_BYTES}\0MaxBurstLength=1048576\0FirstBurstLength={DEFAULT_FIRST_BURST_BYTES}\0\
             MaxOutstandingR2T=4\0ErrorRecoveryLevel=0\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
             DefaultTime2Wait=2\0DefaultTime2Retain=0\0"
        );
        // Flags: the request asks to leave its stage (bit 7) for the next one.
        let leave = |from: u8, to: u8| 0x80 | from << 2 | to;
        let (mut flags, mut text) = match wanted.user {
            Some(_) => (SECURITY << 2, names + "AuthMethod=CHAP\0"),
            None => (leave(OPERATIONAL, FULL_FEATURE), names + &operational),
        };
        let mut agreed = Agreed::default();
        for _ in 0..MAX_LOGIN_STEPS {
            let (header, data) = self.login_step(flags, &text, wanted.session)?;
            if header[36] != 0 {
                return Err(broken(format!("{}: {}", wanted.iqn, login_refusal(header[36], header[37]))));
            }
            let keys = keys(&data);
            agreed.note(&keys);
            let is_leaving = header[1] & 0x80 != 0;
            match (is_leaving, header[1] & 3) {
                (true, FULL_FEATURE) => {
                    self.segment_bytes = agreed.segment_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES);
                    let first_burst = agreed.first_burst_bytes.unwrap_or(DEFAULT_FIRST_BURST_BYTES);
                    let is_allowed = agreed.immediate_data.unwrap_or(true);
                    self.immediate_bytes = if is_allowed { first_burst.min(self.segment_bytes) } else { 0 };
                    return Ok(());
                }
                (true, OPERATIONAL) => (flags, text) = (leave(OPERATIONAL, FULL_FEATURE), operational.clone()),
                _ => {
                    let get = |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
                    (flags, text) = match (get("CHAP_A"), get("CHAP_I"), get("CHAP_C"), wanted.user, &password) {
                        (Some(algorithm), Some(id), Some(challenge), Some(user), Some(password)) => {
                            let response = chap::response(algorithm, id, challenge, password)
                                .ok_or_else(|| broken("a CHAP challenge that is malformed"))?;
                            (leave(SECURITY, OPERATIONAL), format!("CHAP_N={}\0CHAP_R={response}\0", user.name))
                        }
                        _ if get("AuthMethod") == Some("CHAP") => {
                            (SECURITY << 2, format!("CHAP_A={}\0", chap::OFFERED))
                        }
                        // The target wants no CHAP.
                        _ if get("AuthMethod").is_some() => (leave(SECURITY, OPERATIONAL), String::new()),
                        _ => (flags, String::new()),
                    };
                }
            }
        }
        Err(broken(format!("{}: the login does not end", wanted.iqn)))
    }

    fn login_step(&mut self, flags: u8, text: &str, session: u64) -> io::Result<([u8; HEADER], Vec<u8>)> {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (LOGIN_REQUEST, flags);
        // ISID of the format "random": three bytes by chance, two of a qualifier.
        header[8] = 0x80;
        header[9..14].copy_from_slice(&session.to_be_bytes()[3..]);
        header[24..28].copy_from_slice(&self.command.to_be_bytes());
        header[28..32].copy_from_slice(&self.status.to_be_bytes());
        self.send(header, text.as_bytes());
        loop {
            if let Some((header, data)) = self.unit(|header, data| (*header, data.to_vec()))? {
                if header[0] & 0x3f != LOGIN_RESPONSE {
                    return Err(broken(format!("a unit {:#x} during the login", header[0])));
                }
                self.note_numbers(&header, true);
                return Ok((header, data));
            }
            self.wire.pump(wire::ANSWERS_WITHIN)?;
        }
    }

    /// Executes a command that returns up to `expected` bytes, while no other is in flight. Returns its status and data.
    fn ask(&mut self, cdb: &[u8], expected: usize) -> io::Result<(Outcome, Vec<u8>)> {
        let mut task = Task { expected, kept: Some(Vec::new()), ..Task::default() };
        task.cdb[..cdb.len()].copy_from_slice(cdb);
        self.start(0, task);
        loop {
            if let Some((_, outcome, task)) = self.next(wire::ANSWERS_WITHIN)? {
                return Ok((outcome, task.kept.unwrap_or_default()));
            }
        }
    }

    fn start(&mut self, tag: u32, task: Task) {
        self.tasks.insert(tag, task);
        self.held.push_back(tag);
        self.release();
    }

    /// Sends the commands that the target's window allows.
    fn release(&mut self) {
        while let Some(tag) = self.held.front().copied() {
            // Numbers wrap: the window is open while the distance to its end is not negative.
            if (self.last_command.wrapping_sub(self.command) as i32) < 0 {
                return;
            }
            self.held.pop_front();
            let Some(task) = self.tasks.get(&tag) else { continue };
            let mut header = [0; HEADER];
            let direction = if task.out.is_empty() { u8::from(task.expected > 0) << 6 } else { 0x20 };
            (header[0], header[1]) = (SCSI_COMMAND, 0x80 | direction);
            header[8..16].copy_from_slice(&self.lun);
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            header[20..24].copy_from_slice(&(task.out.len().max(task.expected) as u32).to_be_bytes());
            header[24..28].copy_from_slice(&self.command.to_be_bytes());
            header[28..32].copy_from_slice(&self.status.to_be_bytes());
            header[32..].copy_from_slice(&task.cdb);
            let with_command = task.out.len().min(self.immediate_bytes);
            queue(&mut self.wire, header, &task.out[..with_command]);
            self.command = self.command.wrapping_add(1);
        }
    }

    fn send(&mut self, header: [u8; HEADER], data: &[u8]) {
        queue(&mut self.wire, header, data);
        self.wire.expects();
    }

    /// Hands a unit to `use_it`, if one has been received as a whole.
    fn unit<T>(&mut self, use_it: impl FnOnce(&[u8; HEADER], &[u8]) -> T) -> io::Result<Option<T>> {
        let received = self.wire.received();
        let Some(header) = received.first_chunk::<HEADER>() else { return Ok(None) };
        let from = HEADER + header[4] as usize * 4;
        let len = size(&[0, header[5], header[6], header[7]], 0);
        if len > MAX_RECEIVE_BYTES {
            return Err(broken(format!("a segment of {len} bytes")));
        }
        let whole = from + len.next_multiple_of(4);
        if received.len() < whole {
            return Ok(None);
        }
        let out = use_it(header, &received[from..from + len]);
        self.wire.take(whole);
        Ok(Some(out))
    }

    fn note_numbers(&mut self, header: &[u8; HEADER], has_status: bool) {
        if has_status {
            self.status = be32(header, 24).wrapping_add(1);
        }
        let last = be32(header, 32);
        // An older number than the known one is ignored (RFC 7143, 4.2.2.1).
        if (last.wrapping_sub(self.last_command) as i32) > 0 {
            self.last_command = last;
        }
        self.release();
    }

    /// Handles what has been received until a command ends.
    fn next(&mut self, within: Duration) -> io::Result<Option<(u32, Outcome, Task)>> {
        loop {
            let mut tasks = std::mem::take(&mut self.tasks);
            let handled = self.unit(|header, data| handle(&mut tasks, header, data));
            self.tasks = tasks;
            match handled?.transpose()? {
                Some((header, Event::Ended(tag, outcome))) => {
                    self.note_numbers(&header, true);
                    let task = self.tasks.remove(&tag).ok_or_else(|| broken("the end of an unknown command"))?;
                    return Ok(Some((tag, outcome, task)));
                }
                Some((header, Event::Asks(tag))) => {
                    self.note_numbers(&header, false);
                    self.send_data(tag, &header)?;
                }
                Some((header, Event::Pings)) => {
                    let mut answer = [0; HEADER];
                    (answer[0], answer[1]) = (NOP_OUT, 0x80);
                    answer[8..16].copy_from_slice(&header[8..16]);
                    answer[16..20].copy_from_slice(&NO_TAG.to_be_bytes());
                    answer[20..24].copy_from_slice(&header[20..24]);
                    answer[24..28].copy_from_slice(&self.command.to_be_bytes());
                    answer[28..32].copy_from_slice(&self.status.to_be_bytes());
                    self.note_numbers(&header, false);
                    queue(&mut self.wire, answer, &[]);
                }
                Some((header, Event::Nothing)) => self.note_numbers(&header, false),
                None => {
                    if !self.wire.pump(within)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Sends the part of a write that the target asks for.
    fn send_data(&mut self, tag: u32, asked: &[u8; HEADER]) -> io::Result<()> {
        let from = size(asked, 40);
        let len = size(asked, 44);
        let task = self.tasks.get(&tag).ok_or_else(|| broken("a request for data of an unknown command"))?;
        let end = from.checked_add(len).filter(|_| len > 0);
        let part = end.and_then(|end| task.out.get(from..end));
        let part = part.ok_or_else(|| broken(format!("data {from}+{len} are asked for of {}", task.out.len())))?;
        let mut sent = 0;
        for (number, piece) in (0_u32..).zip(part.chunks(self.segment_bytes)) {
            let mut header = [0; HEADER];
            (header[0], header[1]) = (DATA_OUT, u8::from(sent + piece.len() == len) << 7);
            header[8..16].copy_from_slice(&self.lun);
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            // The target's tag for this request.
            header[20..24].copy_from_slice(&asked[20..24]);
            header[28..32].copy_from_slice(&self.status.to_be_bytes());
            header[36..40].copy_from_slice(&number.to_be_bytes());
            header[40..44].copy_from_slice(&((from + sent) as u32).to_be_bytes());
            queue(&mut self.wire, header, piece);
            sent += piece.len();
        }
        Ok(())
    }

    fn cdb(&self, code: u8, flags: u8, offset: u64, len: usize) -> io::Result<[u8; 16]> {
        let block = self.block_bytes;
        if !offset.is_multiple_of(block) || !(len as u64).is_multiple_of(block) || len > MAX_TRANSFER_BYTES {
            return Err(broken(format!("{len} bytes at {offset} are not whole blocks of {block} bytes, or too many")));
        }
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (code, flags);
        cdb[2..10].copy_from_slice(&(offset / block).to_be_bytes());
        cdb[10..14].copy_from_slice(&((len as u64 / block) as u32).to_be_bytes());
        Ok(cdb)
    }
}

impl Pipeline for Initiator {
    fn submit(&mut self, tag: u32, operation: Operation<'_>) -> io::Result<()> {
        if self.tasks.is_empty() {
            self.wire.expects();
        }
        let task = match operation {
            Operation::Read { offset, len, keeps_data } => Task {
                cdb: self.cdb(READ_16, 0, offset, len)?,
                expected: len,
                kept: keeps_data.then(Vec::new),
                ..Task::default()
            },
            Operation::Write { offset, data, is_stable } => Task {
                cdb: self.cdb(WRITE_16, if is_stable { FUA } else { 0 }, offset, data.len())?,
                out: data.to_vec(),
                // A unit that says that it has no write cache promises every write.
                is_stable: is_stable || self.is_write_through,
                ..Task::default()
            },
            Operation::Flush => {
                let mut cdb = [0; 16];
                cdb[0] = SYNCHRONIZE_CACHE_10;
                Task { cdb, ..Task::default() }
            }
        };
        self.start(tag, task);
        self.wire.pump(Duration::ZERO).map(|_| ())
    }

    fn complete(&mut self, within: Duration) -> io::Result<Option<Completion>> {
        let Some((tag, (status, key, code), task)) = self.next(within)? else { return Ok(None) };
        if status != 0 {
            let what = format!("command {:#x}: status {status:#x}, sense key {key}, code {code:#06x}", task.cdb[0]);
            return Err(broken(what));
        }
        if task.arrived != task.expected {
            return Err(broken(format!("{} of {} bytes were read", task.arrived, task.expected)));
        }
        Ok(Some(Completion { tag, data: task.kept.unwrap_or_default(), is_stable: task.is_stable }))
    }
}

/// Meaning of a unit of the target.
enum Event {
    Ended(u32, Outcome),
    Asks(u32),
    Pings,
    Nothing,
}

fn handle(tasks: &mut BTreeMap<u32, Task>, header: &[u8; HEADER], data: &[u8]) -> io::Result<([u8; HEADER], Event)> {
    let tag = be32(header, 16);
    let event = match header[0] & 0x3f {
        DATA_IN => {
            let task = tasks.get_mut(&tag).ok_or_else(|| broken("data of an unknown command"))?;
            // The data of a command come in order (DataPDUInOrder, DataSequenceInOrder).
            let fits = size(header, 40) == task.arrived && task.expected - task.arrived >= data.len();
            if !fits {
                return Err(broken("data that were not asked for"));
            }
            task.arrived += data.len();
            if let Some(kept) = &mut task.kept {
                kept.extend_from_slice(data);
            }
            // The status may come with the last data.
            if header[1] & 1 != 0 { Event::Ended(tag, (header[3], 0, 0)) } else { Event::Nothing }
        }
        SCSI_RESPONSE if header[2] != 0 => return Err(broken(format!("response {:#x}", header[2]))),
        SCSI_RESPONSE => {
            // Fixed format after a length of two bytes: the key in byte 2, the code in bytes 12 and 13 (SPC-4, 4.5.3).
            let byte = |at: usize| data.get(2 + at).copied().unwrap_or_default();
            let code = u16::from_be_bytes([byte(12), byte(13)]);
            Event::Ended(tag, (header[3], byte(2) & 0xf, code))
        }
        R2T => Event::Asks(tag),
        NOP_IN if be32(header, 20) != NO_TAG => Event::Pings,
        REJECT => return Err(broken(format!("the target rejects a unit, reason {:#x}", header[2]))),
        _ => Event::Nothing,
    };
    Ok((*header, event))
}

/// Queues a unit.
pub(super) fn queue(wire: &mut Wire, mut header: [u8; HEADER], data: &[u8]) {
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    let padding = data.len().next_multiple_of(4) - data.len();
    wire.queue(&[&header, data, &[0; 3][..padding]]);
}

/// Parameters that the target declared or agreed to.
#[derive(Default)]
struct Agreed {
    segment_bytes: Option<usize>,
    first_burst_bytes: Option<usize>,
    immediate_data: Option<bool>,
}

impl Agreed {
    fn note(&mut self, keys: &[(String, String)]) {
        let length = |value: &str| value.parse().ok().filter(|bytes| (512..1 << 24).contains(bytes));
        for (key, value) in keys {
            match key.as_str() {
                "MaxRecvDataSegmentLength" => self.segment_bytes = length(value),
                "FirstBurstLength" => self.first_burst_bytes = length(value),
                "ImmediateData" => self.immediate_data = Some(value == "Yes"),
                _ => {}
            }
        }
    }
}

fn keys(data: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(data);
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Meaning of the status of a login (RFC 7143, 11.13.5).
fn login_refusal(class: u8, detail: u8) -> String {
    let what = match (class, detail) {
        (1, _) => "the target has moved",
        (2, 1) => "authentication failed: the target wants CHAP, or user or password are wrong",
        (2, 2) => "this initiator may not use the target",
        (2, 3) => "there is no such target",
        (2, _) => "the login is refused",
        _ => "the target cannot take a session now",
    };
    format!("{what} (status {class:#04x}{detail:02x})")
}

fn refusal(lun: u16, command: &str, (status, key, code): Outcome) -> io::Error {
    match (key, code) {
        (5, 0x2500) => broken(format!("there is no unit {lun}")),
        _ => broken(format!("unit {lun}: {command}: status {status:#x}, sense key {key}, code {code:#06x}")),
    }
}

/// Fuzz body of what a target sends during a session.
pub fn fuzz(input: &[u8]) {
    let mut tasks = BTreeMap::from([(0, Task { expected: 4096, kept: Some(Vec::new()), ..Task::default() })]);
    let mut rest = input;
    while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
        let (data, after) = after.split_at(after.len().min(usize::from(header[7])));
        let _ = handle(&mut tasks, header, data);
        let _ = keys(data);
        rest = after;
    }
    assert!(tasks.values().all(|task| task.arrived <= task.expected), "no more is accepted than was asked for");
}
