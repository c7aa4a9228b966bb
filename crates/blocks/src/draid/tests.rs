use super::*;

fn layout(ndata: u64, nparity: u64, nspares: u64, children: u64) -> Layout {
    // As OpenZFS chooses it: the smallest number of groups that fill whole rows.
    let group = ndata + nparity;
    let disks = children - nspares;
    let ngroups = (1..=disks).find(|n| (n * group).is_multiple_of(disks)).expect("disks itself fits");
    Layout { ndata, nparity, nspares, ngroups, children, width: children }
}

#[test]
fn every_seed_makes_the_permutations_that_its_checksum_says() {
    for children in 2..=255u64 {
        let map = Map::new(layout(1, 1, 0, children), 12).expect("a checked seed");
        for row in map.permutations.chunks_exact(children as usize) {
            let mut seen = vec![false; children as usize];
            row.iter().for_each(|&c| seen[usize::from(c)] = true);
            assert!(seen.iter().all(|&s| s), "{children} children: a row is no permutation");
        }
    }
}

#[test]
fn no_two_blocks_share_a_sector_and_no_block_shares_a_disk() {
    let map = Map::new(layout(3, 1, 1, 8), 9).expect("valid");
    let mut taken = std::collections::BTreeSet::new();
    let step = map.asize_bytes(512 * 7);
    for n in 0..2000 {
        // From the end of a group on, so that some blocks wrap into the next one.
        for row in map.rows(map.layout().group_bytes() - 1000 * step + n * step, 512 * 7) {
            let mut children: Vec<_> = row.columns.iter().map(|c| c.child).collect();
            children.sort_unstable();
            children.dedup();
            assert_eq!(children.len(), 4, "a child twice in one row");
            for c in row.columns {
                for s in 0..c.size_bytes / 512 {
                    assert!(taken.insert((c.child, c.offset_bytes + s * 512)), "sector given twice");
                }
            }
        }
    }
}

#[test]
fn rows_hold_exactly_the_block() {
    let map = Map::new(layout(4, 2, 2, 14), 12).expect("valid");
    for size in [512, 4096, 5000, 131072, 1 << 20] {
        let rows = map.rows(map.asize_bytes(4096) * 3, size);
        let held: u64 = rows.iter().map(|r| r.data_bytes).sum();
        assert_eq!(held, size.div_ceil(4096) * 4096);
        for row in rows {
            let data: u64 = row.columns[2..].iter().map(|c| c.size_bytes).sum();
            assert_eq!(data, row.data_bytes);
        }
    }
}

#[test]
fn impossible_layouts_and_offsets_are_refused_not_followed() {
    assert!(Map::new(Layout { nparity: 4, ..layout(4, 2, 2, 14) }, 12).is_err());
    assert!(Map::new(Layout { ndata: 200, ..layout(4, 2, 2, 14) }, 12).is_err());
    assert!(Map::new(Layout { ngroups: 0, ..layout(4, 2, 2, 14) }, 12).is_err());
    assert!(Map::new(Layout { children: 0, width: 0, ..layout(4, 2, 2, 14) }, 12).is_err());
    let map = Map::new(layout(4, 2, 2, 14), 12).expect("valid");
    map.rows(u64::MAX - 4095, 1 << 24);
    map.rows(4096 * 5, 1 << 24);
    assert_eq!(map.spare_child(2, 0), None);
}
