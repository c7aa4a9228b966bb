//! Report of results as one HTML file: no script, no file beside it, so that it opens offline, prints, and reads on a phone.
//!
//! Its order is that of trust: warnings, sentences, ceilings, figures, pictures, environment. Pictures are SVG that scales with the page.

mod chart;
mod style;

use crate::result::{Round, RunResult, Step};
use crate::text;
use chart::{Axis, Chart, Line};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Most rounds of a step whose seconds are drawn.
const MAX_DRAWN_ROUNDS: usize = 3;

/// The report of one result, or of several in the same pictures.
#[must_use]
pub fn html(results: &[RunResult]) -> String {
    let title = results.first().map_or_else(String::new, |result| format!("{} on {}", result.method, result.target));
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{}</title><style>{}</style></head><body><main>\n",
        escaped(&title),
        style::CSS
    );
    for result in results {
        head(&mut page, result);
    }
    let depths = by_depth(results);
    if !depths.is_empty() {
        let _ = write!(
            page,
            "<h2>Operations and latency against queue depth</h2><div class=\"charts\">{}{}</div>",
            depth_chart(&depths, false),
            depth_chart(&depths, true)
        );
    }
    for result in results {
        body(&mut page, result, results.len() > 1);
    }
    page.push_str("</main></body></html>\n");
    page
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Title, warnings and sentences.
fn head(page: &mut String, result: &RunResult) {
    let _ = write!(
        page,
        "<header><h1>{} on {}</h1><p>{}, {}</p></header>",
        escaped(&result.method),
        escaped(&result.target),
        escaped(&result.started),
        escaped(&result.client)
    );
    if !result.warnings.is_empty() {
        page.push_str("<section class=\"warnings\" aria-label=\"Warnings\"><h2>Read this first</h2><ul>");
        for warning in &result.warnings {
            let step = warning.step.as_ref().map(|step| format!("<b>{}</b>: ", escaped(step))).unwrap_or_default();
            let not = if warning.not_comparable { " <em>Not compared.</em>" } else { "" };
            let _ = write!(page, "<li>{step}{}.{not}</li>", escaped(&warning.text));
        }
        page.push_str("</ul></section>");
    }
    page.push_str("<section><ul class=\"verdict\">");
    for sentence in &result.verdict {
        let _ = write!(page, "<li>{}</li>", escaped(sentence));
    }
    page.push_str("</ul></section>\n");
}

/// Ceilings, figures, seconds and environment.
fn body(page: &mut String, result: &RunResult, is_one_of_several: bool) {
    if is_one_of_several {
        let _ = write!(page, "<h2>{}</h2>", escaped(&result.target));
    }
    staircase(page, result);
    table(page, result);
    let steps: Vec<&Step> =
        result.steps.iter().filter(|step| step.rounds.iter().any(|round| round.series.len() > 1)).collect();
    if !steps.is_empty() {
        page.push_str("<h2>Second by second</h2><p>Line: bytes that the client moved. Dashes: bytes that the disks moved. Shaded: steady window.</p><div class=\"charts\">");
        for step in steps {
            for round in step.rounds.iter().take(MAX_DRAWN_ROUNDS) {
                page.push_str(&seconds_chart(step, round));
            }
        }
        page.push_str("</div>");
    }
    page.push_str("<h2>Environment</h2><table class=\"facts\">");
    for (name, value) in &result.environment {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escaped(name), escaped(value));
    }
    let _ = writeln!(
        page,
        "<tr><th scope=\"row\">command</th><td><code>weir bench {}</code></td></tr></table>",
        escaped(&result.command.join(" "))
    );
}

/// Bars of the ceilings beside the fastest step; the lowest limits.
fn staircase(page: &mut String, result: &RunResult) {
    let mut bars: Vec<(String, f64, &str)> = result
        .ceilings
        .iter()
        .filter_map(|ceiling| Some((format!("{} {}", ceiling.part, ceiling.load), ceiling.bytes_per_s?, "ceiling")))
        .collect();
    if bars.is_empty() {
        return;
    }
    for step in result.steps.iter().filter(|step| !step.rounds.is_empty()) {
        bars.push((step.name.clone(), step.median(Round::bytes_per_s), "measured"));
    }
    bars.sort_by(|a, b| b.1.total_cmp(&a.1));
    let highest = bars.first().map_or(1.0, |bar| bar.1).max(1.0);
    page.push_str("<h2>Ceilings, and what was measured</h2><p>Lengths are logarithmic.</p><table class=\"bars\">");
    for (name, rate, kind) in bars {
        // From 100 kB/s on, a fifth of the width for each power of ten.
        let share = ((rate.max(1.0) / 1e5).log10() / (highest / 1e5).log10().max(1.0)).clamp(0.0, 1.0) * 100.0;
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{}</th><td><span class=\"bar {kind}\" style=\"width:{share:.1}%\"></span></td><td class=\"n\">{}</td></tr>",
            escaped(name.trim()),
            text::rate(rate)
        );
    }
    page.push_str("</table>");
}

fn table(page: &mut String, result: &RunResult) {
    page.push_str(
        "<h2>Figures</h2><div class=\"scroll\"><table><tr><th>Step</th><th>Rounds</th><th>Rate</th><th>Operations</th><th>Mean latency</th>\
         <th>99 % within</th><th>Disks read</th><th>Disks wrote</th><th>Steady</th></tr>",
    );
    for step in result.steps.iter().filter(|step| !step.rounds.is_empty()) {
        let latency = |value: fn(&crate::result::Latency) -> f64| {
            let values: Vec<f64> = step.rounds.iter().filter_map(|round| round.latency.as_ref()).map(value).collect();
            crate::statistics::median(&values).map_or_else(|| "–".to_owned(), text::time)
        };
        let disk = |value: fn(&Round) -> Option<u64>| {
            let values: Vec<f64> = step.rounds.iter().filter_map(value).map(|bytes| bytes as f64).collect();
            crate::statistics::median(&values).map_or_else(|| "–".to_owned(), text::bytes)
        };
        let steady = match step.rounds.iter().filter_map(Round::is_steady).collect::<Vec<bool>>() {
            known if known.is_empty() => "too short".to_owned(),
            known => format!("{} of {}", known.iter().filter(|steady| **steady).count(), known.len()),
        };
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{steady}</td></tr>",
            escaped(&step.name),
            step.rounds.len(),
            text::rate(step.median(Round::bytes_per_s)),
            text::operations(step.median(Round::operations_per_s)),
            latency(|latency| latency.mean_ns),
            latency(|latency| latency.p99_ns as f64),
            disk(|round| round.disk_read_bytes),
            disk(|round| round.disk_written_bytes),
        );
    }
    page.push_str("</table></div>");
}

/// Rates of a round with the steady window.
fn seconds_chart(step: &Step, round: &Round) -> String {
    let points = |value: &dyn Fn(&crate::result::Second) -> Option<u64>| -> Vec<(f64, f64)> {
        round
            .series
            .iter()
            .enumerate()
            .filter_map(|(second, row)| Some((second as f64 + 0.5, value(row)? as f64)))
            .collect()
    };
    let client = points(&|row| Some(row.read_bytes + row.written_bytes));
    let disks = points(&|row| Some(row.disk_read_bytes? + row.disk_written_bytes?));
    let stamp = match &round.window {
        Some(window) if !window.steady => Some("not steady"),
        None => Some("too short to judge"),
        _ => None,
    };
    let mut lines = vec![Line { name: "client".to_owned(), points: client, dashed: false }];
    if !disks.is_empty() {
        lines.push(Line { name: "disks".to_owned(), points: disks, dashed: true });
    }
    let window =
        round.window.as_ref().filter(|window| window.steady).map(|window| (window.from_seconds, window.to_seconds));
    let chart = Chart {
        title: step.name.clone(),
        x: Axis { title: "seconds", is_log: false, format: |x| format!("{x:.0}") },
        y: Axis { title: "bytes/s", is_log: false, format: text::rate },
        lines,
        window,
        stamp,
    };
    chart.svg()
}

/// Depth, operations a second, and mean latency in nanoseconds.
type Point = (f64, f64, f64);

/// Steps that differ in their depth only, by name.
fn by_depth(results: &[RunResult]) -> BTreeMap<String, Vec<Point>> {
    let mut groups: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for result in results {
        for step in result.steps.iter().filter(|step| !step.rounds.is_empty()) {
            let Some((name, _)) = step.name.strip_suffix(" in flight").and_then(|name| name.rsplit_once(", ")) else {
                continue;
            };
            let name = if results.len() > 1 { format!("{}: {name}", result.target) } else { name.to_owned() };
            let latency = step.median(|round| round.latency.as_ref().map_or(0.0, |latency| latency.mean_ns));
            groups.entry(name).or_default().push((
                f64::from(step.in_flight()),
                step.median(Round::operations_per_s),
                latency,
            ));
        }
    }
    groups.retain(|_, points| points.len() > 1);
    groups
}

fn depth_chart(groups: &BTreeMap<String, Vec<Point>>, shows_latency: bool) -> String {
    let lines = groups.iter().map(|(name, points)| Line {
        name: name.clone(),
        points: points
            .iter()
            .map(|(depth, rate, latency)| (*depth, if shows_latency { *latency } else { *rate }))
            .collect(),
        dashed: false,
    });
    Chart {
        title: if shows_latency { "mean latency".to_owned() } else { "operations a second".to_owned() },
        x: Axis { title: "operations in flight", is_log: true, format: |x| format!("{x:.0}") },
        y: Axis { title: "", is_log: shows_latency, format: if shows_latency { text::time } else { text::operations } },
        lines: lines.collect(),
        window: None,
        stamp: None,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Flow, Latency, SCHEMA, Second, Warning, Workload};

    fn made() -> RunResult {
        let series = (0..10).map(|n| Second {
            read_bytes: 100 + n,
            disk_read_bytes: Some(50),
            disk_written_bytes: Some(0),
            ..Second::default()
        });
        let round = Round {
            seconds: 10.0,
            read: Flow { bytes: 1_045, operations: 10 },
            latency: Some(Latency { mean_ns: 1e6, p99_ns: 2_000_000, ..Latency::default() }),
            series: series.collect(),
            window: crate::steady::window(&[100.0; 10], 1.0),
            ..Round::default()
        };
        let step = |depth: u32| Step {
            name: format!("4K random read, {depth} in flight"),
            workload: Workload { depth, block_bytes: 4096, ..Workload::default() },
            expected: None,
            rounds: vec![round.clone()],
        };
        RunResult {
            schema: SCHEMA.to_owned(),
            warnings: vec![Warning {
                rule: "sums".to_owned(),
                step: None,
                text: "a <b>bold</b> claim".to_owned(),
                not_comparable: true,
            }],
            verdict: vec!["limited by nothing".to_owned()],
            method: "grid".to_owned(),
            target: "/tank/\"><script>alert(1)</script>".to_owned(),
            command: vec!["grid".to_owned(), "/tank".to_owned()],
            started_unix_seconds: 0,
            started: crate::clock::rfc3339(0),
            complete: true,
            client: "fio".to_owned(),
            environment: BTreeMap::from([("kernel".to_owned(), "6.1".to_owned())]),
            ceilings: vec![crate::result::Ceiling {
                part: "disk".to_owned(),
                load: String::new(),
                bytes_per_s: Some(1e9),
                operations_per_s: None,
                source: String::new(),
            }],
            steps: vec![step(1), step(8)],
        }
    }

    #[test]
    fn a_report_is_whole_and_escapes_what_it_shows() {
        let page = html(&[made()]);
        assert!(!page.contains("<script") && !page.contains("<b>bold"), "names are escaped");
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="), "nothing is loaded");
        for part in [
            "Read this first",
            "limited by nothing",
            "steady window",
            "operations in flight",
            "kernel",
            "<code>weir bench grid /tank</code>",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn several_results_share_the_depth_pictures() {
        let mut other = made();
        other.target = "/other".to_owned();
        let page = html(&[made(), other]);
        assert!(page.contains("/other: 4K random read"));
    }

    #[test]
    fn a_result_without_rounds_is_still_a_page() {
        let mut empty = made();
        empty.steps.clear();
        empty.ceilings.clear();
        let page = html(&[empty]);
        assert!(page.ends_with("</html>\n") && !page.contains("<svg"));
    }
}
