//! systemd's readiness protocol (`sd_notify(3)`): datagrams of lines `NAME=VALUE` to the socket in `NOTIFY_SOCKET`.
//!
//! Without that variable nothing is sent. A datagram that cannot be sent is dropped: the daemon serves all the same.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends notifications to the service manager.
pub struct Notifier(Option<(UnixDatagram, SocketAddr)>);

impl Notifier {
    /// The service manager of this process, if it has one.
    pub fn from_env() -> Self {
        Self::to(std::env::var("NOTIFY_SOCKET").ok().as_deref())
    }

    fn to(socket: Option<&str>) -> Self {
        let address = match socket {
            None | Some("") => None,
            // An abstract socket.
            Some(name) if name.starts_with('@') => SocketAddr::from_abstract_name(&name[1..]).ok(),
            Some(path) => SocketAddr::from_pathname(path).ok(),
        };
        let socket = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        Notifier(socket)
    }

    fn send(&self, lines: &str) {
        if let Some((socket, address)) = &self.0 {
            // Without a receiver the message is lost, which has no effect on what is served.
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }

    /// All pools that can be opened are served.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Describes the state in one line.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The configuration is being read again; `now` is the monotonic time in microseconds.
    pub fn reloading(&self, now_us: u128) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// The process ends.
    pub fn stopping(&self, why: &str) {
        self.send(&format!("STOPPING=1\nSTATUS=stopping: {why}"));
    }

    /// The process is alive.
    pub fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }
}

/// Interval in which the service manager expects [`Notifier::watchdog`]: half of its limit for this process.
pub fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| is_for_us && *us > 0).map(|us| Duration::from_micros(us / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_at_sockets_with_paths_and_abstract_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@weir-test-{}", std::process::id());
        let abstracted = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let cases = [
            (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
            (UnixDatagram::bind_addr(&abstracted).unwrap(), name),
        ];
        for (receiver, address) in cases {
            let notifier = Notifier::to(Some(&address));
            let mut received = [0; 256];
            let mut next = || {
                let len = receiver.recv(&mut received).unwrap();
                String::from_utf8(received[..len].to_vec()).unwrap()
            };
            notifier.ready("2 pools");
            assert_eq!(next(), "READY=1\nSTATUS=2 pools");
            notifier.stopping("a signal");
            assert_eq!(next(), "STOPPING=1\nSTATUS=stopping: a signal");
        }
        Notifier::to(None).watchdog();
        Notifier::to(Some("/does/not/exist")).watchdog();
    }
}
