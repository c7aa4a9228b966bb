//! The page in a browser, if there is one.

use super::chromium::Browser;
use super::{READ_BYTES, Site, has, until};
use serde_json::{Value, json};

#[test]
fn the_page_shows_the_load_and_what_limits_it() {
    let Some(mut browser) = Browser::start().filter(|_| has("qemu-io")) else {
        println!("skipped: chromium-headless-shell or qemu-io is not installed");
        return;
    };
    let site = Site::new();
    let size = json!({"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", size);
    browser.call("Page.navigate", json!({"url": site.said("http://")}));
    until(|| browser.text("document.getElementById('summary')?.textContent").starts_with("tank: ").then_some(()));
    assert!(!browser.text("location.href").contains("token"));

    // A name in the table asks about it.
    let click = "(name => { name?.click(); return name !== undefined; })\
                 ([...document.querySelectorAll('#clients .name')].find(name => name.textContent === 'tank/vol'))";
    until(|| {
        site.use_volume();
        (browser.value(click) == true).then_some(())
    });
    let said = until(|| {
        let said = browser.text("document.getElementById('why-answer').textContent");
        said.contains(" requests in ").then_some(said)
    });
    assert_eq!(browser.text("document.getElementById('why-heading').textContent"), "What limits tank/vol");
    assert!(said.contains("took ") && said.contains(" each on average"), "{said}");
    browser.value("document.getElementById('ask').click()");
    until(|| {
        let heading = browser.text("document.getElementById('why-heading').textContent");
        let said = browser.text("document.getElementById('why-answer').textContent");
        (heading == "What limits pool tank" && said.contains(" requests in ")).then_some(())
    });

    // Each span shows the history; nothing is wider than a phone, and no graph is without a text.
    for span in 0..4 {
        let choose = format!(
            "(select => {{ select.selectedIndex = {span}; select.dispatchEvent(new Event('change')); }})\
             (document.getElementById('span'))"
        );
        browser.value(&choose);
        let labels =
            "[...document.querySelectorAll('canvas')].map(canvas => canvas.getAttribute('aria-label')).join('\\n')";
        until(|| {
            let labels = browser.text(labels);
            // The first point of a minute comes up to a minute after the pool was opened.
            let is_known =
                |title: &str| span == 3 || labels.lines().any(|line| line.starts_with(title) && !line.contains('–'));
            ["Transaction groups", "Durability", "ARC: blocks", "Bytes answered"]
                .iter()
                .all(|title| is_known(title))
                .then_some(())
        });
    }
    assert_eq!(browser.value("document.documentElement.scrollWidth"), 390);
    assert_eq!(browser.text("document.getElementById('state').textContent"), "");
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}

/// Opens the page of a site in a window of a desktop.
pub fn desktop(browser: &mut Browser, site: &Site) {
    let size = json!({"width": 1200, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", size);
    browser.call("Page.navigate", json!({"url": site.said("http://")}));
    until(|| browser.text("document.getElementById('summary')?.textContent").starts_with("tank: ").then_some(()));
}

#[test]
fn the_flow_of_bytes_has_the_clients_and_the_devices() {
    let Some(mut browser) = Browser::start().filter(|_| has("qemu-io")) else {
        println!("skipped: chromium-headless-shell or qemu-io is not installed");
        return;
    };
    let site = Site::new();
    desktop(&mut browser, &site);
    browser.value("document.querySelector('.flow details').open = true");
    let choose = |browser: &mut Browser, direction: &str| {
        browser.value(&format!(
            "(select => {{ select.value = '{direction}'; select.dispatchEvent(new Event('change')); }})(document.querySelector('.flow select'))"
        ));
    };
    let rows = "[...document.querySelectorAll('.flow tbody tr')].map(row => [...row.cells].map(cell => cell.textContent).join(' > ')).join('\\n')";
    // A mean of ten seconds has the load of one of them.
    site.use_volume();
    let reads = until(|| {
        let rows = browser.text(rows);
        rows.contains("127.0.0.1 > tank/vol").then_some(rows)
    });
    assert!(
        reads.contains("tank/vol > nbd") && (reads.contains("nbd > dirty data") || reads.contains("nbd > arc demand")),
        "{reads}"
    );
    choose(&mut browser, "writes");
    let written = until(|| {
        let rows = browser.text(rows);
        rows.contains("pool > copies of data").then_some(rows)
    });
    assert!(written.contains("nbd > pool"), "{written}");
    for disk in ["/a > ", "/b > "] {
        assert!(written.lines().any(|line| line.starts_with("devices > /") && line.contains(disk)), "{written}");
    }
    let label = browser.text("document.querySelector('.flow canvas').getAttribute('aria-label')");
    assert!(label.contains(" written by clients, ") && label.ends_with(" written to devices"), "{label}");
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}

/// Opens an address as in a new tab.
fn open_anew(browser: &mut Browser, url: &str) {
    for url in ["about:blank", url] {
        browser.call("Page.navigate", json!({ "url": url }));
    }
}

/// A range that is drawn with the pointer has the mean of the load; zooming in shows it alone, and a link shows the same.
#[test]
fn a_range_has_its_mean_and_a_link_shows_it_again() {
    let Some(mut browser) = Browser::start().filter(|_| has("qemu-io")) else {
        println!("skipped: chromium-headless-shell or qemu-io is not installed");
        return;
    };
    let site = Site::new();
    desktop(&mut browser, &site);
    let label = |browser: &mut Browser| {
        browser.text("[...document.querySelectorAll('#graphs canvas')].map(one => one.getAttribute('aria-label')).find(one => one.startsWith('Bytes answered'))")
    };
    site.use_volume();
    // The load is a part of the history, and some seconds without load follow it.
    let now = |browser: &mut Browser| browser.value("performance.now()").as_f64().unwrap();
    let began = now(&mut browser);
    until(|| (now(&mut browser) > began + 4000.0).then_some(()));
    let canvas = "[...document.querySelectorAll('#graphs canvas')].find(one => one.getAttribute('aria-label').startsWith('Bytes answered'))";
    let drawn = format!(
        "(canvas => {{ canvas.scrollIntoView({{ block: 'center' }}); const box = canvas.getBoundingClientRect(); \
         return [box.left + box.width * 0.9, box.right - 1, box.top + box.height / 2]; }})({canvas})"
    );
    let place: Vec<f64> = serde_json::from_value(browser.value(&drawn)).unwrap();
    let mouse = |browser: &mut Browser, kind: &str, x: f64| {
        let event = json!({"type": kind, "x": x, "y": place[2], "button": "left", "buttons": 1, "clickCount": 1});
        browser.call("Input.dispatchMouseEvent", event);
    };
    browser.value("document.getElementById('pause').click()");
    mouse(&mut browser, "mousePressed", place[0]);
    mouse(&mut browser, "mouseMoved", place[1]);
    mouse(&mut browser, "mouseReleased", place[1]);
    let said = until(|| {
        let said = browser.text("document.getElementById('range-text').textContent");
        said.starts_with("Chosen: ").then_some(said)
    });
    assert!(said.contains("(29 s)") || said.contains("(30 s)"), "a tenth of five minutes: {said}");
    let means = label(&mut browser);
    assert!(means.contains(": ARC mean ") && means.contains("dirty data mean "), "{means}");

    // All that was read is in the range: its mean times its length.
    browser.value("document.getElementById('range-zoom').click()");
    until(|| browser.text("document.getElementById('range-text').textContent").starts_with("Shown: ").then_some(()));
    let link = browser.text("location.href");
    assert!(link.contains("#overview:pool=tank&from=") && link.contains("&to="), "{link}");
    let sum = "(async () => { const words = new URLSearchParams(location.hash.slice(10)); \
               const at = await (await fetch(`/api/v1/pools/tank/history?from=${words.get('from')}&to=${words.get('to')}`)).json(); \
               return at.values[1].reduce((sum, n) => sum + n, 0); })()";
    let bytes = browser.value(sum).as_f64().unwrap();
    assert!((bytes / READ_BYTES as f64 - 1.0).abs() < 0.02, "{bytes} bytes of {READ_BYTES}");

    // Graphs that are left out are in the link, too.
    browser.value("document.querySelector('.worksheet').open = true");
    browser.value("[...document.querySelectorAll('.worksheet fieldset input')].slice(2).forEach(box => box.click())");
    browser.value("(input => { input.value = 'mine'; })(document.querySelector('.worksheet input[type=text]'))");
    browser
        .value("[...document.querySelectorAll('.worksheet button')].find(one => one.textContent === 'Save').click()");
    assert_eq!(browser.text("document.querySelector('.worksheet select').value"), "mine");
    let link = browser.text("location.href");
    assert!(link.ends_with("&graphs=flow.answered"), "{link}");
    let shown = "[...document.querySelectorAll('figure')].filter(one => !one.hidden).length";
    assert_eq!(browser.value(shown), 2);
    open_anew(&mut browser, &link);
    until(|| (browser.value(shown) == 2).then_some(()));
    until(|| browser.text("document.getElementById('range-text')?.textContent").starts_with("Shown: ").then_some(()));
    assert!(
        browser
            .text("[...document.querySelectorAll('.worksheet option')].map(one => one.value).join()")
            .contains("mine")
    );
    browser.value("document.getElementById('range-live').click()");
    until(|| (browser.value("document.getElementById('range').hidden") == Value::Bool(true)).then_some(()));
    assert!(browser.text("location.href").contains("span=300"));

    // A time up to now is kept when the page is opened, and graphs that there are not are no reason to show none.
    let page = link.split('#').next().unwrap();
    open_anew(&mut browser, &format!("{page}#overview:pool=tank&span=3600&graphs=zzz"));
    until(|| (browser.value(shown).as_u64() > Some(2)).then_some(()));
    until(|| browser.text("document.getElementById('pool')?.value").eq("tank").then_some(()));
    let link = browser.text("location.href");
    assert!(link.contains("#overview:pool=tank&span=3600"), "{link}");
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}

/// The heat map shows requests from before the page was opened. The breakdown lists each client; a click on its name highlights its area.
#[test]
fn the_heat_map_has_the_history_and_the_breakdown_its_names() {
    let Some(mut browser) = Browser::start().filter(|_| has("qemu-io")) else {
        println!("skipped: chromium-headless-shell or qemu-io is not installed");
        return;
    };
    let site = Site::new();
    site.use_volume();
    // The load is over, and in the history.
    until(|| {
        let (code, body) = site.http().get("/api/v1/pools/tank/latency?step=60");
        if code == 404 {
            return None;
        }
        let found: Value = serde_json::from_str(&body).unwrap();
        let writes = |classes: &Value| classes.as_array().map_or(0, |all| all.iter().filter_map(Value::as_u64).sum());
        let writes: u64 = found["writes"].as_array().unwrap().iter().map(writes).sum();
        assert!(found["bounds_ns"][0] == 4096 && found["seconds"] == 60, "{body}");
        (writes > 0).then_some(())
    });
    desktop(&mut browser, &site);
    let label = |browser: &mut Browser, title: &str| {
        let all = "[...document.querySelectorAll('canvas')].map(one => one.getAttribute('aria-label')).join('\\n')";
        browser.text(all).lines().find(|line| line.starts_with(title)).unwrap_or_default().to_owned()
    };
    let said = until(|| {
        let said = label(&mut browser, "Latency of requests: heat map");
        (said.contains(" requests in ") && !said.contains(": 0 requests in ")).then_some(said)
    });
    assert!(said.contains("reads and writes: "), "{said}");

    site.use_volume();
    let pick =
        "[...document.querySelectorAll('.breakdown button')].find(one => one.textContent.startsWith('127.0.0.1 '))";
    until(|| (browser.value(&format!("{pick} !== undefined")) == true).then_some(()));
    browser.value(&format!("{pick}.click()"));
    assert_eq!(browser.text(&format!("{pick}.getAttribute('aria-pressed')")), "true");
    let said = label(&mut browser, "Breakdown by client");
    assert!(said.contains("bytes read by client: ") && said.contains("127.0.0.1 "), "{said}");
    for title in ["Network beside devices", "Requests in progress", "Processors at work"] {
        assert!(!label(&mut browser, title).is_empty(), "{title}");
    }
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}
