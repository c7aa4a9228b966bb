//! Record marking (RFC 5531, section 11): messages on a stream, as fragments with a length prefix.
//!
//! ```text
//!   | last 1 bit | length 31 bits | bytes … | last | length | bytes …
//! ```
//!
//! A message may consist of several fragments, though clients rarely need more than one. The length of a message and
//! its number of fragments are limited, so a peer that never sets the last-fragment bit is disconnected. Memory is
//! allocated only for received bytes, never for an announced length.

use thiserror::Error;

/// Maximum message length in bytes: a WRITE of the maximum size announced in FSINFO, plus headers.
pub const MAX_MESSAGE_BYTES: usize = (1 << 20) + (16 << 10);
/// Maximum number of fragments of one message.
pub const MAX_FRAGMENTS: u32 = 128;
/// Bit of the record mark that marks the last fragment.
pub const LAST: u32 = 1 << 31;

/// Error that ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The message is too long.
    #[error("a message of more than {MAX_MESSAGE_BYTES} bytes")]
    TooLong,
    /// The message has too many fragments.
    #[error("a message of more than {MAX_FRAGMENTS} fragments")]
    TooManyFragments,
}

/// Reassembles messages from fragments.
#[derive(Debug, Default)]
pub struct Assembler {
    message: Vec<u8>,
    fragments: u32,
    /// Missing bytes of the current fragment, and whether it is the last one.
    current: Option<(usize, bool)>,
}

impl Assembler {
    /// Consumes bytes from the front of `input`; returns a message when one is complete. Call it until it returns
    /// `None`: then `input` holds fewer than four bytes.
    pub fn take(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, RecordError> {
        loop {
            let (missing, last) = match self.current {
                Some(current) => current,
                None => {
                    let Some((head, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
                    *input = rest;
                    self.begin(u32::from_be_bytes(*head))?
                }
            };
            let (now, rest) = input.split_at(missing.min(input.len()));
            *input = rest;
            self.message.extend_from_slice(now);
            if now.len() < missing {
                self.current = Some((missing - now.len(), last));
                return Ok(None);
            }
            self.current = None;
            if last {
                self.fragments = 0;
                return Ok(Some(std::mem::take(&mut self.message)));
            }
        }
    }

    /// Length of the current message as announced by its fragments so far, in bytes; at most [`MAX_MESSAGE_BYTES`].
    pub fn claimed_bytes(&self) -> usize {
        self.message.len() + self.current.map_or(0, |(missing, _)| missing)
    }

    fn begin(&mut self, mark: u32) -> Result<(usize, bool), RecordError> {
        let len = (mark & !LAST) as usize;
        self.fragments += 1;
        if self.fragments > MAX_FRAGMENTS {
            return Err(RecordError::TooManyFragments);
        }
        if len > MAX_MESSAGE_BYTES - self.message.len().min(MAX_MESSAGE_BYTES) {
            return Err(RecordError::TooLong);
        }
        Ok((len, mark & LAST != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut assembler = Assembler::default();
        let mut messages = Vec::new();
        let mut kept = Vec::new();
        for piece in pieces {
            kept.extend_from_slice(piece);
            let mut input = kept.as_slice();
            while let Some(message) = assembler.take(&mut input)? {
                messages.push(message);
            }
            kept = input.to_vec();
        }
        Ok(messages)
    }

    #[test]
    fn messages_are_reassembled_at_any_split() {
        let stream = [&[0, 0, 0, 2, 1, 2][..], &[0x80, 0, 0, 1, 3], &[0x80, 0, 0, 0], &[0x80, 0, 0, 1, 4]].concat();
        let wanted = vec![vec![1, 2, 3], vec![], vec![4]];
        assert_eq!(all(&[&stream]).unwrap(), wanted);
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(all(&single).unwrap(), wanted);
        for cut in 0..stream.len() {
            assert_eq!(all(&[&stream[..cut], &stream[cut..]]).unwrap(), wanted);
        }
    }

    #[test]
    fn oversized_messages_are_refused() {
        assert_eq!(all(&[&[0xff, 0xff, 0xff, 0xff]]), Err(RecordError::TooLong));
        assert_eq!(all(&[&[0; 4 * 129]]), Err(RecordError::TooManyFragments));
        let mut long = (MAX_MESSAGE_BYTES as u32).to_be_bytes().to_vec();
        long.resize(4 + MAX_MESSAGE_BYTES, 7);
        long.extend_from_slice(&[0, 0, 0, 1]);
        assert_eq!(all(&[&long]), Err(RecordError::TooLong));
    }
}
