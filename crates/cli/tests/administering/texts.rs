//! What commands about an open pool print: the text is kept in `tests/expected` and compared as a whole, with figures, times and
//! names of this machine masked. `WEIR_BLESS=1` writes it anew.

use super::Lab;
use std::path::Path;

/// How the figures of a text are masked.
#[derive(Clone, Copy)]
enum Masked {
    /// All of them.
    All,
    /// Those after the first word of a line, and `-` for a figure that there is not.
    AfterFirst,
}

/// The commands whose text is kept, in their order.
const SHOWN: &[(&str, Masked)] = &[
    ("zpool events", Masked::All),
    ("zpool events -v p", Masked::All),
    ("zpool history p", Masked::All),
    ("zpool history -l p", Masked::All),
    ("zpool iostat p", Masked::AfterFirst),
    ("zpool iostat -v p", Masked::AfterFirst),
    ("zpool iostat -Hp p", Masked::AfterFirst),
    ("zpool iostat -vlq p", Masked::AfterFirst),
    ("zpool iostat -r p", Masked::AfterFirst),
    ("zpool iostat -w p", Masked::AfterFirst),
    ("zpool iostat -n p d1 0.01 2", Masked::AfterFirst),
];

/// Maximum number of blanks before a vdev or a field of an event.
const MAX_INDENT: usize = 8;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const UNITS: [&str; 13] = ["K", "M", "G", "T", "P", "E", "B", "ns", "us", "ms", "s", "%", "x"];

/// Whether a word is a number in decimal or hexadecimal digits, a time or a date, with a unit or without.
fn is_figure(word: &str) -> bool {
    let word = word.trim_matches(|c| "[](),:;\"".contains(c));
    let word = UNITS.iter().find_map(|unit| word.strip_suffix(unit)).filter(|rest| !rest.is_empty()).unwrap_or(word);
    let digits = word.strip_prefix("0x").map_or("0123456789.:-", |_| "0123456789abcdefx");
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| digits.contains(c)) || MONTHS.contains(&word)
}

/// The text without figures. Words are separated by one blank, and lines of dashes have two of them: columns are as wide as the names
/// of devices, which are in another folder each time.
fn masked(text: &str, how: Masked) -> String {
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        // That of a heading is as wide as the column below it.
        let indent = " ".repeat(if indent > MAX_INDENT { 0 } else { indent });
        let words = line.split_whitespace().enumerate().map(|(at, word)| match how {
            Masked::AfterFirst if at == 0 && word.starts_with("--") => "--",
            Masked::AfterFirst if at == 0 => word,
            Masked::AfterFirst if word == "-" => "N",
            _ if is_figure(word) => "N",
            _ if word.chars().all(|c| c == '-') => "--",
            _ => word,
        });
        format!("{indent}{}\n", words.collect::<Vec<_>>().join(" "))
    };
    text.lines().map(line).collect()
}

#[test]
fn texts_about_an_open_pool_are_as_kept() {
    let lab = Lab::new();
    lab.ok("zfs create -o org.weir:tag=x p/a");
    lab.ok("zfs snapshot p/a@1");
    lab.ok("zpool set comment=kept p");
    let mut server = lab.serve();
    lab.ok("zfs destroy p/a@1");
    lab.ok("zpool scrub -w p");
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut differ = Vec::new();
    for (line, how) in SHOWN {
        let text = lab.ok(line).replace(&lab.0.path().display().to_string(), "DIR").replace(host.trim(), "HOST");
        let text = masked(&text, *how);
        let file = expected.join(format!("open.{}.txt", line.replace(' ', "_")));
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(&file, &text).unwrap();
        } else if std::fs::read_to_string(&file).unwrap_or_default() != text {
            differ.push(format!("{}:\n{text}", file.display()));
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(differ.is_empty(), "not as kept:\n{}", differ.join("\n"));
}

#[test]
fn figures_are_masked_and_words_are_kept() {
    let events = "Nov 28 2026 10:11:12.123456789  sysevent.fs.zfs.history_event\n        eid = 0x1f (31)\n";
    assert_eq!(masked(events, Masked::All), "N N N N sysevent.fs.zfs.history_event\n        eid = N N\n");
    let iostat = "  mirror-0   1.5M  254M      0     12   -  3us\n";
    assert_eq!(masked(iostat, Masked::AfterFirst), "  mirror-0 N N N N N N\n");
    assert_eq!(
        masked("             capacity  operations\n----------  -----\n", Masked::AfterFirst),
        "capacity operations\n-- --\n"
    );
    assert_eq!(masked("2026-11-28.10:11:12 zfs snapshot p/a@1\n", Masked::All), "N zfs snapshot p/a@1\n");
}

/// Commands print times in the time zone of their own `TZ`, and with `-p` the seconds since 1970.
#[test]
fn times_are_local() {
    let lab = Lab::new();
    let server = lab.serve();
    lab.ok("zfs snapshot p@a");
    lab.ok("zfs hold kept p@a");
    lab.ok("zpool checkpoint p");
    let in_zone = |zone: &str, line: &str| {
        let out = lab.weir(line).env("TZ", zone).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let exact = in_zone("UTC", "zfs get -Hpo value creation p@a");
    let seconds: i64 = exact.trim().parse().unwrap();
    let local = jiff::Timestamp::from_second(seconds).unwrap().in_tz("Asia/Kathmandu").unwrap();
    let creation = local.strftime("%a %b %e %k:%M %Y").to_string();
    assert_eq!(in_zone("Asia/Kathmandu", "zfs get -Ho value creation p@a").trim_end(), creation);
    assert_eq!(in_zone("Asia/Kathmandu", "zfs list -Ho creation -t snapshot").trim_end(), creation);
    assert_eq!(in_zone("Asia/Kathmandu", "zfs get -Hpo value creation p@a"), exact);
    for line in ["zfs holds p@a", "zpool history p", "zpool events", "zpool status p"] {
        assert_ne!(in_zone("Asia/Kathmandu", line), in_zone("UTC", line), "{line}");
    }
    super::end(server);
}

/// Commands about a pool that does not exist say so, and not where they looked.
#[test]
fn a_pool_that_does_not_exist_is_named() {
    let lab = Lab::new();
    for (line, what) in [
        ("zfs send none@a", "no such pool"),
        ("zfs diff none@a", "dataset does not exist"),
        ("zfs holds none@a", "dataset does not exist"),
        ("zfs allow none", "dataset does not exist"),
        ("zfs userspace none", "dataset does not exist"),
        ("zfs load-key none", "no such pool"),
        ("zfs upgrade none", "no such pool"),
    ] {
        assert_eq!(lab.fails(line), format!("cannot open 'none': {what}\n"), "{line}");
    }
}
