use super::super::Host;
use super::*;
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use weir_format::{ChecksumKind, ObjsetId};
use weir_machine::time::ClockSource;

/// A clock that is set by hand.
#[derive(Default)]
struct Hand(AtomicU64);

impl ClockSource for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000) + Duration::from_nanos(self.now().0)
    }

    fn sleep_until(&self, _: Nanos) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A pool `tank`: a mirror (GUID 2) of the files 3 and 4.
fn events() -> (Arc<Events>, Arc<Hand>) {
    let vdev = |kind: &str, guid: u64| {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("guid", guid);
        list
    };
    let leaf = |guid: u64| {
        let mut list = vdev("file", guid);
        list.set("path", format!("/disks/{guid}").as_str());
        list
    };
    let mut top = vdev("mirror", 2);
    top.set("ashift", 12u64);
    top.set("children", vec![leaf(3), leaf(4)]);
    let mut root = vdev("root", 1);
    root.set("children", vec![top]);
    let hand = Arc::new(Hand::default());
    (Events::new(Clock::new(hand.clone()), &Config::new("tank", 1, Host::default(), root)), hand)
}

fn classes(events: &Events) -> Vec<String> {
    events.after(0).events.iter().map(|event| event.class.clone()).collect()
}

/// A wrong block at `offset_bytes` of leaf 4.
fn wrong(events: &Events, offset_bytes: u64) {
    let fault = CodecError::Checksum { kind: ChecksumKind::Fletcher4, expected: [1, 2, 3, 4], actual: [5, 6, 7, 8] };
    let origin = Bookmark { objset: ObjsetId(54), object: 7, level: 1, block: 9 };
    let counts = Counts { checksum_errors: 3, ..Counts::default() };
    events.record(&Fault {
        what: FaultKind::Checksum(Some(&fault)),
        spot: Some(DeviceRange { leaf: 4, offset_bytes, size_bytes: 4096, counts }),
        about: BlockContext {
            origin: Some(origin),
            birth: weir_format::Txg(9),
            checksum: Some(ChecksumKind::Fletcher4),
        },
        priority: Priority::Scrub,
    });
}

#[test]
fn a_fault_says_where_it_is() {
    let (events, _) = events();
    wrong(&events, 0x40_1000);
    let news = events.after(0);
    let event = &news.events[0];
    assert_eq!((event.class.as_str(), event.eid, event.time), ("ereport.fs.zfs.checksum", 1, (1_700_000_000, 0)));
    let list = &event.list;
    let words = ["pool_guid", "vdev_guid", "vdev_ashift", "parent_guid", "zio_offset", "zio_size", "vdev_cksum_errors"];
    assert_eq!(words.map(|name| list.get_u64(name).unwrap()), [1, 4, 12, 2, 0x40_1000, 4096, 3]);
    let texts = ["pool", "vdev_type", "vdev_path", "parent_type", "cksum_algorithm"];
    assert_eq!(texts.map(|name| list.get_str(name).unwrap()), ["tank", "file", "/disks/4", "mirror", "fletcher4"]);
    let block = ["zio_objset", "zio_object", "zio_blkid", "eid"].map(|name| list.get_u64(name).unwrap());
    assert_eq!(block, [54, 7, 9, 1]);
    let value = |name: &str| list.pairs().iter().find(|p| p.name == name.as_bytes()).map(|p| p.value.clone()).unwrap();
    assert_eq!(value("zio_level"), NvValue::Int64(1));
    assert_eq!((value("zio_err"), value("zio_priority")), (NvValue::Int32(52), NvValue::Uint32(4)));
    assert_eq!(value("cksum_expected"), NvValue::Uint64Array(vec![1, 2, 3, 4]));
    assert_eq!(list.get_list("detector").unwrap().get_u64("vdev"), Some(4));
}

#[test]
fn device_errors_keep_their_errno() {
    let (events, _) = events();
    let error = DiskError::Os { op: weir_machine::Op::Write, offset: 5, len: 6, errno: 28 };
    events.label_not_written(3, Counts::default(), &error);
    let lost = BlockError::Missing { vdev: 0, offset: 0, devices: Vec::new() };
    let about = BlockContext::default();
    events.record(&Fault { what: FaultKind::Lost(&lost), spot: None, about, priority: Priority::Sync });
    let news = events.after(0);
    let number = |i: usize, name: &str| {
        news.events[i].list.pairs().iter().find(|p| p.name == name.as_bytes()).map(|p| p.value.clone())
    };
    assert_eq!(classes(&events), ["ereport.fs.zfs.io", "ereport.fs.zfs.data"]);
    assert_eq!((number(0, "zio_err"), number(0, "zio_type")), (Some(NvValue::Int32(28)), Some(NvValue::Uint32(2))));
    // The fault has no location on the device.
    assert_eq!(number(0, "zio_offset"), None);
    assert_eq!((number(1, "zio_err"), number(1, "vdev_guid")), (Some(NvValue::Int32(6)), None));
}

#[test]
fn faults_of_a_bad_disk_are_deduplicated_and_rate_limited() {
    let (events, hand) = events();
    wrong(&events, 0);
    wrong(&events, 0);
    assert_eq!(classes(&events).len(), 1, "an equal fault is reported once");
    (1..100).for_each(|n| wrong(&events, n << 12));
    assert_eq!(classes(&events).len(), PER_SECOND as usize);
    events.post(PoolEvent::ScrubFinish, |_| {});
    assert_eq!(events.after(u64::from(PER_SECOND)).events[0].dropped, 100 - u64::from(PER_SECOND));
    hand.0.fetch_add(1_000_000_000, Ordering::SeqCst);
    wrong(&events, 0);
    wrong(&events, 100 << 12);
    assert_eq!(
        classes(&events).len(),
        PER_SECOND as usize + 2,
        "one fault in the next second and one at another offset"
    );
    hand.0.fetch_add(DEDUP_WINDOW.as_nanos() as u64 + 1, Ordering::SeqCst);
    wrong(&events, 0);
    assert_eq!(classes(&events).len(), PER_SECOND as usize + 3, "an equal fault after the window");
}

#[test]
fn recent_faults_are_bounded() {
    let mut recent = Recent::default();
    let fault = |n: u64| (ErrorReport::Io, EIO, 3, n, 512, 0, None);
    assert!((0..2 * MAX_DEDUP_ENTRIES as u64).all(|n| recent.is_new(fault(n), Nanos(0))));
    assert_eq!((recent.sequence_of.len(), recent.order.len()), (MAX_DEDUP_ENTRIES, MAX_DEDUP_ENTRIES));
    assert!(!recent.is_new(fault(2 * MAX_DEDUP_ENTRIES as u64 - 1), Nanos(1)));
    assert!(recent.is_new(fault(0), Nanos(1)));
}

#[test]
fn the_ring_keeps_the_newest() {
    let (events, _) = events();
    (0..MAX_EVENTS + 10).for_each(|_| events.post(PoolEvent::ConfigSync, |_| {}));
    let news = events.after(0);
    assert_eq!((news.events.len(), news.events[0].eid, news.missed), (MAX_EVENTS, 11, 0));
    assert_eq!(events.after(5).missed, 5);
    let last = MAX_EVENTS as u64 + 10;
    assert!(events.after(last).events.is_empty() && events.after(last).missed == 0);
    assert_eq!(events.clear(), MAX_EVENTS);
    events.post(PoolEvent::PoolExport, |_| {});
    assert_eq!(events.after(0).events[0].eid, last + 1);
    assert!(events.after(u64::MAX).events.is_empty() && !events.is_ended());
    events.end();
    assert!(events.after(0).ended && events.is_ended());
}

#[test]
fn history_events_use_openzfs_names() {
    let (events, _) = events();
    let mut record = NvList::new();
    record.set("history command", "zfs snapshot tank@a");
    record.set("history who", 0u64);
    record.set("unknown", 0u64);
    events.post_history(&record);
    let list = &events.after(0).events[0].list;
    assert_eq!(list.get_str("history_command"), Some("zfs snapshot tank@a"));
    assert_eq!((list.get_u64("history_who"), list.contains("unknown")), (Some(0), false));
    record.set("history command", "x".repeat(MAX_EVENT_BYTES).as_str());
    events.post_history(&record);
    assert_eq!(classes(&events).len(), 1, "an oversized event is dropped");
    events.post_vdev(PoolEvent::TrimStart, 3);
    let last = events.after(1).events[0].clone();
    assert_eq!((last.dropped, last.list.get_str("vdev_path")), (1, Some("/disks/3")));
}
