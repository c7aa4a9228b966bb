//! Rules on clients.

use super::{Cause, ENOUGH_REQUESTS, Finding, View, figures, share, text};
use std::collections::BTreeMap;

/// Share of the requests that began while another one of the client was in progress: a client that waits for each answer has none,
/// except for a rare request of its keep-alive or its cache.
const OVERLAPPING_SHARE: f64 = 0.02;
/// Share of the time in which the server worked on the client's requests. A client below it mostly does something else, and would
/// gain little by sending more at once.
const BUSY_SHARE: f64 = 0.1;

/// Sums of a client over its datasets.
#[derive(Default)]
struct Sums {
    requests: u64,
    overlapping: u64,
    time_ns: u64,
    bytes: u64,
}

/// Clients that have one request in flight.
pub(super) fn one_in_flight(view: &View<'_>) -> Vec<Finding> {
    let mut clients: BTreeMap<(&str, &str), Sums> = BTreeMap::new();
    for row in &view.clients {
        let sums = clients.entry((&row.client, &row.protocol)).or_default();
        sums.requests += row.requests;
        sums.overlapping += row.overlapping;
        sums.time_ns += row.time_ns;
        sums.bytes += row.read_bytes + row.written_bytes;
    }
    // Requests of clients beyond the table's capacity are of many clients.
    clients.retain(|(client, _), sums| *client != "other" && sums.requests >= ENOUGH_REQUESTS);
    let mut out = Vec::new();
    for ((client, protocol), sums) in clients {
        let overlapping = share(sums.overlapping, sums.requests);
        let busy = (sums.time_ns as f64 / (1e9 * view.interval.seconds)).min(1.0);
        if overlapping >= OVERLAPPING_SHARE || busy < BUSY_SHARE {
            continue;
        }
        let mean_ns = sums.time_ns as f64 / sums.requests as f64;
        let sentence = format!(
            "Client {client} ({protocol}) has one request in flight: of {} requests in {}, {} began while another one was in progress. \
             The server took {} for each, {} of the time; the rest is the network and the client. It got {:.0} requests/s and {}/s.",
            sums.requests,
            view.time(),
            sums.overlapping,
            text::time(mean_ns),
            text::percent(busy),
            view.interval.rate(sums.requests),
            text::bytes(view.interval.rate(sums.bytes) as u64),
        );
        out.push(Finding {
            cause: Cause::OneRequestInFlight,
            subject: client.to_owned(),
            weight: busy * (1.0 - overlapping / OVERLAPPING_SHARE) / 2.0,
            figures: figures([
                ("requests", sums.requests as f64),
                ("overlapping_requests", sums.overlapping as f64),
                ("mean_ns", mean_ns),
                ("busy_percent", 100.0 * busy),
            ]),
            sentence,
            advice: "More requests at once raise its rate: a greater queue depth, more threads or jobs, read-ahead; over NFS async \
                     mounts and larger rsize and wsize."
                .into(),
        });
    }
    out
}
