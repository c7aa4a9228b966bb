//! Weir: a ZFS storage server in user space.

fn main() {}
