//! Remote procedure calls (RFC 5531): calls in, replies out.
//!
//! ```text
//!  call    xid | 0 | rpc version 2 | program | version | procedure | credential | verifier | arguments
//!  reply   xid | 1 | 0 accepted | verifier none | status | results
//!                  | 1 denied   | version mismatch 2..2, or authentication error
//! ```

use crate::wire::{Decoder, Encoder};
use smallvec::SmallVec;

/// The longest credential or verifier that the protocol allows, in bytes.
const MAX_AUTH_BYTES: usize = 400;
/// The most supplementary groups in AUTH_SYS.
const MAX_GROUPS: u32 = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const AUTH_BADCRED: u32 = 1;
const AUTH_REJECTEDCRED: u32 = 2;

/// What became of an accepted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Accept {
    /// Done; results follow.
    Success = 0,
    /// No such program here.
    ProgramUnavailable = 1,
    /// Not in this version: the range of versions follows.
    ProgramMismatch = 2,
    /// No such procedure.
    ProcedureUnavailable = 3,
    /// The arguments make no sense.
    GarbageArguments = 4,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Nobody in particular.
    None,
    /// A user of the client's machine, by its word.
    System {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// The supplementary groups.
        groups: SmallVec<[u32; 16]>,
    },
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Identifies the call to the client.
    pub xid: u32,
    /// Program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential,
    /// The arguments, in XDR.
    pub arguments: &'a [u8],
}

/// What a message turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A call to be answered.
    Call(Call<'a>),
    /// A call that is refused with this reply.
    Refused(Vec<u8>),
    /// Nothing that could be answered.
    Noise,
}

/// Reads a message.
pub fn read(message: &[u8]) -> Message<'_> {
    let mut input = Decoder::new(message);
    match (input.u32(), input.u32(), input.u32()) {
        (Some(xid), Some(CALL), Some(2)) => call(xid, input),
        (Some(xid), Some(CALL), Some(_)) => {
            let mut reply = denied(xid, RPC_MISMATCH);
            reply.u32(2).u32(2);
            Message::Refused(reply.bytes)
        }
        _ => Message::Noise,
    }
}

fn call(xid: u32, mut input: Decoder<'_>) -> Message<'_> {
    let refused = |why| {
        let mut reply = denied(xid, AUTH_ERROR);
        reply.u32(why);
        Message::Refused(reply.bytes)
    };
    let (Some(program), Some(version), Some(procedure)) = (input.u32(), input.u32(), input.u32()) else {
        return Message::Noise;
    };
    let (Some(flavor), Some(body)) = (input.u32(), input.opaque(MAX_AUTH_BYTES)) else {
        return refused(AUTH_BADCRED);
    };
    let credential = match flavor {
        AUTH_NONE => Credential::None,
        AUTH_SYS => match system(body) {
            Some(credential) => credential,
            None => return refused(AUTH_BADCRED),
        },
        _ => return refused(AUTH_REJECTEDCRED),
    };
    if input.u32().is_none() || input.opaque(MAX_AUTH_BYTES).is_none() {
        return refused(AUTH_BADCRED);
    }
    Message::Call(Call { xid, program, version, procedure, credential, arguments: input.rest() })
}

fn system(body: &[u8]) -> Option<Credential> {
    let mut input = Decoder::new(body);
    let _stamp = input.u32()?;
    let _machine = input.opaque(255)?;
    let (uid, gid) = (input.u32()?, input.u32()?);
    let count = input.u32().filter(|count| *count <= MAX_GROUPS)?;
    let groups = (0..count).map(|_| input.u32()).collect::<Option<_>>()?;
    Some(Credential::System { uid, gid, groups })
}

fn denied(xid: u32, why: u32) -> Encoder {
    let mut reply = Encoder::default();
    reply.u32(xid).u32(REPLY).u32(DENIED).u32(why);
    reply
}

/// The head of a reply to an accepted call; results follow where `status` is success.
pub fn accepted(xid: u32, status: Accept) -> Encoder {
    let mut reply = Encoder { bytes: Vec::with_capacity(256) };
    reply.u32(xid).u32(REPLY).u32(ACCEPTED).u32(AUTH_NONE).u32(0).u32(status as u32);
    reply
}

/// The whole reply to a call of a version that is not here.
pub fn version_mismatch(xid: u32, low: u32, high: u32) -> Encoder {
    let mut reply = accepted(xid, Accept::ProgramMismatch);
    reply.u32(low).u32(high);
    reply
}
