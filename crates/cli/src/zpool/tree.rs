//! The `config:` tree of `zpool import` and `zpool status`.

use super::advice::OpenErrors;
use crate::colors::{Colors, Paint, of_state};
use clap::Args;
use weir_admin::{VdevIo, VdevSpaceRow};
use weir_pool::dtls::Dtls;
use weir_pool::status::{States, VdevState};
use weir_pool::{Class, VdevConfig, VdevKind};

/// A line of the tree.
pub struct VdevRow {
    /// Blanks before the name.
    pub indent: usize,
    /// Name.
    pub name: String,
    /// State; `None` for headings.
    pub state: Option<String>,
    /// The vdev; 0 for headings.
    pub guid: u64,
    /// Note at the end of the line.
    pub note: String,
}

impl VdevRow {
    /// A heading.
    pub fn heading(name: &str) -> Self {
        VdevRow { indent: 0, name: name.into(), state: None, guid: 0, note: String::new() }
    }

    /// A spare or cache.
    pub fn aux(name: String, state: &str) -> Self {
        VdevRow { indent: 2, name, state: Some(state.into()), guid: 0, note: String::new() }
    }
}

/// The lines for a pool: its vdevs, then each class of its own under a heading.
pub fn lines(pool: &str, state: VdevState, root: &VdevConfig, facts: &TreeFacts<'_>) -> Vec<VdevRow> {
    let mut out = vec![VdevRow {
        indent: 0,
        name: pool.into(),
        state: Some(state.to_string()),
        guid: root.guid,
        note: String::new(),
    }];
    below(root, Class::Normal, facts, &mut out);
    for (class, heading) in [(Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")] {
        if root.children.iter().any(|v| shown(v, class)) {
            out.push(VdevRow::heading(heading));
            below(root, class, facts, &mut out);
        }
    }
    out
}

fn shown(vdev: &VdevConfig, class: Class) -> bool {
    vdev.class == class && !matches!(vdev.kind, VdevKind::Hole | VdevKind::Indirect)
}

/// Names of vdevs.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct NameStyle {
    /// Show GUIDs instead of names of vdevs
    #[arg(short = 'g')]
    pub guids: bool,
    /// Resolve symbolic links in names of vdevs
    #[arg(short = 'L')]
    pub resolved: bool,
    /// Show whole paths of vdevs
    #[arg(short = 'P')]
    pub full: bool,
}

impl NameStyle {
    /// The name of a vdev.
    pub fn of(self, vdev: &VdevConfig) -> String {
        let path = vdev.path.as_deref().filter(|_| vdev.is_leaf());
        self.of_path(path, vdev.kind == VdevKind::File, vdev.guid, || vdev.name())
    }

    /// The name of a vdev of a list.
    pub fn of_row(self, vdev: &VdevSpaceRow) -> String {
        self.of_path(vdev.path.as_deref(), vdev.kind == VdevKind::File.type_name(), vdev.guid, || vdev.name.clone())
    }

    /// The name of a vdev of a sample.
    pub fn of_sample(self, vdev: &VdevIo) -> String {
        self.of_path(vdev.path.as_deref(), vdev.kind == VdevKind::File.type_name(), vdev.guid, || vdev.name.clone())
    }

    /// The name of a vdev with the path of its device, if it is a leaf with one.
    fn of_path(self, path: Option<&str>, is_file: bool, guid: u64, name: impl Fn() -> String) -> String {
        let path = match path {
            Some(_) if self.guids => None,
            Some(path) if self.resolved => {
                let resolved = std::fs::canonicalize(path).ok().map(|path| path.display().to_string());
                resolved.or_else(|| Some(path.to_owned()))
            }
            Some(path) if self.full => Some(path.to_owned()),
            _ => None,
        };
        match path {
            Some(path) if self.full || is_file => path,
            Some(path) => path.rsplit('/').next().unwrap_or_default().to_owned(),
            None if self.guids => guid.to_string(),
            None => name(),
        }
    }
}

/// Rows of vdevs that are not healthy, with the vdevs and the headings above them, and the pool's row.
pub fn unhealthy(rows: Vec<VdevRow>, has_errors: impl Fn(u64) -> bool) -> Vec<VdevRow> {
    let mut kept = Vec::new();
    let mut below = 0;
    let count = rows.len();
    for (i, row) in rows.into_iter().rev().enumerate() {
        let is_healthy = matches!(row.state.as_deref(), None | Some("ONLINE" | "AVAIL")) && !has_errors(row.guid);
        if !is_healthy || row.indent < below || i + 1 == count {
            below = row.indent;
            kept.push(row);
        }
    }
    kept.reverse();
    debug_assert!(kept.len() <= count);
    kept
}

/// Facts about the vdevs.
pub struct TreeFacts<'a> {
    /// Their states.
    pub states: &'a States,
    /// The DTLs of the leaves.
    pub dtls: &'a Dtls,
    /// Whether a resilver runs.
    pub resilvers: bool,
    /// Why leaves cannot be used.
    pub open_errors: &'a OpenErrors,
    /// Names of the vdevs.
    pub names: NameStyle,
}

impl<'a> TreeFacts<'a> {
    /// Facts about a pool that is not imported: nothing runs, and the names are those of its labels.
    pub fn of_found(states: &'a States, dtls: &'a Dtls, open_errors: &'a OpenErrors) -> Self {
        TreeFacts { states, dtls, resilvers: false, open_errors, names: NameStyle::default() }
    }
}

fn below(root: &VdevConfig, class: Class, facts: &TreeFacts<'_>, out: &mut Vec<VdevRow>) {
    for vdev in root.children.iter().filter(|v| shown(v, class)) {
        push(vdev, 2, facts, out);
    }
}

fn push(vdev: &VdevConfig, indent: usize, facts: &TreeFacts<'_>, out: &mut Vec<VdevRow>) {
    let state = facts.states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail);
    let mut notes = Vec::new();
    let mut name = facts.names.of(vdev);
    if vdev.is_leaf() && state == VdevState::Unavail {
        name = vdev.guid.to_string();
        notes.extend(vdev.path.as_ref().map(|p| format!("was {p}")));
        notes.extend(facts.open_errors.get(vdev.guid).map(str::to_owned));
    }
    notes.extend(reason(vdev, state).map(str::to_owned));
    if state.is_usable() && facts.dtls.contains_key(&vdev.guid) {
        notes.push(if facts.resilvers { "(resilvering)".into() } else { "(awaiting resilver)".into() });
    }
    out.push(VdevRow { indent, name, state: Some(state.to_string()), guid: vdev.guid, note: notes.join(", ") });
    for child in &vdev.children {
        push(child, indent + 2, facts, out);
    }
}

/// Why a vdev has its state (`vs_aux`), where the state does not say it.
fn reason(vdev: &VdevConfig, state: VdevState) -> Option<&'static str> {
    match state {
        VdevState::Faulted | VdevState::Degraded if vdev.is_leaf() => match vdev.aux_state.as_deref() {
            Some("external") => Some("external device fault"),
            // A device that has just been taken out of service: the txg with the reason is on its way.
            None if state == VdevState::Faulted => None,
            _ => Some("too many errors"),
        },
        VdevState::Unavail if !vdev.children.is_empty() => Some("insufficient replicas"),
        _ => None,
    }
}

/// The tree as text indented by a tab: name, state, and the columns that `cells` returns for a vdev. A state that is not good
/// colours its row, and columns that are not zero are red.
pub fn text(lines: &[VdevRow], headings: &[&str], colors: Colors, cells: impl Fn(u64) -> Vec<String>) -> String {
    let width = lines.iter().map(|l| l.indent + l.name.chars().count()).max().unwrap_or(0).max(4);
    let mut out = format!("\t{:<width$}  {:<8}", "NAME", "STATE");
    for h in headings {
        out.push_str(&format!(" {h:>5}"));
    }
    out = out.trim_end().to_owned() + "\n";
    for l in lines {
        let name = format!("{}{}", " ".repeat(l.indent), l.name);
        let mut line = match &l.state {
            None => format!("\t{name}"),
            Some(state) => format!("\t{}", colors.paint(of_state(state), &format!("{name:<width$}  {state:<8}"))),
        };
        if l.state.is_some() {
            for c in cells(l.guid) {
                let is_zero = c == "0" || c == "-";
                line.push_str(&colors.paint((!is_zero).then_some(Paint::Red), &format!(" {c:>5}")));
            }
        }
        if !l.note.is_empty() {
            line.push_str("  ");
            line.push_str(&l.note);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
