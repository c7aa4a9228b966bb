//! Colours on a terminal, as OpenZFS shows them: only if the user asks for them with the environment variable `ZFS_COLOR`
//! (`libzfs_util.c`: `use_color`; zpool-status(8)).

use std::io::IsTerminal;

/// Colours and weights of text, with the parameter of the escape sequence "select graphic rendition" (ECMA-48, 8.3.117).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Labels of a report.
    Bold = 1,
    /// Failures, and numbers of errors.
    Red = 31,
    /// States of vdevs and pools that work with less than all devices, and advice.
    Yellow = 33,
}

/// Whether output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Colors(pub bool);

/// Labels whose text is advice.
const ADVICE: [&str; 2] = ["status", "action"];
/// Maximum number of blanks before a label, which are aligned at their colons.
const MAX_INDENT: usize = 4;

impl Colors {
    /// The wish of the user who started this process: `ZFS_COLOR` is set, `NO_COLOR` is not (or empty), and standard output
    /// is a terminal that has colours.
    pub fn wanted() -> Colors {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let has_colors = std::env::var("TERM").is_ok_and(|term| term != "dumb" && term != "unknown");
        let is_asked = std::env::var_os("ZFS_COLOR").is_some() && !is_set("NO_COLOR");
        Colors(is_asked && has_colors && std::io::stdout().is_terminal())
    }

    /// The text in a colour, if colours are wanted.
    pub fn paint(self, paint: Option<Paint>, text: &str) -> String {
        match paint.filter(|_| self.0 && !text.is_empty()) {
            Some(paint) => format!("\x1b[{}m{text}\x1b[0m", paint as u8),
            None => text.to_owned(),
        }
    }

    /// A report in lines `label: text`: labels are bold, and advice, also in lines that go on after a tab, is yellow.
    pub fn labels(self, report: &str) -> String {
        if !self.0 {
            return report.to_owned();
        }
        let mut is_advice = false;
        let line = |line: &str| {
            let Some(label) = label_of(line) else {
                let goes_on = is_advice && line.starts_with('\t');
                is_advice = goes_on;
                return self.paint(goes_on.then_some(Paint::Yellow), line);
            };
            let (blanks, rest) = line.split_at(line.len() - line.trim_start().len());
            let (label_text, text) = rest.split_at(label.len() + 1);
            is_advice = ADVICE.contains(&label);
            let text = self.paint(is_advice.then_some(Paint::Yellow), text);
            format!("{blanks}{}{text}", self.paint(Some(Paint::Bold), label_text))
        };
        report.split('\n').map(line).collect::<Vec<_>>().join("\n")
    }
}

/// The colour of a vdev's or pool's state (`health_str_to_color` of `cmd/zpool`).
pub fn of_state(state: &str) -> Option<Paint> {
    match state {
        "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(Paint::Red),
        "OFFLINE" | "DEGRADED" | "REMOVED" => Some(Paint::Yellow),
        _ => None,
    }
}

/// The label at the beginning of a line.
fn label_of(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(' ');
    let (label, rest) = text.split_once(':')?;
    let is_label = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_alone = rest.is_empty() || rest.starts_with(' ');
    (is_label && is_alone && line.len() - text.len() <= MAX_INDENT).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bold_and_advice_is_yellow() {
        let report = "  pool: p\nstatus: One\n\ttwo\nconfig:\n\n\tNAME\n        /a: b\n";
        let painted = "  \x1b[1mpool:\x1b[0m p\n\x1b[1mstatus:\x1b[0m\x1b[33m One\x1b[0m\n\x1b[33m\ttwo\x1b[0m\n\
                       \x1b[1mconfig:\x1b[0m\n\n\tNAME\n        /a: b\n";
        assert_eq!(Colors(true).labels(report), painted);
        assert_eq!(Colors(false).labels(report), report);
    }

    #[test]
    fn states_have_the_colors_of_openzfs() {
        let colors = ["ONLINE", "DEGRADED", "FAULTED", "UNAVAIL", "OFFLINE"].map(of_state);
        assert_eq!(colors, [None, Some(Paint::Yellow), Some(Paint::Red), Some(Paint::Red), Some(Paint::Yellow)]);
        assert_eq!(Colors(true).paint(of_state("FAULTED"), "FAULTED "), "\x1b[31mFAULTED \x1b[0m");
        assert_eq!(Colors(false).paint(of_state("FAULTED"), "FAULTED "), "FAULTED ");
    }
}
