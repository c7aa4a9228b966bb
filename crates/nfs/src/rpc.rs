//! Remote procedure calls (RFC 5531): calls in, replies out.
//!
//! ```text
//!  call    xid | 0 | rpc version 2 | program | version | procedure | credential | verifier | arguments
//!  reply   xid | 1 | 0 accepted | verifier none | status | results
//!                  | 1 denied   | version mismatch 2..2, or authentication error
//! ```

use crate::wire::{Decoder, Encoder};
use weir_front::Credentials;

/// Maximum length of a credential or verifier in the protocol, in bytes.
const MAX_AUTH_BYTES: usize = 400;
/// Maximum number of supplementary groups in AUTH_SYS.
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

/// Status of an accepted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Accept {
    /// The call was executed; results follow.
    Success = 0,
    /// Unknown program.
    ProgramUnavailable = 1,
    /// Unsupported version: the range of supported versions follows.
    ProgramMismatch = 2,
    /// Unknown procedure.
    ProcedureUnavailable = 3,
    /// Malformed arguments.
    GarbageArguments = 4,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Transaction ID, chosen by the client.
    pub xid: u32,
    /// RPC program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// The user of AUTH_SYS, which the server cannot verify; `None` for AUTH_NONE.
    pub credentials: Option<Credentials>,
    /// The arguments, in XDR.
    pub arguments: &'a [u8],
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A call to execute.
    Call(Call<'a>),
    /// A call that is rejected with this encoded reply.
    Refused(Vec<u8>),
    /// Not an RPC call: no reply is possible.
    NotACall,
}

/// Decodes a message.
pub fn read(message: &[u8]) -> Message<'_> {
    let mut input = Decoder::new(message);
    match (input.u32(), input.u32(), input.u32()) {
        (Some(xid), Some(CALL), Some(2)) => call(xid, input),
        (Some(xid), Some(CALL), Some(_)) => {
            let mut reply = denied(xid, RPC_MISMATCH);
            reply.u32(2).u32(2);
            Message::Refused(reply.bytes)
        }
        _ => Message::NotACall,
    }
}

fn call(xid: u32, mut input: Decoder<'_>) -> Message<'_> {
    let refused = |reason| {
        let mut reply = denied(xid, AUTH_ERROR);
        reply.u32(reason);
        Message::Refused(reply.bytes)
    };
    let (Some(program), Some(version), Some(procedure)) = (input.u32(), input.u32(), input.u32()) else {
        return Message::NotACall;
    };
    let (Some(flavor), Some(body)) = (input.u32(), input.opaque(MAX_AUTH_BYTES)) else {
        return refused(AUTH_BADCRED);
    };
    let credentials = match flavor {
        AUTH_NONE => None,
        AUTH_SYS => match system(body) {
            None => return refused(AUTH_BADCRED),
            credentials => credentials,
        },
        _ => return refused(AUTH_REJECTEDCRED),
    };
    if input.u32().is_none() || input.opaque(MAX_AUTH_BYTES).is_none() {
        return refused(AUTH_BADCRED);
    }
    Message::Call(Call { xid, program, version, procedure, credentials, arguments: input.rest() })
}

fn system(body: &[u8]) -> Option<Credentials> {
    let mut input = Decoder::new(body);
    let _stamp = input.u32()?;
    let _machine = input.opaque(255)?;
    let uid = input.u32()?;
    let gid = input.u32()?;
    let count = input.u32().filter(|count| *count <= MAX_GROUPS)?;
    let groups = (0..count).map(|_| input.u32()).collect::<Option<_>>()?;
    Some(Credentials { uid, gid, groups })
}

fn denied(xid: u32, reason: u32) -> Encoder {
    let mut reply = Encoder::default();
    reply.u32(xid).u32(REPLY).u32(DENIED).u32(reason);
    reply
}

/// Head of the reply to an accepted call; results follow if `status` is success.
pub fn accepted(xid: u32, status: Accept) -> Encoder {
    let mut reply = Encoder { bytes: Vec::with_capacity(256) };
    reply.u32(xid).u32(REPLY).u32(ACCEPTED).u32(AUTH_NONE).u32(0).u32(status as u32);
    reply
}

/// Complete reply to a call of an unsupported version.
pub fn version_mismatch(xid: u32, low: u32, high: u32) -> Encoder {
    let mut reply = accepted(xid, Accept::ProgramMismatch);
    reply.u32(low).u32(high);
    reply
}
