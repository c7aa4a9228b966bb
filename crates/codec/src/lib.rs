//! Checksums, compression, encryption and parity of the OpenZFS format.
