//! Skein-512 (The Skein Hash Function Family, version 1.3), plain and keyed, with any output up to 64 bytes.
//!
//! Skein chains Threefish-512, a block cipher of eight 64-bit words with a 128-bit tweak, by *unique block
//! iteration*: `G ← Threefish(key = G, tweak, block) ⊕ block`, where the tweak holds the number of bytes processed,
//! the kind of input, and whether the block is the first or the last of the input. The inputs are, in order: the key
//! (if any), a configuration block with the output's length, the message, and an output counter. ZFS uses 256 bits of
//! output with the pool's salt as key (OpenZFS `module/zfs/skein_zfs.c`).

const BLOCK: usize = 64;
type Words = [u64; 8];

/// Kinds of input and block flags, in the tweak's upper word.
const KEY: u64 = 0;
const CONFIGURATION: u64 = 4 << 56;
const MESSAGE: u64 = 48 << 56;
const OUTPUT: u64 = 63 << 56;
const FIRST: u64 = 1 << 62;
const LAST: u64 = 1 << 63;

/// The state of an incremental Skein-512.
#[derive(Clone)]
pub struct Skein512 {
    chain: Words,
    /// Number of message bytes in the blocks processed so far.
    taken_bytes: u64,
    /// The last block is held back, since the tweak must mark it as last.
    pending: [u8; BLOCK],
    pending_bytes: usize,
}

impl Skein512 {
    /// An unkeyed hash with `output_bits` of output.
    pub fn new(output_bits: u64) -> Self {
        Self::configured([0; 8], output_bits)
    }

    /// A keyed hash (message authentication code) with `output_bits` of output.
    pub fn keyed(output_bits: u64, key: &[u8]) -> Self {
        let mut chain = [0; 8];
        input(&mut chain, KEY, key);
        Self::configured(chain, output_bits)
    }

    fn configured(mut chain: Words, output_bits: u64) -> Self {
        let mut block = [0; 32];
        // The schema "SHA3", version 1; the output's length; no tree hashing.
        block[..6].copy_from_slice(b"SHA3\x01\x00");
        block[8..16].copy_from_slice(&output_bits.to_le_bytes());
        input(&mut chain, CONFIGURATION, &block);
        Skein512 { chain, taken_bytes: 0, pending: [0; BLOCK], pending_bytes: 0 }
    }

    /// Adds bytes to the message.
    pub fn update(&mut self, mut data: &[u8]) {
        if self.pending_bytes > 0 {
            let (now, later) = data.split_at(data.len().min(BLOCK - self.pending_bytes));
            self.pending[self.pending_bytes..self.pending_bytes + now.len()].copy_from_slice(now);
            self.pending_bytes += now.len();
            data = later;
            if data.is_empty() {
                return;
            }
            blocks(&mut self.chain, &mut self.taken_bytes, MESSAGE, &[self.pending]);
            self.pending_bytes = 0;
        }
        // Process all whole blocks except the last one, which may be the message's last.
        let (now, later) = data.split_at(data.len().saturating_sub(1) / BLOCK * BLOCK);
        blocks(&mut self.chain, &mut self.taken_bytes, MESSAGE, now.as_chunks().0);
        self.pending[..later.len()].copy_from_slice(later);
        self.pending_bytes = later.len();
    }

    /// Completes the message and returns the first `N` ≤ 64 bytes of output.
    pub fn finish<const N: usize>(mut self) -> [u8; N] {
        const { assert!(N <= BLOCK) };
        last(&mut self.chain, self.taken_bytes, MESSAGE, &self.pending[..self.pending_bytes]);
        input(&mut self.chain, OUTPUT, &[0; 8]);
        let mut whole = [0; BLOCK];
        for (to, w) in whole.as_chunks_mut::<8>().0.iter_mut().zip(self.chain) {
            *to = w.to_le_bytes();
        }
        std::array::from_fn(|i| whole[i])
    }
}

/// Processes a whole input.
fn input(chain: &mut Words, kind: u64, data: &[u8]) {
    let (now, later) = data.split_at(data.len().saturating_sub(1) / BLOCK * BLOCK);
    let mut taken = 0;
    blocks(chain, &mut taken, kind, now.as_chunks().0);
    last(chain, taken, kind, later);
}

/// Processes the last block of an input, padded with zeros.
fn last(chain: &mut Words, taken_bytes: u64, kind: u64, data: &[u8]) {
    let mut block = [0; BLOCK];
    block[..data.len()].copy_from_slice(data);
    let first = if taken_bytes == 0 { FIRST } else { 0 };
    step(chain, [taken_bytes.wrapping_add(data.len() as u64), kind | first | LAST], &block);
}

/// Processes whole blocks of an input that do not include its last.
fn blocks(chain: &mut Words, taken_bytes: &mut u64, kind: u64, data: &[[u8; BLOCK]]) {
    for block in data {
        let first = if *taken_bytes == 0 { FIRST } else { 0 };
        *taken_bytes = taken_bytes.wrapping_add(BLOCK as u64);
        step(chain, [*taken_bytes, kind | first], block);
    }
}

/// One step of unique block iteration. Not inlined: inside a loop the compiler would keep key sums in registers
/// instead of the state.
#[inline(never)]
fn step(chain: &mut Words, tweak: [u64; 2], block: &[u8; BLOCK]) {
    let message: Words = {
        let chunks = block.as_chunks::<8>().0;
        std::array::from_fn(|i| u64::from_le_bytes(chunks[i]))
    };
    let cipher = threefish(chain, tweak, message);
    *chain = std::array::from_fn(|i| cipher[i] ^ message[i]);
}

/// Threefish-512: 72 rounds; a subkey is added before every fourth round and at the end.
#[inline(always)]
fn threefish(key: &Words, tweak: [u64; 2], v: Words) -> Words {
    const PARITY: u64 = 0x1BD1_1BDA_A9FC_1A22;
    let k: [u64; 9] = std::array::from_fn(|i| if i < 8 { key[i] } else { key.iter().fold(PARITY, |p, w| p ^ w) });
    let t = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = v;

    macro_rules! add_subkey {
        ($s:expr) => {
            const S: usize = $s;
            a = a.wrapping_add(k[S % 9]);
            b = b.wrapping_add(k[(S + 1) % 9]);
            c = c.wrapping_add(k[(S + 2) % 9]);
            d = d.wrapping_add(k[(S + 3) % 9]);
            e = e.wrapping_add(k[(S + 4) % 9]);
            f = f.wrapping_add(k[(S + 5) % 9].wrapping_add(t[S % 3]));
            g = g.wrapping_add(k[(S + 6) % 9].wrapping_add(t[(S + 1) % 3]));
            h = h.wrapping_add(k[(S + 7) % 9].wrapping_add(S as u64));
        };
    }
    macro_rules! mix {
        ($($x:ident $y:ident $r:literal),*) => {
            $($x = $x.wrapping_add($y); $y = $y.rotate_left($r) ^ $x;)*
        };
    }
    // Eight rounds; instead of moving the words, each mix renames them.
    macro_rules! rounds {
        ($($eight:literal)*) => {
            $({
                { add_subkey!(2 * $eight); }
                mix!(a b 46, c d 36, e f 19, g h 37);
                mix!(c b 33, e h 27, g f 14, a d 42);
                mix!(e b 17, g d 49, a f 36, c h 39);
                mix!(g b 44, a h 9, c f 54, e d 56);
                { add_subkey!(2 * $eight + 1); }
                mix!(a b 39, c d 30, e f 34, g h 24);
                mix!(c b 13, e h 50, g f 10, a d 17);
                mix!(e b 25, g d 29, a f 39, c h 43);
                mix!(g b 8, a h 35, c f 56, e d 22);
            })*
        };
    }
    rounds!(0 1 2 3 4 5 6 7 8);
    add_subkey!(18);
    [a, b, c, d, e, f, g, h]
}
