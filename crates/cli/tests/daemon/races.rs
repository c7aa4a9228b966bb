//! Commands as their clients send them to the daemon.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use weir_daemon::admin::{Caller, Frame, HEADER_BYTES};

/// Reads a frame of the administration socket.
pub fn read_frame(from: &mut UnixStream) -> Frame {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).unwrap();
    let mut contents = vec![0; Frame::length(header).unwrap()];
    from.read_exact(&mut contents).unwrap();
    Frame::decode(header[0], &contents).unwrap()
}

/// Sends a command line to the daemon.
pub fn call(site: &Site, program: &str, line: &str) -> UnixStream {
    let mut socket = UnixStream::connect(site.path("run/daemon.sock")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let words = line.split_whitespace().map(Into::into).collect();
    let caller = Caller { program: program.into(), words, folder: site.dir.path().into(), ..Caller::default() };
    socket.write_all(&Frame::Call(caller).encode()).unwrap();
    socket
}
