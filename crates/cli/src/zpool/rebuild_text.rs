//! Sequential rebuilds in the text of `zpool status`, as OpenZFS says it (`print_scan_status`, `print_rebuild_status_impl`).
//!
//! Rates are over the whole time of a rebuild, not since the last import, because each figure of the record is.

use crate::times::date_and_time;
use crate::units::{human_bytes, percent};
use weir_admin::{PoolStatus, RebuildStage, RebuildStatus, ScanStage, ScanStatus};

/// The lowest rate at which the time left is shown, in bytes per second.
const MIN_RATE: u64 = 10 << 20;

/// Which of scrub, resilver and rebuilds are shown: those in progress, the last scrub, and the later one of the last resilver and the
/// last rebuilds.
pub fn shown(pool: &PoolStatus) -> (Option<&ScanStatus>, &[RebuildStatus]) {
    let scan = pool.scan.as_ref();
    let resilver = scan.filter(|scan| scan.resilver);
    let is_rebuilding = pool.rebuilds.iter().any(RebuildStatus::is_running);
    let is_resilvering = resilver.is_some_and(|scan| scan.stage == ScanStage::Running);
    let rebuilt_s = pool.rebuilds.iter().map(|rebuild| rebuild.end_s).max().unwrap_or(0);
    let resilvered_s = resilver.map_or(0, |scan| scan.end_s);
    let shows_rebuilds = is_rebuilding || (!is_resilvering && rebuilt_s > resilvered_s);
    let scan = scan.filter(|scan| !scan.resilver || !shows_rebuilds);
    (scan, if shows_rebuilds { &pool.rebuilds } else { &[] })
}

/// The text of a rebuild of the vdev of that name.
pub fn text(rebuild: &RebuildStatus, vdev: &str) -> String {
    let RebuildStatus { scanned_bytes, issued_bytes, rebuilt_bytes, to_scan_bytes, active_ms, errors, .. } = *rebuild;
    let rebuilt = human_bytes(rebuilt_bytes);
    match rebuild.stage {
        RebuildStage::Complete => {
            let took = super::status_text::duration(active_ms / 1000);
            let end = date_and_time(rebuild.end_s);
            format!("  scan: resilvered ({vdev}) {rebuilt} in {took} with {errors} errors on {end}\n")
        }
        RebuildStage::Canceled => format!("  scan: resilver ({vdev}) canceled on {}\n", date_and_time(rebuild.end_s)),
        RebuildStage::Active => {
            let rate = |bytes: u64| (u128::from(bytes) * 1000 / (u128::from(active_ms) + 1)) as u64;
            let at = |bytes: u64| match rate(bytes) {
                0 => String::new(),
                rate => format!(" at {}/s", human_bytes(rate)),
            };
            let all = human_bytes(to_scan_bytes);
            let left = match rate(scanned_bytes) {
                rate if rate >= MIN_RATE && to_scan_bytes >= scanned_bytes => {
                    format!("{} to go", super::status_text::duration((to_scan_bytes - scanned_bytes) / rate))
                }
                _ => "no estimated completion time".to_owned(),
            };
            format!(
                "  scan: resilver ({vdev}) in progress since {}\n\t{} / {all} scanned{}, {} / {all} issued{}\n\t{rebuilt} resilvered, {:.2}% done, {left}\n",
                date_and_time(rebuild.start_s),
                human_bytes(scanned_bytes),
                at(scanned_bytes),
                human_bytes(issued_bytes),
                at(issued_bytes),
                percent(scanned_bytes, to_scan_bytes).min(100.0),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_is_shown_as_openzfs_shows_it() {
        let mut rebuild = RebuildStatus {
            vdev: 0,
            stage: RebuildStage::Active,
            start_s: 1_700_000_000,
            end_s: 0,
            active_ms: 9_999,
            scanned_bytes: 1 << 30,
            issued_bytes: 1 << 30,
            rebuilt_bytes: 1 << 30,
            to_scan_bytes: 4 << 30,
            errors: 0,
        };
        assert_eq!(
            text(&rebuild, "mirror-0"),
            "  scan: resilver (mirror-0) in progress since Tue Nov 14 22:13:20 2023\n\
             \t1G / 4G scanned at 102M/s, 1G / 4G issued at 102M/s\n\
             \t1G resilvered, 25.00% done, 00:00:30 to go\n"
        );
        rebuild.active_ms = 999_999;
        assert!(text(&rebuild, "mirror-0").ends_with(", no estimated completion time\n"));
        rebuild.stage = RebuildStage::Complete;
        rebuild.end_s = 1_700_001_000;
        assert_eq!(
            text(&rebuild, "mirror-0"),
            "  scan: resilvered (mirror-0) 1G in 00:16:39 with 0 errors on Tue Nov 14 22:30:00 2023\n"
        );
        rebuild.stage = RebuildStage::Canceled;
        assert_eq!(text(&rebuild, "mirror-0"), "  scan: resilver (mirror-0) canceled on Tue Nov 14 22:30:00 2023\n");
    }
}
