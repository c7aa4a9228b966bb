//! File systems through FUSE.
