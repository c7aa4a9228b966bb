//! The vdevs in `zpool list -v`: those with data, by class, then cache devices and hot spares.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`collect_list_stats`).

use super::tree::NameStyle;
use super::vdevs::spare_state;
use crate::failure::Failure;
use crate::json::{self, Numbers};
use crate::units::human;
use serde_json::{Map, Value};
use weir_machine::Request;
use weir_pool::aux_devices::{Extra, extras};
use weir_pool::space::VdevSpace;
use weir_pool::status::VdevState;
use weir_pool::{Class, Pool, VdevConfig, capacity, properties, sizes};

/// Classes after the normal one, with their headings.
const CLASSES: [(Class, &str); 4] =
    [(Class::Normal, ""), (Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")];

/// The vdevs of a pool, as a list shows them.
pub struct VdevRows<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Full names of the columns.
    pub columns: &'a [String],
    /// Exact numbers.
    pub parsable: bool,
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

impl VdevRows<'_> {
    /// All rows.
    ///
    /// # Errors
    /// Errors of reading the lists of cache devices and spares.
    pub async fn all(&self) -> Result<Vec<ListedVdev>, Failure> {
        let mut out = Vec::new();
        for (class, heading) in CLASSES {
            let all = || self.pool.tree.children.iter().zip(&self.pool.space.vdevs);
            let members = || all().filter(|(top, _)| top.class == class && top.is_concrete());
            if members().next().is_some() && !heading.is_empty() {
                out.push(self.heading(heading));
            }
            for (top, space) in members() {
                out.push(self.row(top, 2, |column| self.of_top(top, space, column)));
                self.below(top, 4, &mut out);
            }
        }
        let rq = &Request::internal("list");
        let caches = extras(self.pool, rq, Extra::Cache).await?;
        let spares = extras(self.pool, rq, Extra::Spare).await?;
        if !caches.is_empty() {
            out.push(self.heading("cache"));
        }
        out.extend(caches.iter().map(|cache| self.row(cache, 2, |column| self.of_cache(cache, column))));
        if !spares.is_empty() {
            out.push(self.heading("spare"));
        }
        out.extend(spares.iter().map(|spare| {
            self.row(spare, 2, |column| (column == "health").then(|| spare_state(self.pool, spare).to_owned()))
        }));
        Ok(out)
    }

    fn heading(&self, name: &str) -> ListedVdev {
        let cells = self.columns.iter().map(|column| if column == "name" { name.to_owned() } else { dash(column) });
        ListedVdev { depth: 0, name: name.to_owned(), guid: 0, cells: cells.collect() }
    }

    fn row(&self, vdev: &VdevConfig, depth: usize, cell: impl Fn(&str) -> Option<String>) -> ListedVdev {
        let name = self.names.of(vdev);
        let shown = |column: &String| match column.as_str() {
            "name" => format!("{}{name}", " ".repeat(depth)),
            column => cell(column).unwrap_or_else(|| dash(column)),
        };
        let cells = self.columns.iter().map(shown).collect();
        ListedVdev { depth, guid: vdev.guid, cells, name }
    }

    fn below(&self, vdev: &VdevConfig, depth: usize, out: &mut Vec<ListedVdev>) {
        for child in &vdev.children {
            out.push(self.row(child, depth, |column| self.of_child(child, column)));
            self.below(child, depth + 2, out);
        }
    }

    fn number(&self, n: u64) -> String {
        if self.parsable { n.to_string() } else { human(n) }
    }

    fn health(&self, guid: u64) -> String {
        self.pool.states.get(&guid).copied().unwrap_or(VdevState::Unavail).to_string()
    }

    /// A vdev below a top-level one: the size of its device, if it has one.
    fn of_child(&self, vdev: &VdevConfig, column: &str) -> Option<String> {
        match column {
            "size" => {
                let device = self.pool.devices.get(&vdev.guid)?;
                Some(self.number(sizes::usable_device(device.disk.geometry().size_bytes)))
            }
            "health" => Some(self.health(vdev.guid)),
            _ => None,
        }
    }

    fn of_cache(&self, cache: &VdevConfig, column: &str) -> Option<String> {
        let device = self.pool.aux.get(&cache.guid);
        let bytes = || device.map(|device| sizes::usable_device(device.disk.geometry().size_bytes));
        match column {
            "size" => Some(self.number(bytes()?)),
            "health" => Some(if device.is_some() { VdevState::Online } else { VdevState::Unavail }.to_string()),
            _ => None,
        }
    }

    fn of_top(&self, top: &VdevConfig, space: &VdevSpace, column: &str) -> Option<String> {
        let size = space.space_bytes();
        let allocated = space.allocated_bytes();
        Some(match column {
            "size" if top.is_leaf() => self.of_child(top, column).unwrap_or_else(|| self.number(size)),
            "size" => self.number(size),
            "allocated" => self.number(allocated),
            "free" => self.number(size.saturating_sub(allocated)),
            "checkpoint" if space.checkpoint_bytes != 0 => self.number(space.checkpoint_bytes),
            "capacity" => {
                let percent = 100.0 * allocated as f64 / (size.max(1)) as f64;
                match (self.parsable, percent) {
                    (true, _) => format!("{}", percent as u64),
                    (_, percent) if percent < 10.0 => format!("{percent:.2}%"),
                    (_, percent) if percent < 100.0 => format!("{percent:.1}%"),
                    (_, percent) => format!("{percent:3.0}%"),
                }
            }
            "fragmentation" => {
                let percent = capacity::vdev_fragmentation(space)?;
                format!("{percent}{}", if self.parsable { "" } else { "%" })
            }
            "expandsize" => match properties::expandable_bytes_of(self.pool, top) {
                0 => return None,
                bytes => self.number(bytes),
            },
            "health" => self.health(top.guid),
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
