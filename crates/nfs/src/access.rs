//! Maps AUTH_SYS credentials to local ones. They are trusted as sent, except for squashed uids.
//!
//! Permissions are checked in [`weir_files::permission`].

use crate::rpc::Credential;
use smallvec::SmallVec;
use weir_files::Cred;

/// Default UID and GID of squashed and anonymous callers.
pub const NOBODY: u32 = 65_534;

/// Which callers are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// User and group 0 become the anonymous user and group (root squash).
    #[default]
    Root,
    /// All users become the anonymous user.
    All,
    /// No user is mapped.
    None,
}

/// Identity mapping of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which credentials are replaced by the anonymous user.
    pub squash: Squash,
    /// UID of the anonymous user.
    pub anon_uid: u32,
    /// GID of the anonymous user.
    pub anon_gid: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { squash: Squash::Root, anon_uid: NOBODY, anon_gid: NOBODY }
    }
}

/// Local credentials of a caller, after squashing.
pub fn caller(credential: &Credential, options: &Options) -> Cred {
    let anonymous = || Cred::new(options.anon_uid, options.anon_gid, &[]);
    let Credential::System { uid, gid, groups } = credential else { return anonymous() };
    let squash = |id: u32, anonymous: u32| if options.squash == Squash::Root && id == 0 { anonymous } else { id };
    match options.squash {
        Squash::All => anonymous(),
        Squash::Root | Squash::None => {
            let groups: SmallVec<[u32; 16]> = groups.iter().map(|group| squash(*group, options.anon_gid)).collect();
            Cred::new(squash(*uid, options.anon_uid), squash(*gid, options.anon_gid), &groups)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_anonymous_callers_are_squashed() {
        let squashing = |squash| Options { squash, anon_gid: 99, ..Options::default() };
        let root = Credential::System { uid: 0, gid: 0, groups: SmallVec::from_slice(&[0, 7]) };
        assert_eq!(caller(&root, &squashing(Squash::Root)), Cred::new(NOBODY, 99, &[99, 7]));
        assert_eq!(caller(&root, &squashing(Squash::None)), Cred::new(0, 0, &[0, 7]));
        assert_eq!(caller(&root, &squashing(Squash::All)), Cred::new(NOBODY, 99, &[]));
        assert_eq!(caller(&Credential::None, &squashing(Squash::None)), Cred::new(NOBODY, 99, &[]));
    }
}
