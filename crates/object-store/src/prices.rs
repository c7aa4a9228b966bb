//! Prices of stores, as the user wrote them down, and the cost of requests that were counted.
//!
//! ```toml
//! [[store]]
//! url = "s3://"
//! currency = "USD"
//! put_per_1000 = 0.005
//! get_per_1000 = 0.0004
//! delete_per_1000 = 0.0
//! received_per_gb = 0.09
//! sent_per_gb = 0.0
//! stored_per_gb_month = 0.023
//! gb_bytes = 1073741824
//! ```
//!
//! For a disk, the entry with the longest `url` applies that the disk's URL begins with, at a `/`. A HEAD has the price of a GET.
//! Every request counts, also one that failed: stores differ in what they do not charge. A price that is absent is 0. `gb_bytes`
//! is the number of bytes that the price list calls a GB, 10⁹ by default. Amounts are whole nanos (10⁻⁹) of the currency, rounded
//! down for each row, so that two readers of the same counters get the same amount.

use crate::counters::{Counts, Kind};
use crate::url::SCHEMES;
use serde::Deserialize;
use weir_machine::Money;

/// Most bytes of a price list.
pub const MAX_BYTES: usize = 64 << 10;
/// Most entries.
const MAX_ENTRIES: usize = 256;
/// Greatest price, in units of the currency.
const MAX_PRICE: f64 = 1e6;
/// Nanos of a unit of currency.
const NANOS: f64 = 1e9;

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    store: Vec<EntryText>,
}

/// An entry of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    url: String,
    currency: String,
    #[serde(default)]
    put_per_1000: f64,
    #[serde(default)]
    get_per_1000: f64,
    #[serde(default)]
    delete_per_1000: f64,
    #[serde(default)]
    received_per_gb: f64,
    #[serde(default)]
    sent_per_gb: f64,
    #[serde(default)]
    stored_per_gb_month: f64,
    #[serde(default = "decimal_gb")]
    gb_bytes: u64,
}

fn decimal_gb() -> u64 {
    1_000_000_000
}

/// Prices of the disks below a URL, in nanos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    url: String,
    currency: String,
    /// Of 1,000 requests, in the order of [`crate::counters::KINDS`].
    requests: [u64; 4],
    received: u64,
    sent: u64,
    stored: u64,
    gb_bytes: u64,
}

/// A price list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices(Vec<Price>);

impl Prices {
    /// Decodes a price list.
    ///
    /// # Errors
    /// One line: which entry is wrong, and what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("longer than {MAX_BYTES} bytes"));
        }
        let parsed: Text = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.get(..at).unwrap_or(text).matches('\n').count() + 1;
            format!("line {line}: {}", error.message().trim().replace('\n', "; "))
        })?;
        if parsed.store.len() > MAX_ENTRIES {
            return Err(format!("{} entries [[store]]; at most {MAX_ENTRIES} are accepted", parsed.store.len()));
        }
        let mut prices: Vec<Price> = Vec::new();
        for entry in &parsed.store {
            let price = entry.checked()?;
            if prices.iter().any(|other| other.url == price.url) {
                return Err(format!("there are two entries for url = \"{}\"", price.url));
            }
            prices.push(price);
        }
        // The longest first.
        prices.sort_by_key(|price| std::cmp::Reverse(price.url.len()));
        debug_assert!(prices.iter().all(|price| price.gb_bytes > 0));
        Ok(Prices(prices))
    }

    /// The prices of a disk; `None` if no entry applies.
    pub fn of(&self, disk: &str) -> Option<&Price> {
        let applies = |price: &&Price| {
            let rest = disk.strip_prefix(price.url.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || price.url.ends_with('/'))
        };
        self.0.iter().find(applies)
    }
}

impl EntryText {
    fn checked(&self) -> Result<Price, String> {
        let url = &self.url;
        let at = |why: String| format!("url = \"{url}\": {why}");
        if !SCHEMES.iter().any(|(scheme, _)| url.starts_with(scheme)) {
            return Err(at("it has to begin with s3://, az://, gs:// or file://".into()));
        }
        let is_code = !self.currency.is_empty()
            && self.currency.len() <= 8
            && self.currency.bytes().all(|byte| byte.is_ascii_alphabetic());
        if !is_code {
            return Err(at("currency takes a code of 1 to 8 letters, such as USD".into()));
        }
        if !(1_000_000..=1 << 40).contains(&self.gb_bytes) {
            return Err(at(format!("gb_bytes takes 1000000000 or 1073741824, not {}", self.gb_bytes)));
        }
        let nanos = |key: &str, price: f64| {
            if !(0.0..=MAX_PRICE).contains(&price) {
                return Err(at(format!("{key} takes a price from 0 to {MAX_PRICE}, not {price}")));
            }
            Ok((price * NANOS).round() as u64)
        };
        let get = nanos("get_per_1000", self.get_per_1000)?;
        Ok(Price {
            url: url.clone(),
            currency: self.currency.clone(),
            requests: [
                get,
                nanos("put_per_1000", self.put_per_1000)?,
                get,
                nanos("delete_per_1000", self.delete_per_1000)?,
            ],
            received: nanos("received_per_gb", self.received_per_gb)?,
            sent: nanos("sent_per_gb", self.sent_per_gb)?,
            stored: nanos("stored_per_gb_month", self.stored_per_gb_month)?,
            gb_bytes: self.gb_bytes,
        })
    }
}

impl Price {
    /// Cost of the requests of a kind and of the bytes that they transferred.
    pub fn of_requests(&self, kind: Kind, counts: &Counts) -> Money {
        let requests = u128::from(counts.requests[kind as usize]) * u128::from(self.requests[kind as usize]) / 1000;
        let bytes = match kind {
            Kind::Get => self.of_bytes(counts.read_bytes, self.received),
            Kind::Put => self.of_bytes(counts.written_bytes, self.sent),
            Kind::Head | Kind::Delete => 0,
        };
        self.money(requests.saturating_add(bytes))
    }

    /// Cost of storing bytes for a month.
    pub fn of_month(&self, bytes: u64) -> Money {
        self.money(self.of_bytes(bytes, self.stored))
    }

    fn of_bytes(&self, bytes: u64, per_gb: u64) -> u128 {
        u128::from(bytes) * u128::from(per_gb) / u128::from(self.gb_bytes)
    }

    fn money(&self, nanos: u128) -> Money {
        Money { nanos: u64::try_from(nanos).unwrap_or(u64::MAX), currency: self.currency.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[[store]]\nurl = \"s3://\"\ncurrency = \"USD\"\nput_per_1000 = 0.005\nget_per_1000 = 0.0004\n\
                        received_per_gb = 0.09\nstored_per_gb_month = 0.023\ngb_bytes = 1073741824\n\
                        [[store]]\nurl = \"s3://near\"\ncurrency = \"EUR\"\nput_per_1000 = 1\n";

    #[test]
    fn the_example_above_is_accepted() {
        let source = include_str!("prices.rs");
        let lines = source.lines().filter_map(|line| line.strip_prefix("//! "));
        let example: Vec<&str> = lines.filter(|line| line.contains(" = ") || line.starts_with("[[")).collect();
        let example = example.join("\n");
        assert!(Prices::parse(&example).unwrap().of("s3://b/p").is_some(), "{example}");
    }

    #[test]
    fn costs_are_counts_times_prices() {
        let prices = Prices::parse(LIST).unwrap();
        let counts =
            Counts { requests: [2500, 3000, 500, 7], read_bytes: 3 << 30, written_bytes: 5 << 30, ..Counts::default() };
        let price = prices.of("s3://bucket/tank").unwrap();
        let nanos = |kind| price.of_requests(kind, &counts).nanos;
        // 2.5 * 0.0004 and 3 * 0.09; 3 * 0.005; 0.5 * 0.0004.
        assert_eq!([Kind::Get, Kind::Put, Kind::Head, Kind::Delete].map(nanos), [271_000_000, 15_000_000, 200_000, 0]);
        assert_eq!(price.of_month(100 << 30), Money { nanos: 2_300_000_000, currency: "USD".into() });
        let most = Counts { requests: [u64::MAX; 4], read_bytes: u64::MAX, written_bytes: u64::MAX, ..counts };
        assert!(price.of_requests(Kind::Get, &most).nanos > 1 << 60, "no overflow");
    }

    #[test]
    fn the_longest_url_applies_at_a_slash() {
        let prices = Prices::parse(LIST).unwrap();
        let currency = |disk: &str| prices.of(disk).map(|price| price.currency.as_str());
        assert_eq!(currency("s3://near/x"), Some("EUR"));
        assert_eq!(currency("s3://nearby/x"), Some("USD"));
        assert_eq!(currency("file:///x"), None);
        assert_eq!(Prices::default().of("s3://b/p"), None);
    }

    #[test]
    fn wrong_lists_are_refused_with_the_reason() {
        for (text, why) in [
            ("[[store]]\nurl = \"s3://\"\ncurrency = \"USD\"\nput = 1", "line 4: unknown field `put`"),
            ("[[store]]\nurl = \"s3://\"", "missing field `currency`"),
            ("[[store]]\nurl = \"http://b\"\ncurrency = \"USD\"", "url = \"http://b\": it has to begin with"),
            ("[[store]]\nurl = \"s3://b\"\ncurrency = \"\"", "currency takes a code"),
            ("[[store]]\nurl = \"s3://b\"\ncurrency = \"USD\"\nsent_per_gb = -1.0", "sent_per_gb takes a price"),
            ("[[store]]\nurl = \"s3://b\"\ncurrency = \"USD\"\nget_per_1000 = nan", "get_per_1000 takes a price"),
            ("[[store]]\nurl = \"s3://b\"\ncurrency = \"USD\"\ngb_bytes = 0", "gb_bytes takes"),
            (
                "[[store]]\nurl = \"s3://b\"\ncurrency = \"USD\"\n[[store]]\nurl = \"s3://b\"\ncurrency = \"EUR\"",
                "there are two entries for url = \"s3://b\"",
            ),
        ] {
            let error = Prices::parse(text).unwrap_err();
            assert!(error.contains(why) && error.lines().count() == 1, "{text}: {error}");
        }
        assert!(Prices::parse(&" ".repeat(MAX_BYTES + 1)).is_err());
        assert!(Prices::parse(&"[[store]]\nurl=\"s3://\"\ncurrency=\"USD\"\n".repeat(300)).is_err());
    }
}
