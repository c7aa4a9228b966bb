use super::*;
use crate::SpaceReserve;
use crate::live::scratch;
use proptest::prelude::*;
use weir_format::ObjsetKind;
use weir_format::space_map::SpaceEntries;
use weir_sim::SimWorld;

/// Returns the entries of a map as its reader decodes them.
async fn entries(rq: &Request, set: &Arc<ObjectSet>, id: ObjectId, shift: u32) -> Vec<(u64, SpaceEntry)> {
    let object = set.object(rq, id).await.unwrap();
    let length = header(rq, set, id).await.unwrap().length_bytes;
    let words = set.reader().read_words(rq, &object, 0, length / 8).await.unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(bytes.len() as u64, length);
    let mut all = SpaceEntries::new(&bytes, Endian::Little, shift);
    let mut out = Vec::new();
    loop {
        let at = all.position() as u64;
        let Some(entry) = all.next() else { return out };
        out.push((at, entry.unwrap()));
    }
}

type Flat = Vec<(SpaceKind, Option<u32>, u64, u64)>;

/// Segments of an append in the order of the log: allocations first, adjacent pieces joined.
fn flat(segments: &[SpaceSegment]) -> Flat {
    let kinds = [SpaceKind::Alloc, SpaceKind::Free];
    let of = |kind| segments.iter().filter(move |s| s.kind == kind);
    kinds.into_iter().flat_map(of).map(|s| (s.kind, s.vdev, s.offset_bytes, s.length_bytes)).collect()
}

fn segment(vdev: bool) -> impl Strategy<Value = SpaceSegment> {
    let offset = prop_oneof![4 => 0u64..1 << 30, 1 => (1u64 << 46)..1 << 48];
    let length = prop_oneof![6 => 1u64..100, 2 => 1u64..1 << 17, 1 => (1u64 << 35)..1 << 38];
    (any::<bool>(), offset, length, 0u32..9).prop_map(move |(free, offset, length, n)| SpaceSegment {
        kind: if free { SpaceKind::Free } else { SpaceKind::Alloc },
        vdev: vdev.then_some(n),
        offset_bytes: offset << 9,
        length_bytes: length << 9,
        words: 0,
    })
}

/// Numbers of lengths by their log2.
fn counted(lengths: impl IntoIterator<Item = u64>) -> [u64; 64] {
    let mut out = [0; 64];
    lengths.into_iter().for_each(|len| out[len.ilog2() as usize] += 1);
    out
}

fn balance(segments: &[SpaceSegment]) -> i64 {
    let signed = |s: &SpaceSegment| if s.kind == SpaceKind::Alloc { 1 } else { -1 } * s.length_bytes as i64;
    segments.iter().map(signed).sum()
}

async fn check(set: &Arc<ObjectSet>, id: ObjectId, appended: &[Vec<SpaceSegment>]) {
    let rq = &Request::default();
    let mut read = Flat::new();
    for (at, entry) in entries(rq, set, id, 9).await {
        if let SpaceEntry::Segment(s) = entry {
            assert!(s.words == 1 || at / 512 == (at + 8) / 512, "an entry straddles blocks");
            assert!(s.vdev.is_none() || s.words == 2);
            // Runs that are too long for one entry are in pieces.
            let full = s.length_bytes >> 9;
            match read.last_mut() {
                Some((kind, vdev, offset, length))
                    if (*kind, *vdev, *offset + *length) == (s.kind, s.vdev, s.offset_bytes)
                        && (full <= 1 << 36)
                        && (*length >> 9).is_multiple_of(1 << 36) =>
                {
                    *length += s.length_bytes;
                }
                _ => read.push((s.kind, s.vdev, s.offset_bytes, s.length_bytes)),
            }
        }
    }
    let expected: Flat = appended.iter().flat_map(|s| flat(s)).collect();
    // A segment without a vdev has vdev 0 in an entry of two words.
    let plain = |flat: Flat| flat.into_iter().map(|(k, v, o, l)| (k, v.unwrap_or(0), o, l)).collect::<Vec<_>>();
    assert_eq!(plain(read), plain(expected));
    let header = header(rq, set, id).await.unwrap();
    assert_eq!(header.allocated_bytes, appended.iter().map(|s| balance(s)).sum::<i64>());
    assert_eq!(header.object, id.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_appended_is_read_back(
        batches in prop_oneof![
            proptest::collection::vec(proptest::collection::vec(segment(false), 0..60), 1..6),
            proptest::collection::vec(proptest::collection::vec(segment(true), 0..60), 1..6),
        ],
        condense: bool,
    ) {
        let world = SimWorld::new(1);
        let machine = world.machine();
        let run = world.run(async move {
            let rq = &Request::default();
            let set = scratch(&machine, ObjsetKind::Meta);
            let tx = &set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            let id = create(rq, &set, tx, 512, true).await.unwrap();
            let style = Style { shift: 9, two_words: true, pass: 1 };
            for batch in &batches {
                append(rq, &set, tx, id, style, batch, None).await.unwrap();
            }
            check(&set, id, &batches).await;
            if condense {
                let bins = histogram(&counted(batches[0].iter().map(|s| s.length_bytes)), 9);
                rewrite(rq, &set, tx, id, style, &batches[0], Some(&bins)).await.unwrap();
                check(&set, id, &batches[..1]).await;
                assert_eq!(header(rq, &set, id).await.unwrap().histogram, Some(bins));
            }
        });
        run.unwrap();
    }
}

#[test]
fn maps_of_one_word_take_long_runs_in_pieces_and_refuse_the_rest() {
    let world = SimWorld::new(1);
    let machine = world.machine();
    let run = world.run(async move {
        let rq = &Request::default();
        let set = scratch(&machine, ObjsetKind::Meta);
        let tx = &set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        let id = create(rq, &set, tx, 4096, true).await.unwrap();
        let style = Style { shift: 12, two_words: false, pass: 2 };
        let of = |offset: u64, length: u64, vdev| SpaceSegment {
            kind: SpaceKind::Alloc,
            vdev,
            offset_bytes: offset << 12,
            length_bytes: length << 12,
            words: 0,
        };
        append(rq, &set, tx, id, style, &[of(7, 70_000, None)], None).await.unwrap();
        let runs: Vec<u64> = entries(rq, &set, id, 12)
            .await
            .into_iter()
            .filter_map(|(_, e)| match e {
                SpaceEntry::Segment(s) => Some(s.length_bytes >> 12),
                SpaceEntry::Debug { action: 0, sync_pass: 2, txg } => {
                    assert_eq!(txg, tx.txg());
                    None
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(runs, [1 << 15, 1 << 15, 70_000 - (2 << 15)]);
        let before = header(rq, &set, id).await.unwrap();
        let half = SpaceSegment { length_bytes: 2048, ..of(0, 1, None) };
        for bad in [of(1 << 47, 1, None), of(0, 1, Some(2)), of(3, 0, None), half] {
            assert!(append(rq, &set, tx, id, style, &[bad], None).await.is_err());
        }
        assert_eq!(header(rq, &set, id).await.unwrap(), before);
    });
    run.unwrap();
}

#[test]
fn the_histogram_counts_powers_of_two() {
    let bins = histogram(&counted([511, 512, 1023, 1024, 3 << 9, 1 << 42]), 9);
    assert_eq!((bins[0], bins[1], bins[31]), (2, 2, 4));
    assert_eq!(bins.iter().sum::<u64>(), 8);
}
