//! The text of `ss -tinHO state established` (iproute2): one connection per line, with the kernel's `TCP_INFO` as words.
//!
//! A word is `key:value`, or a key followed by its value (`delivery_rate 133135800bps`). Unknown words are skipped, because
//! each release adds some. Times are in milliseconds unless they end in another unit.

use crate::facts::Connection;
use std::net::{IpAddr, SocketAddr};

/// The connections in a text; lines that are none are skipped.
pub fn connections(text: &str) -> Vec<Connection> {
    text.lines().filter_map(connection).collect()
}

/// Fuzz target: any text gives connections.
pub fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let found = connections(&text);
    assert!(found.len() <= text.lines().count());
}

fn connection(line: &str) -> Option<Connection> {
    let mut words = line.split_whitespace();
    // Lengths of the queues, then the two addresses.
    words.by_ref().take(2).try_for_each(|word| word.parse::<u64>().is_ok().then_some(()))?;
    let local = address(words.next()?)?;
    let peer = address(words.next()?)?;
    let mut found = Connection {
        local,
        peer,
        mss_bytes: None,
        rtt_us: None,
        min_rtt_us: None,
        sent_bytes: 0,
        retransmitted_bytes: 0,
        busy_ms: 0,
        receive_window_limited_percent: 0.0,
        send_buffer_limited_percent: 0.0,
        delivery_bits_per_second: None,
    };
    while let Some(word) = words.next() {
        let (key, value) = match word.split_once(':') {
            Some(pair) => pair,
            None if word == "delivery_rate" => (word, words.next().unwrap_or_default()),
            None => continue,
        };
        match key {
            "mss" => found.mss_bytes = value.parse().ok(),
            "rtt" => found.rtt_us = value.split('/').next().and_then(milliseconds).map(|ms| ms * 1000.0),
            "minrtt" => found.min_rtt_us = milliseconds(value).map(|ms| ms * 1000.0),
            "bytes_sent" => found.sent_bytes = value.parse().unwrap_or(0),
            "bytes_retrans" => found.retransmitted_bytes = value.parse().unwrap_or(0),
            "busy" => found.busy_ms = value.trim_end_matches("ms").parse().unwrap_or(0),
            "rwnd_limited" => found.receive_window_limited_percent = percent(value),
            "sndbuf_limited" => found.send_buffer_limited_percent = percent(value),
            "delivery_rate" => found.delivery_bits_per_second = value.trim_end_matches("bps").parse().ok(),
            _ => {}
        }
    }
    Some(found)
}

/// `192.0.2.1:2049`, `[::1]:2049`, `[::ffff:192.0.2.1]:2049`, also with a zone (`[fe80::1%eth0]:2049`, `192.0.2.1%eth0:80`).
fn address(word: &str) -> Option<SocketAddr> {
    let (host, port) = word.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host: IpAddr = host.split('%').next()?.parse().ok()?;
    Some(SocketAddr::new(host.to_canonical(), port.parse().ok()?))
}

fn milliseconds(value: &str) -> Option<f64> {
    value.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms >= 0.0)
}

/// The share in `1240ms(37.2%)`.
fn percent(value: &str) -> f64 {
    let inside = value.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches("%)"));
    inside.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_ss_is_read() {
        let line = "0 0 [::ffff:192.0.2.2]:2049 [::ffff:192.0.2.9]:883 cubic wscale:7,7 rto:204 rtt:0.317/0.205 ato:40 \
                    mss:8948 pmtu:9000 cwnd:129 bytes_sent:900000 bytes_retrans:4500 bytes_acked:895500 send 1bps \
                    delivery_rate 133135800bps app_limited busy:160ms rwnd_limited:40ms(25.0%) minrtt:0.08";
        let found = connections(line).pop().unwrap();
        assert_eq!(found.local, "192.0.2.2:2049".parse().unwrap());
        assert_eq!(found.peer, "192.0.2.9:883".parse().unwrap());
        assert_eq!((found.mss_bytes, found.sent_bytes, found.retransmitted_bytes), (Some(8948), 900_000, 4500));
        assert_eq!((found.rtt_us, found.min_rtt_us, found.busy_ms), (Some(317.0), Some(80.0), 160));
        assert_eq!((found.receive_window_limited_percent, found.send_buffer_limited_percent), (25.0, 0.0));
        assert_eq!(found.delivery_bits_per_second, Some(133_135_800));
    }

    #[test]
    fn other_lines_are_skipped() {
        assert_eq!(connections("Netid State\n\n0 0 *:* x\n0 x 1.2.3.4:5 1.2.3.4:6\n"), []);
    }

    proptest! {
        #[test]
        fn any_text_gives_connections(text in "\\PC{0,200}") {
            fuzz(text.as_bytes());
        }
    }
}
