//! A Network Block Device client for judging the server: fixed newstyle handshake, `NBD_OPT_GO`, simple
//! reads, writes and flushes.
//! The protocol is the one of the NBD project's `doc/proto.md`.
#![allow(clippy::disallowed_methods, reason = "a client of its own, over real connections")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::tree::{BlockDevice, TreeError};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_LIST: u32 = 3;
const OPT_GO: u32 = 7;

/// A volume behind NBD.
pub struct NbdDevice {
    stream: TcpStream,
    size_bytes: u64,
    next_cookie: u64,
}

fn broken(what: impl std::fmt::Display) -> TreeError {
    TreeError::Other(format!("NBD: {what}"))
}

fn fixed<const LENGTH: usize>(stream: &mut TcpStream) -> Result<[u8; LENGTH], TreeError> {
    let mut bytes = [0; LENGTH];
    stream.read_exact(&mut bytes).map_err(broken)?;
    Ok(bytes)
}

fn greeted(address: SocketAddr) -> Result<TcpStream, TreeError> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).map_err(broken)?;
    stream.set_nodelay(true).map_err(broken)?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).map_err(broken)?;
    if fixed::<8>(&mut stream)? != *b"NBDMAGIC" || u64::from_be_bytes(fixed(&mut stream)?) != OPTION_MAGIC {
        return Err(broken("not a newstyle server"));
    }
    let flags = u16::from_be_bytes(fixed(&mut stream)?);
    if flags & 1 == 0 {
        return Err(broken("not a fixed newstyle server"));
    }
    stream.write_all(&u32::from(flags & 3).to_be_bytes()).map_err(broken)?;
    Ok(stream)
}

fn option(stream: &mut TcpStream, option: u32, data: &[u8]) -> Result<(), TreeError> {
    let mut request = OPTION_MAGIC.to_be_bytes().to_vec();
    request.extend_from_slice(&option.to_be_bytes());
    request.extend_from_slice(&u32::try_from(data.len()).map_err(broken)?.to_be_bytes());
    request.extend_from_slice(data);
    stream.write_all(&request).map_err(broken)
}

/// One reply to an option: its kind and its data.
fn reply(stream: &mut TcpStream) -> Result<(u32, Vec<u8>), TreeError> {
    if u64::from_be_bytes(fixed(stream)?) != REPLY_MAGIC {
        return Err(broken("a reply without its magic"));
    }
    let _option: [u8; 4] = fixed(stream)?;
    let kind = u32::from_be_bytes(fixed(stream)?);
    let length = u32::from_be_bytes(fixed(stream)?) as usize;
    if length > 1 << 20 {
        return Err(broken("a reply of more than a MiB"));
    }
    let mut data = vec![0; length];
    stream.read_exact(&mut data).map_err(broken)?;
    Ok((kind, data))
}

impl NbdDevice {
    /// Opens an export.
    ///
    /// # Errors
    /// If the server is not there or has no such export.
    pub fn open(address: SocketAddr, export: &str) -> Result<NbdDevice, TreeError> {
        let mut stream = greeted(address)?;
        let mut data = u32::try_from(export.len()).map_err(broken)?.to_be_bytes().to_vec();
        data.extend_from_slice(export.as_bytes());
        data.extend_from_slice(&[0, 0]);
        option(&mut stream, OPT_GO, &data)?;
        let mut size_bytes = None;
        loop {
            match reply(&mut stream)? {
                (1, _) => break,
                (3, data) => {
                    if let [0, 0, size @ ..] = data.as_slice()
                        && let Some(size) = size.first_chunk()
                    {
                        size_bytes = Some(u64::from_be_bytes(*size));
                    }
                }
                (kind, data) => {
                    return Err(broken(format!("{export}: refused with {kind:#x} {}", String::from_utf8_lossy(&data))));
                }
            }
        }
        let size_bytes = size_bytes.ok_or_else(|| broken("the reply has no size"))?;
        Ok(NbdDevice { stream, size_bytes, next_cookie: 1 })
    }

    /// Names of all exports.
    ///
    /// # Errors
    /// If the server is not there or does not list.
    pub fn exports(address: SocketAddr) -> Result<Vec<String>, TreeError> {
        let mut stream = greeted(address)?;
        option(&mut stream, OPT_LIST, &[])?;
        let mut names = Vec::new();
        loop {
            match reply(&mut stream)? {
                (1, _) => return Ok(names),
                (2, data) => {
                    let name = data.get(4..).unwrap_or_default();
                    names.push(String::from_utf8_lossy(name).into_owned());
                }
                (kind, _) => return Err(broken(format!("list refused with {kind:#x}"))),
            }
        }
    }
}

/// Commands.
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
/// Stable when answered.
const FUA: u16 = 1;

impl NbdDevice {
    /// Sends a request, and waits for the head of its answer.
    fn ask(&mut self, (flags, command): (u16, u16), offset: u64, length: u32, data: &[u8]) -> Result<(), TreeError> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend_from_slice(&flags.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request).map_err(broken)?;
        if u32::from_be_bytes(fixed(&mut self.stream)?) != SIMPLE_REPLY_MAGIC {
            return Err(broken("a reply without its magic"));
        }
        let error = u32::from_be_bytes(fixed(&mut self.stream)?);
        if u64::from_be_bytes(fixed(&mut self.stream)?) != cookie {
            return Err(broken("a reply to another request"));
        }
        match error {
            0 => Ok(()),
            5 => Err(TreeError::Input(format!("NBD command {command} at {offset}"))),
            other => Err(broken(format!("command {command} at {offset}: error {other}"))),
        }
    }

    /// Writes bytes; with `stable`, they are stable when this returns.
    ///
    /// # Errors
    /// If the server refuses or is gone.
    pub fn write(&mut self, offset: u64, data: &[u8], stable: bool) -> Result<(), TreeError> {
        let length = u32::try_from(data.len()).map_err(broken)?;
        self.ask((if stable { FUA } else { 0 }, WRITE), offset, length, data)
    }

    /// Makes all acknowledged writes stable.
    ///
    /// # Errors
    /// If the server refuses or is gone.
    pub fn flush(&mut self) -> Result<(), TreeError> {
        self.ask((0, FLUSH), 0, 0, &[])
    }
}

impl BlockDevice for NbdDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        self.ask((0, READ), offset, u32::try_from(length).map_err(broken)?, &[])?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).map_err(broken)?;
        Ok(bytes)
    }
}
