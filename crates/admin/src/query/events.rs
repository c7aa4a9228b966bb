//! Events of an open pool, which are in the memory of its process.

use super::{LOOK, Row, Rows};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use weir_engine::{Engine, Event};
use weir_format::{NvList, NvValue};

/// Which events are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Whether the query goes on with new events until the pool is closed.
    pub follow: bool,
}

/// An event of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRow {
    /// Number of the event (eid); the first is 1.
    pub eid: u64,
    /// Number of events between the previous row and this one that were dropped.
    pub dropped: u64,
    /// Time in seconds since 1970.
    pub time_s: i64,
    /// Nanoseconds of that second.
    pub time_ns: i64,
    /// Class, for example `sysevent.fs.zfs.scrub_start`.
    pub class: String,
    /// All values of the event, class, time and number among them.
    pub fields: Vec<EventField>,
}

/// A value of an event with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventField {
    /// Name.
    pub name: String,
    /// Value.
    pub value: EventValue,
}

/// A value of an event, of one of the types that events of OpenZFS have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventValue {
    /// A number of 8 bits.
    Uint8(u8),
    /// A signed number of 32 bits.
    Int32(i32),
    /// A number of 32 bits.
    Uint32(u32),
    /// A signed number of 64 bits.
    Int64(i64),
    /// A number of 64 bits.
    Uint64(u64),
    /// Text.
    Text(String),
    /// Signed numbers of 64 bits.
    Int64Array(Vec<i64>),
    /// Numbers of 64 bits.
    Uint64Array(Vec<u64>),
    /// Values with names.
    Fields(Vec<EventField>),
    /// A value of another type.
    Other,
}

impl EventValue {
    fn of(value: &NvValue) -> Self {
        match value {
            NvValue::Uint8(n) => EventValue::Uint8(*n),
            NvValue::Int32(n) => EventValue::Int32(*n),
            NvValue::Uint32(n) => EventValue::Uint32(*n),
            NvValue::Int64(n) => EventValue::Int64(*n),
            NvValue::Uint64(n) => EventValue::Uint64(*n),
            NvValue::String(bytes) => EventValue::Text(String::from_utf8_lossy(bytes).into_owned()),
            NvValue::Int64Array(all) => EventValue::Int64Array(all.clone()),
            NvValue::Uint64Array(all) => EventValue::Uint64Array(all.clone()),
            NvValue::List(list) => EventValue::Fields(fields(list)),
            _ => EventValue::Other,
        }
    }
}

fn fields(list: &NvList) -> Vec<EventField> {
    let field = |(name, value)| EventField { name, value: EventValue::of(value) };
    list.pairs().iter().map(|pair| (pair.name_lossy().into_owned(), &pair.value)).map(field).collect()
}

impl EventRow {
    /// The row of an event that `missed` events precede which the ring has evicted.
    fn of(event: &Event, missed: u64) -> Self {
        let (time_s, time_ns) = event.time;
        let dropped = missed.saturating_add(event.dropped);
        EventRow { eid: event.eid, dropped, time_s, time_ns, class: event.class.clone(), fields: fields(&event.list) }
    }
}

impl EventsQuery {
    /// Reads the events in the order of their numbers: [`Row::Event`].
    ///
    /// # Errors
    /// [`crate::RefusalKind::Stopped`] if the caller has gone away.
    pub(super) async fn run(&self, engine: &Engine, rows: &mut Rows) -> Result<(), Refusal> {
        let mut last = 0;
        loop {
            let news = engine.events.after(last);
            let mut missed = news.missed;
            for event in &news.events {
                rows.add(Row::Event(EventRow::of(event, std::mem::take(&mut missed)))).await?;
                last = event.eid;
            }
            if !self.follow || news.ended {
                return Ok(());
            }
            rows.check()?;
            engine.machine.clock.sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_all_values_with_their_types() {
        let mut detector = NvList::new();
        detector.set("version", NvValue::Uint8(0));
        let mut list = NvList::new();
        list.set("class", "ereport.fs.zfs.checksum");
        list.set("detector", detector);
        list.set("zio_level", -1i64);
        list.set("time", NvValue::Int64Array(vec![16, 1]));
        list.set("flag", NvValue::Boolean);
        let class = "ereport.fs.zfs.checksum".to_owned();
        let event = Event { eid: 5, dropped: 2, time: (16, 1), class: class.clone(), list };
        let field = |name: &str, value| EventField { name: name.to_owned(), value };
        let row = EventRow {
            eid: 5,
            dropped: 3,
            time_s: 16,
            time_ns: 1,
            class: class.clone(),
            fields: vec![
                field("class", EventValue::Text(class)),
                field("detector", EventValue::Fields(vec![field("version", EventValue::Uint8(0))])),
                field("zio_level", EventValue::Int64(-1)),
                field("time", EventValue::Int64Array(vec![16, 1])),
                field("flag", EventValue::Other),
            ],
        };
        assert_eq!(EventRow::of(&event, 1), row);
    }
}
