use super::*;
use proptest::prelude::*;

/// A row in RAID-Z layout: the first columns are a sector longer than the rest.
fn row(columns: usize, sectors: usize, longer: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..columns).map(|c| (0..512 * (sectors + usize::from(c < longer))).map(|_| byte()).collect()).collect()
}

fn parities(data: &[Vec<u8>], count: usize) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xcc; data[0].len()]; count];
    let columns: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
    generate(&columns, &mut rows).unwrap();
    parity
}

/// Horner's rule, column by column, as the definition is usually written.
#[test]
fn parity_matches_its_definition() {
    let data = row(5, 2, 3, 42);
    let parity = parities(&data, 3);
    for (p, times) in [(0, 1), (1, 2), (2, 4)] {
        let horner = |i| data.iter().fold(0, |sum, d| field::mul(sum, times) ^ d.get(i).copied().unwrap_or(0));
        let expected: Vec<u8> = (0..data[0].len()).map(horner).collect();
        assert_eq!(parity[p], expected);
    }
}

/// All sets of up to three lost columns, of data and parity, for rows of several widths.
#[test]
fn any_tolerable_loss_is_reconstructed() {
    for (columns, count) in [(1, 3), (2, 1), (3, 2), (4, 3), (8, 3)] {
        let data = row(columns, 1, columns.div_ceil(2), columns as u64 * 977);
        let parity = parities(&data, count);
        let total = columns + count;
        for lost in (0u32..1 << total).filter(|l| l.count_ones() as usize <= count) {
            let is_lost = |i: usize| lost >> i & 1 == 1;
            let have: Vec<Option<&[u8]>> = (0..columns).map(|i| (!is_lost(i)).then_some(&data[i][..])).collect();
            let known_parity: Vec<Option<&[u8]>> =
                (0..count).map(|p| (!is_lost(columns + p)).then_some(&parity[p][..])).collect();
            let gaps: Vec<usize> = (0..columns).filter(|&i| is_lost(i)).collect();
            let mut rebuilt: Vec<Vec<u8>> = gaps.iter().map(|&i| vec![0; data[i].len()]).collect();
            let mut buffers: Vec<&mut [u8]> = rebuilt.iter_mut().map(|r| &mut r[..]).collect();
            reconstruct(&have, &known_parity, &mut buffers).unwrap();
            for (gap, bytes) in gaps.iter().zip(&rebuilt) {
                assert_eq!(bytes, &data[*gap], "lost {lost:b} of {columns}+{count}");
            }
        }
    }
}

proptest! {
    #[test]
    fn wide_rows_are_reconstructed(columns in 3usize..255, seed: u64, picks in any::<[prop::sample::Index; 3]>()) {
        let data = row(columns, 0, columns, seed);
        let parity = parities(&data, 3);
        let mut have: Vec<Option<&[u8]>> = data.iter().map(|d| Some(&d[..])).collect();
        picks.iter().for_each(|p| have[p.index(columns)] = None);
        let gaps: Vec<usize> = (0..columns).filter(|&i| have[i].is_none()).collect();
        let known_parity: Vec<Option<&[u8]>> = parity.iter().map(|p| Some(&p[..])).collect();
        let mut rebuilt = vec![vec![0; 512]; gaps.len()];
        let mut buffers: Vec<&mut [u8]> = rebuilt.iter_mut().map(|r| &mut r[..]).collect();
        reconstruct(&have, &known_parity, &mut buffers).unwrap();
        for (gap, bytes) in gaps.iter().zip(&rebuilt) {
            prop_assert_eq!(bytes, &data[*gap]);
        }
    }
}

#[test]
fn check_detects_one_wrong_byte() {
    let mut data = row(4, 1, 2, 5);
    let mut parity = parities(&data, 2);
    let verdict = |data: &[Vec<u8>], parity: &[Vec<u8>]| {
        let columns: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
        let rows: Vec<Option<&[u8]>> = parity.iter().map(|p| Some(&p[..])).collect();
        check(&columns, &rows).unwrap()
    };
    assert!(verdict(&data, &parity));
    parity[1][1023] ^= 1;
    assert!(!verdict(&data, &parity));
    parity[1][1023] ^= 1;
    data[3][0] ^= 0x80;
    assert!(!verdict(&data, &parity));
    // A parity column that is `None` is skipped.
    let columns: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
    assert!(check(&columns, &[None, None]).unwrap() && !check(&columns, &[None, Some(&parity[1])]).unwrap());
}

#[test]
fn invalid_rows_are_rejected() {
    let is_rejected = |r: Result<(), CodecError>| matches!(r, Err(CodecError::Columns { .. }));
    let mut short = [0; 2];
    assert!(is_rejected(generate(&[], &mut [&mut short])));
    assert!(is_rejected(generate(&[&[1, 2, 3]], &mut [&mut short])));
    assert!(is_rejected(generate(&[&[1]], &mut [])));
    assert!(is_rejected(generate(&[&[1][..]; 256], &mut [&mut short])));
    assert!(is_rejected(reconstruct(&[None, Some(&[1])], &[None], &mut [&mut short])));
    assert!(is_rejected(reconstruct(&[None, Some(&[1])], &[Some(&[1, 2])], &mut [])));
    assert!(is_rejected(reconstruct(&[None, None], &[Some(&[1, 2])], &mut [&mut [0], &mut [0]])));
    assert!(is_rejected(reconstruct(&[None], &[Some(&[1])], &mut [&mut short])));
    assert!(is_rejected(reconstruct(&[], &[], &mut [])));
    assert_eq!(reconstruct(&[Some(&[1])], &[None], &mut []), Ok(()));
}
