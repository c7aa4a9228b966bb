//! Whom callers become: who NFS clients say they are is believed, but for those who are squashed.
//!
//! What they may is decided in [`weir_files::permission`].

use crate::rpc::Credential;
use crate::server::Options;
use smallvec::SmallVec;
use weir_files::Cred;

/// The user that root and callers without a name become unless told otherwise.
pub const NOBODY: u32 = 65_534;

/// Whom callers become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// User and group 0 become nobody.
    #[default]
    Root,
    /// Everybody becomes nobody.
    All,
    /// Everybody is who they say they are.
    Nobody,
}

/// The caller that a credential names, once squashed.
pub fn caller(credential: &Credential, options: &Options) -> Cred {
    let anonymous = || Cred::new(options.anon_uid, options.anon_gid, &[]);
    let Credential::System { uid, gid, groups } = credential else { return anonymous() };
    let squash = |id: u32, nobody: u32| if options.squash == Squash::Root && id == 0 { nobody } else { id };
    match options.squash {
        Squash::All => anonymous(),
        Squash::Root | Squash::Nobody => {
            let groups: SmallVec<[u32; 16]> = groups.iter().map(|group| squash(*group, options.anon_gid)).collect();
            Cred::new(squash(*uid, options.anon_uid), squash(*gid, options.anon_gid), &groups)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_nameless_become_nobody() {
        let squashing = |squash| Options { squash, anon_gid: 99, ..Options::default() };
        let root = Credential::System { uid: 0, gid: 0, groups: SmallVec::from_slice(&[0, 7]) };
        assert_eq!(caller(&root, &squashing(Squash::Root)), Cred::new(NOBODY, 99, &[99, 7]));
        assert_eq!(caller(&root, &squashing(Squash::Nobody)), Cred::new(0, 0, &[0, 7]));
        assert_eq!(caller(&root, &squashing(Squash::All)), Cred::new(NOBODY, 99, &[]));
        assert_eq!(caller(&Credential::None, &squashing(Squash::Nobody)), Cred::new(NOBODY, 99, &[]));
    }
}
