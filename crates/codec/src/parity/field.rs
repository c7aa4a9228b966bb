//! GF(2⁸) with the polynomial x⁸ + x⁴ + x³ + x² + 1 (0x11D), ZFS's field for RAID-Z (OpenZFS
//! `module/zfs/vdev_raidz.c`).

/// The low eight bits of the polynomial.
const REDUCE: u8 = 0x1d;

/// 2·x.
pub const fn double(x: u8) -> u8 {
    (x << 1) ^ (REDUCE & (x >> 7).wrapping_neg())
}

/// a·b.
pub const fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= a & (b & 1).wrapping_neg();
        a = double(a);
        b >>= 1;
    }
    product
}

/// aⁿ.
pub const fn power(a: u8, n: usize) -> u8 {
    let mut result = 1;
    let mut square = a;
    let mut left = n % 255;
    while left != 0 {
        if left & 1 == 1 {
            result = mul(result, square);
        }
        square = mul(square, square);
        left >>= 1;
    }
    result
}

/// 1/a; `None` for 0.
pub const fn inverse(a: u8) -> Option<u8> {
    if a == 0 { None } else { Some(power(a, 254)) }
}

/// Inverts the upper left `n`×`n` of a matrix; `None` if it is singular. `n` is at most 3.
pub fn invert(mut m: [[u8; 3]; 3], n: usize) -> Option<[[u8; 3]; 3]> {
    let mut inverted = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    let n = n.min(3);
    for column in 0..n {
        let pivot = (column..n).find(|&row| m[row][column] != 0)?;
        m.swap(column, pivot);
        inverted.swap(column, pivot);
        let scale = inverse(m[column][column])?;
        let normal = (m[column].map(|x| mul(x, scale)), inverted[column].map(|x| mul(x, scale)));
        (m[column], inverted[column]) = normal;
        for row in (0..n).filter(|&row| row != column) {
            let factor = m[row][column];
            for i in 0..3 {
                m[row][i] ^= mul(factor, normal.0[i]);
                inverted[row][i] ^= mul(factor, normal.1[i]);
            }
        }
    }
    Some(inverted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_laws() {
        for a in 0..=255u8 {
            assert_eq!(mul(a, 2), double(a));
            assert_eq!(mul(a, 1), a);
            if let Some(i) = inverse(a) {
                assert_eq!(mul(a, i), 1);
            }
            for b in [3u8, 77, 200] {
                assert_eq!(mul(a, b), mul(b, a));
                assert_eq!(mul(a, b ^ 9), mul(a, b) ^ mul(a, 9));
            }
        }
        // 2 generates the field, so 255 columns have distinct factors.
        assert!((1..255).all(|n| power(2, n) != 1) && power(2, 255) == 1);
        assert_eq!(double(0x80), 0x1d);
    }

    #[test]
    fn matrices_invert() {
        let m = [[1, 1, 1], [4, 2, 1], [16, 4, 1]];
        let i = invert(m, 3).unwrap();
        for (row, terms) in m.iter().enumerate() {
            let product: [u8; 3] = std::array::from_fn(|c| (0..3).fold(0, |sum, k| sum ^ mul(terms[k], i[k][c])));
            assert_eq!(product, std::array::from_fn(|c| u8::from(row == c)));
        }
        assert_eq!(invert([[1, 1, 0], [1, 1, 0], [0, 0, 1]], 2), None);
    }
}
