//! The `config:` tree of `zpool import` and `zpool status`.

use super::list_vdevs::heading_of;
use crate::colors::{Colors, Paint, of_state};
use clap::Args;
use weir_admin::{HealthReason, VdevErrors, VdevGroup, VdevHealth, VdevIo, VdevSpaceRow, VdevStatus};
use weir_pool::{VdevConfig, VdevKind};

/// A line of the tree.
pub struct VdevRow {
    /// Blanks before the name.
    pub indent: usize,
    /// Name.
    pub name: String,
    /// Health; `None` for headings.
    pub health: Option<VdevHealth>,
    /// Whether the row has columns: not that of a heading or of a spare.
    pub has_columns: bool,
    /// Errors of a device; `None` for other vdevs.
    pub errors: Option<VdevErrors>,
    /// Note at the end of the line.
    pub note: String,
    /// Path of its device, if it has one.
    pub path: Option<String>,
}

impl VdevRow {
    /// A heading.
    pub fn heading(name: &str) -> Self {
        VdevRow {
            indent: 0,
            name: name.into(),
            health: None,
            has_columns: false,
            errors: None,
            note: String::new(),
            path: None,
        }
    }

    /// A spare or cache device.
    pub fn aux(vdev: &VdevStatus, has_columns: bool, note: String) -> Self {
        VdevRow {
            indent: 2,
            name: vdev.name.clone(),
            health: Some(vdev.health),
            has_columns,
            errors: vdev.errors,
            note,
            path: vdev.path.clone(),
        }
    }
}

/// The lines for a pool: its vdevs, then each class of its own under a heading. `note` returns what is added to the note of a
/// device.
pub fn lines(root: &VdevStatus, style: TreeStyle, note: &dyn Fn(&VdevStatus) -> Vec<String>) -> Vec<VdevRow> {
    let mut out = vec![VdevRow {
        indent: 0,
        name: root.name.clone(),
        health: Some(root.health),
        has_columns: true,
        errors: root.errors,
        note: String::new(),
        path: None,
    }];
    for group in [VdevGroup::Normal, VdevGroup::Dedup, VdevGroup::Special, VdevGroup::Log] {
        let members: Vec<&VdevStatus> = root.children.iter().filter(|top| top.group == Some(group)).collect();
        if group != VdevGroup::Normal && !members.is_empty() {
            out.push(VdevRow::heading(heading_of(group)));
        }
        members.into_iter().for_each(|top| push(top, 2, style, note, &mut out));
    }
    out
}

/// How the vdevs of a pool are shown.
#[derive(Clone, Copy, Default)]
pub struct TreeStyle {
    /// Whether a resilver is in progress.
    pub resilvers: bool,
    /// Names of the vdevs.
    pub names: NameStyle,
    /// Whether nothing new is allocated on the vdev above.
    pub non_allocating: bool,
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

    /// The name of a vdev of a status.
    pub fn of_status(self, vdev: &VdevStatus) -> String {
        let path = vdev.path.as_deref().filter(|_| vdev.is_leaf);
        self.of_path(path, vdev.kind == VdevKind::File.type_name(), vdev.guid, || vdev.name.clone())
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
pub fn unhealthy(rows: Vec<VdevRow>) -> Vec<VdevRow> {
    let mut kept = Vec::new();
    let mut below = 0;
    let count = rows.len();
    for (i, row) in rows.into_iter().rev().enumerate() {
        let is_healthy = matches!(row.health, None | Some(VdevHealth::Online | VdevHealth::Avail))
            && !row.errors.is_some_and(|errors| errors.any());
        if !is_healthy || row.indent < below || i + 1 == count {
            below = row.indent;
            kept.push(row);
        }
    }
    kept.reverse();
    debug_assert!(kept.len() <= count);
    kept
}

fn push(
    vdev: &VdevStatus,
    indent: usize,
    style: TreeStyle,
    note: &dyn Fn(&VdevStatus) -> Vec<String>,
    out: &mut Vec<VdevRow>,
) {
    let mut notes = Vec::new();
    let mut name = style.names.of_status(vdev);
    if vdev.is_leaf && vdev.health == VdevHealth::Unavail {
        name = vdev.guid.to_string();
        notes.extend(vdev.path.as_ref().map(|p| format!("was {p}")));
        notes.extend(vdev.open_error.clone());
    }
    notes.extend(vdev.reason.map(|reason| reason_text(reason).to_owned()));
    let is_usable = matches!(vdev.health, VdevHealth::Online | VdevHealth::Degraded);
    if is_usable && vdev.missing_txgs.is_some() {
        notes.push(if style.resilvers { "(resilvering)".into() } else { "(awaiting resilver)".into() });
    }
    let mut parts = vec![notes.join(", ")];
    let style = TreeStyle { non_allocating: style.non_allocating || vdev.non_allocating, ..style };
    if vdev.removing {
        parts.push("(removing)".into());
    } else if style.non_allocating {
        parts.push("(non-allocating)".into());
    }
    parts.extend(note(vdev));
    parts.retain(|part| !part.is_empty());
    out.push(VdevRow {
        indent,
        name,
        health: Some(vdev.health),
        // Missing vdevs have no number.
        has_columns: vdev.guid != 0,
        errors: vdev.errors,
        note: parts.join("  "),
        path: vdev.path.clone().filter(|_| vdev.is_leaf),
    });
    vdev.children.iter().for_each(|child| push(child, indent + 2, style, note, out));
}

fn reason_text(reason: HealthReason) -> &'static str {
    match reason {
        HealthReason::External => "external device fault",
        HealthReason::TooManyErrors => "too many errors",
        HealthReason::InsufficientReplicas => "insufficient replicas",
    }
}

/// The tree as text indented by a tab: name, health, and the columns that `cells` returns for a vdev. A health that is not good
/// colours its row, and columns that are not zero are red.
pub fn text(
    lines: &[VdevRow],
    headings: &[&str],
    colors: Colors,
    cells: impl Fn(Option<VdevErrors>) -> Vec<String>,
) -> String {
    let width = lines.iter().map(|l| l.indent + l.name.chars().count()).max().unwrap_or(0).max(4);
    let mut out = format!("\t{:<width$}  {:<8}", "NAME", "STATE");
    for h in headings {
        out.push_str(&format!(" {h:>5}"));
    }
    out = out.trim_end().to_owned() + "\n";
    for l in lines {
        let name = format!("{}{}", " ".repeat(l.indent), l.name);
        let health = l.health.map(|health| health.to_string());
        let mut line = match &health {
            None => format!("\t{name}"),
            Some(health) => format!("\t{}", colors.paint(of_state(health), &format!("{name:<width$}  {health:<8}"))),
        };
        if l.has_columns {
            for c in cells(l.errors) {
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
