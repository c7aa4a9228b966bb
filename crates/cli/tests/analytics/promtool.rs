//! Judgement of `promtool check metrics`.

use std::io::Write;
use std::process::{Command, Stdio};

/// The text in Prometheus's older form, which promtool reads: counters are described with the end of their names, metrics of no
/// stated type are `untyped`, and units and the final line `# EOF` are left out.
fn older_form(text: &str) -> String {
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("# UNIT") && *line != "# EOF") {
        match line.strip_prefix("# ").map(|rest| rest.splitn(3, ' ').collect::<Vec<_>>()).as_deref() {
            Some([kind, name, rest]) if counters.contains(name) => {
                out.push_str(&format!("# {kind} {name}_total {rest}\n"))
            }
            Some(["TYPE", name, "unknown"]) => out.push_str(&format!("# TYPE {name} untyped\n")),
            _ => out.push_str(&format!("{line}\n")),
        }
    }
    out
}

/// Fails if promtool finds an error or a bad name in the answer of `/metrics`.
pub fn check(metrics: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap();
    child.stdin.take().unwrap().write_all(older_form(metrics).as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&said));
}
