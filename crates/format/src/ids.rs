//! Newtypes for numbers that are easily confused.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// A transaction group's number: the pool's logical clock.
    Txg
);
id!(
    /// An object's number inside its object set.
    ObjectId
);
id!(
    /// An object set's number: the object number of its dataset in the meta object set (MOS); 0 is the MOS itself.
    ObjsetId
);

impl ObjsetId {
    /// The meta object set.
    pub const MOS: ObjsetId = ObjsetId(0);
}
