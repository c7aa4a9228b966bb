//! Rules of accessibility (WCAG 2.1 AA) on each screen, by axe-core in a browser. The judge is not a part of the repository:
//! `.ci/run` takes it from the registry of npm.

use super::screens::Page;
use super::{Site, has};
use serde_json::json;
use std::path::Path;

/// Runs the rules, and returns what violates them: rule, element, and what is missing.
const RULES: &str = "axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice'] }).then(found => found.violations\
    .map(one => one.id + ': ' + one.nodes.slice(0, 3).map(node => node.html.slice(0, 200) + ' ' + node.failureSummary).join('; ')).join('\\n'))";

#[test]
fn no_screen_violates_the_rules_of_accessibility() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/judges/axe/package/axe.min.js");
    let file = std::env::var_os("WEIR_AXE").map_or(beside, Into::into);
    let Ok(axe) = std::fs::read_to_string(&file) else {
        println!("skipped: axe-core is not at {}", file.display());
        return;
    };
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(4, "");
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zfs create -o sharenfs=on tank/a");
    site.ok("zfs create -V 32M tank/vol");
    site.ok("zfs snapshot tank/a@first");
    let mut page = Page::open(&site.url()).unwrap();
    page.browser.value(&format!("{axe}; true"));
    let mut looked = 0;
    let mut look = |page: &mut Page, what: &str| {
        let found = page.browser.text(RULES);
        assert_eq!(found, "", "{what}");
        looked += 1;
    };
    for width in [1200, 390] {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 1200});
        page.browser.call("Emulation.setDeviceMetricsOverride", size);
        for screen in ["overview", "pools", "disks", "datasets:tank%2Fa", "shares", "alerts", "system"] {
            page.go(screen);
            look(&mut page, screen);
        }
    }
    // With all that can be opened.
    page.go("overview");
    page.browser.value("document.querySelectorAll('#screen-overview details').forEach(one => (one.open = true))");
    look(&mut page, "overview with worksheets and table");
    for (screen, button) in [
        ("pools", "Create a pool"),
        ("pools", "Add a vdev to tank"),
        ("datasets:tank%2Fa", "Take a snapshot of tank/a"),
        ("alerts", "Add a job"),
    ] {
        page.go(screen);
        page.click(button);
        page.until("document.getElementById('action').open");
        look(&mut page, button);
        page.browser.value("document.getElementById('action').close()");
    }
    assert_eq!(looked, 19);
}
