//! The screens in a browser, if there is one.

use super::chromium::Browser;
use super::{Site, has, until};
use serde_json::json;

/// Browser on the page of a daemon.
pub struct Page {
    pub browser: Browser,
}

impl Page {
    /// `None` if no browser is installed.
    pub fn open(url: &str) -> Option<Page> {
        let mut browser = Browser::start()?;
        let size = json!({"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", size);
        browser.call("Page.navigate", json!({ "url": url }));
        let mut page = Page { browser };
        page.until("document.querySelectorAll('#lights li').length === 6");
        Some(page)
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        until(expression, || (self.browser.value(expression) == true).then_some(()));
    }

    pub fn text(&mut self, selector: &str) -> String {
        self.browser.text(&format!("document.querySelector({})?.textContent", json!(selector)))
    }

    /// Shows a screen, and waits for its data.
    pub fn go(&mut self, screen: &str) {
        self.browser.value(&format!("location.hash = {}", json!(format!("#{screen}"))));
        let place = screen.split(':').next().unwrap();
        self.until(&format!("(place => !place.hidden && place.children.length > 0 && !place.textContent.includes('Loading'))(document.getElementById('screen-{place}'))"));
    }

    /// Clicks the button with this label, once it is there and can be used.
    pub fn click(&mut self, label: &str) {
        let label = json!(label);
        self.until(&format!(
            "(button => {{ if (!button || button.disabled) return false; button.click(); return true; }})\
             ([...document.querySelectorAll('button')].find(one => one.getAttribute('aria-label') === {label} || one.textContent === {label}))"
        ));
    }

    /// Enters a value into a field.
    pub fn set(&mut self, id: &str, value: &str) {
        let (id, value) = (json!(id), json!(value));
        self.until(&format!(
            "(field => {{ if (!field) return false; if (field.type === 'checkbox') field.checked = {value} === 'true'; else field.value = {value}; \
             field.dispatchEvent(new Event('input', {{ bubbles: true }})); field.dispatchEvent(new Event('change', {{ bubbles: true }})); return true; }})(document.getElementById({id}))"
        ));
    }

    /// Waits for the command line of the dialog.
    pub fn command(&mut self, wanted: &str) {
        let wanted = json!(wanted);
        self.until(&format!("document.getElementById('action-command')?.textContent === {wanted}"));
    }

    /// Does what the dialog is for, and waits for its end.
    pub fn run(&mut self) {
        self.until("(run => { if (!run || run.disabled) return false; run.click(); return true; })(document.getElementById('action-run'))");
        self.until("!document.getElementById('action').open");
    }

    /// Looks at the dry run of the dialog, and returns its text.
    pub fn preview(&mut self) -> String {
        self.until("(one => { if (!one || one.hidden || one.disabled) return false; one.click(); return true; })(document.getElementById('action-preview'))");
        self.until("document.querySelector('#action-shown pre') !== null");
        self.text("#action-shown")
    }
}

#[test]
fn a_snapshot_is_taken_on_the_page() {
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    site.ok("zfs create tank/a");
    let mut page = Page::open(&site.url()).unwrap();
    page.go("datasets:tank%2Fa");
    page.click("Take a snapshot of tank/a");
    page.set("field-label", "first");
    page.command("weir zfs snapshot tank/a@first");
    page.run();
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "tank/a@first\n");
    assert_eq!(page.text("#done"), "Done: weir zfs snapshot tank/a@first");
    page.until("document.getElementById('screen-datasets').textContent.includes('first')");
    // A refusal is shown whole, beside the action.
    page.click("Take a snapshot of tank/a");
    page.set("field-label", "first");
    page.command("weir zfs snapshot tank/a@first");
    page.until(
        "(run => { if (run.disabled) return false; run.click(); return true; })(document.getElementById('action-run'))",
    );
    page.until("!document.getElementById('action-error').hidden");
    assert_eq!(page.text("#action-error"), "cannot create snapshot 'tank/a@first': dataset already exists");
}

#[test]
fn a_dataset_is_sent_on_the_page() {
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    site.ok("zfs create tank/a");
    let mut page = Page::open(&site.url()).unwrap();
    page.go("datasets:tank%2Fa");
    page.click("Send tank/a to another dataset or host");
    page.set("field-target", "tank/copy");
    page.command("weir daemon job add --schedule 'daily 02:30' --replicate tank/a --to tank/copy send-a");
    page.run();
    page.go("alerts");
    page.click("Run the job send-a");
    page.run();
    until("the dataset arrives", || {
        let names = site.ok("zfs list -H -t all -o name -r tank");
        let has_snapshot = |name: &str| names.lines().any(|line| line.starts_with(&format!("{name}@send-a")));
        (has_snapshot("tank/a") && has_snapshot("tank/copy")).then_some(())
    });
    page.go("alerts");
    page.until("document.getElementById('screen-alerts').textContent.includes('replication of tank/a to tank/copy')");
    page.until("[...document.querySelectorAll('#screen-alerts .mark.good')].some(one => one.textContent === 'done')");
    assert!(page.browser.errors.is_empty(), "{:?}", page.browser.errors);
}

/// Creates a pool of two disks; the layout chooser shows the space that it then has.
fn create(page: &mut Page, site: &Site, disks: &[String]) {
    page.click("Create a pool");
    for disk in &disks[..2] {
        page.set("more-device", disk);
        page.click("Add");
        page.until("document.getElementById('more-device').value === ''");
    }
    page.set("field-name", "tank");
    page.until("document.querySelector('[data-layout=mirror-2] input')?.checked === true");
    let usable = page.browser.text("document.querySelector('[data-layout=mirror-2]').dataset.usable");
    page.command(&format!(
        "weir zpool create -o ashift=12 -O compression=on -O atime=off tank mirror {} {}",
        disks[0], disks[1]
    ));
    assert_eq!(page.browser.value("document.getElementById('action-run').disabled"), true, "no dry run yet");
    assert!(page.preview().contains("no data found"));
    page.run();
    let sizes = site.ok("zfs list -Hp -o used,available tank");
    let total: u64 = sizes.split_whitespace().map(|number| number.parse::<u64>().unwrap()).sum();
    assert_eq!(usable, total.to_string());
    page.until("document.querySelector('[aria-label=\"Pool tank\"]') !== null");
}

/// Creates a dataset, sets a value with the characters of a script, and rolls it back to a snapshot.
fn use_datasets(page: &mut Page, site: &Site) {
    page.go("datasets:tank");
    page.click("Create a dataset below tank");
    page.set("field-label", "a");
    page.command("weir zfs create tank/a");
    page.run();
    page.go("datasets:tank%2Fa");
    page.until("document.getElementById('dataset-heading')?.textContent === 'tank/a'");
    let hostile = "<img src=x onerror=document.title=1>";
    page.click("Set any property of tank/a");
    page.set("field-property", "test:x");
    page.set("field-value", hostile);
    page.command(&format!("weir zfs set 'test:x={hostile}' tank/a"));
    page.run();
    page.until(&format!("document.getElementById('screen-datasets').textContent.includes({})", json!(hostile)));
    assert_eq!(page.browser.value("document.querySelectorAll('#screen-datasets img').length"), 0);
    site.ok("zfs snapshot tank/a@one");
    site.ok("zfs snapshot tank/a@two");

    // Back to the first snapshot: the dry run names the second, which goes.
    page.click("Roll back to tank/a@one");
    page.command("weir zfs rollback -r tank/a@one");
    assert!(page.preview().contains("tank/a@two"));
    // The state changes meanwhile: the page says so, and nothing is done.
    site.ok("zfs snapshot tank/a@three");
    page.until(
        "(run => { if (run.disabled) return false; run.click(); return true; })(document.getElementById('action-run'))",
    );
    page.until(
        "document.getElementById('action-error').textContent.includes('the state has changed since the dry run')",
    );
    assert_eq!(site.ok("zfs list -H -t snapshot -o name").lines().count(), 3);
    assert!(page.preview().contains("tank/a@three"));
    page.run();
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "tank/a@one\n");
}

/// Takes a disk out of service, and puts another one in its place.
fn replace(page: &mut Page, site: &Site, disks: &[String]) {
    site.ok(&format!("zpool offline -f tank {}", disks[1]));
    page.go("pools");
    page.until("document.getElementById('screen-pools').textContent.includes('DEGRADED')");
    page.until("document.querySelector('[data-light=Pool]').classList.contains('warning')");
    page.click(&format!("Replace {} of tank", disks[1]));
    page.set("field-path", &disks[2]);
    page.command(&format!("weir zpool replace tank {} {}", disks[1], disks[2]));
    assert!(page.preview().contains(&format!("{}: 536870912 bytes", disks[2])));
    page.run();
    until("the resilver ends", || (!site.ok("zpool status tank").contains(&disks[1])).then_some(()));
    page.until(&format!(
        "(text => text.includes({}) && !text.includes({}) && !text.includes('DEGRADED'))(document.getElementById('screen-pools').textContent)",
        json!(disks[2]),
        json!(disks[1])
    ));
}

/// Makes an encrypted dataset, unloads its key, and loads it with the passphrase again.
fn use_keys(page: &mut Page, site: &Site) {
    page.go("datasets:tank");
    page.click("Create a dataset below tank");
    page.set("field-label", "vault");
    page.set("field-encryption", "on");
    page.set("field-secret", "correct horse");
    page.set("field-again", "correct house");
    page.command("weir zfs create -o encryption=on -o keyformat=passphrase tank/vault");
    page.until(
        "(run => { if (run.disabled) return false; run.click(); return true; })(document.getElementById('action-run'))",
    );
    page.until("document.getElementById('action-error').textContent.includes('not the same')");
    page.set("field-again", "correct horse");
    page.run();
    page.go("datasets:tank%2Fvault");
    page.click("Unload the key of tank/vault");
    page.command("weir zfs unload-key tank/vault");
    page.run();
    page.click("Load the key of tank/vault");
    page.set("field-secret", "correct horse");
    page.command("weir zfs load-key tank/vault");
    page.run();
    assert_eq!(site.ok("zfs get -H -o value keystatus tank/vault").trim(), "available");
    assert!(!page.browser.text("document.documentElement.outerHTML").contains("horse"));
}

/// Adds a mirror to the pool, and removes it.
fn add_and_remove(page: &mut Page, site: &Site, disks: &[String]) {
    page.go("pools");
    page.click("Add a vdev to tank");
    page.set("field-kind", "mirror");
    page.set("field-more", &format!("{} {}", disks[3], disks[4]));
    page.command(&format!("weir zpool add tank mirror {} {}", disks[3], disks[4]));
    assert!(page.preview().contains("no data found"));
    page.run();
    page.go("disks");
    page.until(&format!("document.getElementById('screen-disks').textContent.includes({})", json!(disks[3])));
    page.go("pools");
    page.click("Remove mirror-1 from tank");
    page.command("weir zpool remove tank mirror-1");
    page.preview();
    page.run();
    until("the removal ends", || (!site.ok("zpool list -v tank").contains(&disks[3])).then_some(()));
}

/// Adds a job, runs it, changes it and removes it.
fn use_jobs(page: &mut Page, site: &Site) {
    page.go("alerts");
    page.click("Add a job");
    page.set("field-name", "nightly");
    page.set("field-datasets", "tank/a");
    page.set("field-keep", "3");
    page.command("weir daemon job add --keep 3 --schedule 'daily 02:30' --snapshot tank/a nightly");
    page.run();
    page.click("Run the job nightly");
    page.run();
    page.until("document.getElementById('screen-alerts').textContent.includes('snapshots of 1 datasets taken')");
    page.click("Change the job nightly");
    page.set("field-keep", "4");
    page.command("weir daemon job add --replace --keep 4 --schedule 'daily 02:30' --snapshot tank/a nightly");
    page.run();
    assert!(site.ok("daemon job list").contains("keep 4"));
    page.click("Remove the job nightly");
    page.run();
    page.until("!document.getElementById('screen-alerts').textContent.includes('nightly')");
}

/// Acknowledges an alert, and shows all screens with the width of a phone.
fn look_around(page: &mut Page, site: &Site) {
    site.ok("zfs set sync=disabled tank/a");
    page.go("alerts");
    page.until("document.getElementById('screen-alerts').textContent.includes('sync-disabled:tank')");
    page.click("Acknowledge sync-disabled:tank");
    page.command("weir daemon alerts ack sync-disabled:tank");
    page.run();
    page.until("document.getElementById('screen-alerts').textContent.includes('acknowledged')");
    let size = json!({"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true});
    page.browser.call("Emulation.setDeviceMetricsOverride", size);
    for screen in ["pools", "disks", "datasets:tank%2Fa", "shares", "alerts", "system", "overview"] {
        page.go(screen);
        until(screen, || (page.browser.value("document.documentElement.scrollWidth") == 390).then_some(()));
    }
    page.go("system");
    page.until("document.getElementById('screen-system').textContent.includes('weir zpool replace tank')");
}

#[test]
fn a_pool_lives_on_the_page_from_its_creation_to_its_export() {
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(5, "[alerts]\ninterval = 1\n");
    for disk in 0..3 {
        // Space for what a removal moves, beside what a pool reserves.
        std::fs::File::options().write(true).open(site.disk(disk)).unwrap().set_len(512 << 20).unwrap();
    }
    let disks: Vec<String> = (0..5).map(|disk| site.disk(disk)).collect();
    let mut page = Page::open(&site.url()).unwrap();
    page.go("pools");
    assert!(page.text("#screen-pools").contains("No pool is open"));

    create(&mut page, &site, &disks);
    use_datasets(&mut page, &site);
    replace(&mut page, &site, &disks);
    use_keys(&mut page, &site);
    add_and_remove(&mut page, &site, &disks);
    use_jobs(&mut page, &site);
    look_around(&mut page, &site);
    page.go("pools");
    page.click("Export tank");
    page.command("weir zpool export tank");
    page.preview();
    page.run();
    page.until("document.getElementById('screen-pools').textContent.includes('No pool is open')");
    // Refusals are logged by the browser as answers with an error, and nothing else is.
    let others: Vec<&String> = page.browser.errors.iter().filter(|error| !error.contains("status of 4")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_viewer_sees_the_screens_and_cannot_act() {
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    let url = site.url();
    let (address, _) = url.split_once("token=").unwrap();
    let mut page = Page::open(&format!("{address}token={}", site.ok("daemon token add eye").trim())).unwrap();
    page.go("pools");
    page.until("document.querySelector('[aria-label=\"Pool tank\"]') !== null");
    let usable = "[...document.querySelectorAll('main button')].filter(one => !one.disabled && one.offsetParent !== null).map(one => one.textContent).join()";
    assert_eq!(page.browser.text(usable), "");
    assert_eq!(
        page.browser.text("document.querySelector('[aria-label=\"Scrub of tank\"]').title"),
        "Scrub of tank: needs the role operate"
    );
    page.go("system");
    assert!(
        page.text("#screen-system").contains("eye, role view") && !page.text("#screen-system").contains("Audit log")
    );
}

#[test]
fn a_pool_that_was_imported_read_only_is_not_changed_on_the_page() {
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    site.ok("zfs create tank/a");
    site.ok("zfs snapshot tank/a@s");
    site.ok("zpool export tank");
    site.ok(&format!("zpool import -o readonly=on -d {} tank", site.dir.path().display()));
    let mut page = Page::open(&site.url()).unwrap();
    let usable = "[...document.querySelectorAll('main button')].filter(one => !one.disabled && one.offsetParent !== null).map(one => one.textContent).join()";
    page.go("pools");
    page.until("document.getElementById('screen-pools').textContent.includes('Nothing on it can be changed: the pool was imported read-only.')");
    assert_eq!(page.browser.text(usable), "Create a pool …,Import a pool …,Export …");
    let title = "document.querySelector('[aria-label=\"Scrub of tank\"]').title";
    assert_eq!(page.browser.text(title), "Scrub of tank: the pool was imported read-only");
    page.go("disks");
    page.until("document.querySelectorAll('#screen-disks tbody tr').length > 0");
    let wipes = page.browser.text(usable).split(',').filter(|text| !text.is_empty() && *text != "Wipe …").count();
    assert_eq!(wipes, 0, "{}", page.browser.text(usable));
    page.go("datasets:tank%2Fa");
    page.until("document.getElementById('dataset-heading')?.textContent === 'tank/a'");
    let texts = page.browser.text(usable);
    assert!(
        texts.split(',').all(|text| ["Mount", "Unmount", "Save …"].contains(&text)) && texts.contains("Save …"),
        "{texts}"
    );
    // Without the property, all is there.
    site.ok("zpool export tank");
    site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    page.until("document.querySelector('[aria-label=\"Take a snapshot of tank/a\"]')?.disabled === false");
}

/// Names of 200 characters, which have no place to break, widen no column beyond a third of a desktop.
#[test]
fn long_names_are_wrapped_in_tables() {
    if !has("chromium-headless-shell") && !has("chromium") {
        println!("skipped: chromium-headless-shell is not installed");
        return;
    }
    let site = Site::new(1, "");
    let name = format!("tank/{}", "n".repeat(200));
    let disk = site.path(&"d".repeat(200));
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    site.ok(&format!("zpool create tank {}", disk.display()));
    site.ok(&format!("zfs create -o sharenfs=on {name}"));
    site.ok(&format!("zfs snapshot {name}@{}", "s".repeat(40)));
    let job = format!("daemon job add {} --schedule hourly --replicate {name} --to tank/t", "j".repeat(32));
    site.ok(&job);
    let mut page = Page::open(&site.url()).unwrap();
    for (width, most) in [(1200, 450), (390, 250)] {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 1200});
        page.browser.call("Emulation.setDeviceMetricsOverride", size);
        for screen in [
            format!("datasets:{}", name.replace('/', "%2F")),
            "pools".into(),
            "disks".into(),
            "shares".into(),
            "alerts".into(),
        ] {
            page.go(&screen);
            let place = format!("screen-{}", screen.split(':').next().unwrap());
            page.until(&format!("document.querySelectorAll('#{place} td').length > 0"));
            // A line to paste is one line, in a table that is moved sideways.
            let widest = format!(
                "Math.max(...[...document.querySelectorAll('#{place} td')].filter(one => one.querySelector('.actions, .paste') === null && one.closest('details:not([open])') === null && one.textContent.length > 32).map(one => one.offsetWidth))"
            );
            let widest = page.browser.value(&widest).as_f64().unwrap();
            assert!(widest > 150.0 && widest <= f64::from(most), "{screen} at {width}: a cell of {widest}");
            assert_eq!(page.browser.value("document.documentElement.scrollWidth"), width, "{screen}");
        }
    }
}
