//! rpcbind (RFC 1833): finding the ports of other hosts' services, and registering this server's.
//!
//! Look-ups use version 2 (the port mapper) for IPv4 and version 4 for IPv6. Registrations use version 4 over rpcbind's
//! socket in the file system, which every user may use, and version 2 over loopback from a reserved port where there is no
//! such socket, which takes a privilege.

mod register;

pub use register::{RegisterError, Registration, Service};

use crate::rpc_client::{CallError, CallResults, Procedure, RpcClient};
use crate::wire::{Decoder, Encoder};
use std::net::{IpAddr, SocketAddr};
use weir_machine::net::Remote;

/// RPC program number.
pub const PROGRAM: u32 = 100_000;
/// Port of rpcbind.
pub const PORT: u16 = 111;
const PORT_MAPPER: u32 = 2;
const RPCBIND: u32 = 4;
const TCP: u32 = 6;
const UDP: u32 = 17;
const GET: u32 = 3;
/// Maximum length of a universal address in bytes.
const MAX_ADDRESS_BYTES: usize = 256;

/// Encodes the arguments of the port mapper: program, version, transport, port.
fn mapping(program: u32, version: u32, transport: u32, port: u16) -> Encoder {
    let mut out = Encoder::default();
    out.u32(program).u32(version).u32(transport).u32(port.into());
    out
}

/// Encodes the arguments of rpcbind: program, version, transport, address, owner.
fn binding(program: u32, version: u32, transport: &str, address: &str) -> Encoder {
    let mut out = Encoder::default();
    out.u32(program).u32(version).opaque(transport.as_bytes()).opaque(address.as_bytes()).opaque(b"");
    out
}

/// A universal address: the address, and both bytes of the port.
fn universal(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// The port of a universal address; `None` if it is none.
fn port_of(universal: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(universal).ok()?;
    let mut parts = text.rsplit('.');
    let low: u8 = parts.next()?.parse().ok()?;
    let high: u8 = parts.next()?.parse().ok()?;
    Some(u16::from_be_bytes([high, low])).filter(|port| *port != 0)
}

/// A service of a host.
pub(crate) struct Found {
    /// The TCP port.
    port: u16,
    /// Whether the host is this machine.
    pub(crate) is_own: bool,
}

/// Finds the TCP port of a service of a host.
pub(crate) async fn find(client: &RpcClient, host: IpAddr, program: u32, version: u32) -> Result<Found, CallError> {
    let to = Remote::Tcp(SocketAddr::new(host, PORT));
    let (port, local) = match host {
        IpAddr::V4(_) => {
            let procedure = Procedure { program: PROGRAM, version: PORT_MAPPER, number: GET };
            let reply = client.call(&to, procedure, &mapping(program, version, TCP, 0)).await?;
            let port = Decoder::new(&reply.bytes).u32().and_then(|port| u16::try_from(port).ok());
            (port.filter(|port| *port != 0), reply.local)
        }
        IpAddr::V6(_) => {
            let procedure = Procedure { program: PROGRAM, version: RPCBIND, number: GET };
            let reply = client.call(&to, procedure, &binding(program, version, "tcp6", "")).await?;
            (Decoder::new(&reply.bytes).opaque(MAX_ADDRESS_BYTES).and_then(port_of), reply.local)
        }
    };
    let port = port.ok_or(CallError::NotRegistered { program, version })?;
    Ok(Found { port, is_own: local == Some(host) })
}

/// Calls a procedure of a service of a host, whose port its rpcbind tells.
pub(crate) async fn call(
    client: &RpcClient,
    host: IpAddr,
    procedure: Procedure,
    arguments: &Encoder,
) -> Result<CallResults, CallError> {
    let Found { port, .. } = find(client, host, procedure.program, procedure.version).await?;
    client.call(&Remote::Tcp(SocketAddr::new(host, port)), procedure, arguments).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_contain_the_port() {
        assert_eq!(universal("127.0.0.1:2049".parse().unwrap()), "127.0.0.1.8.1");
        assert_eq!(universal("[::]:111".parse().unwrap()), "::.0.111");
        assert_eq!((port_of(b"::.8.1"), port_of(b"10.0.0.1.0.111")), (Some(2049), Some(111)));
        assert_eq!((port_of(b""), port_of(b"1.2"), port_of(b"a.0.0"), port_of(&[0xff])), (None, Some(258), None, None));
    }
}
