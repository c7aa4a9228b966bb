//! A client of the Network Block Device protocol: fixed newstyle handshake, `NBD_OPT_GO`, simple replies. Numbers are those of the NBD
//! project's `doc/proto.md`.

use super::client::{Client, array, connect};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_FLUSH: u16 = 3;
const CMD_FLAG_FUA: u16 = 1;
/// Transmission flags: the export takes FLUSH, and FUA.
const NEEDED_FLAGS: u16 = 1 << 2 | 1 << 3;
/// Largest reply to an option that is accepted.
const MAX_REPLY_BYTES: usize = 1 << 16;

/// An export of an NBD server.
pub struct NbdExport {
    stream: TcpStream,
    cookie: u64,
}

fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("NBD: {what}"))
}

impl NbdExport {
    /// Opens an export.
    ///
    /// # Errors
    /// If the server does not answer, has no such export, or takes neither FLUSH nor FUA.
    pub fn open(server: SocketAddr, export: &str) -> io::Result<Self> {
        let mut stream = connect(server)?;
        if array::<8>(&mut stream)? != *b"NBDMAGIC" || u64::from_be_bytes(array(&mut stream)?) != OPTION_MAGIC {
            return Err(broken("not a newstyle server"));
        }
        let flags = u16::from_be_bytes(array(&mut stream)?);
        stream.write_all(&u32::from(flags & 3).to_be_bytes())?;
        let name = u32::try_from(export.len()).map_err(broken)?.to_be_bytes();
        let data = [&name[..], export.as_bytes(), &[0, 0]].concat();
        let length = u32::try_from(data.len()).map_err(broken)?.to_be_bytes();
        stream.write_all(&[&OPTION_MAGIC.to_be_bytes()[..], &OPT_GO.to_be_bytes(), &length, &data].concat())?;
        let mut offered = 0;
        loop {
            match reply(&mut stream)? {
                (REP_ACK, _) => break,
                // NBD_INFO_EXPORT: type 0, size, transmission flags.
                (REP_INFO, data) => {
                    if let [0, 0, _, _, _, _, _, _, _, _, high, low] = data[..] {
                        offered = u16::from_be_bytes([high, low]);
                    }
                }
                (kind, data) => {
                    return Err(broken(format!("{export}: refused ({kind:#x}) {}", String::from_utf8_lossy(&data))));
                }
            }
        }
        if offered & NEEDED_FLAGS != NEEDED_FLAGS {
            return Err(broken(format!("{export}: the server offers no FLUSH or no FUA")));
        }
        Ok(Self { stream, cookie: 0 })
    }

    fn ask(&mut self, flags: u16, command: u16, offset: u64, length: usize, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend_from_slice(&flags.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&self.cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&u32::try_from(length).map_err(broken)?.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request)?;
        if u32::from_be_bytes(array(&mut self.stream)?) != SIMPLE_REPLY_MAGIC {
            return Err(broken("a reply without its magic number"));
        }
        let error = u32::from_be_bytes(array(&mut self.stream)?);
        if u64::from_be_bytes(array(&mut self.stream)?) != self.cookie {
            return Err(broken("a reply to another request"));
        }
        if error == 0 { Ok(()) } else { Err(broken(format!("command {command} at {offset}: error {error}"))) }
    }
}

/// A reply to an option: kind and data.
fn reply(stream: &mut TcpStream) -> io::Result<(u32, Vec<u8>)> {
    if u64::from_be_bytes(array(stream)?) != REPLY_MAGIC {
        return Err(broken("a reply without its magic number"));
    }
    let _option: [u8; 4] = array(stream)?;
    let kind = u32::from_be_bytes(array(stream)?);
    let length = u32::from_be_bytes(array(stream)?) as usize;
    if length > MAX_REPLY_BYTES {
        return Err(broken(format!("a reply of {length} bytes")));
    }
    let mut data = vec![0; length];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

impl Client for NbdExport {
    fn write(&mut self, offset: u64, data: &[u8], is_stable: bool) -> io::Result<bool> {
        self.ask(if is_stable { CMD_FLAG_FUA } else { 0 }, CMD_WRITE, offset, data.len(), data)?;
        Ok(is_stable)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask(0, CMD_FLUSH, 0, 0, &[])
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.ask(0, CMD_READ, offset, buffer.len(), &[])?;
        self.stream.read_exact(buffer)
    }
}
