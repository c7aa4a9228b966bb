use super::*;

/// Every sector that the map reads, as (child, sector on the child).
fn sectors(map: &Map, ashift: u32) -> Vec<(usize, u64)> {
    let mut all: Vec<_> = map
        .columns()
        .flat_map(|c| (0..(c.size_bytes >> ashift) as u64).map(move |i| (c.child, (c.offset_bytes >> ashift) + i)))
        .collect();
    all.sort_unstable();
    all
}

/// The sectors n … n + count of a vdev's space on `width` children.
fn range(first: u64, count: u64, width: u64) -> Vec<(usize, u64)> {
    let mut all: Vec<_> = (first..first + count).map(|n| ((n % width) as usize, n / width)).collect();
    all.sort_unstable();
    all
}

#[test]
fn the_picture_in_the_theory() {
    let map = Map::new(2 << 12, 10 << 12, 12, 5, 1);
    let columns: Vec<_> =
        map.rows[0].columns.iter().map(|c| (c.child, c.offset_bytes >> 12, c.size_bytes >> 12)).collect();
    assert_eq!(columns, [(2, 0, 3), (3, 0, 3), (4, 0, 3), (0, 1, 2), (1, 1, 2)]);
    assert_eq!(map.len, 10 << 12);
}

#[test]
fn a_block_takes_consecutive_sectors_and_each_byte_has_one_place() {
    for (width, nparity) in [(2, 1), (3, 1), (5, 2), (6, 2), (7, 3), (12, 3)] {
        for first in 0..2 * width {
            for count in 1..40 {
                let map = Map::new(first << 9, count << 9, 9, width, nparity);
                assert_eq!(map.len as u64, count << 9);
                let total = count + nparity * count.div_ceil(width - nparity);
                assert_eq!(sectors(&map, 9), range(first, total, width), "{width} {nparity} {first} {count}");
                let mut at = 0;
                for c in &map.rows[0].columns[nparity as usize..] {
                    assert_eq!(c.at, at);
                    at += c.size_bytes;
                }
                let sizes: Vec<_> = map.rows[0].columns.iter().map(|c| c.size_bytes).collect();
                assert!(sizes.is_sorted_by(|a, b| a >= b), "parity is as long as the longest data column");
            }
        }
    }
}

#[test]
fn single_parity_swaps_in_every_other_mebibyte() {
    let here = Map::new(0, 4096, 12, 3, 1);
    let there = Map::new(3 << 20, 4096, 12, 3, 1);
    assert_eq!(here.rows[0].columns[0].child, 0);
    assert_eq!((3 << 8) % 3, 0);
    assert_eq!(there.rows[0].columns[0].child, 1);
    assert_eq!(there.rows[0].columns[1].child, 0);
    assert_eq!(Map::new(3 << 20, 4096, 12, 4, 2).rows[0].columns[0].child, 0);
}

#[test]
fn after_a_reflow_the_same_sectors_lie_on_more_children() {
    for (old, new, nparity) in [(3, 4, 1), (4, 6, 2), (5, 7, 3)] {
        for first in 0..2 * new {
            for count in 1..30 {
                let layout =
                    Reflowed { physical_width: new, logical_width: old, moved_bytes: u64::MAX, scratch: false };
                let map = Map::expanded(first << 9, count << 9, 9, nparity, layout);
                let total = count + nparity * count.div_ceil(old - nparity);
                assert_eq!(sectors(&map, 9), range(first, total, new), "{old} {new} {first} {count}");
                // Each byte of the block has one place, and in the old layout it is in the row of the same parity.
                let plain = Map::new(first << 9, count << 9, 9, old, nparity);
                let mut seen = vec![false; count as usize];
                for (r, row) in map.rows.iter().enumerate() {
                    for (c, column) in row.columns.iter().enumerate().skip(nparity as usize) {
                        if column.size_bytes == 0 {
                            continue;
                        }
                        let old_column = &plain.rows[0].columns[c];
                        assert_eq!(column.at, old_column.at + (r << 9));
                        assert!(!std::mem::replace(&mut seen[column.at >> 9], true));
                    }
                }
                assert!(seen.iter().all(|s| *s));
            }
        }
    }
}

#[test]
fn rows_not_yet_reflowed_have_the_old_layout_and_the_first_ones_are_in_the_scratch_area() {
    let layout = Reflowed { physical_width: 5, logical_width: 4, moved_bytes: 0, scratch: false };
    assert_eq!(sectors(&Map::expanded(7 << 12, 8 << 12, 12, 1, layout), 12), range(7, 11, 4));
    let layout = Reflowed { moved_bytes: 1 << 20, scratch: true, ..layout };
    let map = Map::expanded(0, 3 << 12, 12, 1, layout);
    assert_eq!(map.rows[0].columns[0].offset_bytes.wrapping_add(4 << 20), 512 << 10);
}

#[test]
fn suspects_are_the_children_that_hold_columns_and_those_of_older_widths() {
    let map = Map::new(0, 2 << 12, 12, 6, 1);
    let suspects = map.suspects(12, 6..=6);
    assert_eq!(suspects.len(), 3);
    assert!(suspects[1].gave(&map.rows[0].columns[1], 6, 12) && !suspects[1].gave(&map.rows[0].columns[0], 6, 12));
    let layout = Reflowed { physical_width: 4, logical_width: 3, moved_bytes: u64::MAX, scratch: false };
    let map = Map::expanded(0, 8 << 12, 12, 1, layout);
    let suspects = map.suspects(12, 3..=4);
    assert_eq!(suspects.len(), 7);
    // The former child 1 had the middle sector of every row of three.
    for (r, row) in map.rows.iter().enumerate() {
        for (c, column) in row.columns.iter().enumerate() {
            assert_eq!(suspects[5].gave(column, 4, 12), c == 1, "row {r}, column {c}");
        }
    }
}
