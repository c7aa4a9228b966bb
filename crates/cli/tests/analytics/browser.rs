//! The page in a browser, if there is one.

use super::chromium::Browser;
use super::{Site, has, until};
use serde_json::json;

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
