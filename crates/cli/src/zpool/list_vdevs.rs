//! The vdevs in `zpool list -v`: those with data, by class, then cache devices and hot spares.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`collect_list_stats`).

use super::tree::NameStyle;
use crate::json::{self, Numbers};
use crate::units::human;
use serde_json::{Map, Value};
use weir_admin::{VdevGroup, VdevSpace, VdevSpaceRow};

/// How the vdevs of a pool are listed.
pub struct VdevLines<'a> {
    /// Full names of the columns.
    pub columns: &'a [String],
    /// Exact numbers.
    pub parsable: bool,
    /// For programs: a tab instead of blanks before the name, as in OpenZFS.
    pub scripted: bool,
    /// Names of the vdevs.
    pub names: NameStyle,
}

/// A row of the list.
pub struct ListedVdev {
    /// Blanks before the name; 0 for a heading.
    pub depth: usize,
    /// Name, or heading.
    pub name: String,
    /// The vdev; 0 for a heading.
    pub guid: u64,
    /// One cell for each column.
    pub cells: Vec<String>,
}

/// Heading of a group of vdevs; empty for none.
pub fn heading_of(group: VdevGroup) -> &'static str {
    match group {
        VdevGroup::Normal => "",
        VdevGroup::Dedup => "dedup",
        VdevGroup::Special => "special",
        VdevGroup::Log => "logs",
        VdevGroup::Cache => "cache",
        VdevGroup::Spare => "spare",
    }
}

impl VdevLines<'_> {
    /// All rows, with headings.
    pub fn all(&self, vdevs: &[VdevSpaceRow]) -> Vec<ListedVdev> {
        let mut out = Vec::new();
        let mut group = VdevGroup::Normal;
        for vdev in vdevs {
            if vdev.group != group {
                group = vdev.group;
                out.push(self.heading(heading_of(group)));
            }
            out.push(self.row(vdev));
        }
        out
    }

    fn heading(&self, name: &str) -> ListedVdev {
        let cells = self.columns.iter().map(|column| if column == "name" { name.to_owned() } else { dash(column) });
        ListedVdev { depth: 0, name: name.to_owned(), guid: 0, cells: cells.collect() }
    }

    fn row(&self, vdev: &VdevSpaceRow) -> ListedVdev {
        let name = self.names.of_row(vdev);
        let depth = 2 * (vdev.depth + 1);
        let shown = |column: &String| match column.as_str() {
            "name" if self.scripted => format!("\t{name}"),
            "name" => format!("{}{name}", " ".repeat(depth)),
            column => self.cell(vdev, column).unwrap_or_else(|| dash(column)),
        };
        let cells = self.columns.iter().map(shown).collect();
        ListedVdev { depth, guid: vdev.guid, cells, name }
    }

    fn number(&self, n: u64) -> String {
        if self.parsable { n.to_string() } else { human(n) }
    }

    fn cell(&self, vdev: &VdevSpaceRow, column: &str) -> Option<String> {
        match column {
            "size" => vdev.device_bytes.or(vdev.space.map(|space| space.size_bytes)).map(|bytes| self.number(bytes)),
            "health" => Some(vdev.health.clone()),
            _ => vdev.space.and_then(|space| self.of_space(&space, column)),
        }
    }

    fn of_space(&self, space: &VdevSpace, column: &str) -> Option<String> {
        Some(match column {
            "allocated" => self.number(space.allocated_bytes),
            "free" => self.number(space.size_bytes.saturating_sub(space.allocated_bytes)),
            "checkpoint" if space.checkpoint_bytes != 0 => self.number(space.checkpoint_bytes),
            "capacity" => {
                let percent = 100.0 * space.allocated_bytes as f64 / (space.size_bytes.max(1)) as f64;
                match (self.parsable, percent) {
                    (true, _) => format!("{}", percent as u64),
                    (_, percent) if percent < 10.0 => format!("{percent:.2}%"),
                    (_, percent) if percent < 100.0 => format!("{percent:.1}%"),
                    (_, percent) => format!("{percent:3.0}%"),
                }
            }
            "fragmentation" => format!("{}{}", space.fragmentation_percent?, if self.parsable { "" } else { "%" }),
            "expandsize" if space.expandable_bytes != 0 => self.number(space.expandable_bytes),
            _ => return None,
        })
    }
}

fn dash(column: &str) -> String {
    if column == "altroot" { String::new() } else { "-".into() }
}

/// The rows as JSON: `vdevs` of the normal class, each with those below it, and the others under their headings.
pub fn json_rows(rows: &[ListedVdev], columns: &[String], numbers: Numbers, item: &mut Map<String, Value>) {
    let mut heading = "vdevs";
    let mut by_heading: Map<String, Value> = Map::new();
    let mut at = 0;
    while let Some(row) = rows.get(at) {
        if row.depth == 0 {
            heading = match row.name.as_str() {
                "cache" => "l2cache",
                "spare" => "spares",
                other => other,
            };
            at += 1;
            continue;
        }
        let (name, value, next) = json_row(rows, at, columns, numbers);
        let of = by_heading.entry(heading).or_insert_with(|| Value::Object(Map::new()));
        of.as_object_mut().into_iter().for_each(|of| drop(of.insert(name.clone(), value.clone())));
        debug_assert!(next > at);
        at = next;
    }
    item.extend(by_heading);
}

/// The row `at` with those below it, and the row after these.
fn json_row(rows: &[ListedVdev], at: usize, columns: &[String], numbers: Numbers) -> (String, Value, usize) {
    let Some(row) = rows.get(at) else { return (String::new(), Value::Null, at + 1) };
    let cells = columns.iter().zip(&row.cells).filter(|(column, _)| *column != "name");
    let cells = cells.map(|(column, cell)| (column.clone(), json::property(cell, "-", numbers)));
    let mut out = Map::new();
    out.insert("name".into(), row.name.clone().into());
    out.insert("guid".into(), json::number(row.guid, numbers));
    out.insert("properties".into(), Value::Object(cells.collect()));
    let mut below = Map::new();
    let mut next = at + 1;
    while rows.get(next).is_some_and(|other| other.depth > row.depth) {
        let (name, value, after) = json_row(rows, next, columns, numbers);
        below.insert(name, value);
        next = after;
    }
    if !below.is_empty() {
        out.insert("vdevs".into(), Value::Object(below));
    }
    (row.name.clone(), Value::Object(out), next)
}
