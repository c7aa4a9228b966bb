//! Sentences that every diagnosis has: where the bytes came from, and what limits now.

use super::{Cause, Finding, View, share, text};

/// Mean time of a request in nanoseconds below which nothing waits for devices: memory serves it.
const QUICK_NS: f64 = 100_000.0;
/// Share of the time of requests from which a stage limits them.
const LIMITING_SHARE: f64 = 0.5;

/// Sources of the bytes that clients of the pool read.
pub(super) fn sources(view: &View<'_>) -> Option<String> {
    let read_bytes = view.interval.all_operations().read_bytes;
    let total = read_bytes.total();
    let mut sources: Vec<_> = read_bytes.0.into_iter().collect();
    sources.sort_by_key(|(name, bytes)| (std::cmp::Reverse(*bytes), name.clone()));
    let parts: Vec<String> =
        sources.iter().map(|(name, bytes)| format!("{} {name}", text::percent(share(*bytes, total)))).collect();
    // Sources are counted by operation, not by dataset or client.
    let who = if view.subject.is_some() { "All clients of the pool" } else { "Clients" };
    (total > 0).then(|| format!("{who} read {} in {}, from: {}.", text::bytes(total), view.time(), parts.join(", ")))
}

/// Sentence on what limits the clients.
pub(super) fn sentence(view: &View<'_>, findings: &[Finding]) -> String {
    let requests: u64 = view.clients.iter().map(|row| row.requests).sum();
    let time_ns: u64 = view.clients.iter().map(|row| row.time_ns).sum();
    if view.facts.suspended.is_some() {
        let of = view.subject.map(|subject| format!(" of {subject}")).unwrap_or_default();
        return format!("{requests} requests{of} ended in {}; the pool is suspended, and others wait.", view.time());
    }
    if requests == 0 {
        return match view.subject {
            None if !findings.is_empty() => format!("No request of a client ended in {}.", view.time()),
            None => format!("Nothing waits: no request of a client ended in {}.", view.time()),
            Some(subject) => format!(
                "Nothing waits: no request of {subject} ended in {}; weir top lists clients and datasets with requests.",
                view.time()
            ),
        };
    }
    let mean_ns = time_ns as f64 / requests as f64;
    let start = format!(
        "{requests} requests in {}, {:.1}/s, took {} each on average",
        view.time(),
        view.interval.rate(requests),
        text::time(mean_ns)
    );
    let stages = view.interval.all_operations().stage_ns;
    let longest = stages.0.iter().max_by_key(|(_, ns)| **ns).map(|(name, ns)| (name, share(*ns, view.time_ns())));
    let of_stages = longest.map_or_else(
        || ", without waiting in any stage".to_owned(),
        |(name, part)| {
            format!("; the longest stage was {name}, {} of the time of the pool's requests", text::percent(part))
        },
    );
    let mut of_slowness = findings.iter().filter(|found| found.cause != Cause::Unhealthy);
    let end = match (of_slowness.next(), longest) {
        (Some(first), _) => format!("What limits most is the first finding, on {}.", first.subject),
        (None, Some((name, part))) if part >= LIMITING_SHARE => {
            format!("Nothing slows them: what limits is the stage {name}, and how fast clients ask.")
        }
        (None, _) if mean_ns < QUICK_NS => "Nothing slows them: what limits is how fast clients ask.".to_owned(),
        (None, _) => "Nothing slows them: no stage takes most of the time.".to_owned(),
    };
    format!("{start}{of_stages}. {end}")
}
