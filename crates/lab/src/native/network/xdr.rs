//! Values in XDR (RFC 4506), as arguments and results of calls.

use std::io;

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct Arguments(pub Vec<u8>);

impl Arguments {
    /// Adds an integer.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Adds a long integer.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Adds bytes with their length.
    #[must_use]
    pub fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// Results of a call, read from the front.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a>(pub &'a [u8]);

impl<'a> Results<'a> {
    fn bytes(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (first, rest) =
            self.0.split_at_checked(count).ok_or_else(|| broken("an answer that ends within its data"))?;
        self.0 = rest;
        Ok(first)
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If the answer ends within it.
    pub fn u32(&mut self) -> io::Result<u32> {
        self.bytes(4).map(|bytes| bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    /// Reads a long integer.
    ///
    /// # Errors
    /// As [`Results::u32`].
    pub fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// Reads bytes with their length.
    ///
    /// # Errors
    /// As [`Results::u32`].
    pub fn opaque(&mut self) -> io::Result<&'a [u8]> {
        let len = self.u32()? as usize;
        let padded = len.checked_next_multiple_of(4).ok_or_else(|| broken("a length that is out of bounds"))?;
        self.bytes(padded).map(|bytes| &bytes[..len])
    }

    /// Skips a part that is preceded by whether it is there.
    ///
    /// # Errors
    /// As [`Results::u32`].
    pub fn skip_optional(&mut self, bytes: usize) -> io::Result<()> {
        if self.u32()? != 0 {
            self.bytes(bytes)?;
        }
        Ok(())
    }
}

/// An error of the protocol.
pub fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("NFS: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_read_and_the_end_is_an_error() {
        let arguments = Arguments::default().u32(7).opaque(b"abcde").u64(1 << 40).u32(0);
        let mut results = Results(&arguments.0);
        assert_eq!(results.u32().unwrap(), 7);
        assert_eq!(results.opaque().unwrap(), b"abcde");
        assert_eq!(results.u64().unwrap(), 1 << 40);
        results.skip_optional(84).unwrap();
        assert!(results.u32().is_err());
        for length in [u32::MAX, 8] {
            let long = Arguments::default().u32(length).u32(0);
            assert!(Results(&long.0).opaque().is_err(), "{length}");
        }
    }
}
