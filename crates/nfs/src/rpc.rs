//! Remote procedure calls (RFC 5531): calls in and replies out, and the other way round.
//!
//! ```text
//!  call    xid | 0 | rpc version 2 | program | version | procedure | credential | verifier | arguments
//!  reply   xid | 1 | 0 accepted | verifier none | status | results
//!                  | 1 denied   | version mismatch 2..2, or authentication error
//! ```

use crate::rpc_client::Procedure;
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

/// A call as the superuser of this machine, as lock managers and status monitors call each other.
pub fn call_message(xid: u32, procedure: Procedure, arguments: &Encoder) -> Vec<u8> {
    let mut out = Encoder::default();
    out.u32(xid).u32(CALL).u32(2).u32(procedure.program).u32(procedure.version).u32(procedure.number);
    let mut credential = Encoder::default();
    credential.u32(0).opaque(b"weir").u32(0).u32(0).u32(0);
    out.u32(AUTH_SYS).opaque(&credential.bytes).u32(AUTH_NONE).u32(0);
    out.bytes.extend_from_slice(&arguments.bytes);
    out.bytes
}

/// The results in the reply to a call, or the reason why it was not executed.
pub fn results(reply: &[u8], xid: u32) -> Result<&[u8], &'static str> {
    let mut input = Decoder::new(reply);
    let head = (input.u32(), input.u32(), input.u32());
    match head {
        (Some(of), Some(REPLY), Some(ACCEPTED)) if of == xid => {}
        (Some(of), Some(REPLY), Some(DENIED)) if of == xid => return Err("the credentials are rejected"),
        _ => return Err("not a reply to the call"),
    }
    let verifier = (input.u32(), input.opaque(MAX_AUTH_BYTES));
    match (verifier, input.u32()) {
        ((Some(_), Some(_)), Some(0)) => Ok(input.rest()),
        (_, Some(1)) => Err("no such program"),
        (_, Some(2)) => Err("no such version of the program"),
        (_, Some(3)) => Err("no such procedure"),
        (_, Some(4)) => Err("malformed arguments"),
        _ => Err("a system error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_replies_are_read_as_they_are_written() {
        let mut arguments = Encoder::default();
        arguments.opaque(b"abc");
        let procedure = Procedure { program: 100_021, version: 4, number: 5 };
        let message = call_message(77, procedure, &arguments);
        let Message::Call(call) = read(&message) else { panic!("a call") };
        assert_eq!((call.xid, call.program, call.version, call.procedure), (77, 100_021, 4, 5));
        assert_eq!((call.credentials.map(|c| c.uid), call.arguments), (Some(0), &arguments.bytes[..]));
        let mut reply = accepted(77, Accept::Success);
        reply.u32(9);
        assert_eq!(results(&reply.bytes, 77), Ok(&[0, 0, 0, 9][..]));
        assert_eq!(results(&reply.bytes, 78), Err("not a reply to the call"));
        assert_eq!(results(&accepted(1, Accept::ProcedureUnavailable).bytes, 1), Err("no such procedure"));
        assert_eq!(results(&denied(1, AUTH_ERROR).bytes, 1), Err("the credentials are rejected"));
        for len in 0..reply.bytes.len() - 4 {
            assert!(results(&reply.bytes[..len], 77).is_err(), "cut after {len} bytes");
        }
    }
}
