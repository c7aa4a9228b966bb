//! Screens of `weir top`.

use crate::table::{Align, Table};
use crate::units::{human, human_bytes, human_time_ns, percent};
use weir_analytics::{ClientTotals, FileBytes, FileTable, FileTotals, Interval, OperationTotals, quantile_ns};

/// Order of the rows, the greatest first; names in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Requests.
    Ops,
    /// Bytes read and written.
    Bytes,
    /// Bytes read.
    Read,
    /// Bytes written.
    Write,
    /// Bytes written to devices; of operations, the time at devices.
    Device,
    /// Client, or operation.
    Name,
}

impl Order {
    /// The order of this name.
    pub fn named(name: &str) -> Option<Order> {
        match name {
            "ops" => Some(Order::Ops),
            "bytes" => Some(Order::Bytes),
            "read" => Some(Order::Read),
            "write" => Some(Order::Write),
            "device" => Some(Order::Device),
            "name" => Some(Order::Name),
            _ => None,
        }
    }

    /// Puts files into this order. Names are those of clients and datasets: paths are looked up of the first rows only.
    pub fn sort_files(self, rows: &mut [FileTotals]) {
        let name = |row: &FileTotals| (row.client.clone(), row.dataset.clone(), row.object);
        rows.sort_by_key(|row| {
            let number = match self {
                Order::Ops => row.counted.requests,
                Order::Bytes | Order::Device => row.counted.total(),
                Order::Read => row.counted.read_bytes,
                Order::Write => row.counted.written_bytes,
                Order::Name => 0,
            };
            (std::cmp::Reverse(number), name(row))
        });
    }
}

/// Text of numbers.
struct Numbers<'a> {
    interval: &'a Interval,
    parsable: bool,
}

impl Numbers<'_> {
    fn rate(&self, count: u64) -> String {
        let rate = self.interval.rate(count).round() as u64;
        if self.parsable { rate.to_string() } else { human(rate) }
    }

    fn bytes(&self, bytes: u64) -> String {
        if self.parsable { bytes.to_string() } else { human_bytes(bytes) }
    }

    fn bytes_rate(&self, bytes: u64) -> String {
        self.bytes(self.interval.rate(bytes).round() as u64)
    }

    fn time(&self, ns: Option<u64>) -> String {
        match ns {
            None => "-".to_owned(),
            Some(ns) if self.parsable => ns.to_string(),
            Some(ns) => human_time_ns(ns),
        }
    }
}

/// The screen of one pool.
pub fn screen(interval: &Interval, order: Order, parsable: bool) -> String {
    let numbers = Numbers { interval, parsable };
    let mut out = summary(&numbers);
    out.push_str(&clients(&numbers, order));
    out.push_str(&operations(&numbers, order));
    out
}

fn summary(numbers: &Numbers<'_>) -> String {
    let all = numbers.interval.all_operations();
    let Interval { pool, seconds, arc, txg, leaves, written, .. } = numbers.interval;
    let device_read: u64 = leaves.iter().map(|leaf| leaf.read_bytes).sum();
    let device_written: u64 = written.iter().map(|cause| cause.bytes).sum();
    let mut out = format!(
        "{pool}: {} ops/s, {}/s read, {}/s written by clients; devices {}/s read, {}/s written; {seconds:.1} s\n",
        numbers.rate(all.requests),
        numbers.bytes_rate(all.read_bytes.total()),
        numbers.bytes_rate(all.written_bytes),
        numbers.bytes_rate(device_read),
        numbers.bytes_rate(device_written),
    );
    let sources = all.read_bytes.0.iter().map(|(source, bytes)| format!("{source} {}/s", numbers.bytes_rate(*bytes)));
    let sources: Vec<String> = sources.collect();
    out.push_str(&format!("  read from: {}\n", if sources.is_empty() { "-".to_owned() } else { sources.join(", ") }));
    let causes = written
        .iter()
        .map(|cause| format!("{} ({}) {}/s", cause.content, cause.redundancy, numbers.bytes_rate(cause.bytes)));
    let causes: Vec<String> = causes.collect();
    out.push_str(&format!("  written for: {}\n", if causes.is_empty() { "-".to_owned() } else { causes.join(", ") }));
    out.push_str(&format!(
        "  ARC {} of {}, {:.1}% hits; dirty {} of {}; acknowledged and not stable {}\n",
        numbers.bytes(arc.size_bytes()),
        numbers.bytes(arc.max_bytes),
        percent(arc.hits(), arc.hits() + arc.misses),
        numbers.bytes(txg.dirty_bytes),
        numbers.bytes(txg.dirty_max_bytes),
        numbers.bytes(txg.unstable_bytes),
    ));
    out
}

fn columns(names: &[(&str, Align)]) -> Table {
    Table::new(names.iter().map(|(name, align)| ((*name).to_owned(), *align)), false)
}

/// The screen of one pool with the files of the interval in their order.
pub fn files_screen(interval: &Interval, parsable: bool) -> String {
    let numbers = Numbers { interval, parsable };
    let mut out = summary(&numbers);
    out.push_str(&files(&numbers));
    out
}

fn files(numbers: &Numbers<'_>) -> String {
    use Align::{Left, Right};
    let heads = [("CLIENT", Left), ("PROTO", Left)];
    let right = ["OPS/S", "READ/S", "WRITE/S", "ERROR/S"].map(|name| (name, Right));
    let heads = heads.into_iter().chain(right).chain([("DATASET", Left), ("FILE", Left)]);
    let mut table = columns(&heads.collect::<Vec<_>>());
    let FileTable { rows, unlisted } = &numbers.interval.files;
    let rates = |counted: &FileBytes| {
        let FileBytes { requests, read_bytes, written_bytes } = *counted;
        [numbers.rate(requests), numbers.bytes_rate(read_bytes), numbers.bytes_rate(written_bytes)]
    };
    for row in rows {
        let file = row.path.as_deref().map_or_else(|| format!("object {}", row.object), printable);
        let names = [client_name(&row.protocol, &row.client), or_dash(&row.protocol)];
        let rest = [numbers.bytes_rate(row.error_bytes), or_dash(&row.dataset), file];
        table.row(names.into_iter().chain(rates(&row.counted)).chain(rest).collect());
    }
    if unlisted.requests > 0 {
        let names = ["(others)".to_owned(), "-".to_owned()];
        let rest = ["-"; 3].map(str::to_owned);
        table.row(names.into_iter().chain(rates(unlisted)).chain(rest).collect());
    }
    if table.is_empty() { "\n(no file was read or written)\n".to_owned() } else { format!("\n{}", table.text()) }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { printable(text) }
}

fn client_name(protocol: &str, client: &str) -> String {
    if protocol == "internal" && client.is_empty() { "(pool)".to_owned() } else { or_dash(client) }
}

fn clients(numbers: &Numbers<'_>, order: Order) -> String {
    use Align::{Left, Right};
    let mut rows: Vec<&ClientTotals> = numbers.interval.clients.iter().collect();
    let name = |row: &ClientTotals| (row.client.clone(), row.dataset.clone(), row.protocol.clone());
    rows.sort_by_key(|row| {
        let number = match order {
            Order::Ops => row.requests,
            Order::Bytes => row.read_bytes + row.written_bytes,
            Order::Read => row.read_bytes,
            Order::Write => row.written_bytes,
            Order::Device => row.device_bytes,
            Order::Name => 0,
        };
        (std::cmp::Reverse(number), name(row))
    });
    let heads = [("CLIENT", Left), ("PROTO", Left), ("DATASET", Left)];
    let heads = heads.into_iter().chain(["OPS/S", "READ/S", "WRITE/S", "DEVICE WRITE/S"].map(|name| (name, Right)));
    let mut table = columns(&heads.collect::<Vec<_>>());
    for row in &rows {
        table.row(vec![
            client_name(&row.protocol, &row.client),
            or_dash(&row.protocol),
            or_dash(&row.dataset),
            numbers.rate(row.requests),
            numbers.bytes_rate(row.read_bytes),
            numbers.bytes_rate(row.written_bytes),
            numbers.bytes_rate(row.device_bytes),
        ]);
    }
    if table.is_empty() { "\n(no requests)\n".to_owned() } else { format!("\n{}", table.text()) }
}

fn operations(numbers: &Numbers<'_>, order: Order) -> String {
    use Align::{Left, Right};
    let mut rows: Vec<&OperationTotals> = numbers.interval.operations.iter().collect();
    rows.sort_by_key(|row| {
        let number = match order {
            Order::Ops => row.requests,
            Order::Bytes => row.read_bytes.total() + row.written_bytes,
            Order::Read => row.read_bytes.total(),
            Order::Write => row.written_bytes,
            Order::Device => row.stage_ns.get("device"),
            Order::Name => 0,
        };
        (std::cmp::Reverse(number), row.operation.clone(), row.protocol.clone())
    });
    let heads = [("PROTO", Left), ("OPERATION", Left)];
    let right = ["OPS/S", "READ/S", "WRITE/S", "P50 <", "P99 <"].map(|name| (name, Right));
    let heads = heads.into_iter().chain(right).chain([("LONGEST STAGE, MEAN", Left)]);
    let mut table = columns(&heads.collect::<Vec<_>>());
    for row in &rows {
        let longest = row.stage_ns.0.iter().max_by_key(|(_, ns)| **ns);
        let mean = |(stage, ns): (&String, &u64)| format!("{stage} {}", numbers.time(Some(ns / row.requests.max(1))));
        table.row(vec![
            row.protocol.clone(),
            row.operation.clone(),
            numbers.rate(row.requests),
            numbers.bytes_rate(row.read_bytes.total()),
            numbers.bytes_rate(row.written_bytes),
            numbers.time(quantile_ns(&row.latency, 0.5)),
            numbers.time(quantile_ns(&row.latency, 0.99)),
            longest.map_or_else(|| "-".to_owned(), mean),
        ]);
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.text()) }
}

/// The text without control characters, which a name must not send to a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_analytics::{ArcState, CauseBytes, Counts, SpaceState, TxgState};

    fn counted(requests: u64, read_bytes: u64) -> FileBytes {
        FileBytes { requests, read_bytes, written_bytes: 2048 }
    }

    fn file(path: &str, read_bytes: u64) -> FileTotals {
        FileTotals {
            dataset: "tank/home".into(),
            objset: 54,
            object: 9,
            path: Some(path.into()),
            protocol: "nfs3".into(),
            client: "10.0.0.1".into(),
            entry: 1,
            counted: counted(10, read_bytes),
            error_bytes: 1 << 20,
        }
    }

    fn interval() -> Interval {
        let client = |client: &str, requests, written_bytes| ClientTotals {
            dataset: "tank/home".into(),
            objset: 54,
            protocol: "nfs3".into(),
            client: client.into(),
            requests,
            read_bytes: 4 << 20,
            written_bytes,
            ..ClientTotals::default()
        };
        Interval {
            pool: "tank".into(),
            time_ms: 0,
            seconds: 2.0,
            operations: vec![OperationTotals {
                protocol: "nfs3".into(),
                operation: "read".into(),
                requests: 30,
                read_bytes: Counts([("disk".into(), 6 << 20), ("arc demand".into(), 2 << 20)].into()),
                stage_ns: Counts([("device".into(), 300_000), ("queue".into(), 100_000)].into()),
                latency: [vec![0; 17], vec![29, 0, 1]].concat(),
                ..OperationTotals::default()
            }],
            clients: vec![client("10.0.0.1", 10, 2048), client("evil\x1b[2J", 20, 0)],
            files: FileTable { rows: vec![file("/a", 4 << 20), file("/b", 6 << 20)], unlisted: counted(3, 1 << 20) },
            datasets: Vec::new(),
            written: vec![CauseBytes { content: "data".into(), redundancy: "parity".into(), bytes: 2048 }],
            arc: ArcState { demand_hits: 3, misses: 1, max_bytes: 1 << 30, ..ArcState::default() },
            txg: TxgState { unstable_bytes: 512, ..TxgState::default() },
            leaves: Vec::new(),
            space: SpaceState::default(),
            host: None,
        }
    }

    #[test]
    fn a_screen_shows_who_does_what_and_where_bytes_come_from() {
        let text = screen(&interval(), Order::Ops, false);
        let expected = "\
tank: 15 ops/s, 4M/s read, 0B/s written by clients; devices 0B/s read, 1K/s written; 2.0 s
  read from: arc demand 1M/s, disk 3M/s
  written for: data (parity) 1K/s
  ARC 0B of 1G, 75.0% hits; dirty 0B of 0B; acknowledged and not stable 512B

CLIENT     PROTO  DATASET    OPS/S  READ/S  WRITE/S  DEVICE WRITE/S
evil?[2J   nfs3   tank/home     10      2M       0B              0B
10.0.0.1   nfs3   tank/home      5      2M       1K              0B

PROTO  OPERATION  OPS/S  READ/S  WRITE/S  P50 <    P99 <  LONGEST STAGE, MEAN
nfs3   read          15      4M       0B  262us  1ms  device 10us
";
        let squeeze =
            |text: &str| text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
        assert_eq!(squeeze(&text), squeeze(expected), "{text}");
        let order =
            |order| screen(&interval(), order, true).find("10.0.0.1") < screen(&interval(), order, true).find("evil");
        assert!(order(Order::Write) && order(Order::Name) && !order(Order::Ops));
    }

    #[test]
    fn a_screen_of_files_has_their_errors_and_the_sum_of_the_others() {
        let mut interval = interval();
        Order::Bytes.sort_files(&mut interval.files.rows);
        interval.files.rows[1].path = None;
        let text = files_screen(&interval, false);
        let rows: Vec<String> =
            text.lines().skip(5).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "CLIENT PROTO OPS/S READ/S WRITE/S ERROR/S DATASET FILE",
            "10.0.0.1 nfs3 5 3M 1K 512K tank/home /b",
            "10.0.0.1 nfs3 5 2M 1K 512K tank/home object 9",
            "(others) - 2 512K 1K - - -",
        ];
        assert_eq!(rows, expected, "{text}");
        interval.files = FileTable::default();
        assert!(files_screen(&interval, false).ends_with("\n(no file was read or written)\n"));
    }
}
