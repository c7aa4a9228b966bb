//! The state of a pool as the text of `zpool status`.

use super::dedup;
use super::l2arc;
use super::rebuild_text;
use super::tree::{self, NameStyle, TreeStyle, VdevRow};
use super::vdev_scripts::ScriptColumns;
use super::wrapped::wrapped;
use crate::colors::{Colors, of_state};
use crate::times::date_and_time;
use crate::units::{human, percent};
use weir_admin::{
    ErrorScrubStatus, ExpansionStatus, LeafPass, LeafPassState, PoolStatus, RemovalStatus, ScanStage, ScanStatus,
    VdevErrors, VdevHealth, VdevStatus,
};
use weir_dsl::props::human_size;

/// Time left of a removal that is not shown any more, in hours.
const MAX_LEFT_HOURS: u64 = 30 * 24;

/// Parts of the text that options choose.
#[derive(Clone, Copy)]
pub struct StatusText {
    /// The files with errors.
    pub verbose: bool,
    /// The number of slow I/Os.
    pub slow: bool,
    /// Unhealthy vdevs only.
    pub unhealthy_vdevs: bool,
    /// Names of the vdevs.
    pub names: NameStyle,
    /// How far devices are initialized.
    pub initialized: bool,
    /// How far devices are trimmed.
    pub trimmed: bool,
    /// Exact numbers.
    pub parsable: bool,
}

impl StatusText {
    /// The text for a pool, of which these files have errors, with the columns that scripts add to its devices.
    pub fn of(self, pool: &PoolStatus, damaged: &[String], scripts: &ScriptColumns, colors: Colors) -> String {
        let health = colors.paint(of_state(&pool.health), &pool.health);
        let mut out = format!("  pool: {}\n state: {health}\n", pool.name);
        if let Some(problem) = pool.problem {
            out.push_str(&wrapped("status", &problem.status()));
            out.push_str(&wrapped("action", problem.action()));
            problem.page().into_iter().for_each(|page| out.push_str(&format!("   see: {page}\n")));
        } else if pool.exported {
            out.push_str("status: The pool is exported: no host uses it.\n");
            out.push_str(&format!("action: Import it with 'zpool import {}'.\n", pool.name));
        }
        if let Some(why) = &pool.suspended {
            out.push_str(&format!("   why: {why}\n"));
        }
        pool.lost.iter().for_each(|line| out.push_str(&format!("  lost: {line}\n")));
        out.push_str(&activity(pool));
        out.push_str("config:\n\n");
        out.push_str(&self.tree(pool, scripts, colors));
        pool.dedup.iter().for_each(|tables| out.push_str(&dedup::text(tables, self.parsable)));
        out.push('\n');
        if let Some(error) = &pool.unread_errors {
            out.push_str(&format!("errors: Part of the list is unavailable: {error}\n"));
        }
        match (pool.error_count, self.verbose) {
            (0, _) if pool.unread_errors.is_some() => {}
            (0, _) => out.push_str("errors: No known data errors\n"),
            (n, false) => out.push_str(&format!("errors: {n} data errors, use '-v' for a list\n")),
            (_, true) => {
                out.push_str("errors: Permanent errors have been detected in the following files:\n\n");
                damaged.iter().for_each(|line| out.push_str(&format!("        {line}\n")));
            }
        }
        colors.labels(&out)
    }

    fn tree(self, pool: &PoolStatus, scripts: &ScriptColumns, colors: Colors) -> String {
        let style = TreeStyle { resilvers: pool.resilvers(), names: self.names, ..TreeStyle::default() };
        let mut lines = tree::lines(&pool.root, style, &|vdev| self.passes(vdev));
        if !pool.caches.is_empty() {
            lines.push(VdevRow::heading("cache"));
        }
        lines.extend(pool.caches.iter().map(|cache| VdevRow::aux(cache, true, l2arc::note(cache))));
        if !pool.spares.is_empty() {
            lines.push(VdevRow::heading("spares"));
        }
        lines.extend(pool.spares.iter().map(|spare| {
            let note = if spare.health == VdevHealth::InUse { "currently in use" } else { "" };
            VdevRow::aux(spare, false, note.into())
        }));
        if self.unhealthy_vdevs {
            lines = tree::unhealthy(lines);
        }
        for line in &mut lines {
            if let Some(cells) = scripts.cells(&pool.name, line.path.as_deref()) {
                // Two blanks precede a note.
                let cells = if line.note.is_empty() { cells.get(2..).unwrap_or_default() } else { &cells };
                line.note.push_str(cells);
            }
        }
        let headings = ["READ", "WRITE", "CKSUM", "SLOW"];
        let columns = if self.slow { headings.len() } else { headings.len() - 1 };
        let text = tree::text(&lines, &headings[..columns], colors, |errors: Option<VdevErrors>| match errors {
            Some(VdevErrors { reads, writes, checksums, slow }) => {
                [reads, writes, checksums, slow][..columns].iter().map(u64::to_string).collect()
            }
            // A vdev that is no leaf has no slow operations of its own.
            None => ["0", "0", "0", "-"][..columns].iter().map(ToString::to_string).collect(),
        });
        match text.split_once('\n') {
            Some((first, rest)) => format!("{first}{}\n{rest}", scripts.headings()),
            None => text,
        }
    }

    /// How far a device is initialized and trimmed; without options, what goes on.
    fn passes(self, vdev: &VdevStatus) -> Vec<String> {
        let passes = [
            (vdev.initialized, self.initialized, "(initializing)", ["initialized", "uninitialized"]),
            (vdev.trimmed, self.trimmed, "(trimming)", ["trimmed", "untrimmed"]),
        ];
        let note =
            |(pass, is_wanted, going_on, words): (Option<LeafPass>, bool, &str, [&str; 2])| match (is_wanted, pass) {
                (true, Some(pass)) => Some(pass_text(pass, words)),
                (true, None) if vdev.is_leaf && vdev.group.is_some() => Some(format!("({})", words[1])),
                (false, Some(LeafPass { state: LeafPassState::Active, .. })) => Some(going_on.to_owned()),
                _ => None,
            };
        passes.into_iter().filter_map(note).collect()
    }
}

/// Scrub, rebuilds, frees, removal, expansion and checkpoint.
fn activity(pool: &PoolStatus) -> String {
    let mut out = String::new();
    let (scan, rebuilds) = rebuild_text::shown(pool);
    match (&pool.error_scrub, scan) {
        (Some(of_errors), Some(scan)) if !scan.resilver => out.push_str(&error_scrub_text(of_errors)),
        (of_errors, scan) => {
            out.extend(of_errors.as_ref().map(error_scrub_text));
            out.extend(scan.map(scan_text));
        }
    }
    for rebuild in rebuilds {
        let vdev = pool.root.children.iter().find(|top| top.id == rebuild.vdev);
        let name = vdev.map_or_else(|| rebuild.vdev.to_string(), |top| top.name.clone());
        out.push_str(&rebuild_text::text(rebuild, &name));
    }
    if pool.freeing_bytes > 0 {
        let left = human_size(pool.freeing_bytes);
        out.push_str(&format!("freeing: {left} of destroyed datasets\n"));
    }
    if let Some(removal) = &pool.removal {
        out.push_str(&removal_text(pool, removal));
    }
    if let Some(e) = &pool.expansion {
        out.push_str(&expansion_text(pool, e));
    }
    if let Some(c) = &pool.checkpoint {
        let time = date_and_time(c.taken_s);
        let bytes = human_size(c.bytes);
        out.push_str(&format!("checkpoint: created {time}, consumes {bytes}\n"));
    }
    out
}

/// A scrub or resilver.
fn scan_text(scan: &ScanStatus) -> String {
    let (what, did) = if scan.resilver { ("resilver", "resilvered") } else { ("scrub", "scrub repaired") };
    let line = match scan.stage {
        ScanStage::Finished => {
            let took = duration(scan.end_s.saturating_sub(scan.start_s));
            let bytes = human_size(scan.processed_bytes);
            format!("{did} {bytes} in {took} with {} errors on {}", scan.errors, date_and_time(scan.end_s))
        }
        ScanStage::Canceled => format!("{what} canceled on {}", date_and_time(scan.end_s)),
        ScanStage::Running if scan.paused => {
            let since = match scan.paused_s {
                0 => String::new(),
                time_s => format!(" since {}", date_and_time(time_s)),
            };
            format!("{what} paused{since}\n\t{what} started on {}", date_and_time(scan.start_s))
        }
        ScanStage::Running => format!("{what} in progress since {}", date_and_time(scan.start_s)),
    };
    let running = if scan.stage == ScanStage::Running { running_text(scan) } else { String::new() };
    format!("  scan: {line}\n{running}")
}

/// A scrub of the blocks in the error log, as OpenZFS says it (`print_err_scrub_status`), which shows it instead of the last scrub.
fn error_scrub_text(scrub: &ErrorScrubStatus) -> String {
    let line = match scrub.stage {
        ScanStage::Finished => {
            let took = scrub.end_s.saturating_sub(scrub.start_s);
            let days = took / 86_400;
            let clock = duration(took % 86_400);
            let end = date_and_time(scrub.end_s);
            format!("scrubbed {} error blocks in {days} days {clock} on {end}", scrub.examined)
        }
        ScanStage::Canceled => format!("error scrub canceled on {}", date_and_time(scrub.end_s)),
        ScanStage::Running => {
            let start = date_and_time(scrub.start_s);
            let state = match scrub.paused {
                true => format!("error scrub paused\n\terror scrub started on {start}"),
                false => format!("error scrub in progress since {start}"),
            };
            let done = percent(scrub.examined, scrub.examined.saturating_add(scrub.to_examine));
            format!("{state}\n\t{done:.2}% done, issued I/O for {} error blocks", scrub.examined)
        }
    };
    format!(" scrub: {line}\n")
}

/// Progress of a scrub or resilver, as OpenZFS says it (`print_scan_scrub_resilver_status`): blocks that were found are scanned, and
/// those that were also read are issued. Other than there, the time left is stated at any rate.
fn running_text(scan: &ScanStatus) -> String {
    let all = human_size(scan.to_examine_bytes);
    let found = scan.found_bytes.max(scan.examined_bytes);
    let rate_of = |bytes: u64| bytes.checked_div(scan.active_s).filter(|rate| *rate > 0 && !scan.paused);
    let part_of = |bytes: u64| {
        let at = rate_of(bytes).map(|rate| format!(" at {}/s", human_size(rate))).unwrap_or_default();
        (human_size(bytes), at)
    };
    let ((found, found_at), (issued, issued_at)) = (part_of(found), part_of(scan.examined_bytes));
    let left = match scan.left_s {
        _ if scan.paused => String::new(),
        Some(left_s) => format!(", {} to go", duration(left_s)),
        None => ", no estimated completion time".to_owned(),
    };
    let part = percent(scan.examined_bytes, scan.to_examine_bytes).min(100.0);
    let done = human_size(scan.processed_bytes);
    let did = if scan.resilver { "resilvered" } else { "repaired" };
    format!(
        "\t{found} / {all} scanned{found_at}, {issued} / {all} issued{issued_at}\n\t{done} {did}, {part:.2}% done{left}\n"
    )
}

/// A removal, as OpenZFS says it (`print_removal_status`).
fn removal_text(pool: &PoolStatus, r: &RemovalStatus) -> String {
    let vdev = pool.root.children.iter().find(|top| top.id == r.vdev);
    let name = vdev.map_or_else(|| r.vdev.to_string(), |top| top.name.clone());
    let copied = human(r.copied_bytes);
    let mut out = match r.stage {
        ScanStage::Finished => {
            let minutes = r.end_s.saturating_sub(r.start_s) / 60;
            let took = format!("{}h{}m", minutes / 60, minutes % 60);
            let end = date_and_time(r.end_s);
            format!("remove: Removal of vdev {} copied {copied} in {took}, completed on {end}\n", r.vdev)
        }
        ScanStage::Canceled => format!("remove: Removal of {name} canceled on {}\n", date_and_time(r.end_s)),
        ScanStage::Running => {
            let rate = (r.copied_bytes / pool.now_s.saturating_sub(r.start_s).max(1)).max(1);
            let minutes = r.to_copy_bytes.saturating_sub(r.copied_bytes) / rate / 60;
            let left = match minutes / 60 {
                hours if hours < MAX_LEFT_HOURS => format!("{hours}h{}m to go", minutes % 60),
                _ => "(copy is slow, no estimated time)".to_owned(),
            };
            format!(
                "remove: Evacuation of {name} in progress since {}\n\t{copied} copied out of {} at {}/s, {:.2}% done, {left}\n",
                date_and_time(r.start_s),
                human(r.to_copy_bytes),
                human(rate),
                percent(r.copied_bytes, r.to_copy_bytes)
            )
        }
    };
    if r.mapping_memory_bytes > 0 {
        let memory = human(r.mapping_memory_bytes);
        out.push_str(&format!("\t{memory} memory used for removed device mappings\n"));
    }
    out
}

/// A RAID-Z expansion, as OpenZFS says it (`print_raidz_expand_status`).
fn expansion_text(pool: &PoolStatus, e: &ExpansionStatus) -> String {
    let vdev = pool.root.children.iter().find(|top| top.id == e.vdev);
    let name = vdev.map_or_else(|| e.vdev.to_string(), |top| top.name.clone());
    let copied = human(e.reflowed_bytes);
    if e.stage != ScanStage::Running {
        let took = duration(e.end_s.saturating_sub(e.start_s));
        return format!("expand: expanded {name} copied {copied} in {took}, on {}\n", date_and_time(e.end_s));
    }
    let rate = (e.reflowed_bytes / pool.now_s.saturating_sub(e.start_s).max(1)).max(1);
    let left_s = e.to_reflow_bytes.saturating_sub(e.reflowed_bytes) / rate;
    let left = match left_s / 3600 {
        _ if vdev.is_some_and(|top| top.health != VdevHealth::Online) => "paused for resilver or clear".to_owned(),
        hours if hours < MAX_LEFT_HOURS => format!("{} to go", duration(left_s)),
        _ => "(copy is slow, no estimated time)".to_owned(),
    };
    format!(
        "expand: expansion of {name} in progress since {}\n\t{copied} / {} copied at {}/s, {:.2}% done, {left}\n",
        date_and_time(e.start_s),
        human(e.to_reflow_bytes),
        human(rate),
        percent(e.reflowed_bytes, e.to_reflow_bytes).min(100.0)
    )
}

/// How far a pass over a device has come, as OpenZFS says it (`print_status_initialize`, `print_status_trim`). `words` are those
/// for a device over which it passed, and for one over which it did not.
fn pass_text(pass: LeafPass, [done, not_done]: [&str; 2]) -> String {
    let how = match pass.state {
        LeafPassState::None | LeafPassState::Canceled => return format!("({not_done})"),
        LeafPassState::Suspended => "suspended, started at",
        LeafPassState::Active => "started at",
        LeafPassState::Complete => "completed at",
    };
    format!("({}% {done}, {how} {})", pass.percent, date_and_time(pass.time_s))
}

/// `HH:MM:SS`, days before it if there are any.
pub(super) fn duration(seconds: u64) -> String {
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86_400 {
        0 => clock,
        days => format!("{days} days {clock}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRUB: ScanStatus = ScanStatus {
        resilver: false,
        stage: ScanStage::Running,
        paused: false,
        paused_s: 0,
        start_s: 0,
        end_s: 0,
        active_s: 10,
        left_s: Some(30),
        to_examine_bytes: 4 << 30,
        examined_bytes: 1 << 30,
        found_bytes: 2 << 30,
        skipped_bytes: 0,
        processed_bytes: 0,
        errors: 3,
    };

    #[test]
    fn a_scrub_in_progress_has_openzfs_lines() {
        assert_eq!(
            running_text(&SCRUB),
            "\t2G / 4G scanned at 205M/s, 1G / 4G issued at 102M/s\n\t0B repaired, 25.00% done, 00:00:30 to go\n"
        );
        let begins =
            ScanStatus { resilver: true, active_s: 0, left_s: None, examined_bytes: 0, found_bytes: 0, ..SCRUB };
        let text = "\t0B / 4G scanned, 0B / 4G issued\n\t0B resilvered, 0.00% done, no estimated completion time\n";
        assert_eq!(running_text(&begins), text);
        let paused = running_text(&ScanStatus { paused: true, ..SCRUB });
        assert_eq!(paused, "\t2G / 4G scanned, 1G / 4G issued\n\t0B repaired, 25.00% done\n");
        let text = scan_text(&ScanStatus { paused: true, paused_s: 60, ..SCRUB });
        assert!(text.starts_with("  scan: scrub paused since Thu Jan  1 "), "{text}");
        // Blocks that were written during the scrub are read too.
        let more = running_text(&ScanStatus { examined_bytes: 5 << 30, left_s: Some(0), ..SCRUB });
        assert!(more.contains("100.00% done, 00:00:00 to go"), "{more}");
    }
}
