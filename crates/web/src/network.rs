//! Counters of the network interfaces, from `/proc/net/dev` of the process's network namespace.

use std::collections::BTreeMap;

/// Interfaces that are read at most.
const MAX_INTERFACES: usize = 256;

/// Packets of one direction of an interface, since the interface was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes, with the headers of Ethernet and of all layers above it.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Packets that were dropped.
    pub drops: u64,
}

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceCounters {
    pub received: Traffic,
    pub sent: Traffic,
}

/// The counters now, by the names of the interfaces. There are none if the file cannot be read.
pub(crate) fn read() -> BTreeMap<String, InterfaceCounters> {
    parse(&std::fs::read_to_string("/proc/net/dev").unwrap_or_default())
}

/// Counters in the text of `/proc/net/dev`; lines of another form are left out.
pub(crate) fn parse(text: &str) -> BTreeMap<String, InterfaceCounters> {
    let mut out = BTreeMap::new();
    for line in text.lines() {
        if out.len() == MAX_INTERFACES {
            break;
        }
        // An alias has a colon in its name; numbers have none.
        let Some((name, numbers)) = line.rsplit_once(':') else { continue };
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
        // Received: bytes, packets, errs, drop, fifo, frame, compressed, multicast; then sent: bytes, packets, errs, drop.
        let &[bytes, packets, errors, drops, _, _, _, _, sent_bytes, sent_packets, sent_errors, sent_drops, ..] =
            numbers.as_slice()
        else {
            continue;
        };
        let received = Traffic { bytes, packets, errors, drops };
        let sent = Traffic { bytes: sent_bytes, packets: sent_packets, errors: sent_errors, drops: sent_drops };
        out.insert(name.trim().to_owned(), InterfaceCounters { received, sent });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_form_are_read_and_others_left_out() {
        let text = "Inter-|   Receive\n face |bytes packets\n    lo: 9 8 7 6 0 0 0 0 5 4 3 2 0 0 0 0\n\
                    eth0:1000 5 0 0 0 0 0 1 500 3 0 0 0 0 0 0\n  bad: 1 2\n  neg: -1 5 0 0 0 0 0 1 500 3 0 0 0 0 0 0\n";
        let found = parse(text);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["eth0", "lo"]);
        let traffic = |bytes, packets, errors, drops| Traffic { bytes, packets, errors, drops };
        assert_eq!(found["lo"], InterfaceCounters { received: traffic(9, 8, 7, 6), sent: traffic(5, 4, 3, 2) });
        assert_eq!((found["eth0"].received.bytes, found["eth0"].sent.bytes), (1000, 500));
        let many: String = (0..1000).map(|n| format!("v{n}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n")).collect();
        assert_eq!(parse(&many).len(), MAX_INTERFACES);
    }
}
