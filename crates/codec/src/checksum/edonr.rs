//! Edon-R-512 as used by ZFS: the SHA-3 candidate of Gligoroski and others, with the later tweak that feeds message
//! and chaining value forward (OpenZFS `module/icp/algs/edonr/edonr.c` implements the same function).
//!
//! The chaining value has sixteen 64-bit words; a block has sixteen little-endian words. Each block takes eight
//! *quasigroup* operations X∗Y over rows of eight words: two sets of sums of the row's words, rotated (from X and
//! from Y by different orthogonal Latin squares), then mixed by xors and one more addition. Padding: a 1 bit, zeros,
//! and the message length in bits in the last 64 of the last block. The digest is the second half of the chaining
//! value.

/// Size of a block in bytes.
const BLOCK: usize = 128;
type Row = [u64; 8];

/// The state of an incremental Edon-R-512.
#[derive(Clone)]
pub struct EdonR512 {
    chain: [u64; 16],
    pending: [u8; BLOCK],
    pending_bytes: usize,
    total_bytes: u64,
}

impl Default for EdonR512 {
    fn default() -> Self {
        Self::new()
    }
}

impl EdonR512 {
    /// The initial state: the chaining value is the bytes 0x80…0xff as big-endian words.
    pub fn new() -> Self {
        let chain = std::array::from_fn(|i| u64::from_be_bytes(std::array::from_fn(|b| (0x80 + 8 * i + b) as u8)));
        EdonR512 { chain, pending: [0; BLOCK], pending_bytes: 0, total_bytes: 0 }
    }

    /// The digest of `data`.
    pub fn hash(data: &[u8]) -> [u8; 64] {
        let mut state = Self::new();
        state.update(data);
        state.finish()
    }

    /// Adds bytes to the message.
    pub fn update(&mut self, mut data: &[u8]) {
        self.total_bytes = self.total_bytes.wrapping_add(data.len() as u64);
        if self.pending_bytes > 0 {
            let (now, later) = data.split_at(data.len().min(BLOCK - self.pending_bytes));
            self.pending[self.pending_bytes..self.pending_bytes + now.len()].copy_from_slice(now);
            self.pending_bytes += now.len();
            data = later;
            if self.pending_bytes < BLOCK {
                return;
            }
            compress(&mut self.chain, &[self.pending]);
        }
        let (blocks, rest) = data.as_chunks::<BLOCK>();
        compress(&mut self.chain, blocks);
        self.pending[..rest.len()].copy_from_slice(rest);
        self.pending_bytes = rest.len();
    }

    /// Completes the message and returns the 64-byte digest.
    pub fn finish(mut self) -> [u8; 64] {
        let bits = self.total_bytes.wrapping_mul(8);
        let mut tail = [[0u8; BLOCK]; 2];
        tail[0][..self.pending_bytes].copy_from_slice(&self.pending[..self.pending_bytes]);
        tail[0][self.pending_bytes] = 0x80;
        let last = usize::from(self.pending_bytes >= BLOCK - 8);
        tail[last][BLOCK - 8..].copy_from_slice(&bits.to_le_bytes());
        compress(&mut self.chain, &tail[..=last]);
        let mut out = [0; 64];
        for (to, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(&self.chain[8..]) {
            *to = w.to_le_bytes();
        }
        out
    }
}

/// The operation X ∗ Y of the quasigroup of order 2⁵¹².
#[inline(always)]
fn star(x: Row, y: Row) -> Row {
    const ADDEND: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let add = u64::wrapping_add;
    let rot = u64::rotate_left;

    // Sums of five words of X each, selected by the rows of the first Latin square; common pairs are added once.
    let x04 = add(x[0], x[4]);
    let x17 = add(x[1], x[7]);
    let x23 = add(x[2], x[3]);
    let x56 = add(x[5], x[6]);
    let x0147 = add(x04, x17);
    let x2356 = add(x23, x56);
    let s0 = add(add(x0147, x[2]), ADDEND);
    let s1 = rot(add(x0147, x[3]), 5);
    let s2 = rot(add(x0147, x[6]), 15);
    let s3 = rot(add(x2356, x[7]), 22);
    let s4 = rot(add(x2356, x[1]), 31);
    let s5 = rot(add(add(x04, x23), x[5]), 40);
    let s6 = rot(add(add(x17, x56), x[0]), 50);
    let s7 = rot(add(x2356, x[4]), 59);

    // The same for Y with the second Latin square.
    let y01 = add(y[0], y[1]);
    let y25 = add(y[2], y[5]);
    let y34 = add(y[3], y[4]);
    let y67 = add(y[6], y[7]);
    let y0125 = add(y01, y25);
    let y0134 = add(y01, y34);
    let y2567 = add(y25, y67);
    let y3467 = add(y34, y67);
    let t0 = add(add(y0125, y[7]), !ADDEND);
    let t1 = rot(add(y0134, y[6]), 10);
    let t2 = rot(add(y0125, y[3]), 19);
    let t3 = rot(add(y3467, y[2]), 29);
    let t4 = rot(add(y0134, y[5]), 36);
    let t5 = rot(add(y2567, y[4]), 44);
    let t6 = rot(add(y2567, y[1]), 48);
    let t7 = rot(add(y3467, y[0]), 55);

    [
        add(s0 ^ s1 ^ s4, t0 ^ t1 ^ t5),
        add(s0 ^ s4 ^ s7, t2 ^ t6 ^ t7),
        add(s1 ^ s6 ^ s7, t0 ^ t1 ^ t3),
        add(s2 ^ s3 ^ s4, t0 ^ t3 ^ t4),
        add(s0 ^ s1 ^ s7, t1 ^ t2 ^ t5),
        add(s3 ^ s5 ^ s6, t3 ^ t4 ^ t6),
        add(s2 ^ s5 ^ s6, t2 ^ t5 ^ t7),
        add(s2 ^ s3 ^ s5, t4 ^ t6 ^ t7),
    ]
}

fn compress(chain: &mut [u64; 16], blocks: &[[u8; BLOCK]]) {
    let mut low: Row = std::array::from_fn(|i| chain[i]);
    let mut high: Row = std::array::from_fn(|i| chain[8 + i]);
    for block in blocks {
        let words = block.as_chunks::<8>().0;
        let m_low: Row = std::array::from_fn(|i| u64::from_le_bytes(words[i]));
        let m_high: Row = std::array::from_fn(|i| u64::from_le_bytes(words[8 + i]));
        let reversed = |mut row: Row| {
            row.reverse();
            row
        };
        let p = star(reversed(m_high), m_low);
        let q = star(p, m_high);
        let p = star(high, p);
        let q = star(p, q);
        let p = star(p, low);
        let q = star(q, p);
        let p = star(reversed(m_low), p);
        let q = star(p, q);
        for i in 0..8 {
            low[i] ^= m_high[i] ^ p[i];
            high[i] ^= m_low[i] ^ q[i];
        }
    }
    chain[..8].copy_from_slice(&low);
    chain[8..].copy_from_slice(&high);
}
