//! Registration of this server's services.

use super::{MAX_ADDRESS_BYTES, PORT, PORT_MAPPER, PROGRAM, RPCBIND, TCP, UDP, binding, mapping, port_of, universal};
use crate::rpc_client::{CallError, Procedure, RpcClient};
use crate::wire::{Decoder, Encoder};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use thiserror::Error;
use weir_machine::Machine;
use weir_machine::net::Remote;

const SET: u32 = 1;
const UNSET: u32 = 2;
const DUMP: u32 = 4;

/// A program to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name, for messages.
    pub name: &'static str,
    /// RPC program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Address over TCP.
    pub tcp: SocketAddr,
    /// Address over UDP, if it is served over UDP, too.
    pub udp: Option<SocketAddr>,
}

/// Why services are not registered.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// No rpcbind runs on this machine.
    #[error("no rpcbind answers on this machine ({why})")]
    NoRpcbind {
        /// Error of its socket.
        why: CallError,
    },
    /// rpcbind has no socket in the file system, and this process may not use reserved ports.
    #[error(
        "rpcbind takes registrations from reserved ports only, which this process may not use: run it as root, or give it CAP_NET_BIND_SERVICE"
    )]
    NotPrivileged,
    /// Another server has registered the program and answers.
    #[error("{name} (program {program}) is registered with rpcbind by another server, at port {port}")]
    Taken {
        /// Name of the service.
        name: &'static str,
        /// RPC program number.
        program: u32,
        /// Port of the other server.
        port: u16,
    },
    /// rpcbind refused.
    #[error("rpcbind refuses the registration of {name} (program {program}): another user has registered it")]
    Refused {
        /// Name of the service.
        name: &'static str,
        /// RPC program number.
        program: u32,
    },
}

/// How rpcbind is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Version 4 over its socket in the file system.
    Local,
    /// Version 2 over loopback, from a reserved port.
    Reserved,
}

/// Services that are registered, until [`Registration::end`].
pub struct Registration {
    client: RpcClient,
    access: Access,
    /// Where rpcbind's socket in the file system is.
    socket: PathBuf,
    services: Vec<Service>,
}

impl Registration {
    /// Connects to this machine's rpcbind, and registers nothing yet. Its socket in the file system is usually at
    /// `/run/rpcbind.sock`.
    ///
    /// # Errors
    /// If there is no rpcbind, or this process may not register.
    pub async fn begin(machine: &Machine, socket: PathBuf) -> Result<Self, RegisterError> {
        let client = RpcClient::new(machine);
        let mut registration = Registration { client, access: Access::Local, socket, services: Vec::new() };
        if registration.ask(0, &Encoder::default()).await.is_ok() {
            return Ok(registration);
        }
        registration.access = Access::Reserved;
        match registration.ask(0, &Encoder::default()).await {
            Ok(_) => Ok(registration),
            Err(CallError::Connection(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(RegisterError::NotPrivileged)
            }
            Err(why) => Err(RegisterError::NoRpcbind { why }),
        }
    }

    /// Registers a service. A registration of a server that does not answer any more is replaced.
    ///
    /// # Errors
    /// If another server has registered the program, or rpcbind refuses.
    pub async fn add(&mut self, service: Service) -> Result<(), RegisterError> {
        let Service { name, program, version, .. } = service;
        for (transport, address) in transports(&service) {
            let refused = RegisterError::Refused { name, program };
            let ask_failed = |why| RegisterError::NoRpcbind { why };
            let registered = self.registered(program, version, transport).await.map_err(ask_failed)?;
            if let Some(port) = registered.filter(|port| *port != address.port()) {
                if self.answers(&service, address.ip(), port).await {
                    return Err(RegisterError::Taken { name, program, port });
                }
                self.set(UNSET, program, version, transport, address).await.map_err(ask_failed)?;
            }
            if !self.set(SET, program, version, transport, address).await.map_err(ask_failed)? {
                return Err(refused);
            }
        }
        self.services.push(service);
        Ok(())
    }

    /// Whether a program is registered by this server.
    pub fn has(&self, program: u32) -> bool {
        self.services.iter().any(|service| service.program == program)
    }

    /// Ends all registrations.
    pub async fn end(&mut self) {
        for service in std::mem::take(&mut self.services) {
            for (transport, address) in transports(&service) {
                if let Err(error) = self.set(UNSET, service.program, service.version, transport, address).await {
                    tracing::warn!(service = service.name, %error, "the registration with rpcbind stays");
                }
            }
        }
    }

    async fn ask(&self, number: u32, arguments: &Encoder) -> Result<Vec<u8>, CallError> {
        let (to, version) = match self.access {
            Access::Local => (Remote::Local(self.socket.clone()), RPCBIND),
            Access::Reserved => {
                (Remote::TcpFromReserved(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT)), PORT_MAPPER)
            }
        };
        let procedure = Procedure { program: PROGRAM, version, number };
        Ok(self.client.call(&to, procedure, arguments).await?.bytes)
    }

    /// The arguments for a transport, in the version that is spoken.
    fn arguments(&self, program: u32, version: u32, transport: &str, address: SocketAddr) -> Encoder {
        match self.access {
            Access::Local => binding(program, version, transport, &universal(address)),
            Access::Reserved => mapping(program, version, if is_udp(transport) { UDP } else { TCP }, address.port()),
        }
    }

    /// The port at which a program is registered for a transport.
    async fn registered(&self, program: u32, version: u32, transport: &str) -> Result<Option<u16>, CallError> {
        let reply = self.ask(DUMP, &Encoder::default()).await?;
        let mut input = Decoder::new(&reply);
        let number = if is_udp(transport) { UDP } else { TCP };
        while input.u32() == Some(1) {
            let (Some(of), Some(in_version)) = (input.u32(), input.u32()) else { break };
            let port = match self.access {
                Access::Local => {
                    let texts = [(); 3].map(|()| input.opaque(MAX_ADDRESS_BYTES));
                    let [Some(over), Some(address), Some(_owner)] = texts else { break };
                    port_of(address).filter(|_| over == transport.as_bytes())
                }
                Access::Reserved => {
                    let (Some(over), Some(port)) = (input.u32(), input.u32()) else { break };
                    u16::try_from(port).ok().filter(|_| over == number)
                }
            };
            if (of, in_version) == (program, version) && port.is_some() {
                return Ok(port);
            }
        }
        Ok(None)
    }

    async fn set(
        &self,
        number: u32,
        program: u32,
        version: u32,
        transport: &str,
        address: SocketAddr,
    ) -> Result<bool, CallError> {
        let reply = self.ask(number, &self.arguments(program, version, transport, address)).await?;
        Ok(Decoder::new(&reply).u32() == Some(1))
    }

    /// Whether a server of the program answers on this machine at a port.
    async fn answers(&self, service: &Service, ip: IpAddr, port: u16) -> bool {
        let ip = match ip {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let procedure = Procedure { program: service.program, version: service.version, number: 0 };
        self.client.call(&Remote::Tcp(SocketAddr::new(ip, port)), procedure, &Encoder::default()).await.is_ok()
    }
}

fn is_udp(transport: &str) -> bool {
    transport.starts_with("udp")
}

/// Names of the transports of a service, with its address on each. A socket for all addresses of IPv6 takes IPv4, too.
fn transports(service: &Service) -> Vec<(&'static str, SocketAddr)> {
    let mut out = Vec::new();
    for (address, v4, v6) in [(Some(service.tcp), "tcp", "tcp6"), (service.udp, "udp", "udp6")] {
        match address {
            Some(address @ SocketAddr::V4(_)) => out.push((v4, address)),
            Some(address) => {
                if address.ip().is_unspecified() {
                    out.push((v4, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port())));
                }
                out.push((v6, address));
            }
            None => {}
        }
    }
    out
}
