//! Objects of a pool: dnodes, ZAPs, datasets, intent logs.

/// A set of objects: the MOS, a file system, a snapshot or a volume.
pub struct ObjectSet {
    _private: (),
}
