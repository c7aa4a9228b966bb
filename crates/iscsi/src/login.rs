//! Login: which initiator wants which target, authentication, and parameters. Pure.
//!
//! ```text
//!   Login Request ─► text of all its units ─► security stage (CHAP) ─► operational stage ─► full feature phase
//!                     (C bit: more follows)      │ T bit: the initiator wants to go on; granted if the stage is complete
//! ```
//!
//! The first request names initiator, kind of session and target; a target that the initiator may not use is refused there.
//! An initiator may begin with the operational stage if the target needs no authentication. Whatever a client sends, the
//! state stays bounded: the text of a step by [`MAX_TEXT_BYTES`], the steps by [`MAX_STEPS`].

mod chap;
pub(crate) mod negotiation;
#[cfg(test)]
mod tests;

pub use chap::{ChapConfig, Credentials, Secret};
pub use negotiation::{FIRST_BURST_BYTES, MAX_RECEIVE_BYTES, Parameters};

use crate::scsi::inquiry::PORT_GROUP;
use crate::wire::bhs::{FLAG_CONTINUE, FLAG_FINAL, opcode};
use crate::wire::text::MAX_TEXT_BYTES;
use crate::wire::{Bhs, Keys};
use chap::Chap;
use weir_machine::Entropy;

/// Maximum number of requests of one login.
const MAX_STEPS: u32 = 64;
/// Maximum length of a name in bytes (RFC 7143, 4.2.7.1).
pub const MAX_NAME_BYTES: usize = 223;
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;
/// Keys of the first request. A later request may repeat them with the same values, which changes nothing: libiscsi does so
/// after it was offered no authentication. RFC 7143 (6.3) would have the target end such a login.
const NAMES: [&str; 4] = ["InitiatorName", "TargetName", "SessionType", "InitiatorAlias"];

/// Class and detail of a login response.
pub type Status = u16;

/// Statuses of a login response.
pub mod status {
    /// The login goes on or is complete.
    pub const SUCCESS: u16 = 0x0000;
    /// The initiator's request is invalid.
    pub const INITIATOR_ERROR: u16 = 0x0200;
    /// The initiator is not who it says.
    pub const AUTHENTICATION_FAILURE: u16 = 0x0201;
    /// The initiator may not use this target.
    pub const FORBIDDEN: u16 = 0x0202;
    /// There is no such target.
    pub const NOT_FOUND: u16 = 0x0203;
    /// The version is not supported.
    pub const UNSUPPORTED_VERSION: u16 = 0x0205;
    /// The session has as many connections as it may have: one.
    pub const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    /// A name is missing.
    pub const MISSING_PARAMETER: u16 = 0x0207;
    /// The kind of session is not supported.
    pub const UNSUPPORTED_SESSION_TYPE: u16 = 0x0209;
    /// There is no such session.
    pub const NO_SESSION: u16 = 0x020a;
    /// The request is not allowed during a login.
    pub const INVALID_DURING_LOGIN: u16 = 0x020b;
    /// The target fails.
    pub const TARGET_ERROR: u16 = 0x0300;
    /// The target is not served now, but may be soon.
    pub const UNAVAILABLE: u16 = 0x0301;
    /// The target cannot take another session now.
    pub const OUT_OF_RESOURCES: u16 = 0x0302;
}

/// A refused request: the status that the initiator gets, and the reason for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    status: Status,
    why: &'static str,
}

impl Refusal {
    /// A failed authentication.
    fn unauthenticated(why: &'static str) -> Self {
        Refusal { status: status::AUTHENTICATION_FAILURE, why }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let why = match status {
            status::INITIATOR_ERROR => "its request is invalid",
            status::AUTHENTICATION_FAILURE => "the target requires CHAP",
            status::FORBIDDEN => "the target's initiators= or hosts= do not admit it",
            status::NOT_FOUND => "there is no such target",
            status::UNSUPPORTED_VERSION => "it requires a later version of iSCSI",
            status::TOO_MANY_CONNECTIONS => "a session has one connection",
            status::MISSING_PARAMETER => "it names no initiator, or no target",
            status::UNSUPPORTED_SESSION_TYPE => "its type of session is unknown",
            status::NO_SESSION => "it wants to join a session that does not exist",
            status::INVALID_DURING_LOGIN => "it sent another request during the login",
            status::UNAVAILABLE => "there is no such target yet: a pool is not open",
            _ => "the target fails",
        };
        Refusal { status, why }
    }
}

/// Whether an initiator may use a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There is no such target.
    NotFound,
    /// There is no such target, but there may be one soon: initiators repeat the login.
    NotYet,
    /// The initiator, or its address, is not on the target's list.
    Forbidden,
    /// The initiator may use it, after this authentication.
    Admitted(Option<ChapConfig>),
}

/// Targets and sessions, as a login asks for them.
pub trait Directory {
    /// Whether an initiator may use a target.
    fn admission(&self, initiator: &str, target: &str) -> Admission;
    /// Whether there is a session with this TSIH and ISID.
    fn has_session(&self, tsih: u16, isid: [u8; 6]) -> bool;
    /// Number of commands that a new session may have in flight.
    fn window(&self) -> u32;
}

/// A completed login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Name of the initiator.
    pub initiator: String,
    /// Name of the target; `None` for a discovery session.
    pub target: Option<String>,
    /// ISID of the session.
    pub isid: [u8; 6],
    /// Number of the connection.
    pub cid: u16,
    /// The agreed parameters.
    pub parameters: Parameters,
    /// CmdSN of the next command.
    pub exp_cmd_sn: u32,
    /// StatSN of the next status.
    pub stat_sn: u32,
}

/// Continuation after a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another request.
    Request,
    /// The full feature phase.
    Session(Box<Established>),
    /// The end of the connection.
    Close,
}

/// The reply to a login request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Header.
    pub bhs: Bhs,
    /// Text.
    pub text: Vec<u8>,
    /// Continuation.
    pub next: Next,
}

/// Initiator and target, from the first request.
struct Names {
    initiator: String,
    target: Option<String>,
    chap: Option<Chap>,
}

/// A login in progress.
pub struct Login {
    entropy: Entropy,
    /// TSIH of the session, if it comes to be.
    tsih: u16,
    stage: Option<u8>,
    /// The identity of the first request: ISID, ITT, CID.
    first: Option<([u8; 6], u32, u16)>,
    text: Vec<u8>,
    names: Option<Names>,
    /// Values of [`NAMES`] in the first request, whether or not they are valid.
    claimed: [Option<String>; 4],
    refusal: Option<Refusal>,
    parameters: Parameters,
    /// Operational keys that were answered.
    answered: Vec<String>,
    declared: bool,
    stat_sn: u32,
    steps: u32,
}

impl Login {
    /// A login that may become the session `tsih`.
    pub fn new(entropy: Entropy, tsih: u16) -> Self {
        debug_assert_ne!(tsih, 0, "TSIH 0 is a new session");
        Login {
            entropy,
            tsih,
            stage: None,
            first: None,
            text: Vec::new(),
            names: None,
            claimed: [const { None }; 4],
            refusal: None,
            parameters: Parameters::default(),
            answered: Vec::new(),
            declared: false,
            stat_sn: 0,
            steps: 0,
        }
    }

    /// Answers a request.
    pub fn receive(&mut self, directory: &dyn Directory, bhs: &Bhs, text: &[u8]) -> Step {
        let mut reply = Keys::default();
        let granted = self.request(directory, bhs, text, &mut reply);
        let csg = bhs.flags() >> 2 & 3;
        let mut out = Bhs::new(opcode::LOGIN_RESPONSE).with_flags(csg << 2).with_itt(bhs.itt());
        out.0[8..14].copy_from_slice(&bhs.0[8..14]);
        out.set_word(24, self.stat_sn);
        out.set_word(28, bhs.cmd_sn());
        out.set_word(32, bhs.cmd_sn().wrapping_add(directory.window()).wrapping_sub(1));
        self.stat_sn = self.stat_sn.wrapping_add(1);
        let (next, text) = match granted {
            Err(refusal) => {
                let [class, detail] = refusal.status.to_be_bytes();
                self.refusal = Some(refusal);
                out = out.with_byte(36, class).with_byte(37, detail);
                (Next::Close, Vec::new())
            }
            Ok(None) => (Next::Request, reply.encode()),
            Ok(Some(stage)) => {
                out = out.with_flags(FLAG_FINAL | csg << 2 | stage);
                self.stage = Some(stage);
                let next = if stage == FULL_FEATURE { self.established(bhs) } else { Next::Request };
                if stage == FULL_FEATURE {
                    out.0[14..16].copy_from_slice(&self.tsih.to_be_bytes());
                }
                (next, reply.encode())
            }
        };
        out.set_data_bytes(text.len());
        Step { bhs: out, text, next }
    }

    /// Why the last request was refused, and who sent it, for the log; `None` if it was not.
    pub fn refusal(&self) -> Option<String> {
        let Refusal { status, why } = self.refusal?;
        let [initiator, target, ..] = self.claimed.each_ref().map(|name| name.as_deref().map(quoted));
        let initiator = initiator.unwrap_or_else(|| "an initiator without a name".to_owned());
        let target = target.map_or_else(|| "for discovery".to_owned(), |target| format!("to target {target}"));
        Some(format!("{initiator}, {target}: {why} (status {status:04x})"))
    }

    fn established(&self, bhs: &Bhs) -> Next {
        let (Some(names), Some((isid, _, cid))) = (&self.names, self.first) else { return Next::Close };
        debug_assert!(names.chap.as_ref().is_none_or(Chap::is_done), "authentication comes first");
        let mut parameters = self.parameters;
        parameters.first_burst_bytes = parameters.first_burst_bytes.min(parameters.max_burst_bytes);
        Next::Session(Box::new(Established {
            initiator: names.initiator.clone(),
            target: names.target.clone(),
            isid,
            cid,
            parameters,
            exp_cmd_sn: bhs.cmd_sn(),
            stat_sn: self.stat_sn,
        }))
    }

    /// Processes a request; returns the stage to which the target agrees to go on.
    fn request(
        &mut self,
        directory: &dyn Directory,
        bhs: &Bhs,
        text: &[u8],
        reply: &mut Keys,
    ) -> Result<Option<u8>, Refusal> {
        self.steps += 1;
        self.check_header(directory, bhs)?;
        if self.steps > MAX_STEPS || self.text.len() + text.len() > MAX_TEXT_BYTES {
            return Err(status::INITIATOR_ERROR.into());
        }
        self.text.extend_from_slice(text);
        let transits = bhs.has(FLAG_FINAL);
        if bhs.has(FLAG_CONTINUE) {
            return if transits { Err(status::INITIATOR_ERROR.into()) } else { Ok(None) };
        }
        let keys = Keys::decode(&std::mem::take(&mut self.text)).ok_or(status::INITIATOR_ERROR)?;
        if self.names.is_none() {
            self.claimed = NAMES.map(|key| keys.get(key).map(str::to_owned));
            self.names = Some(self.named(directory, &keys)?);
            if self.names.as_ref().is_some_and(|names| names.target.is_some()) {
                reply.push("TargetPortalGroupTag", PORT_GROUP.to_string());
            }
        } else if self.renames(&keys) {
            return Err(status::INITIATOR_ERROR.into());
        }
        let stage = bhs.flags() >> 2 & 3;
        if stage == SECURITY {
            self.security(&keys, reply)?
        } else {
            self.operational(&keys, reply)?
        }
        let is_complete = self.names.as_ref().is_some_and(|names| names.chap.as_ref().is_none_or(Chap::is_done));
        if !transits {
            return Ok(None);
        }
        let wanted = bhs.flags() & 3;
        // The initiator may ask to go on together with its last proof; the target stays as long as that is missing.
        if is_complete {
            return Ok(Some(wanted));
        }
        if stage == SECURITY { Ok(None) } else { Err(status::AUTHENTICATION_FAILURE.into()) }
    }

    /// Whether keys of a later request name something else than the first request.
    fn renames(&self, keys: &Keys) -> bool {
        let is_other = |key: &str, first: Option<&str>| keys.get(key).is_some_and(|again| first != Some(again));
        NAMES.into_iter().zip(&self.claimed).any(|(key, first)| is_other(key, first.as_deref()))
    }

    /// Checks version, identity and stage.
    fn check_header(&mut self, directory: &dyn Directory, bhs: &Bhs) -> Result<(), Refusal> {
        if bhs.opcode() != opcode::LOGIN || !bhs.is_immediate() {
            return Err(status::INVALID_DURING_LOGIN.into());
        }
        if bhs.0[3] > 0 {
            return Err(status::UNSUPPORTED_VERSION.into());
        }
        let isid: [u8; 6] = std::array::from_fn(|at| bhs.0[8 + at]);
        let tsih = u16::from_be_bytes([bhs.0[14], bhs.0[15]]);
        let identity = (isid, bhs.itt(), u16::from_be_bytes([bhs.0[20], bhs.0[21]]));
        if *self.first.get_or_insert(identity) != identity {
            return Err(status::INITIATOR_ERROR.into());
        }
        if tsih != 0 {
            let is_known = directory.has_session(tsih, isid);
            return Err(if is_known { status::TOO_MANY_CONNECTIONS } else { status::NO_SESSION }.into());
        }
        let csg = bhs.flags() >> 2 & 3;
        let nsg = bhs.flags() & 3;
        let is_stage = csg == SECURITY || csg == OPERATIONAL;
        let is_next = !bhs.has(FLAG_FINAL) || nsg > csg && nsg != 2;
        if !is_stage || !is_next || *self.stage.get_or_insert(csg) != csg {
            return Err(status::INITIATOR_ERROR.into());
        }
        Ok(())
    }

    /// Initiator and target of the first request.
    fn named(&self, directory: &dyn Directory, keys: &Keys) -> Result<Names, Refusal> {
        let initiator = keys.get("InitiatorName").ok_or(status::MISSING_PARAMETER)?;
        if !is_name(initiator) {
            return Err(status::INITIATOR_ERROR.into());
        }
        let initiator = initiator.to_owned();
        match (keys.get("SessionType").unwrap_or("Normal"), keys.get("TargetName")) {
            ("Discovery", None) => Ok(Names { initiator, target: None, chap: None }),
            ("Normal", None) => Err(status::MISSING_PARAMETER.into()),
            ("Normal", Some(target)) => match directory.admission(&initiator, target) {
                Admission::NotFound => Err(status::NOT_FOUND.into()),
                Admission::NotYet => Err(status::UNAVAILABLE.into()),
                Admission::Forbidden => Err(status::FORBIDDEN.into()),
                Admission::Admitted(chap) => {
                    let mut random = [0; 33];
                    self.entropy.fill(&mut random);
                    let chap = chap.map(|config| Chap::new(config, random));
                    Ok(Names { initiator, target: Some(target.to_owned()), chap })
                }
            },
            ("Discovery", Some(_)) => Err(status::INITIATOR_ERROR.into()),
            _ => Err(status::UNSUPPORTED_SESSION_TYPE.into()),
        }
    }

    fn security(&mut self, keys: &Keys, reply: &mut Keys) -> Result<(), Refusal> {
        let chap = self.names.as_mut().and_then(|names| names.chap.as_mut());
        if let Some(methods) = keys.get("AuthMethod") {
            let (method, why) = match chap {
                Some(_) => ("CHAP", "it does not offer CHAP, which the target requires"),
                None => {
                    ("None", "it requires authentication, and discovery has none: let it offer AuthMethod=None as well")
                }
            };
            if !methods.split(',').any(|offered| offered == method) {
                return Err(Refusal::unauthenticated(why));
            }
            reply.push("AuthMethod", method);
        }
        if let Some(chap) = chap.filter(|chap| !chap.is_done()) {
            chap.answer(keys, reply)?;
        }
        let is_security = |key: &str| NAMES.contains(&key) || key == "AuthMethod" || key.starts_with("CHAP_");
        let others = keys.iter().filter(|(key, _)| !is_security(key));
        others.for_each(|(key, _)| reply.push(key, "Reject"));
        Ok(())
    }

    fn operational(&mut self, keys: &Keys, reply: &mut Keys) -> Result<(), Refusal> {
        let is_discovery = self.names.as_ref().is_some_and(|names| names.target.is_none());
        if self.names.as_ref().is_some_and(|names| names.chap.as_ref().is_some_and(|chap| !chap.is_done())) {
            return Err(status::AUTHENTICATION_FAILURE.into());
        }
        for (key, value) in keys.iter().filter(|(key, _)| !NAMES.contains(key)) {
            if self.answered.iter().any(|known| known == key) {
                return Err(status::INITIATOR_ERROR.into());
            }
            self.answered.push(key.to_owned());
            match negotiation::answer(key, value, is_discovery, &mut self.parameters) {
                Ok(Some(answer)) => reply.push(key, answer),
                Ok(None) => {}
                Err(negotiation::InvalidValue) => reply.push(key, "Reject"),
            }
        }
        if !self.declared {
            self.declared = true;
            reply.push("MaxRecvDataSegmentLength", MAX_RECEIVE_BYTES.to_string());
        }
        Ok(())
    }
}

/// A name that a client sent, in quotes, without control characters, not longer than names are.
fn quoted(name: &str) -> String {
    let name: String = name.chars().take(MAX_NAME_BYTES).collect();
    format!("'{}'", name.escape_debug())
}

/// Whether a text can be a name: printable, without separators of stored lists.
pub fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b',' && byte != b';' || byte >= 0x80;
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && text.bytes().all(is_part)
}
